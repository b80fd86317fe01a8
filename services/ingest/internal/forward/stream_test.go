package forward

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

// scripted is a table log whose every stream is played by a test.
type scripted struct {
	bufferv1.UnimplementedTableLogServiceServer

	streams chan *serverStream
}

type serverStream struct {
	t   *testing.T
	s   grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]
	end chan error
}

func (s *scripted) Append(st grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]) error {
	ss := &serverStream{s: st, end: make(chan error, 1)}
	select {
	case s.streams <- ss:
	case <-st.Context().Done():
		return st.Context().Err()
	}
	select {
	case err := <-ss.end:
		return err
	case <-st.Context().Done():
		return st.Context().Err()
	}
}

func (s *serverStream) recv() *wire.AppendFrame {
	s.t.Helper()
	f := &wire.AppendFrame{}
	require.NoError(s.t, s.s.RecvMsg(f))
	return f
}

func (s *serverStream) send(m *bufferv1.AppendResponse) {
	s.t.Helper()
	require.NoError(s.t, s.s.Send(m))
}

func (s *serverStream) welcome(w *bufferv1.AppendWelcome) {
	s.t.Helper()
	hello := s.recv().Msg.GetHello()
	require.Equal(s.t, "n.t", hello.GetTable())
	require.Equal(s.t, "p", hello.GetPipeline())
	s.send(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Welcome{Welcome: w}})
}

func (s *serverStream) answer(e *event.Append, o bufferv1.AppendOutcome, next int64) {
	s.t.Helper()
	s.send(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Result{Result: &bufferv1.AppendResult{
		Partition: wire.PartitionToProto(e.Partition), Range: wire.RangeToProto(e.Range), Outcome: o, AppendedNext: next, Text: "because",
	}}})
}

type fixture struct {
	t         *testing.T
	log       *scripted
	stream    *Stream
	mu        sync.Mutex
	committed []ident.Positions
}

func start(t *testing.T, window int64, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, log: &scripted{streams: make(chan *serverStream)}}
	l := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	bufferv1.RegisterTableLogServiceServer(srv, f.log)
	go func() { _ = srv.Serve(l) }() // ends with Stop
	conn, err := grpc.NewClient("passthrough:///log", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{})))
	require.NoError(t, err)
	o := Options{
		Connect: func(context.Context) (grpc.ClientConnInterface, error) { return conn, nil },
		Table:   "n.t", Pipeline: "p", Instance: "i", Budget: NewBudget(window), Backoff: backoff.Policy{Initial: time.Millisecond},
		Committed: func(ps ident.Positions) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.committed = append(f.committed, ps)
		},
	}
	for _, f := range change {
		f(&o)
	}
	f.stream = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.stream.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		srv.Stop()
		require.NoError(t, conn.Close())
	})
	return f
}

func (f *fixture) accept() *serverStream {
	f.t.Helper()
	ss := <-f.log.streams
	ss.t = f.t
	return ss
}

func tp() ident.Partition { return ident.Partition{Pipeline: "p", Topic: "t", Number: 1} }

func entry(first, next int64) *event.Append {
	return &event.Append{Header: event.Header{Partition: tp(), Range: ident.Range{First: first, Next: next}, Fingerprint: "f", Rows: next - first}}
}

type released struct{ ch chan bool }

func (r released) out(first, next int64) Outgoing {
	return Outgoing{Entry: entry(first, next), RowSlices: [][]byte{[]byte("ab"), []byte("cd")}, Size: 100, Release: func(stored bool) { r.ch <- stored }}
}

func TestLaneStartsWhereTheLogStandsAndKeepsItsBounds(t *testing.T) { // design section 2, Restart
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{
		AppendedNext: wire.VectorToProto(ident.Vector{tp(): 100}), Credit: 1 << 20,
		Outstanding: []*bufferv1.OutstandingEntry{
			{Partition: wire.PartitionToProto(tp()), Range: &typesv1.OffsetRange{First: 90, Next: 100}},
			{Partition: wire.PartitionToProto(tp()), Range: &typesv1.OffsetRange{First: 100, Next: 120}},
		},
		Committed: wire.PositionsToProto(ident.Positions{tp(): {Start: 5, Next: 90, LeaderEpoch: 3}}),
	})
	l, err := f.stream.Join(t.Context(), tp(), 7)
	require.NoError(t, err)
	require.EqualValues(t, 100, l.Start)
	require.Equal(t, []ident.Range{{First: 100, Next: 120}}, l.Bounds)
	other, err := f.stream.Join(t.Context(), ident.Partition{Pipeline: "p", Topic: "new"}, 7)
	require.NoError(t, err)
	require.EqualValues(t, 7, other.Start, "a partition that the log has not named starts where the committer said")
}

