// Package commit owns the commits of one table: the order of the steps of a
// commit, the attempt machine that settles what became of it, the fences, and the
// loop that serialises everything that changes the table.
//
// The rules themselves are pure (attempt.go, state.go); land.go drives them and
// order.go holds the one function that owns the order. Lake, buffer and the source
// of rows are ports, so that all of it runs against fakes.
package commit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Options of a table's committer. Zero durations get the defaults.
type Options struct {
	// Name is the table identifier, "namespace.name".
	Name   string
	Policy cut.Policy
	// Poll is how often the head is looked at while nothing is committed; 10 s.
	Poll time.Duration
	// Anchor is how long a foreign head may stand before an empty snapshot of
	// ours goes on top, so that another engine's expiry cannot remove every
	// snapshot that carries our state; 30 s.
	Anchor time.Duration
	// Drain bounds the last commit at the end; 20 s.
	Drain time.Duration
	// FenceGap is the least time between two epoch fences of the table when no
	// appends wait; a tenth of it when they do; 5 s.
	FenceGap time.Duration
	// Call bounds one call to the buffer; 5 s.
	Call time.Duration
	// Outbox bounds one try to apply pending quarantine files; 30 s. Within a
	// commit, where the report waits for it, a third of it.
	Outbox  time.Duration
	Backoff backoff.Policy
	// Revived returns a channel that is closed when the catalog is next seen to
	// answer again after it did not; whatever waits for it then goes on at once.
	// Nil: nobody watches, and waits are those of Backoff.
	Revived func() <-chan struct{}
	Log     *slog.Logger
}

