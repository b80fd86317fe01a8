package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// maxPending is the number of outbox entries above which the table is red and
// partitions that bring further poison wait.
const maxPending = 32

// hurried is the number of outbox entries below which commits under pressure
// leave them pending, as a deadline that passed would. What has gathered is
// applied together when that many wait, and soon after the pressure is over.
const hurried = maxPending / 2

// commit lands one batch. It is the one place that owns the order of a commit
// (design section 3), and this is what a crash between the steps leaves:
//
//  1. The data files are closed (Source.Seal) and the quarantine file is written;
//     the intent record was written before the first of them. A crash leaves
//     files that nothing references. The successor finds the record after its
//     fence and deletes what it names; before the fence it must not, since the
//     request of step 2 may still be on its way.
//  2. The Iceberg commit, which asserts the head that the ranges were checked
//     against. A crash, or a lost answer, leaves a commit that nobody knows of.
//  3. The table is reloaded and the commit id looked for. Only this step decides
//     whether step 2 happened. After it the commit is a fact, and the intent
//     record goes. A crash leaves the record; its commit id is found in the
//     table, so the successor removes it and nothing else.
//  4. Pending quarantine files are appended to the quarantine table, within a
//     deadline: a crash or a failure leaves them named in the main table, and
//     they are applied later, once.
//  5. The buffer is told. A crash leaves a buffer that believes rows to be hot
//     that are cold; the successor reports at its start. Rows are never missing
//     or double for readers meanwhile: the vector in the report decides.
//  6. The buffer tells ingest, which commits its group position. A crash leaves
//     the group behind; the table is the record and it is repaired from it.
//
// A batch that does not continue the table (somebody else wrote) is given up:
// its files are deleted once it is proven that no snapshot names them, and its
// rows come again from the log.
func (t *Table) commit(ctx context.Context, b *Batch) error {
	defer b.Release()
	pending, err := t.prepare(ctx, b) // 1
	if err != nil {
		return err
	}
	head, err := t.land(ctx, lake.KindData, false, func(head lake.Head) (lake.Change, error) { // 2, 3
		state, err := advanced(head.State, b, t.applied, pending)
		if err != nil {
			return lake.Change{}, err
		}
		return lake.Change{CommitID: b.ID, State: state, Files: b.Files, Expire: t.expiry(head)}, nil
	})
	switch {
	case errors.Is(err, errEpoch), errors.Is(err, errRange):
		t.giveUp(ctx, b, err)
		return nil
	case err != nil:
		return err
	}
	t.intents.RemoveIntent(ctx, b.ID)
	t.landed(b, head)
	early := marks(pendingOf(t.head.State, t.applied))
	if early {
		t.report(ctx) // 5 first, since a mark may take long
	}
	switch {
	case b.Cut == cut.Pressure && t.putOff():
	case t.late || !time.Now().Before(t.outboxAt):
		t.applyOutbox(ctx, t.o.Outbox/3) // 4
	}
	if !early {
		t.report(ctx) // 5; 6 is the buffer's
	}
	t.clean(ctx)
	return nil
}

// expiry is what the maintainer wants removed with the next data commit, nil when
// nothing is due. It rides along, so that it costs no commit of its own.
func (t *Table) expiry(head lake.Head) *lake.ExpirePolicy {
	if t.maintain == nil {
		return nil
	}
	p, due := t.maintain.Upkeep(head)
	if !due {
		return nil
	}
	return &p
}

// clean removes what the expiry of the last data commit freed, beside the loop:
// hundreds of files take a while, and the next commit must not wait for it.
func (t *Table) clean(ctx context.Context) {
	staged := t.expired
	t.expired = nil
	if staged == nil {
		return
	}
	work := t.lake.Freed(staged)
	if work == nil {
		return
	}
	t.cleaning.Go(func() {
		if t.cleans.Take(ctx) != nil {
			return
		}
		defer t.cleans.Give()
		defer t.took(StepClean)()
		if err := work(ctx); err != nil {
			t.log.Warn("files that nothing needs any more stay", "error", err)
		}
	})
}

// putOff leaves the outbox for later and reports whether it may: senders wait for
// room, so the report must not wait for it.
func (t *Table) putOff() bool {
	n := len(pendingOf(t.head.State, t.applied))
	if n >= hurried {
		return false
	}
	if at := time.Now().Add(t.o.Outbox / 30); at.After(t.outboxAt) {
		t.outboxAt = at
	}
	t.late = t.late || n > 0
	t.status.change(func(s *Status) { s.Pending = n })
	return true
}

// prepare writes the quarantine file of a batch, and tries until it is done or
// ctx ends. One file takes the records of all pipelines; it stands under the
// first of them by name.
func (t *Table) prepare(ctx context.Context, b *Batch) (map[string]lake.PendingQuarantine, error) {
	if len(b.Quarantine) == 0 {
		return nil, nil
	}
	recs := make([]arrow.RecordBatch, len(b.Quarantine))
	pipeline := b.Quarantine[0].Pipeline
	for i, q := range b.Quarantine {
		recs[i] = q.Records
		pipeline = min(pipeline, q.Pipeline)
	}
	defer t.took(StepPoison)()
	pause := t.o.Backoff.Start()
	for {
		files, err := t.outbox.WriteQuarantine(ctx, lake.WriterOptions{Attempt: b.ID, Epoch: t.epoch}, recs...)
		if err == nil {
			return map[string]lake.PendingQuarantine{pipeline: {CommitID: b.ID, Files: files}}, nil
		}
		if err := t.retry(ctx, pause, lake.KindData, fmt.Errorf("writing quarantined records: %w", err)); err != nil {
			return nil, err
		}
	}
}

