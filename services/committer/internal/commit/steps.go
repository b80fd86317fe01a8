package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// NewID makes a random commit id.
func NewID() ident.UUID {
	var u ident.UUID
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

// takeOver makes the table ours: the writer fence, an empty snapshot with the
// next writer epoch that asserts exactly the head that recovery reads, and then
// what a predecessor left. After the fence no request of an older committer can
// land, so only now its files may be judged.
func (t *Table) takeOver(ctx context.Context) error {
	pause := t.o.Backoff.Start()
	for {
		err := t.reload(ctx)
		if err == nil {
			break
		}
		if stops(err) {
			return err
		}
		if err := t.retry(ctx, pause, lake.KindWriter, err); err != nil {
			return err
		}
	}
	var target ident.WriterEpoch
	_, err := t.land(ctx, lake.KindWriter, true, func(head lake.Head) (lake.Change, error) {
		id := NewID()
		s := fenced(head.State, id)
		target = s.WriterEpoch
		return lake.Change{CommitID: id, State: s}, nil
	})
	if err != nil {
		return err
	}
	t.epoch = target
	if t.head.State.WriterEpoch != target {
		return t.fencedBy() // landed, and somebody took it over at once
	}
	t.log.Info("table taken over", "writer_epoch", int64(target), "log_epoch", int64(t.head.State.LogEpoch),
		"snapshot", t.head.SnapshotID, "positions", positions(t.head.State))
	// Attempts of our own epoch or a higher one may be under way: of a successor
	// that fenced us just now (G6).
	if err := t.undo(ctx, func(in lake.Intent) bool { return in.Epoch < target }); err != nil {
		t.log.Warn("attempts of predecessors are not all settled; their files stay until the next start", "error", err)
	}
	t.applied = map[ident.UUID]bool{}
	t.status.change(func(s *Status) { s.State, s.Reason = "running", "" })
	if !marks(pendingOf(t.head.State, t.applied)) { // a mark may take long: the loop does it
		t.applyOutbox(ctx, t.o.Outbox)
	}
	t.source.Rebase(t.head.Event(), true)
	t.Reopen()
	t.noteHead()
	return nil
}

// step does everything that is due, in the order of urgency, and returns when to
// look again at the latest. Errors end the writing of the table.
func (t *Table) step(ctx context.Context, stopping bool) (time.Time, error) {
	now := time.Now()
	next := now.Add(t.o.Poll)
	sooner := func(at time.Time) {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	if err := t.poll(ctx, now); err != nil {
		return next, err
	}
	if !stopping {
		at, err := t.talkToBuffer(ctx, now)
		if err != nil {
			return next, err
		}
		sooner(at)
	}
	at, err := t.cut(ctx, stopping)
	if err != nil {
		return next, err
	}
	sooner(at)
	if len(pendingOf(t.head.State, t.applied)) > 0 {
		if stopping && t.late || !time.Now().Before(t.outboxAt) {
			t.applyOutbox(ctx, t.o.Outbox)
		}
		sooner(t.outboxAt)
	}
	if t.unreported && (stopping || !time.Now().Before(t.talkAt)) {
		t.report(ctx)
	}
	if t.unreported {
		sooner(t.talkAt)
	}
	if !t.foreignSince.IsZero() && !stopping {
		at := t.foreignSince.Add(t.o.Anchor)
		if !time.Now().Before(at) {
			return time.Now(), t.anchor(ctx)
		}
		sooner(at)
	}
	return next, nil
}

// poll looks at the head from time to time, to notice what others do.
func (t *Table) poll(ctx context.Context, now time.Time) error {
	if now.Sub(t.lastPoll) < t.o.Poll {
		return nil
	}
	t.lastPoll = now // also where it fails
	err := t.reload(ctx)
	switch {
	case err == nil, !stops(err): // a catalog that is away is on the status board
	default:
		return err
	}
	t.noteHead()
	return nil
}

// talkToBuffer opens the table at the buffer and answers its wish for an epoch.
func (t *Table) talkToBuffer(ctx context.Context, now time.Time) (time.Time, error) {
	t.mu.Lock()
	opening, wanted := t.opening, t.wanted
	t.mu.Unlock()
	if opening {
		if now.Before(t.talkAt) {
			return t.talkAt, nil
		}
		w, err := t.open(ctx)
		if err != nil {
			t.talkFailed("opening the table at the buffer", err)
			return t.talkAt, nil
		}
		if w != nil { // kept, since the fence may have to wait
			wanted = w
			t.mu.Lock()
			t.wanted = w
			t.mu.Unlock()
		}
	}
	if wanted == nil {
		return time.Time{}, nil
	}
	return t.fence(ctx, *wanted)
}

// open tells the buffer the state of the table.
func (t *Table) open(ctx context.Context) (*Wanted, error) {
	schemas, err := t.schemas()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.opening = false // a break of the stream from here on opens it again
	t.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, t.o.Call)
	defer cancel()
	w, err := t.buffer.OpenTable(call, t.head.Event(), schemas, t.head.Ended)
	if err != nil {
		t.mu.Lock()
		t.opening = true
		t.mu.Unlock()
		return nil, err
	}
	t.unreported = false
	t.talked()
	return w, nil
}

// reopen reports whether the buffer has to be told the state again.
func (t *Table) reopen() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.opening
}