func TestEntryIsSentWithoutCopyAndReleasedByItsAnswer(t *testing.T) {
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20, AppendedNext: wire.VectorToProto(ident.Vector{tp(): 0})})
	l, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	r := released{make(chan bool, 1)}
	require.NoError(t, l.Send(t.Context(), r.out(0, 10)))
	got := ss.recv()
	require.Equal(t, "abcd", string(got.Entry.RowBatch))
	require.False(t, l.Idle())
	require.EqualValues(t, 100, f.stream.InFlight())
	ss.answer(got.Entry, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, 10)
	require.True(t, <-r.ch)
	require.NoError(t, l.Flush(t.Context()))
	require.EqualValues(t, 10, l.Acked())
	require.Zero(t, f.stream.InFlight())
}

func TestRefusalEndsTheLaneAndTheNextStartsWhereTheLogSays(t *testing.T) {
	for outcome, cause := range map[bufferv1.AppendOutcome]error{
		bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER:      ErrMoved,
		bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_SCHEMA:    ErrUnknownSchema,
		bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_PARTITION: ErrUnknownPartition,
		bufferv1.AppendOutcome_APPEND_OUTCOME_WAIT:              ErrWait,
		bufferv1.AppendOutcome_APPEND_OUTCOME_INVALID:           ErrRefused,
	} {
		t.Run(outcome.String(), func(t *testing.T) {
			f := start(t, 1<<20)
			ss := f.accept()
			ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20, AppendedNext: wire.VectorToProto(ident.Vector{tp(): 0})})
			l, err := f.stream.Join(t.Context(), tp(), 0)
			require.NoError(t, err)
			r := released{make(chan bool, 2)}
			require.NoError(t, l.Send(t.Context(), r.out(0, 10)))
			require.NoError(t, l.Send(t.Context(), r.out(10, 20)))
			first, second := ss.recv(), ss.recv()
			ss.answer(first.Entry, outcome, 4)
			require.False(t, <-r.ch)
			<-l.Done()
			require.ErrorIs(t, l.Err(), cause)
			require.Error(t, l.Send(t.Context(), r.out(20, 30)), "nothing follows on an ended lane")
			require.False(t, <-r.ch)
			l, err = f.stream.Join(t.Context(), tp(), 0)
			require.NoError(t, err)
			require.EqualValues(t, 4, l.Start)
			ss.answer(second.Entry, bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER, 4)
			require.False(t, <-r.ch)
			require.NoError(t, l.Err(), "the answer to an entry of the old lane does not end the new one")
		})
	}
}

func TestSenderWaitsForCreditAndForItsBudget(t *testing.T) { // G7
	f := start(t, 150)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 10, AppendedNext: wire.VectorToProto(ident.Vector{tp(): 0})})
	l, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	r := released{make(chan bool, 4)}
	require.NoError(t, l.Send(t.Context(), r.out(0, 1)), "one message always passes when nothing is in flight")
	sent := make(chan error, 1)
	go func() { sent <- l.Send(t.Context(), r.out(1, 2)) }()
	got := ss.recv()
	ss.send(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Credit{Credit: &bufferv1.Credit{Bytes: 1 << 20}}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	select {
	case err := <-sent:
		require.Fail(t, "the budget is spent", "%v", err)
	case <-ctx.Done():
	}
	ss.answer(got.Entry, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, 1)
	require.NoError(t, <-sent)
}

// G7, G11: a log that is there and does not read holds up neither those who report nor those who give up.
func TestNobodyIsStuckBehindASenderWhoseLogDoesNotRead(t *testing.T) {
	f := start(t, 1<<30)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 30})
	lane, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	other, err := f.stream.Join(t.Context(), ident.Partition{Pipeline: "p", Topic: "t", Number: 2}, 0)
	require.NoError(t, err)
	rel := released{make(chan bool, 2)}
	big := rel.out(0, 1)
	big.RowSlices = [][]byte{make([]byte, 8<<20)} // more than the windows of the connection take
	require.NoError(t, lane.Send(t.Context(), big))
	sent := make(chan error, 1)
	go func() { sent <- lane.Send(t.Context(), rel.out(1, 2)) }()
	require.Eventually(t, func() bool {
		f.stream.mu.Lock()
		defer f.stream.mu.Unlock()
		return lane.pending == 2
	}, 20*time.Second, time.Millisecond)

	for range 3 {
		f.stream.Progress([]event.Progress{{Partition: tp()}})
	}
	ctx, stop := context.WithCancel(t.Context())
	left := released{make(chan bool, 1)}
	gone := make(chan error, 1)
	go func() { gone <- other.Send(ctx, left.out(0, 1)) }()
	stop()
	select {
	case err := <-gone:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(20 * time.Second):
		require.Fail(t, "who gives up waits for the log all the same")
	}
	require.False(t, <-left.ch)
	require.EqualValues(t, 200, f.stream.InFlight(), "what was not sent is given back")
	require.Empty(t, sent)
	ss.end <- errors.New("gone")
	require.Error(t, <-sent)
	for range 2 {
		require.False(t, <-rel.ch)
	}
}

