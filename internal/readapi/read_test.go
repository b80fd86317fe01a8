package readapi_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/wire"
)

func TestReadBeforeTheImageSaysWhatIsWaitedFor(t *testing.T) {
	r := newRig(t, rigOptions{})
	_, _, err := r.union(&readstatev1.BeginReadRequest{})
	require.ErrorIs(t, err, fault.Of(fault.NotReady))
	require.ErrorContains(t, err, "waiting for the committer")
	list, err := r.client.ListTables(t.Context(), &readstatev1.ListTablesRequest{})
	require.NoError(t, err)
	require.Equal(t, "waiting for the committer", list.GetTables()[0].GetState())
	_, err = r.client.BeginRead(t.Context(), &readstatev1.BeginReadRequest{Table: "db.none"})
	require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.UnknownTable))
}

// G4: each row exactly once, before, while and after it moves from hot to cold.
func TestUnionHoldsEachRowOnceAcrossTheHandOver(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 10)
	r.produce(1, 7)
	check := func(step string) {
		got, resp, err := r.union(&readstatev1.BeginReadRequest{})
		require.NoError(t, err)
		require.Equal(t, r.want(r.produced()), got, step)
		scanned, _, err := r.scan(&readstatev1.ScanRequest{})
		require.NoError(t, err)
		require.Equal(t, got, scanned, "Scan gives the same as the parts (%s)", step)
		require.Equal(t, int64(len(got)), resp.GetHot().GetRows()+int64(len(r.coldKeys(readapi.ColdScan{Snapshot: resp.GetCold().GetSnapshotId(), Target: r.schema}))), step)
	}
	check("all hot")
	r.land(ident.Vector{partition(0): 6}) // inside an entry
	check("one partition partly cold")
	r.produce(0, 5)
	check("hot behind cold")
	r.landAll()
	check("all cold")
}

// G3: a token gives the same rows after any number of commits, through its parts
// and through Scan, in random histories.
func TestTokenGivesTheSameRowsAcrossCommits(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			r := newRig(t, rigOptions{}).open()
			type kept struct {
				token string
				rows  []string
			}
			var tokens []kept
			for range 25 {
				switch rnd.IntN(4) {
				case 0, 1:
					r.produce(int32(rnd.IntN(2)), 1+rnd.Int64N(12))
				case 2:
					p := partition(int32(rnd.IntN(2)))
					have := r.commit.Positions[p].Next
					if r.next[p] > have {
						r.land(ident.Vector{p: have + 1 + rnd.Int64N(r.next[p]-have)})
					}
				case 3:
					rows, resp, err := r.union(&readstatev1.BeginReadRequest{})
					require.NoError(t, err)
					require.Equal(t, r.want(r.produced()), rows)
					tokens = append(tokens, kept{resp.GetToken(), rows})
				}
				if len(tokens) > 0 {
					k := tokens[rnd.IntN(len(tokens))]
					again, resp, err := r.union(&readstatev1.BeginReadRequest{At: token(k.token)})
					require.NoError(t, err)
					require.Equal(t, k.rows, again)
					require.Equal(t, k.token, resp.GetToken())
					scanned, _, err := r.scan(&readstatev1.ScanRequest{At: token(k.token)})
					require.NoError(t, err)
					require.Equal(t, k.rows, scanned)
				}
			}
		})
	}
}

func TestTokenOfAnExpiredSnapshotIsSnapshotGone(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 5)
	old := r.landAll()
	r.produce(0, 5)
	_, resp, err := r.union(&readstatev1.BeginReadRequest{})
	require.NoError(t, err)
	r.landAll()
	r.cold.expire(old)
	_, _, err = r.scan(&readstatev1.ScanRequest{At: token(resp.GetToken())})
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone))
}

// Design section 6: without _kafka released rows cannot be found again.
func TestTokenWhoseRowsWereReleasedIsTooOldWithoutKafkaColumn(t *testing.T) {
	r := newRig(t, rigOptions{noKafka: true}).open()
	r.produce(0, 5)
	_, resp, err := r.union(&readstatev1.BeginReadRequest{})
	require.NoError(t, err)
	rows, _, err := r.union(&readstatev1.BeginReadRequest{At: token(resp.GetToken())})
	require.NoError(t, err, "while they are hot it works")
	require.Len(t, rows, 4)
	r.landAll()
	_, _, err = r.union(&readstatev1.BeginReadRequest{At: token(resp.GetToken())})
	require.ErrorIs(t, err, fault.Of(fault.TooOld))
}