func (o *Options) revived() <-chan struct{} {
	if o.Revived == nil {
		return nil
	}
	return o.Revived()
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Poll, 10*time.Second)
	def(&o.Anchor, 30*time.Second)
	def(&o.Drain, 20*time.Second)
	def(&o.FenceGap, 5*time.Second)
	def(&o.Call, 5*time.Second)
	def(&o.Outbox, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Ports are what a table's committer works with.
type Ports struct {
	Lake     Lake
	Outbox   Outbox
	Intents  Intents
	Buffer   Buffer
	Source   Source
	Observe  Observer
	Maintain Maintainer // nil: no upkeep
}

// Table is the committer of one table. Run owns everything; the other methods
// hand their work to it and are safe for concurrent use.
type Table struct {
	o        Options
	log      *slog.Logger
	lake     Lake
	outbox   Outbox
	intents  Intents
	buffer   Buffer
	source   Source
	observe  Observer
	maintain Maintainer

	jobs   chan job
	wake   chan struct{}
	ended  chan struct{}
	status board

	mu      sync.Mutex
	policy  cut.Policy
	wanted  *Wanted // newest wish of the buffer, nil when none
	opening bool    // the buffer has to be told the state again
	// Metadata columns that some pipeline wants.
	wantLSN, wantKafka bool

	// What follows belongs to the loop.
	epoch        ident.WriterEpoch // ours; 0 before the take-over
	head         lake.Head         // as loaded last
	unreported   bool              // the buffer does not know the head yet
	foreignSince time.Time         // since when the head is somebody else's; zero when it is ours
	applied      map[ident.UUID]bool
	known        map[string]event.Schema // published, by fingerprint
	waiting      map[waitingKey]Waiting  // refused schemas
	granted      grant
	lastFence    time.Time
	lastPoll     time.Time
	lastError    error
	answer       error     // of the last request to commit
	denies       error     // why the catalog denied a change
	denied       []denial  // whose files are not removed yet
	talkAt       time.Time // not before this is the buffer talked to again
	outboxAt     time.Time // not before this is the outbox tried again
	late         bool      // the outbox was put off under pressure
	cleaning     sync.WaitGroup
	cleans       run.Turn     // one clean-up after the other
	expired      *lake.Staged // landed with an expiry that is not cleaned up after
	talk         *backoff.Backoff
	outboxPause  *backoff.Backoff
}

// grant is the fence that answered a nonce, so that an answer that was lost is
// given again and not made again.
type grant struct {
	nonce  uint64
	commit event.Commit
}

// job is work for the loop. Its caller may have gone when it is done: the loop
// finishes what it began, since a half-settled commit is worse than a late
// answer.
type job struct {
	do     func(context.Context) error
	refuse func(error)
	taken  *atomic.Bool // by the loop, which does it then, or by the caller, who has gone
	always bool         // also while the table is stopped
}

// unbegun marks an error of work that the loop has not begun and will not begin.
type unbegun struct{ error }

func (u unbegun) Unwrap() error { return u.error }

// New makes the committer of a table. Nothing happens before Run.
func New(o Options, p Ports) *Table {
	o = o.withDefaults()
	t := &Table{
		o: o, log: o.Log.With("table", o.Name), cleans: run.NewTurn(), lake: p.Lake, outbox: p.Outbox, intents: p.Intents, buffer: p.Buffer,
		source: p.Source, observe: p.Observe, maintain: p.Maintain,
		jobs: make(chan job), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		policy: o.Policy, opening: true, applied: map[ident.UUID]bool{}, known: map[string]event.Schema{}, waiting: map[waitingKey]Waiting{},
		talk: o.Backoff.Start(), outboxPause: o.Backoff.Start(),
	}
	t.status.change(func(s *Status) { s.State, s.Reason = "starting", "taking the table over" })
	return t
}

// Name returns the table identifier.
func (t *Table) Name() string { return t.o.Name }

// Status returns what the table is doing.
func (t *Table) Status() Status { return t.status.get() }

// SetPolicy changes when the table is committed.
func (t *Table) SetPolicy(p cut.Policy) {
	t.mu.Lock()
	t.policy = p
	t.mu.Unlock()
	t.Wake()
}

// Wake asks the loop to look at the source again: more is held than before.
func (t *Table) Wake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Want notes that the buffer wants an epoch fence. The newest wish counts.
func (t *Table) Want(w Wanted) {
	t.mu.Lock()
	t.wanted = &w
	t.mu.Unlock()
	t.Wake()
}

// Failed notes that the source could not write files; it tries again by itself.
func (t *Table) Failed(err error) {
	t.status.failed(atFiles, err)
}

// Reopen notes that the buffer may not know the table, because the stream from it
// broke, or one to another began. What was wanted on the stream before, a buffer
// wants again that still does.
func (t *Table) Reopen() {
	t.mu.Lock()
	t.opening, t.wanted = true, nil
	t.mu.Unlock()
	t.Wake()
}

// Run takes the table over and commits until ctx ends, then commits once more
// within Options.Drain. It returns nil after that. A table that must not be
// written any more does not end Run: it stays red, says why, and answers with
// that; it goes on by itself when its head is as it should be again.
func (t *Table) Run(ctx context.Context) error {
	defer close(t.ended)
	defer t.cleaning.Wait()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopDrain := context.AfterFunc(ctx, func() { // bounds whatever is under way, and the last commit
		deadline := time.AfterFunc(t.o.Drain, cancel)
		context.AfterFunc(work, func() { deadline.Stop() })
	})
	defer stopDrain()
	for {
		err := t.own(ctx, work)
		if ctx.Err() != nil {
			t.status.change(func(s *Status) { s.State, s.Reason = "ended", "" })
			if err != nil {
				err = fmt.Errorf("ending table %s: %w", t.o.Name, err)
			}
			return err
		}
		if !t.stopped(ctx, work, err) {
			break
		}
	}
	return nil
}

// ended reports whether ctx has ended, which is an order here and no error.
func ended(ctx context.Context) bool { return ctx.Err() != nil }

// own takes the table over and works until ctx ends or the table must not be
// written any more.
func (t *Table) own(ctx, work context.Context) error {
	if err := t.takeOver(work); err != nil {
		return err
	}
	for {
		stopping := ended(ctx)
		next, err := t.step(work, stopping)
		if err != nil {
			return err
		}
		if stopping { // not before a whole step knew of it: the last commit is in it
			return nil
		}
		if err := t.sleep(ctx, work, next); err != nil {
			return err
		}
	}
}

// sleep waits for the next thing to do: a job, news from the source, the time
// next, or the end.
func (t *Table) sleep(ctx, work context.Context, next time.Time) error {
	timer := time.NewTimer(max(0, time.Until(next)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-t.wake:
	case j := <-t.jobs:
		if !j.taken.CompareAndSwap(false, true) {
			return nil
		}
		if err := j.do(work); stops(err) {
			return err
		}
	}
	return nil
}

// ask hands work to the loop and waits for its answer.
func ask[T any](ctx context.Context, t *Table, f func(context.Context) (T, error)) (T, error) {
	return askLoop(ctx, t, false, f)
}

// askLoop is ask; with always also while the table is stopped.
func askLoop[T any](ctx context.Context, t *Table, always bool, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	j := job{
		do: func(work context.Context) error {
			v, err := f(work)
			done <- answer{v, err}
			return err
		},
		refuse: func(err error) { done <- answer{err: unbegun{err}} },
		taken:  &atomic.Bool{},
		always: always,
	}
	var none T
	select {
	case t.jobs <- j:
	case <-ctx.Done():
		return none, unbegun{t.busy(ctx)}
	case <-t.ended:
		return none, fault.New(fault.Unavailable, "asking the committer of table %s: it is shutting down", t.o.Name)
	}
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		if j.taken.CompareAndSwap(false, true) {
			return none, unbegun{t.busy(ctx)}
		}
		return none, t.busy(ctx)
	}
}

func (t *Table) busy(ctx context.Context) error {
	return fault.New(fault.Unavailable, "waiting for the committer of table %s: %w; it is at: %s",
		t.o.Name, context.Cause(ctx), t.Status().Reason)
}

// stopped waits while the table must not be written, answers what is asked with
// the reason, and returns true when it may be taken over again, or false when ctx
// ended. A fence by another committer heals by a restart alone.
func (t *Table) stopped(ctx, work context.Context, cause error) bool {
	t.log.Error("table stopped", "error", cause)
	t.status.change(func(s *Status) { s.State, s.Reason = "stopped", fault.Text(cause) })
	t.epoch = 0
	tick := time.NewTicker(t.o.Poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case j := <-t.jobs:
			if !j.always || errors.Is(cause, errFenced) {
				j.refuse(fault.New(fault.Stopped, "table %s is stopped: %w", t.o.Name, cause))
				continue
			}
			if !j.taken.CompareAndSwap(false, true) || j.do(work) != nil {
				continue
			}
			if t.mended(ctx) {
				return true
			}
		case <-t.wake:
		case <-tick.C:
			if !errors.Is(cause, errFenced) && t.mended(ctx) {
				return true
			}
		}
	}
}

