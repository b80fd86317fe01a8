// Package forward keeps the append stream from ingest to the log of one table: it opens it again whenever it breaks,
// sends entries within the credit that the log grants, and hands answers back to the lane of their topic partition.
//
// A lane is the right to append one topic partition on one life of the stream. Whatever goes wrong (the stream broke,
// the log expects another offset, a fence began a new epoch) ends the lane with a cause; its user throws away what was
// not acknowledged, joins again and reads from the offset that the new lane names. So there is one way back, and it is
// the same for every fault.
package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

// Causes that end a lane. They are wrapped with words about the very case.
var (
	ErrStreamDown       = errors.New("the append stream ended")
	ErrMoved            = errors.New("the log expects another offset")
	ErrWait             = errors.New("the log cannot take the entry now")
	ErrUnknownSchema    = errors.New("the log does not know the schema yet")
	ErrUnknownPartition = errors.New("the log does not know the partition yet")
	ErrRefused          = errors.New("the log refused the entry as malformed")
	ErrLeft             = errors.New("the lane was left")
)

// Options of a Stream.
type Options struct {
	// Connect returns a connection to the buffer that owns the table; it is asked before every attempt. The connection
	// must use wire.Codec.
	Connect func(ctx context.Context) (grpc.ClientConnInterface, error)
	// Moved waits until the buffer that Connect led to last has not owned the table for a while, and says who does; "" when
	// ctx ended. The stream then begins anew. It may be nil.
	Moved    func(ctx context.Context) string
	Table    string
	Pipeline string
	Instance string
	// Budget bounds the bytes sent and not yet answered, beside the credit of the log; streams may share it.
	Budget  *Budget
	Backoff backoff.Policy
	// Committed is told the committed positions of the pipeline: all at each hello, then those that moved.
	// State is told why the stream is down, and nil when it is up. Both, and Log, may be nil.
	Committed func(ident.Positions)
	State     func(error)
	Log       *slog.Logger
}

// Stream is the append stream of one pipeline to one table. Run keeps it alive; all other methods are safe for
// concurrent use.
type Stream struct {
	o Options

	mu      sync.Mutex
	changed chan struct{}             // closed and replaced whenever a waiter may go on
	life    *life                     // nil while down
	next    ident.Vector              // next expected offset, as far as the log has said in this life
	epochs  map[ident.Partition]int32 // leader epoch of the record before next, where it is known
	bounds  map[ident.Partition][]ident.Range
	known   map[string]bool // schema fingerprints
	lanes   map[ident.Partition]*Lane
	flight  int64 // bytes sent and not answered, over all lives
}

// life is one connection of the stream.
type life struct {
	stream bufferv1.TableLogService_AppendClient
	cancel context.CancelCauseFunc
	send   run.Turn         // one sender at a time; also orders fifo
	fifo   []flight         // guarded by Stream.mu
	credit int64            // guarded by Stream.mu
	report []event.Progress // to be sent, guarded by Stream.mu
	due    chan struct{}    // has a token when there is a report
}

// flight is an entry that waits for its answer.
type flight struct {
	lane    *Lane
	next    int64
	size    int64
	release func(stored bool)
}

// New returns a Stream that is down until Run.
func New(o Options) *Stream {
	if o.Committed == nil {
		o.Committed = func(ident.Positions) {}
	}
	if o.Moved == nil {
		o.Moved = func(context.Context) string { return "" }
	}
	if o.State == nil {
		o.State = func(error) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Stream{
		o: o, changed: make(chan struct{}), next: ident.Vector{}, epochs: map[ident.Partition]int32{}, bounds: map[ident.Partition][]ident.Range{},
		known: map[string]bool{}, lanes: map[ident.Partition]*Lane{},
	}
}

// InFlight is the number of bytes sent and not yet answered.
func (s *Stream) InFlight() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flight
}

// Knows reports whether the log has said that it knows the schema.
func (s *Stream) Knows(fingerprint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[fingerprint]
}