// G3 across schema changes: rows of the old shape, values unchanged; new reads
// see old rows widened, with nulls.
func TestSchemaChangeKeepsOldTokensAndWidensOldHotRows(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 6)
	before, resp, err := r.union(&readstatev1.BeginReadRequest{})
	require.NoError(t, err)
	r.evolve()
	r.produce(0, 6)
	got, now, err := r.scan(&readstatev1.ScanRequest{Columns: []string{"name", "id", "extra"}})
	require.NoError(t, err)
	require.Equal(t, r.want(r.produced()), got)
	require.Equal(t, int32(2), now.GetSchema().GetTableSchemaId())
	r.landAll()
	again, old, err := r.scan(&readstatev1.ScanRequest{At: token(resp.GetToken())})
	require.NoError(t, err)
	require.Equal(t, before, again)
	require.Equal(t, int32(1), old.GetSchema().GetTableSchemaId())
	require.NotContains(t, string(old.GetSchema().GetColumns()), "extra")
}

func TestReadAtVectorLSNSnapshotAndTime(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 10) // LSN 100..110
	first := r.land(ident.Vector{partition(0): 3})
	r.produce(1, 4) // LSN 110..114

	at := func(v ident.Vector) *readstatev1.At {
		return &readstatev1.At{Position: &readstatev1.At_Vector{Vector: offsets(v)}}
	}
	rows, resp, err := r.scan(&readstatev1.ScanRequest{At: at(ident.Vector{partition(0): 7})})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 7}), rows)
	again, _, err := r.scan(&readstatev1.ScanRequest{At: token(resp.GetToken())})
	require.NoError(t, err)
	require.Equal(t, rows, again)
	_, _, err = r.scan(&readstatev1.ScanRequest{At: at(ident.Vector{partition(0): 11})})
	require.ErrorIs(t, err, fault.Of(fault.NotYet))
	_, _, err = r.scan(&readstatev1.ScanRequest{At: at(ident.Vector{partition(0): 2})})
	require.ErrorIs(t, err, fault.Of(fault.TooOld))
	rows, _, err = r.scan(&readstatev1.ScanRequest{At: at(ident.Vector{{Topic: "t", Number: 1}: 2})})
	require.NoError(t, err, "a producer knows topic and partition only")
	require.Equal(t, r.want(ident.Vector{partition(0): 3, partition(1): 2}), rows)

	rows, _, err = r.scan(&readstatev1.ScanRequest{At: &readstatev1.At{Position: &readstatev1.At_Lsn{Lsn: 106}}})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 6}), rows)
	_, _, err = r.scan(&readstatev1.ScanRequest{At: &readstatev1.At{Position: &readstatev1.At_Lsn{Lsn: 115}}})
	require.ErrorIs(t, err, fault.Of(fault.NotYet))

	r.landAll()
	snapshotRead := func(id int64) *readstatev1.At {
		return &readstatev1.At{Position: &readstatev1.At_SnapshotId{SnapshotId: id}}
	}
	rows, resp, err = r.scan(&readstatev1.ScanRequest{At: snapshotRead(first)})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 3}), rows)
	again, _, err = r.scan(&readstatev1.ScanRequest{At: token(resp.GetToken())})
	require.NoError(t, err)
	require.Equal(t, rows, again)
	_, _, err = r.scan(&readstatev1.ScanRequest{At: snapshotRead(4711)})
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone))
	rows, _, err = r.scan(&readstatev1.ScanRequest{At: &readstatev1.At{Position: &readstatev1.At_Time{Time: timestamppb.New(time.Unix(250, 0))}}})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 3}), rows)
}

// A hole below an LSN may still fill: NOT_YET, not an answer without it.
func TestLSNAboveAHoleIsNotYet(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 5)
	hole := r.next[partition(0)]
	above := ident.Range{First: hole + 5, Next: hole + 6}
	a := &event.Append{LSN: 110, Header: event.Header{
		Partition: partition(0), Range: above, Fingerprint: r.schema.Fingerprint(),
		Skips: []event.Skip{{Range: above, Reason: event.SkipControl}},
	}}
	r.seq++
	r.live.Apply(event.Event{Seq: r.seq, Append: a})
	_, _, err := r.scan(&readstatev1.ScanRequest{At: &readstatev1.At{Position: &readstatev1.At_Lsn{Lsn: 111}}})
	require.ErrorIs(t, err, fault.Of(fault.NotYet))
}

