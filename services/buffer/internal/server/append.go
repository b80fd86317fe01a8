package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// Service implements buffer.v1.TableLogService over a Host.
type Service struct {
	bufferv1.UnimplementedTableLogServiceServer
	h *Host
}

// NewService returns the table log service of a host.
func NewService(h *Host) *Service { return &Service{h: h} }

// appender is one append stream. Three goroutines serve it: one receives, one
// validates and decides in order, one sends. Answers are queued without a bound
// of their own: there is one small answer per message that credit admitted.
type appender struct {
	l        *tableLog
	pipeline string
	stream   grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]
	credit   *credit

	mu     sync.Mutex
	out    []*bufferv1.AppendResponse
	wake   chan struct{} // one token while out is not empty
	queued int64         // bytes received and not yet decided

	entries  chan *event.Append
	answers  sync.WaitGroup // entries whose answer is not queued yet
	decided  chan struct{}  // closed when no entry will be decided any more
	received error          // why receiving ended; read after entries was closed
}

// Append serves one append stream.
func (s *Service) Append(stream grpc.BidiStreamingServer[bufferv1.AppendRequest, bufferv1.AppendResponse]) error {
	hello, err := receiveHello(stream)
	if err != nil {
		return err
	}
	l, err := s.h.log(hello.GetTable())
	if err != nil {
		return err
	}
	a := &appender{
		l: l, pipeline: hello.GetPipeline(), stream: stream, wake: make(chan struct{}, 1),
		entries: make(chan *event.Append, 1024), decided: make(chan struct{}),
	}
	served, err := a.open(hello.GetIngest())
	if err != nil {
		return err
	}
	defer a.close()
	return a.serve(served)
}

func receiveHello(stream grpc.ServerStream) (*bufferv1.AppendHello, error) {
	var f wire.AppendFrame
	if err := stream.RecvMsg(&f); err != nil {
		return nil, err
	}
	hello := f.Msg.GetHello()
	if f.Msg == nil || hello == nil || hello.GetPipeline() == "" {
		return nil, fault.New(fault.InvalidArgument, "an append stream begins with a hello that names table and pipeline")
	}
	return hello, nil
}

// open registers the stream and queues the welcome. It returns a channel that is
// closed when the log ceases to serve.
func (a *appender) open(ingest string) (served <-chan struct{}, err error) {
	l := a.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.State() != table.Serving {
		if l.m.Refused() {
			l.touch() // followers pass on that appends wait
		}
		return nil, l.notReady()
	}
	var first int64
	a.credit, first = l.h.budget.open(l.h.opt.Window, l.room, func(n int64) {
		a.push(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Credit{Credit: &bufferv1.Credit{Bytes: n}}})
	})
	// Credit given before the welcome is queued would be sent ahead of it: the
	// stream is registered only now, under the log's lock, and out is still ours.
	welcome := a.welcome(first)
	a.mu.Lock()
	a.out = append([]*bufferv1.AppendResponse{welcome}, a.out...)
	a.mu.Unlock()
	a.signal()
	l.appenders[a] = struct{}{}
	l.h.opt.Log.Info("append stream opened", "table", l.name, "pipeline", a.pipeline, "ingest", ingest)
	return l.served, nil
}