// fence starts a log epoch for the buffer: an empty snapshot, and its grant. What
// is held of the old epoch is committed first, so that tokens of it stay good.
// A wish that a fence of ours answered already gets the same answer again.
func (t *Table) fence(ctx context.Context, w Wanted) (time.Time, error) {
	if w.Nonce == t.granted.nonce && t.granted.commit.LogEpoch == t.head.State.LogEpoch && w.Nonce != 0 {
		return t.grant(ctx, w.Nonce, t.granted.commit)
	}
	gap := t.o.FenceGap
	if w.AppendsWaiting {
		gap /= 10
	}
	if at := t.lastFence.Add(gap); time.Now().Before(at) {
		return at, nil
	}
	if err := t.commitHeld(ctx, cut.Epoch); err != nil {
		return time.Time{}, err
	}
	head, err := t.land(ctx, lake.KindFence, false, func(head lake.Head) (lake.Change, error) {
		id := NewID()
		return lake.Change{CommitID: id, State: newEpoch(head.State, id, t.applied)}, nil
	})
	if err != nil {
		return time.Time{}, err
	}
	t.lastFence = time.Now()
	t.log.Info("log epoch started", "log_epoch", int64(head.State.LogEpoch), "reason", w.Reason, "snapshot", head.SnapshotID)
	t.granted = grant{nonce: w.Nonce, commit: head.Event()}
	return t.grant(ctx, w.Nonce, t.granted.commit)
}

// grant hands a fence that landed to the buffer. One that it does not want any
// more is no error: it says what it wants instead.
func (t *Table) grant(ctx context.Context, nonce uint64, c event.Commit) (time.Time, error) {
	call, cancel := context.WithTimeout(ctx, t.o.Call)
	defer cancel()
	t.source.Rebase(t.head.Event(), false) // first, so that the image of the new epoch is waited for
	err := t.buffer.GrantEpoch(call, nonce, c)
	if err != nil {
		t.talkFailed("granting a log epoch", err)
		r := fault.ReasonOf(err)
		if r != fault.Conflict && r.Retryable() || errors.Is(err, context.DeadlineExceeded) {
			return t.talkAt, nil // the wish stands and is answered again
		}
		t.granted = grant{} // it is not offered again, or a buffer that goes on refusing it would never serve (G11)
		t.mu.Lock()
		t.opening = true // nobody waits for this grant: ask what is wanted now
		t.mu.Unlock()
	}
	t.mu.Lock()
	if t.wanted != nil && t.wanted.Nonce == nonce {
		t.wanted = nil
	}
	t.mu.Unlock()
	t.unreported = false
	t.noteHead()
	return time.Time{}, nil
}

// cut commits when it is due, and returns when to ask again.
func (t *Table) cut(ctx context.Context, stopping bool) (time.Time, error) {
	load := t.source.Load()
	load.Stopping = stopping
	t.mu.Lock()
	policy := t.policy
	t.mu.Unlock()
	reason, ask := policy.Decide(time.Now(), load)
	if reason == cut.None {
		return ask, nil
	}
	if err := t.commitHeld(ctx, reason); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}

// commitHeld seals what is held and commits it, for some reasons with all that
// waits behind it.
func (t *Table) commitHeld(ctx context.Context, reason cut.Reason) error {
	all := reason == cut.Asked || reason == cut.Stopping || reason == cut.Epoch
	var upTo ident.Vector
	if all {
		upTo = t.visible(ctx)
	}
	for {
		done := t.took(StepClose)
		b, err := t.source.Seal(ctx, upTo)
		done()
		if err != nil {
			t.status.failed(atFiles, err)
			t.log.Warn("files could not be closed: their rows are read again from the log", "error", err)
			return nil
		}
		if b == nil {
			if all && t.late {
				t.applyOutbox(ctx, t.o.Outbox/3)
			}
			return nil
		}
		t.status.fine(atFiles)
		b.Cut = reason
		more := b.More
		if err := t.commit(ctx, b); err != nil {
			return err
		}
		if !all || !more {
			return nil
		}
	}
}

// visible is what readers may have seen and therefore waits for no later commit (G7). A
// buffer that does not say keeps nothing back: what is here is committed.
func (t *Table) visible(ctx context.Context) ident.Vector {
	call, cancel := context.WithTimeout(ctx, t.o.Call)
	defer cancel()
	v, err := t.buffer.Visible(call)
	if err != nil {
		t.log.Debug("the buffer does not say what it shows: what is here is committed", "error", err)
	}
	if err != nil || v == nil {
		return ident.Vector{}
	}
	return v
}

// anchor puts an empty snapshot of ours on top of a foreign head.
func (t *Table) anchor(ctx context.Context) error {
	_, err := t.land(ctx, lake.KindAnchor, false, func(head lake.Head) (lake.Change, error) {
		id := NewID()
		return lake.Change{CommitID: id, State: anchored(head.State, id, t.applied)}, nil
	})
	if err != nil {
		return err
	}
	t.report(ctx)
	return nil
}