func TestSamePositionFromBufferNamesWhoServesTheRest(t *testing.T) {
	r := newRig(t, rigOptions{noCold: true, server: readapi.Options{Readers: func() []string { return []string{"a:1", "b:2"} }}}).open()
	r.produce(0, 5)
	first := r.landAll()
	r.produce(0, 5)
	rows, _, err := r.union(&readstatev1.BeginReadRequest{})
	require.NoError(t, err)
	require.Equal(t, r.want(r.produced()), rows)
	r.landAll()
	for _, at := range []*readstatev1.At{
		{Position: &readstatev1.At_SnapshotId{SnapshotId: first}},
		{Position: &readstatev1.At_Time{Time: timestamppb.Now()}},
	} {
		_, _, err = r.union(&readstatev1.BeginReadRequest{At: at})
		require.ErrorIs(t, err, fault.Of(fault.WrongDoor))
	}
	_, _, err = r.scan(&readstatev1.ScanRequest{})
	require.ErrorIs(t, err, fault.Of(fault.WrongDoor))
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, "a:1,b:2", f.Meta["addresses"])
}

func TestTicketBringsTheSameBytesAfterRelease(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 2000)
	resp, err := r.client.BeginRead(t.Context(), &readstatev1.BeginReadRequest{Table: tableName, Columns: []string{"name"}})
	require.NoError(t, err)
	before, err := r.readHot(resp.GetHot().GetTickets()[0])
	require.NoError(t, err)
	r.landAll()
	require.Zero(t, r.live.Status().Rows, "the log released the rows")
	after, err := r.readHot(resp.GetHot().GetTickets()[0])
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Len(t, keys(t, after), 1600)

	_, err = r.client.EndRead(t.Context(), &readstatev1.EndReadRequest{ReadId: resp.GetReadId()})
	require.NoError(t, err)
	_, err = r.readHot(resp.GetHot().GetTickets()[0])
	require.ErrorIs(t, err, fault.Of(fault.LeaseExpired))
	_, err = r.readHot("nonsense")
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
}

func TestUnknownColumnIsRefusedWithTheNamesThereAre(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	_, _, err := r.scan(&readstatev1.ScanRequest{Columns: []string{"nmae"}})
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
	require.ErrorContains(t, err, "id, name, _lsn, _kafka")
}

func TestScanKeepsItsLimitAndPart(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 10)
	r.landAll()
	r.produce(0, 10)
	for limit, want := range map[int64]int{0: 16, 3: 3, 8: 8, 11: 11, 100: 16} {
		rows, _, err := r.scan(&readstatev1.ScanRequest{Limit: limit})
		require.NoError(t, err)
		require.Len(t, rows, want, "limit %d", limit)
	}
	cold, _, err := r.scan(&readstatev1.ScanRequest{Part: readstatev1.ScanPart_SCAN_PART_COLD})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 10}), cold)
	hot, _, err := r.scan(&readstatev1.ScanRequest{Part: readstatev1.ScanPart_SCAN_PART_HOT})
	require.NoError(t, err)
	require.Len(t, hot, 8)
	_, _, err = r.scan(&readstatev1.ScanRequest{Limit: -1})
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
}

// G7: what leases keep is bounded; what several keep counts once.
func TestLeasesBeyondTheByteBudgetAreRefused(t *testing.T) {
	r := newRig(t, rigOptions{server: readapi.Options{LeaseBytes: 20_000}}).open()
	r.produce(0, 50)
	begin := func() (*readstatev1.BeginReadResponse, error) {
		resp, err := r.client.BeginRead(t.Context(), &readstatev1.BeginReadRequest{Table: tableName})
		return resp, wire.FromStatus(err)
	}
	var ids []string
	for range 20 {
		resp, err := begin()
		require.NoError(t, err, "the same rows again cost nothing")
		ids = append(ids, resp.GetReadId())
	}
	r.landAll()
	r.produce(0, 500)
	_, err := begin()
	require.ErrorIs(t, err, fault.Of(fault.OverLimit))
	for _, id := range ids {
		_, err := r.client.EndRead(t.Context(), &readstatev1.EndReadRequest{ReadId: id})
		require.NoError(t, err)
	}
	_, err = begin()
	require.NoError(t, err)
}