func (a *appender) welcome(credit int64) *bufferv1.AppendResponse {
	m := a.l.m
	appended, committed := ident.Vector{}, ident.Positions{}
	for p, next := range m.Appended() {
		if p.Pipeline == a.pipeline {
			appended[p] = next
		}
	}
	view := m.View().Commit()
	for p, pos := range view.Positions {
		if p.Pipeline == a.pipeline {
			committed[p] = pos
		}
	}
	epochs := make([]int32, 0, len(appended))
	for _, p := range appended.Partitions() { // the order of VectorToProto
		epochs = append(epochs, m.LeaderEpoch(p))
	}
	w := &bufferv1.AppendWelcome{
		TableUuid: view.Table[:], LogEpoch: int64(view.LogEpoch), Boot: a.l.h.opt.Boot[:], Credit: credit,
		AppendedNext: wire.VectorToProto(appended), AppendedLeaderEpochs: epochs, Committed: wire.PositionsToProto(committed), Schemas: wire.SchemasToProto(m.Schemas()),
	}
	for _, o := range m.Outstanding() {
		if o.Partition.Pipeline == a.pipeline {
			w.Outstanding = append(w.Outstanding, &bufferv1.OutstandingEntry{
				Partition: wire.PartitionToProto(o.Partition), Range: wire.RangeToProto(o.Range), Revision: o.Revision,
			})
		}
	}
	return &bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Welcome{Welcome: w}}
}

func (a *appender) close() {
	a.l.mu.Lock()
	delete(a.l.appenders, a)
	a.l.mu.Unlock()
	a.l.h.budget.close(a.credit)
}

// serve runs the stream until the peer is done, the log ceases to serve, or the
// buffer drains.
func (a *appender) serve(served <-chan struct{}) error {
	ctx, cancel := context.WithCancel(a.stream.Context())
	defer cancel()
	go a.receive(ctx)
	go a.decide(ctx)
	sent := make(chan error, 1)
	go func() { sent <- a.send(ctx) }()
	select {
	case err := <-sent:
		if err != nil {
			return err
		}
		return a.received
	case <-served:
		return a.bye(cancel, sent, "the table log needs a new epoch: open a new stream and continue at the offsets it names")
	case <-a.l.h.opt.Draining:
		return a.bye(cancel, sent, "the buffer is shutting down")
	}
}

// bye tells the peer why the stream ends, if it still listens.
func (a *appender) bye(cancel context.CancelFunc, sent <-chan error, why string) error {
	cancel()
	if err := <-sent; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.push(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Closed{Closed: &bufferv1.AppendClosed{Reason: why}}})
	return a.flush()
}

// receive takes messages until the peer ends or fails.
func (a *appender) receive(ctx context.Context) {
	defer close(a.entries)
	for {
		var f wire.AppendFrame
		if err := a.stream.RecvMsg(&f); err != nil {
			if !errors.Is(err, io.EOF) {
				a.received = err
			}
			return
		}
		if f.Entry == nil {
			list, err := wire.ProgressReportFromProto(f.Msg.GetProgress())
			if err != nil {
				a.received = err
				return
			}
			a.l.report(list)
			continue
		}
		if a.received = a.take(f.Entry); a.received != nil {
			return
		}
		select {
		case a.entries <- f.Entry:
		case <-ctx.Done():
			return
		}
	}
}

// take counts a received entry against the stream's credit.
func (a *appender) take(e *event.Append) error {
	if e.Partition.Pipeline != a.pipeline {
		return fault.New(fault.InvalidArgument, "the stream was opened for pipeline %s, an append is for %s", a.pipeline, e.Partition.Pipeline)
	}
	n := e.Bytes()
	a.l.h.budget.spend(a.credit, n)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queued += n
	if limit := a.l.h.opt.Window + a.l.h.opt.MaxQueue; a.queued > limit {
		return fault.New(fault.OverLimit, "the stream sent %d bytes beyond its credit", a.queued-a.l.h.opt.Window)
	}
	return nil
}

// decide handles entries one after the other.
func (a *appender) decide(ctx context.Context) {
	for e := range a.entries {
		if a.inLine(ctx, e) != nil {
			return
		}
		a.one(e)
		a.mu.Lock()
		a.queued -= e.Bytes()
		a.mu.Unlock()
	}
	a.answers.Wait()
	close(a.decided)
}

