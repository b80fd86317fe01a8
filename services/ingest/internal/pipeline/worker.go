package pipeline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/forward"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// stopError stops one partition until something outside of Icestream changes.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// errDrained ends a session that was asked to finish.
var errDrained = errors.New("drained")

// worker brings one topic partition into the log. It works in sessions: each joins the append stream, goes to the
// offset that the log names, and runs until something goes wrong; the next session starts over from what the log has.
type worker struct {
	p      *Pipeline
	cursor *source.Cursor
	m      *partitionMetrics

	cancel context.CancelFunc
	drain  chan struct{} // closed: send what is open, wait for its answers, end
	wake   chan struct{} // an operator wants another try now
	done   chan struct{}
	once   sync.Once
	flood  *flood      // belongs to the goroutine of run
	allow  atomic.Bool // an operator lets a flood of bad records go on

	mu         sync.Mutex
	part       ident.Partition
	state      event.PartitionState
	reason     string
	fetched    int64
	newest     time.Time
	ackedNext  int64
	replaced   ident.Range // offsets below a position at which the cluster's log was found to have other records than were read
	replacedOf ident.Partition
	exact      bool          // a leader epoch told that: there is no more to be found
	recorded   bool          // the table remembers it, or need not
	records    *recordsError // why it stands still, where that is because of records
}

// noteReplaced remembers that the cluster's log from the offset from to the position at was found replaced; it reports
// whether that is news. exact: a leader epoch told it. An end of the log that was seen below the position does not: other
// records may stand below that end too.
func (w *worker) noteReplaced(from, at int64, exact bool) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	news = !w.knows(at)
	w.exact = exact || !news && w.exact
	if !news && from >= w.replaced.First {
		return false
	}
	if !w.recorded && w.replacedOf == w.part {
		from = min(from, w.replaced.First)
	}
	w.replaced, w.replacedOf, w.recorded = ident.Range{First: from, Next: at}, w.part, false
	return news
}

// knows reports whether the log was found replaced below the very position at. Positions behind it have a history of
// their own, and so has a topic that was created again.
func (w *worker) knows(at int64) bool { return w.replaced.Next == at && w.replacedOf == w.part }

// replacedBelow is knows, for others.
func (w *worker) replacedBelow(at int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.knows(at)
}

// diverged reports whether a leader epoch told that about the very position at.
func (w *worker) diverged(at int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.knows(at) && w.exact
}

func newWorker(p *Pipeline, k *source.Cursor) *worker {
	return &worker{
		p: p, cursor: k, m: newPartitionMetrics(p.c.Metrics, p.c.Pipeline.Name, k.TopicPartition),
		drain: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}), flood: newFlood(p.c.Pipeline.Flood),
		state: event.PartitionWaiting, reason: "starting", ackedNext: -1, fetched: -1,
	}
}

// finish asks for an orderly end.
func (w *worker) finish() { w.once.Do(func() { close(w.drain) }) }

func (w *worker) retryNow() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) set(s event.PartitionState, reason string) {
	w.mu.Lock()
	same := w.state == s && w.reason == reason
	w.state, w.reason, w.records = s, reason, nil
	w.mu.Unlock()
	if !same {
		w.p.changed()
	}
}

// blame notes that the worker stands still because of records.
func (w *worker) blame(err error) {
	bad, _ := errors.AsType[*recordsError](err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = bad
}

// run works until ctx ends or the worker is drained.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	wait := backoff.Policy{Initial: 50 * time.Millisecond, Max: 5 * time.Second, Factor: 2, Jitter: 0.3}.Start()
	again := false
	for ctx.Err() == nil {
		began := w.position()
		err := w.session(ctx, again)
		if ctx.Err() != nil || errors.Is(err, errDrained) {
			return
		}
		if errors.Is(err, errPolicy) {
			continue
		}
		again = errors.Is(err, forward.ErrUnknownPartition)
		if w.position() > began { // there was progress: what failed is new
			wait.Reset()
		}
		if !w.pause(ctx, wait, err) {
			return
		}
	}
}

func (w *worker) position() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ackedNext
}