func TestLeaseEndsAtItsDeadlineUnlessRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := readapi.NewLive("")
		s := readapi.New(readapi.Options{Tables: tables{live}})
		defer s.Close()
		c := event.Commit{Table: tableID, SnapshotID: 5, SequenceNumber: 50}
		live.Load(event.Image{Commit: c})
		ctx := t.Context()
		begin := func(d time.Duration) *readstatev1.BeginReadResponse {
			resp, err := s.BeginRead(ctx, &readstatev1.BeginReadRequest{Table: tableName, Lease: durationpb.New(d)})
			require.NoError(t, err)
			return resp
		}
		first := begin(time.Minute)
		c2 := c
		c2.SnapshotID, c2.SequenceNumber = 6, 60
		live.Apply(event.Event{Seq: 1, Commit: &c2})
		second := begin(10 * time.Hour)
		require.Equal(t, time.Now().Add(readapi.DefaultMaxLease).Unix(), second.GetLeaseEnd().AsTime().Unix(), "bounded, and the answer says so")
		snapshot, sequence := s.Pins(tableName)
		require.Equal(t, [2]int64{5, 50}, [2]int64{snapshot, sequence})

		<-time.After(59 * time.Second)
		_, err := s.Renew(ctx, &readstatev1.RenewRequest{ReadId: first.GetReadId(), Lease: durationpb.New(time.Minute)})
		require.NoError(t, err)
		<-time.After(59 * time.Second)
		snapshot, _ = s.Pins(tableName)
		require.Equal(t, int64(5), snapshot, "renewed")
		<-time.After(2 * time.Second)
		snapshot, _ = s.Pins(tableName)
		require.Equal(t, int64(6), snapshot, "the first lease has ended")
		_, err = s.Renew(ctx, &readstatev1.RenewRequest{ReadId: first.GetReadId()})
		require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.LeaseExpired))
		<-time.After(readapi.DefaultMaxLease)
		snapshot, sequence = s.Pins(tableName)
		require.Zero(t, snapshot+sequence)
	})
}

func TestWaitForAnswersOnceTheOffsetsAreVisible(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 5)
	type answer struct {
		resp *readstatev1.WaitForResponse
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		resp, err := r.client.WaitFor(t.Context(), &readstatev1.WaitForRequest{
			Table: tableName, Vector: offsets(ident.Vector{{Topic: "t", Number: 0}: 8}), Lsn: 107, Wait: durationpb.New(time.Minute),
		})
		done <- answer{resp, err}
	}()
	r.produce(0, 1)
	r.produce(0, 3)
	a := <-done
	require.NoError(t, a.err)
	rows, _, err := r.scan(&readstatev1.ScanRequest{At: token(a.resp.GetToken())})
	require.NoError(t, err)
	require.Equal(t, r.want(ident.Vector{partition(0): 9}), rows)

	_, err = r.client.WaitFor(t.Context(), &readstatev1.WaitForRequest{
		Table: tableName, Vector: offsets(ident.Vector{partition(0): 1000}), Wait: durationpb.New(time.Millisecond),
	})
	require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.NotYet))
}

func TestDescribeTableShowsPositionsAndLag(t *testing.T) {
	r := newRig(t, rigOptions{}).open()
	r.produce(0, 10)
	r.land(ident.Vector{partition(0): 4})
	r.live.SetProgress([]event.Progress{{Partition: partition(0), StableEnd: 25}, {Partition: partition(9), StableEnd: 3}}, time.Unix(5, 0))
	d, err := r.client.DescribeTable(t.Context(), &readstatev1.DescribeTableRequest{Table: tableName})
	require.NoError(t, err)
	require.Len(t, d.GetPartitions(), 3)
	p := d.GetPartitions()[0]
	require.Equal(t, []int64{4, 10, 15}, []int64{p.GetCommitted(), p.GetVisible(), p.GetLag()})
	require.Equal(t, int64(3), d.GetPartitions()[2].GetLag(), "a partition of which nothing came yet")
	require.Equal(t, int64(8), d.GetSummary().GetHotRows(), "an entry counts whole until it is released")
	require.Equal(t, r.commit.SnapshotID, d.GetCommit().GetSnapshotId())
}