// giveUp ends a batch that does not continue the table. land has returned before
// anything was sent, or after the head had left the base of what was sent: both
// prove that its files are in no snapshot (G6).
func (t *Table) giveUp(ctx context.Context, b *Batch, cause error) {
	t.log.Warn("batch does not continue the table: its rows are read again from the log", "commit", b.ID, "error", cause)
	t.observe.Attempted(lake.KindData, "given up", 0)
	if err := t.undo(ctx, func(in lake.Intent) bool { return in.Attempt == b.ID }); err != nil {
		t.log.Warn("files of a batch that was given up stay until the next start", "commit", b.ID, "error", err)
	}
	t.source.Rebase(t.head.Event(), true)
}

// undo settles the attempts that match, which can land no more: those in the table
// keep their files, the others lose them.
func (t *Table) undo(ctx context.Context, match func(lake.Intent) bool) error {
	list, err := t.intents.Intents(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, in := range list {
		if match(in) {
			failed = errors.Join(failed, t.intents.Undo(ctx, in))
		}
	}
	return failed
}

// landed notes a data commit.
func (t *Table) landed(b *Batch, head lake.Head) {
	var bytes int64
	for _, f := range b.Files {
		bytes += f.Bytes
	}
	t.observe.Landed(b, bytes)
	t.log.Info("committed", "snapshot", head.SnapshotID, "sequence", head.Sequence, "commit", b.ID, "cut", string(b.Cut),
		"rows", b.Rows(), "files", len(b.Files), "bytes", bytes, "partitions", len(b.Parts))
}

// applyOutbox appends pending quarantine files to their table, within a
// deadline. What fails stays pending and is tried again later.
func (t *Table) applyOutbox(ctx context.Context, within time.Duration) {
	pending := pendingOf(t.head.State, t.applied)
	if len(pending) == 0 {
		t.outboxPause.Reset()
		t.notePending(0, nil)
		return
	}
	call, cancel := context.WithTimeout(ctx, outboxTime(pending, within))
	defer cancel()
	defer t.took(StepApply)()
	t.late = false
	err := t.outbox.ApplyQuarantine(call, pending)
	if errors.Is(err, lake.ErrMarking) { // other work may come in between
		t.outboxPause.Reset()
		t.outboxAt = time.Now().Add(breath)
		t.notePending(len(pending), nil)
		return
	}
	if err != nil {
		t.outboxAt = time.Now().Add(t.outboxPause.Next())
		t.log.Warn("quarantine files are still pending", "entries", len(pending), "error", err)
		t.notePending(len(pending), err)
		return
	}
	t.outboxPause.Reset()
	for _, q := range pending {
		t.applied[q.CommitID] = true
	}
	t.notePending(0, nil)
}

// notePending tells the world and the source how full the outbox is, and forgets
// what the table no longer names.
func (t *Table) notePending(n int, err error) {
	named := make(map[ident.UUID]bool)
	for _, q := range t.head.State.Pending() {
		named[q.CommitID] = true
	}
	for id := range t.applied {
		if !named[id] {
			delete(t.applied, id)
		}
	}
	t.status.change(func(s *Status) { s.Pending = n })
	if err != nil {
		t.status.failed(atOutbox, err)
	} else {
		t.status.fine(atOutbox)
	}
	t.source.HoldPoison(n >= maxPending)
}

// report tells the buffer the head, within a deadline. What fails is tried again
// by the loop; only FENCED ends the writing.
func (t *Table) report(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, t.o.Call)
	defer cancel()
	defer t.took(StepReport)()
	err := t.buffer.ReportCommit(call, t.head.Event())
	t.noteHead()
	if err != nil {
		t.unreported = true
		t.talkFailed("reporting a commit to the buffer", err)
		return
	}
	t.unreported = false
	t.talked()
}

// talked notes that the buffer answered.
func (t *Table) talked() {
	t.talk.Reset()
	t.status.fine(atBuffer)
}

// talkFailed plans the next try to talk to the buffer.
func (t *Table) talkFailed(what string, err error) {
	wait := t.talk.Next()
	if f, ok := errors.AsType[*fault.Error](err); ok {
		wait = max(wait, f.RetryAfter)
	}
	t.talkAt = time.Now().Add(wait)
	if fault.ReasonOf(err) == fault.Fenced {
		t.lastPoll = time.Time{} // the table itself says who may write it
	}
	if reopens(err) {
		t.mu.Lock()
		t.opening = true
		t.mu.Unlock()
	}
	t.log.Warn("buffer did not answer as hoped", "doing", what, "error", err)
	t.status.failed(atBuffer, fmt.Errorf("%s: %w", what, err))
}

// reopens reports whether the buffer may have lost what it knew of the table.
func reopens(err error) bool {
	switch fault.ReasonOf(err) {
	case fault.NotReady, fault.UnknownTable, fault.Unavailable:
		return true
	default:
		return false
	}
}

func (t *Table) noteHead() {
	t.status.change(func(s *Status) {
		s.Head = t.head
		s.Foreign = !t.foreignSince.IsZero()
	})
}

// foreign notes that somebody else's snapshot is the head now (G9).
func (t *Table) foreign(head lake.Head) {
	if t.foreignSince.IsZero() {
		t.foreignSince = time.Now()
	}
	t.log.Info("snapshot of somebody else", "snapshot", head.SnapshotID, "sequence", head.Sequence, "state_from", head.StateSnapshot)
}
