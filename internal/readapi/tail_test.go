package readapi_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/wire"
)

// reader is the client of a tail.
type reader struct {
	t      *testing.T
	s      grpc.ServerStreamingClient[readstatev1.TailResponse]
	cancel context.CancelFunc
	rows   []string
	marks  []int64
	at     ident.Vector
}

func (r *rig) tail(req *readstatev1.TailRequest) *reader {
	r.t.Helper()
	req.Table = tableName
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	s, err := r.client.Tail(ctx, req)
	require.NoError(r.t, err)
	return &reader{t: r.t, s: s, cancel: cancel}
}

// next takes in one message.
func (rd *reader) next() error {
	m, err := rd.s.Recv()
	if err != nil {
		return wire.FromStatus(err)
	}
	if b := m.GetRows(); b != nil {
		got := keys(rd.t, b.GetData())
		require.Len(rd.t, got, int(b.GetRows()))
		require.NotEmpty(rd.t, b.GetFingerprint())
		rd.rows = append(rd.rows, got...)
	}
	if c := m.GetCommit(); c != nil {
		rd.marks = append(rd.marks, c.GetSnapshotId())
	}
	rd.at, err = wire.VectorFromProto(m.GetPosition().GetOffsets())
	require.NoError(rd.t, err)
	return nil
}

// until reads on until ok.
func (rd *reader) until(ok func() bool) {
	rd.t.Helper()
	for !ok() {
		require.NoError(rd.t, rd.next(), "rows %v marks %v", rd.rows, rd.marks)
	}
}

func (rd *reader) sorted() []string { return slices.Sorted(slices.Values(rd.rows)) }

func TestTailSendsRowsAsTheyBecomeVisibleAndMarksCommits(t *testing.T) {
	r := newRig(t, rigOptions{noCold: true}).open()
	r.produce(0, 10)
	rd := r.tail(&readstatev1.TailRequest{})
	rd.until(func() bool { return len(rd.rows) == 8 })
	require.Equal(t, []int64{1000}, rd.marks, "where it begins")
	r.produce(1, 5)
	rd.until(func() bool { return len(rd.rows) == 12 })
	require.Equal(t, ident.Vector{partition(0): 10, partition(1): 5}, rd.at)
	id := r.landAll()
	rd.until(func() bool { return len(rd.marks) == 2 })
	require.Equal(t, id, rd.marks[1])
	require.Equal(t, r.want(r.produced()), rd.sorted())
}

// Design section 6: a tail survives restarts of the buffer without a repeat.
// After one the hot rows are gone until ingest has sent them again.
func TestTailGoesOnOverABufferRestartWithoutARepeat(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 10)
	rd := r.tail(&readstatev1.TailRequest{})
	rd.until(func() bool { return len(rd.rows) == 8 })
	r.live.Load(event.Image{Boot: ident.UUID{2}, Commit: r.commit, Schemas: []event.Schema{r.eventSchema(r.schema, 1)}})
	r.live.Apply(event.Event{Seq: 1, Append: r.hot[0]})
	r.seq = 1
	r.produce(0, 5)
	rd.until(func() bool { return len(rd.rows) >= 12 })
	require.Equal(t, r.want(r.produced()), rd.sorted())
}

// A tail that is cut after any message goes on from its position: nothing twice,
// nothing missing, wherever the rows are by then.
func TestTailResumesFromEveryPosition(t *testing.T) {
	for cut := 1; cut <= 7; cut++ {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			r := newRig(t, rigOptions{}).open()
			r.produce(0, 10)
			r.produce(1, 10)
			r.landAll()
			r.produce(0, 7)
			r.produce(1, 3)
			rd := r.tail(&readstatev1.TailRequest{FromStart: true})
			for range cut {
				if len(rd.rows) < len(r.want(r.produced())) {
					require.NoError(t, rd.next())
				}
			}
			rd.cancel()
			r.land(ident.Vector{partition(0): 12}) // inside an entry
			r.produce(0, 5)

			again := r.tail(&readstatev1.TailRequest{From: offsets(rd.at)})
			want := r.want(r.produced())
			again.until(func() bool { return len(rd.rows)+len(again.rows) >= len(want) })
			got := slices.Sorted(slices.Values(append(slices.Clone(rd.rows), again.rows...)))
			require.Equal(t, want, got)
		})
	}
}

