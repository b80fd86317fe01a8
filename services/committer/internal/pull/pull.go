// Package pull is the committer as a follower of a table log: it takes the
// entries of one table from the buffer, keeps the contiguous new range of each
// partition, and writes their rows to data files as they arrive, so that a commit
// finds them written.
//
// Two goroutines share the work. The stream's hands entries to a queue that is
// bounded in bytes; the filler takes them from there, materialises them and
// writes. A cut (Seal) closes the files of what was taken and hands it over as
// one batch, while the next one fills.
package pull

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/cut"
)

// Owner is told what a follower hears that is no row. Its methods must not block.
type Owner interface {
	// Want: the buffer wants an epoch fence.
	Want(w commit.Wanted)
	// Reopen: the stream broke or opened, so the buffer may not know the table.
	Reopen()
	// Wake: more is held than before.
	Wake()
	// Failed: files could not be written; their rows come again.
	Failed(err error)
	// Unreadable: a partition stands still, because an entry of it cannot be made
	// rows; nil: none does any more.
	Unreadable(err error)
}

// readAhead is what the stream of a table may bring before it is written. More makes nothing
// faster, for the rows are hot in the buffer anyway, and they would lie here a second time.
const readAhead = 4 << 20

// Options of a Puller. Follow, Files and Budget are required.
type Options struct {
	Table string
	// Follow runs the follower until its context ends.
	Follow func(ctx context.Context, h follow.Handler) error
	Files  Files
	// Budget is shared by all tables of the process.
	Budget *Budget
	// Hot counts the uncommitted bytes of all tables of the process, in the
	// measure of the buffer's hot budget. Nil: this table's alone.
	Hot *atomic.Int64
	Log *slog.Logger
}

// Puller follows one table. Its methods are safe for concurrent use.
type Puller struct {
	o   Options
	log *slog.Logger

	more  chan struct{} // cap 1: something is queued
	seals chan sealing

	ahead *Budget // this table's share of Options.Budget

	mu        sync.Mutex
	following bool
	expect    event.Commit  // what the table holds, as the committer last said
	restarted chan struct{} // closed to end the present stream
	session   uint64        // numbers streams: an older one may say nothing more
	gen       uint64        // grows with every drop: what is older is void
	tracker   tracker
	hold      bool
	queue     []entry
	schemas   map[string]*schema.Schema
	progress  map[ident.Partition]event.Progress
	pins      follow.Pins
	pinned    bool      // pins were heard on the present stream
	openSince time.Time // of the present stream; zero when there is none
	down      bool      // the buffer was lost, and has not come back
	load      cut.Load
	moved     map[ident.Partition]bool // since the last seal
	hot       int64                    // of what is queued and in the open batch
	open      int                      // data files that are open
	troubles  map[ident.Partition]*trouble
}

// entry is a queued append with the offsets of it that are new.
type entry struct {
	gen    uint64
	append *event.Append
	within ident.Range
}

var _ commit.Source = (*Puller)(nil)

// New makes a puller. It follows after Run was called and Rebase said where.
func New(o Options) *Puller {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Hot == nil {
		o.Hot = new(atomic.Int64)
	}
	p := &Puller{
		o: o, log: o.Log.With("table", o.Table), more: make(chan struct{}, 1), seals: make(chan sealing), ahead: NewBudget(readAhead),
		restarted: make(chan struct{}), schemas: map[string]*schema.Schema{},
		progress: map[ident.Partition]event.Progress{}, moved: map[ident.Partition]bool{},
		troubles: map[ident.Partition]*trouble{},
	}
	p.tracker.restart(0)
	return p
}

// Run follows and fills until ctx ends, and returns its cause. Files of the batch
// that is open then are removed; their rows are hot and come again.
func (p *Puller) Run(ctx context.Context, owner Owner) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		newFiller(p, owner).run(ctx)
	}()
	defer func() {
		<-done
		p.note(p.dropLocked) // its share of the budget goes to other tables
	}()
	for ctx.Err() == nil {
		p.mu.Lock()
		following, restarted, session := p.following, p.restarted, p.session
		p.mu.Unlock()
		if !following {
			select {
			case <-ctx.Done():
			case <-restarted:
			}
			continue
		}
		p.stream(ctx, owner, session, restarted)
	}
	return context.Cause(ctx)
}

// stream runs one follower until ctx ends or a restart is called for.
func (p *Puller) stream(ctx context.Context, owner Owner, session uint64, restarted <-chan struct{}) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-restarted:
			cancel()
		case <-sctx.Done():
		}
	}()
	err := p.o.Follow(sctx, &handler{p: p, owner: owner, session: session, stop: sctx.Done()})
	if sctx.Err() == nil {
		p.log.Error("follower ended by itself", "error", err)
		owner.Failed(err)
		select { // a wrong set-up: it would end again at once
		case <-sctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Rebase implements commit.Source.
func (p *Puller) Rebase(at event.Commit, force bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expect = at
	if p.following && !force && p.tracker.epoch == at.LogEpoch {
		return
	}
	p.following = true
	p.dropLocked()
	p.tracker.restart(at.LogEpoch, at.Positions)
	p.restartLocked()
}

// HoldPoison implements commit.Source.
func (p *Puller) HoldPoison(hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold == hold {
		return
	}
	p.hold = hold
	if !hold && p.tracker.release() {
		p.restartLocked() // what was left out comes with an image
	}
}

// restartLocked ends the present stream; the next begins with an image.
func (p *Puller) restartLocked() {
	p.session++
	p.openSince, p.pinned = time.Time{}, false
	close(p.restarted)
	p.restarted = make(chan struct{})
}

// dropLocked makes everything held void. The filler removes its open files when
// it next looks.
func (p *Puller) dropLocked() {
	p.gen++
	for _, e := range p.queue {
		p.give(e.append.Bytes())
	}
	p.queue = nil
	p.o.Hot.Add(-p.hot)
	p.hot = 0
	p.load = cut.Load{}
	clear(p.moved)
	p.signal()
}

func (p *Puller) signal() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// Load implements commit.Source.
func (p *Puller) Load() cut.Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.load
	l.Hot, l.Own = p.o.Hot.Load(), p.hot
	for part := range p.moved {
		if r := p.progress[part].Retention; r > 0 && (l.Retention == 0 || r < l.Retention) {
			l.Retention = r
		}
	}
	return l
}

// quietPins is how long a stream must be open before silence about pins means
// that there are none: replicas report theirs within seconds.
const quietPins = 30 * time.Second

// Pins returns the lowest sequence number that readers need, 0 for none, and
// whether the buffer can know: without it nothing may be expired.
func (p *Puller) Pins() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.openSince.IsZero() {
		return 0, false
	}
	return p.pins.SequenceNumber, p.pinned || time.Since(p.openSince) >= quietPins
}

// Progress returns what ingest last said about each partition.
func (p *Puller) Progress() map[ident.Partition]event.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.progress)
}

// OpenFiles is the number of data files that are open.
func (p *Puller) OpenFiles() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// Held is where each partition stands, with everything that is held.
func (p *Puller) Held() ident.Vector {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tracker.vector()
}

// learn takes a schema in.
func (p *Puller) learn(s event.Schema) error {
	if p.schemas[s.Fingerprint] != nil {
		return nil
	}
	var parsed schema.Schema
	if err := json.Unmarshal(s.Columns, &parsed); err != nil {
		return fault.New(fault.Corrupt, "reading schema %s: %w", s.Fingerprint, err)
	}
	p.schemas[s.Fingerprint] = &parsed
	return nil
}