// mended reports whether a table that was stopped may be taken over again.
func (t *Table) mended(ctx context.Context) bool {
	if t.reload(ctx) != nil {
		return false
	}
	t.log.Info("table is as it should be again: taking it over")
	t.status.change(func(s *Status) { s.State, s.Reason = "starting", "taking the table over" })
	return true
}

// took measures a step until what it returns is called.
func (t *Table) took(s Step) (ended func()) {
	began := time.Now()
	return func() { t.observe.Stepped(s, time.Since(began)) }
}

// schemas lists what the buffer has to know: the schema of the head and every
// target that was published, oldest table schema first.
func (t *Table) schemas() ([]event.Schema, error) {
	s, err := eventSchema(t.head.SchemaID, t.head.Schema)
	if err != nil {
		return nil, err
	}
	list := []event.Schema{s}
	for fingerprint, k := range t.known {
		if fingerprint != s.Fingerprint {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b event.Schema) int {
		return cmp.Or(cmp.Compare(a.TableSchemaID, b.TableSchemaID), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return list, nil
}

// eventSchema is a schema in the words of the table log.
func eventSchema(id int32, s *schema.Schema) (event.Schema, error) {
	columns, err := json.Marshal(s)
	if err != nil {
		return event.Schema{}, fault.New(fault.Internal, "writing schema %d: %w", id, err)
	}
	return event.Schema{Fingerprint: s.Fingerprint(), TableSchemaID: id, Columns: columns}, nil
}