// pause says why the session ended and waits before the next; false means that the worker shall end.
func (w *worker) pause(ctx context.Context, wait *backoff.Backoff, err error) bool {
	var stop *stopError
	var after time.Duration
	switch {
	case errors.As(err, &stop):
		w.set(event.PartitionStopped, stop.Error())
		w.blame(err)
		w.p.c.Log.Error("partition stopped", "partition", w.cursor.String(), "error", err)
		after = stoppedRetry
	case errors.Is(err, forward.ErrRefused):
		w.set(event.PartitionStopped, err.Error())
		w.p.c.Log.Error("partition stopped", "partition", w.cursor.String(), "error", err)
	case errors.Is(err, forward.ErrStreamDown), errors.Is(err, forward.ErrMoved), errors.Is(err, forward.ErrLeft):
		w.set(event.PartitionWaiting, err.Error())
	default:
		w.set(event.PartitionWaiting, err.Error())
		if wait.Count() == 0 {
			w.p.c.Log.Warn("partition waits", "partition", w.cursor.String(), "error", err)
		}
	}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		after = max(after, f.RetryAfter)
	}
	t := time.NewTimer(max(wait.Next(), after))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.drain:
		return false
	case <-w.wake:
	case <-t.C:
	}
	return true
}

// stoppedRetry is how often a stopped partition looks whether it may go on: a refused schema may have been decided.
const stoppedRetry = 10 * time.Second

// session runs from joining the stream to the first fault, which it returns.
func (w *worker) session(parent context.Context, again bool) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	topic, err := w.p.topic(w.cursor.Topic)
	if err != nil {
		return err
	}
	tbl, err := w.p.tableOf(w.cursor.Topic)
	if err != nil {
		return &stopError{err}
	}
	part := w.p.partition(topic, w.cursor.Number)
	w.mu.Lock()
	w.part = part
	w.mu.Unlock()
	stopWatch := w.watchDrain(ctx, cancel)
	err = tbl.open(ctx, part, again)
	stopWatch()
	if err != nil {
		return orCause(ctx, err)
	}
	committed, _ := tbl.position(part)
	stopWatch = w.watchDrain(ctx, cancel)
	pins, err := w.p.pins(ctx)
	stopWatch()
	if err != nil {
		return orCause(ctx, err)
	}
	stopWatch = w.watchDrain(ctx, cancel)
	lane, err := tbl.stream.Join(ctx, part, committed.Next)
	stopWatch()
	if err != nil {
		return orCause(ctx, err)
	}
	defer lane.Leave()
	go func() { // the end of the lane ends whatever the session waits for
		select {
		case <-lane.Done():
			cancel(lane.Err())
		case <-ctx.Done():
		}
	}()
	s := &session{w: w, t: tbl, lane: lane, part: part, pins: pins}
	return orCause(ctx, s.run(ctx))
}

// watchDrain ends ctx when the worker is asked to finish while it waits for others.
func (w *worker) watchDrain(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	quit := make(chan struct{})
	go func() {
		select {
		case <-w.drain:
			cancel(errDrained)
		case <-quit:
		case <-ctx.Done():
		}
	}()
	return func() { close(quit) }
}

// orCause prefers the reason for which ctx ended to the error that this caused.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return cause
	}
	return err
}

// progress is what the buffer and the followers are told each second.
func (w *worker) progress() (string, event.Progress, bool) {
	tbl, err := w.p.tableOf(w.cursor.Topic)
	topic, terr := w.p.topic(w.cursor.Topic)
	l := w.cursor.Limits()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || terr != nil || w.part.Topic == "" {
		return "", event.Progress{}, false
	}
	return tbl.name, event.Progress{
		Partition: w.part, LogStart: l.LogStart, StableEnd: l.StableEnd, Fetch: w.fetched, Retention: topic.Retention,
		State: w.state, Reason: w.reason, LeaderEpoch: l.LeaderEpoch, NewestTime: w.newest,
	}, true
}

func (w *worker) took(next int64, newest int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fetched = next
	if t := time.UnixMilli(newest); newest > 0 && t.After(w.newest) {
		w.newest = t
	}
}

// acked notes what the log holds; it is called from the stream's goroutine.
func (w *worker) acked(h *event.Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ackedNext = max(w.ackedNext, h.Range.Next)
}

func (w *worker) outgoing(e *batch.Entry) forward.Outgoing {
	header := e.Header // a copy: the entry may be gone when the answer comes
	reasons := e.Reasons
	return forward.Outgoing{
		Entry: &e.Append, RowSlices: e.RowSlices, QuarantineSlices: e.QuarantineData, Size: e.Size(),
		Release: func(stored bool) {
			e.Release(stored)
			if stored {
				w.acked(&header)
				w.m.stored(&header, reasons)
			}
		},
	}
}