// Run connects, and connects again after each end, until ctx ends. It returns the cause of that.
func (s *Stream) Run(ctx context.Context) error {
	wait := s.o.Backoff.Start()
	for {
		welcomed, err := s.once(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if welcomed { // the log was there: it is probably back at once
			wait.Reset()
		}
		s.o.State(err)
		s.o.Log.Warn("append stream is down", "table", s.o.Table, "error", err)
		var after time.Duration
		if f, ok := errors.AsType[*fault.Error](err); ok {
			after = f.RetryAfter
		}
		if err := wait.Wait(ctx, after); err != nil {
			return err
		}
	}
}

var errClosed = errors.New("the log closed the stream")

// once runs one life of the stream to its end; welcomed says whether it began.
func (s *Stream) once(ctx context.Context) (welcomed bool, _ error) {
	conn, err := s.o.Connect(ctx)
	if err != nil {
		return false, fmt.Errorf("finding the buffer of table %s: %w", s.o.Table, err)
	}
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := bufferv1.NewTableLogServiceClient(conn).Append(sctx)
	if err != nil {
		return false, fmt.Errorf("opening the append stream of table %s: %w", s.o.Table, wire.FromStatus(err))
	}
	hello := &bufferv1.AppendRequest{Message: &bufferv1.AppendRequest_Hello{Hello: &bufferv1.AppendHello{
		Table: s.o.Table, Pipeline: s.o.Pipeline, Ingest: s.o.Instance,
	}}}
	if err := stream.SendMsg(&wire.AppendFrame{Msg: hello}); err != nil {
		return false, s.broken(stream, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return false, s.receiving(err)
	}
	l := &life{stream: stream, cancel: cancel, send: run.NewTurn(), due: make(chan struct{}, 1)}
	if err := s.welcome(l, first); err != nil {
		return false, err
	}
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		s.reports(sctx, l)
	}()
	go func() {
		if now := s.o.Moved(sctx); now != "" {
			cancel(fmt.Errorf("appending to table %s: %w: the table belongs to the buffer at %s now", s.o.Table, errClosed, now))
		}
	}()
	err = s.receive(l)
	if cause := context.Cause(sctx); cause != nil && ctx.Err() == nil {
		err = cause // the end was our own doing
	}
	s.end(l, err)
	<-reported
	return true, err
}

// broken is the error of a stream that could not be written to: the reason comes with the next receive.
func (s *Stream) broken(stream bufferv1.TableLogService_AppendClient, err error) error {
	if _, rerr := stream.Recv(); rerr != nil {
		err = rerr
	}
	return s.receiving(err)
}

func (s *Stream) receiving(err error) error {
	return fmt.Errorf("appending to table %s: %w", s.o.Table, wire.FromStatus(err))
}

func (s *Stream) welcome(l *life, m *bufferv1.AppendResponse) error {
	w := m.GetWelcome()
	if w == nil {
		return fmt.Errorf("appending to table %s: %w: %s", s.o.Table, errClosed, m.GetClosed().GetReason())
	}
	next, err := wire.VectorFromProto(w.GetAppendedNext())
	if err != nil {
		return fmt.Errorf("reading the welcome of table %s: %w", s.o.Table, err)
	}
	committed, err := wire.PositionsFromProto(w.GetCommitted())
	if err != nil {
		return fmt.Errorf("reading the welcome of table %s: %w", s.o.Table, err)
	}
	bounds := map[ident.Partition][]ident.Range{}
	for _, e := range w.GetOutstanding() {
		p, perr := wire.PartitionFromProto(e.GetPartition())
		r, rerr := wire.RangeFromProto(e.GetRange())
		if err := errors.Join(perr, rerr); err != nil {
			return fmt.Errorf("reading the welcome of table %s: %w", s.o.Table, err)
		}
		bounds[p] = append(bounds[p], r)
	}
	epochs, err := leaderEpochs(w)
	if err != nil {
		return fmt.Errorf("reading the welcome of table %s: %w", s.o.Table, err)
	}
	s.mu.Lock()
	l.credit = w.GetCredit()
	s.next, s.epochs, s.bounds, s.known, s.life = next, epochs, bounds, map[string]bool{}, l
	for _, sc := range w.GetSchemas() {
		s.known[sc.GetFingerprint()] = true
	}
	s.wake()
	s.mu.Unlock()
	s.o.State(nil)
	s.o.Log.Info("append stream is up", "table", s.o.Table, "log_epoch", w.GetLogEpoch(), "outstanding", len(w.GetOutstanding()))
	s.o.Committed(committed)
	return nil
}

// leaderEpochs pairs the next offsets of a welcome with the leader epochs before them.
func leaderEpochs(w *bufferv1.AppendWelcome) (map[ident.Partition]int32, error) {
	out := map[ident.Partition]int32{}
	for i, e := range w.GetAppendedLeaderEpochs()[:min(len(w.GetAppendedLeaderEpochs()), len(w.GetAppendedNext()))] {
		p, err := wire.PartitionFromProto(w.GetAppendedNext()[i].GetPartition())
		if err != nil {
			return nil, err
		}
		out[p] = e
	}
	return out, nil
}

func (s *Stream) receive(l *life) error {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			return s.receiving(err)
		}
		switch x := m.GetMessage().(type) {
		case *bufferv1.AppendResponse_Result:
			if err := s.result(l, x.Result); err != nil {
				return err
			}
		case *bufferv1.AppendResponse_Credit:
			s.mu.Lock()
			l.credit += x.Credit.GetBytes()
			s.wake()
			s.mu.Unlock()
		case *bufferv1.AppendResponse_Committed:
			ps, err := wire.PositionsFromProto(x.Committed.GetPositions())
			if err != nil {
				return fmt.Errorf("reading the committed positions of table %s: %w", s.o.Table, err)
			}
			s.o.Committed(ps)
		case *bufferv1.AppendResponse_Schema:
			s.mu.Lock()
			s.known[x.Schema.GetFingerprint()] = true
			s.wake()
			s.mu.Unlock()
		case *bufferv1.AppendResponse_Closed:
			return fmt.Errorf("appending to table %s: %w: %s", s.o.Table, errClosed, x.Closed.GetReason())
		}
	}
}