func TestTailOfCommittedOffsetsIsWrongDoorAtTheBuffer(t *testing.T) {
	r := newRig(t, rigOptions{noCold: true}).open()
	r.produce(0, 10)
	r.landAll()
	rd := r.tail(&readstatev1.TailRequest{From: offsets(ident.Vector{partition(0): 4})})
	var err error
	for err == nil {
		err = rd.next()
	}
	require.ErrorIs(t, err, fault.Of(fault.WrongDoor))
	require.Empty(t, rd.rows)
}

func TestTailOfCommittedOffsetsWithoutKafkaColumnIsTooOld(t *testing.T) {
	r := newRig(t, rigOptions{noKafka: true}).open()
	r.produce(0, 10)
	r.landAll()
	rd := r.tail(&readstatev1.TailRequest{FromStart: true})
	require.ErrorIs(t, rd.next(), fault.Of(fault.TooOld))
}

func TestTailBeginsPartitionsFoundLaterWithTheirFirstRow(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	rd := r.tail(&readstatev1.TailRequest{})
	require.NoError(t, rd.next())
	r.produce(7, 6)
	rd.until(func() bool { return len(rd.rows) == 5 })
	require.Equal(t, int64(6), rd.at[partition(7)])
}

func TestTailShowsTheNewSchemaOnceItIsKnown(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	rd := r.tail(&readstatev1.TailRequest{Columns: []string{"id", "name"}})
	r.produce(0, 3)
	rd.until(func() bool { return len(rd.rows) == 3 })
	r.evolve()
	r.produce(0, 3)
	rd.until(func() bool { return len(rd.rows) == 5 })
	require.Equal(t, r.want(r.produced()), rd.sorted())
}

func TestTailOfARecreatedTableIsFenced(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	rd := r.tail(&readstatev1.TailRequest{})
	require.NoError(t, rd.next())
	c := r.commit
	c.Table = ident.UUID{8}
	r.live.Load(event.Image{Commit: c})
	require.ErrorIs(t, rd.next(), fault.Of(fault.Fenced))
}

// Design section 7: a reader that takes nothing is cut, and nobody else notices.
func TestReaderThatTakesNothingIsCutAndOthersGoOn(t *testing.T) {
	meter := newMeter()
	r := newRig(t, rigOptions{server: readapi.Options{Stall: 500 * time.Millisecond, Meter: meter}}).open()
	for range 40 {
		r.produce(0, 2000) // more than the windows of a connection take
	}
	slow := r.tail(&readstatev1.TailRequest{})
	fast := r.tail(&readstatev1.TailRequest{})
	fast.until(func() bool { return len(fast.rows) == 40*1600 })
	require.Equal(t, fault.OverLimit, <-meter.tails)
	var err error
	for err == nil {
		err = slow.next()
	}
	require.ErrorIs(t, err, fault.Of(fault.OverLimit))
}

// meter reports the outcome of tails.
type meter struct{ tails chan fault.Reason }

func newMeter() *meter { return &meter{tails: make(chan fault.Reason, 100)} }

func (m *meter) Read(call string, reason fault.Reason) {
	if call == "tail" {
		m.tails <- reason
	}
}
func (*meter) Sent(string, int64, int64) {}
func (*meter) Leases(int, int64)         {}

func TestServerThatClosesEndsItsTails(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	rd := r.tail(&readstatev1.TailRequest{})
	require.NoError(t, rd.next())
	r.server.Close()
	require.ErrorIs(t, rd.next(), fault.Of(fault.Unavailable))
}

// A tail that fell behind a commit reads only what was added since; when that
// history is expired it looks through the whole snapshot.
func TestTailThatFellBehindReadsTheGapFromTheLake(t *testing.T) {
	for _, expired := range []bool{false, true} {
		t.Run(fmt.Sprint("expired=", expired), func(t *testing.T) {
			r := newRig(t, rigOptions{}).open()
			r.produce(0, 5)
			r.landAll()
			rd := r.tail(&readstatev1.TailRequest{FromStart: true})
			rd.until(func() bool { return len(rd.rows) == 4 && len(rd.marks) == 1 })
			if expired {
				r.cold.expire(r.commit.SnapshotID)
			}
			// Both arrive as one change: the rows are never seen hot.
			a := r.hot[len(r.hot)-1]
			r.live.Load(event.Image{Commit: r.advance(10, a), Schemas: []event.Schema{r.eventSchema(r.schema, 1)}})
			rd.until(func() bool { return len(rd.rows) >= 8 })
			require.Equal(t, r.want(ident.Vector{partition(0): 10}), rd.sorted())
		})
	}
}