// inLine waits until an entry has room in its table and in the budget, which it then uses.
func (a *appender) inLine(ctx context.Context, e *event.Append) error {
	for {
		changed := a.l.full(e)
		if changed == nil {
			return a.l.h.budget.admit(ctx, e.Bytes())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// one validates an entry, asks the machine, and answers when its turn comes. The
// bytes it was admitted with are the log's from the moment it is accepted.
func (a *appender) one(e *event.Append) {
	l, n := a.l, e.Bytes()
	bad := a.validate(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	var v table.Verdict
	if bad != nil {
		v = l.m.Refuse(e.Partition, table.Invalid, bad.Error())
	} else {
		v = l.verdict(e)
	}
	l.h.meter.append(l.name, v.Outcome)
	if v.Outcome == table.NotServing {
		l.h.budget.change(-n)
		l.settle()
		return // the stream is being closed
	}
	a.answers.Add(1)
	answer := func(o table.Outcome, text string) {
		a.push(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Result{Result: &bufferv1.AppendResult{
			Partition: wire.PartitionToProto(e.Partition), Range: wire.RangeToProto(e.Range),
			Outcome: bufferv1.AppendOutcome(o), AppendedNext: v.Next, AppendedLeaderEpoch: &v.LeaderEpoch, Text: text,
		}}})
		a.answers.Done()
	}
	if v.Step == nil {
		l.h.budget.change(-n)
		// In line behind the accepted ones: answers come in the order of entries.
		l.h.opt.Journal.Append(l.name, nil, func(error) { answer(v.Outcome, v.Text) })
		return
	}
	l.under += n
	l.counted.Add(n)
	l.submitAppend(v.Step, n, func(err error) {
		if err != nil {
			a.answers.Done() // void: the stream is being closed, ingest asks again
			return
		}
		answer(v.Outcome, "")
	})
}

// submitAppend is submit for an append of n bytes; mu is held.
func (l *tableLog) submitAppend(s *table.Step, n int64, after func(error)) {
	l.h.opt.Journal.Append(l.name, s.Records, func(err error) {
		l.mu.Lock()
		l.under -= n
		if err == nil {
			var evs []event.Event
			if evs, err = l.m.Done(s); err == nil {
				l.publish(evs)
				l.touch()
			}
		}
		l.account()
		l.mu.Unlock()
		after(err)
	})
}

// validate checks the batches at the door. An unknown schema is the machine's
// to answer.
func (a *appender) validate(e *event.Append) error {
	target := &schema.Schema{}
	if e.Rows > 0 {
		s, err := a.l.schemaOf(e.Fingerprint)
		if err != nil || s == nil {
			return err
		}
		target = s
	}
	return arrowx.CheckEntry(target, e)
}

// committed queues the committed positions of this stream's pipeline.
func (a *appender) committed(all ident.Positions) {
	mine := ident.Positions{}
	for p, pos := range all {
		if p.Pipeline == a.pipeline {
			mine[p] = pos
		}
	}
	a.push(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Committed{Committed: &bufferv1.Committed{Positions: wire.PositionsToProto(mine)}}})
}

func (a *appender) schema(s *event.Schema) {
	a.push(&bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Schema{Schema: wire.SchemaToProto(s)}})
}

// push queues a message; it never blocks.
func (a *appender) push(m *bufferv1.AppendResponse) {
	a.mu.Lock()
	// Of two committed vectors that wait only the newer one says anything.
	if n := len(a.out); n > 0 && m.GetCommitted() != nil && a.out[n-1].GetCommitted() != nil {
		a.out[n-1] = m
	} else {
		a.out = append(a.out, m)
	}
	a.mu.Unlock()
	a.signal()
}

func (a *appender) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// send writes answers until the peer has ended and all are given.
func (a *appender) send(ctx context.Context) error {
	for {
		select {
		case <-a.wake:
			if err := a.flush(); err != nil {
				return err
			}
		case <-a.decided:
			return a.flush()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *appender) flush() error {
	a.mu.Lock()
	out := a.out
	a.out = nil
	a.mu.Unlock()
	for _, m := range out {
		if err := a.stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}