// result pairs an answer with the oldest entry in flight: the log answers in the order of sending.
func (s *Stream) result(l *life, r *bufferv1.AppendResult) error {
	p, err := wire.PartitionFromProto(r.GetPartition())
	if err != nil {
		return fmt.Errorf("reading an answer of table %s: %w", s.o.Table, err)
	}
	s.mu.Lock()
	if len(l.fifo) == 0 || l.fifo[0].lane.p != p {
		s.mu.Unlock()
		return fmt.Errorf("appending to table %s: %w", s.o.Table, fault.New(fault.Internal, "the log answered an entry of %s that is not next in line", p))
	}
	f := l.fifo[0]
	l.fifo[0] = flight{}
	l.fifo = l.fifo[1:]
	s.flight -= f.size
	s.o.Budget.give(f.size)
	if r.GetAppendedNext() > 0 || r.GetOutcome() != bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_PARTITION {
		s.next[p] = r.GetAppendedNext()
		delete(s.epochs, p)
		if r.AppendedLeaderEpoch != nil {
			s.epochs[p] = r.GetAppendedLeaderEpoch()
		}
	}
	stored := r.GetOutcome() == bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED || r.GetOutcome() == bufferv1.AppendOutcome_APPEND_OUTCOME_DUPLICATE
	f.lane.pending--
	if stored {
		f.lane.acked = max(f.lane.acked, f.next)
	} else {
		f.lane.end(fmt.Errorf("%w: %s at offset %d, which the log expects at %d: %s",
			refusal(r.GetOutcome()), p, r.GetRange().GetFirst(), r.GetAppendedNext(), r.GetText()))
	}
	s.wake()
	s.mu.Unlock()
	f.release(stored)
	return nil
}

func refusal(o bufferv1.AppendOutcome) error {
	switch o {
	case bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER:
		return ErrMoved
	case bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_SCHEMA:
		return ErrUnknownSchema
	case bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_PARTITION:
		return ErrUnknownPartition
	case bufferv1.AppendOutcome_APPEND_OUTCOME_WAIT:
		return ErrWait
	default:
		return ErrRefused
	}
}

// end closes a life: what was in flight is given back, since the next hello says what the log holds.
func (s *Stream) end(l *life, err error) {
	s.mu.Lock()
	s.life = nil
	lost := l.fifo
	l.fifo = nil
	for _, f := range lost {
		s.flight -= f.size
		s.o.Budget.give(f.size)
	}
	for _, lane := range s.lanes {
		lane.end(fmt.Errorf("%w: %w", ErrStreamDown, err))
	}
	s.wake()
	s.mu.Unlock()
	// A sender may still be inside SendMsg with the last of these entries, which this ends.
	l.cancel(err)
	_ = l.send.Take(context.Background())
	defer l.send.Give()
	for _, f := range lost {
		f.release(false)
	}
}

// wake lets all waiters look again; s.mu is held.
func (s *Stream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Progress has what is known about partitions sent, in place of what waits to be. It is dropped while the stream is down,
// and never waits for the log.
func (s *Stream) Progress(list []event.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.life
	if l == nil || len(list) == 0 {
		return
	}
	l.report = list
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// reports sends what Progress leaves, until ctx ends.
func (s *Stream) reports(ctx context.Context, l *life) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.due:
		}
		if l.send.Take(ctx) != nil {
			return
		}
		s.mu.Lock()
		m := &bufferv1.AppendRequest{Message: &bufferv1.AppendRequest_Progress{Progress: wire.ProgressReportToProto(l.report)}}
		s.mu.Unlock()
		err := l.stream.SendMsg(&wire.AppendFrame{Msg: m})
		l.send.Give()
		if err != nil {
			l.cancel(fmt.Errorf("sending progress of table %s: %w", s.o.Table, err))
			return
		}
	}
}
