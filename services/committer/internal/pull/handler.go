package pull

import (
	"errors"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// errEnding ends a stream that is being stopped anyway.
var errEnding = errors.New("the stream is being restarted")

// handler takes in one stream. Its methods are called one at a time.
type handler struct {
	p       *Puller
	owner   Owner
	session uint64
	stop    <-chan struct{} // closed when the stream is to end
}

// Image merges a state image with what is held: an image of the same epoch adds
// what is new and repeats nothing, so a broken stream costs no files.
func (h *handler) Image(img event.Image) error {
	p := h.p
	err := h.locked(func() error { return p.rebaseOnImage(img) })
	if err != nil {
		return err
	}
	for _, e := range img.Hot {
		if err := h.take(e); err != nil {
			return err
		}
	}
	return nil
}

// rebaseOnImage makes the tracker fit an image.
func (p *Puller) rebaseOnImage(img event.Image) error {
	if img.Commit.LogEpoch != p.expect.LogEpoch {
		return fault.New(fault.NotReady, "taking in an image: it is of log epoch %d, the table is at %d: waiting for the buffer to catch up",
			img.Commit.LogEpoch, p.expect.LogEpoch)
	}
	p.openSince, p.down = time.Now(), false
	for _, s := range img.Schemas {
		if err := p.learn(s); err != nil {
			return err
		}
	}
	if p.tracker.epoch != img.Commit.LogEpoch || !p.tracker.merge(img.Commit.Positions) {
		p.dropLocked()
		p.tracker.restart(img.Commit.LogEpoch, img.Commit.Positions, p.expect.Positions)
	}
	return nil
}

// locked runs f under the puller's lock, unless this stream is over: what an old
// stream says may be about another epoch.
func (h *handler) locked(f func() error) error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.session != h.p.session {
		return errEnding
	}
	return f()
}

// Event takes one event of the log in.
func (h *handler) Event(ev event.Event) error {
	switch {
	case ev.Append != nil:
		return h.take(ev.Append)
	case ev.Schema != nil:
		return h.locked(func() error { return h.p.learn(*ev.Schema) })
	case ev.Commit != nil:
		return h.locked(func() error { return h.p.committed(*ev.Commit) })
	case ev.Epoch != nil:
		return h.locked(func() error { h.p.epoch(ev.Epoch.Commit); return nil })
	default:
		return nil
	}
}

// committed takes a Commit event in.
func (p *Puller) committed(c event.Commit) error {
	if c.LogEpoch != p.tracker.epoch || p.tracker.merge(c.Positions) {
		return nil
	}
	p.log.Warn("somebody else committed rows of this log: what is held is dropped", "snapshot", c.SnapshotID)
	p.dropLocked()
	p.tracker.restart(c.LogEpoch, c.Positions)
	return fault.New(fault.Conflict, "taking in a commit: it lies ahead of what is held here")
}

// epoch takes an Epoch event in: everything held is void.
func (p *Puller) epoch(c event.Commit) {
	if c.LogEpoch <= p.tracker.epoch {
		return
	}
	p.expect = c
	p.dropLocked()
	p.tracker.restart(c.LogEpoch, c.Positions)
}

// take queues an entry, waiting for room in the budget.
func (h *handler) take(e *event.Append) error {
	p := h.p
	size := e.Bytes()
	alone := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.queue) == 0 }
	if !p.ahead.take(h.stop, size, alone) {
		return errEnding
	}
	if !p.o.Budget.take(h.stop, size, alone) {
		p.ahead.give(size)
		return errEnding
	}
	taken := false
	err := h.locked(func() (err error) {
		taken, err = p.enqueue(e)
		return err
	})
	if !taken {
		p.give(size)
	}
	return err
}

// give gives the room of an entry back.
func (p *Puller) give(size int64) {
	p.ahead.give(size)
	p.o.Budget.give(size)
}

// enqueue queues what is new of an entry, and reports whether there was any.
func (p *Puller) enqueue(e *event.Append) (bool, error) {
	if p.troubles[e.Partition].holds() {
		return false, nil // it comes again with the image of the next try
	}
	within, v := p.tracker.admit(e, p.hold)
	switch v {
	case gap:
		return false, fault.New(fault.OutOfOrder, "taking in %v %v: %d is what comes next: following anew", e.Partition, e.Range, p.tracker.next[e.Partition])
	case drop:
		return false, nil
	case take:
	}
	now := time.Now()
	p.queue = append(p.queue, entry{gen: p.gen, append: e, within: within})
	p.hot += e.Bytes()
	p.o.Hot.Add(e.Bytes())
	p.moved[e.Partition] = true
	p.load.Rows += e.Rows + e.Quarantined
	if p.load.Since.IsZero() {
		p.load.Since = now
	}
	if p.load.SinceRows.IsZero() && e.Rows+e.Quarantined > 0 {
		p.load.SinceRows = now
	}
	p.signal()
	return true, nil
}

// Notice passes news on.
func (h *handler) Notice(n follow.Notice) {
	p := h.p
	switch {
	case n.EpochWanted != nil:
		w := n.EpochWanted
		h.owner.Want(commit.Wanted{Nonce: w.Nonce, Reason: w.Reason, AppendsWaiting: w.AppendsWaiting})
	case n.Up:
		// The buffer may be another than the one that was told of the table when the
		// last stream broke: it may have died, told, before this stream was open.
		h.owner.Reopen()
	case n.Down != nil:
		p.mu.Lock()
		p.openSince, p.pinned, p.down = time.Time{}, false, true
		p.mu.Unlock()
		h.owner.Reopen()
	case n.Pins != nil:
		p.mu.Lock()
		p.pins, p.pinned = *n.Pins, true
		p.mu.Unlock()
	case n.Progress != nil:
		p.mu.Lock()
		for _, pr := range n.Progress {
			p.progress[pr.Partition] = pr
		}
		p.mu.Unlock()
	}
}