func TestTheNewestReportIsSent(t *testing.T) {
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20})
	_, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	f.stream.Progress([]event.Progress{{Partition: tp(), Fetch: 1}})
	f.stream.Progress([]event.Progress{{Partition: tp(), Fetch: 2}})
	for at := int64(0); at < 2; {
		list, err := wire.ProgressReportFromProto(ss.recv().Msg.GetProgress())
		require.NoError(t, err)
		require.Greater(t, list[0].Fetch, at)
		at = list[0].Fetch
	}
}

func TestBrokenStreamIsOpenedAgainAndGivesEntriesBack(t *testing.T) { // G11
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20, AppendedNext: wire.VectorToProto(ident.Vector{tp(): 0})})
	l, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	r := released{make(chan bool, 1)}
	require.NoError(t, l.Send(t.Context(), r.out(0, 10)))
	ss.recv()
	ss.end <- errors.New("crash")
	require.False(t, <-r.ch)
	<-l.Done()
	require.ErrorIs(t, l.Err(), ErrStreamDown)
	ss = f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20, AppendedNext: wire.VectorToProto(ident.Vector{tp(): 10})})
	l, err = f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 10, l.Start)
	require.Zero(t, f.stream.InFlight())
}

func TestSchemaIsAwaitedUntilTheLogKnowsIt(t *testing.T) {
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Credit: 1 << 20, Schemas: []*typesv1.TableSchema{{Fingerprint: "old"}}})
	l, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	known, err := l.AwaitSchema(t.Context(), "old", time.Minute)
	require.NoError(t, err)
	require.True(t, known)
	known, err = l.AwaitSchema(t.Context(), "new", time.Millisecond)
	require.NoError(t, err)
	require.False(t, known)
	ss.send(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Schema{Schema: &typesv1.TableSchema{Fingerprint: "new"}}})
	known, err = l.AwaitSchema(t.Context(), "new", time.Minute)
	require.NoError(t, err)
	require.True(t, known)
}

func TestCommittedPositionsArePassedOn(t *testing.T) { // G2
	f := start(t, 1<<20)
	ss := f.accept()
	ss.welcome(&bufferv1.AppendWelcome{Committed: wire.PositionsToProto(ident.Positions{tp(): {Next: 3, LeaderEpoch: 1}})})
	ss.send(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Committed{Committed: &bufferv1.Committed{
		Positions: wire.PositionsToProto(ident.Positions{tp(): {Next: 9, LeaderEpoch: 2}}),
	}}})
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.committed) == 2 && f.committed[0][tp()].Next == 3 && f.committed[1][tp()].Next == 9
	}, 10*time.Second, time.Millisecond)
}

// G11: the buffer that the stream leads to lost the table and lives on: the stream ends, and begins at whoever owns it.
func TestAStreamBeginsAnewWhenTheTableMoves(t *testing.T) {
	moves := make(chan string, 1)
	f := start(t, 1<<20, func(o *Options) {
		o.Moved = func(ctx context.Context) string {
			select {
			case now := <-moves:
				return now
			case <-ctx.Done():
				return ""
			}
		}
	})
	for range 2 {
		f.accept().welcome(&bufferv1.AppendWelcome{Credit: 1 << 20})
		l, err := f.stream.Join(t.Context(), tp(), 0)
		require.NoError(t, err)
		moves <- "b:1"
		<-l.Done()
		require.ErrorIs(t, l.Err(), ErrStreamDown)
		require.ErrorContains(t, l.Err(), "belongs to the buffer at b:1 now")
	}
}

func TestALaneMakesItsStreamBeginAnew(t *testing.T) {
	f := start(t, 1<<20)
	f.accept().welcome(&bufferv1.AppendWelcome{Credit: 1 << 20})
	l, err := f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	l.Reconnect(errors.New("it leads to the wrong log"))
	<-l.Done()
	require.ErrorContains(t, l.Err(), "it leads to the wrong log")
	f.accept().welcome(&bufferv1.AppendWelcome{Credit: 1 << 20})
	_, err = f.stream.Join(t.Context(), tp(), 0)
	require.NoError(t, err)
	l.Reconnect(errors.New("of a life that is over")) // ends nothing that lives
}
