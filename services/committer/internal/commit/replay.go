package commit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// marking bounds one try to apply an outbox in which a replay waits: files of the
// quarantine table are written again then, some in each try, and one may be large.
const marking = 15 * time.Minute

// breath is the time for other work between two parts of a mark.
const breath = time.Second

// outboxTime is how long one try to apply the entries may take.
func outboxTime(pending []lake.PendingQuarantine, within time.Duration) time.Duration {
	if marks(pending) {
		return max(within, marking)
	}
	return within
}

// marks reports whether records that were replayed wait for their mark, which may
// take long.
func marks(pending []lake.PendingQuarantine) bool {
	return slices.ContainsFunc(pending, func(q lake.PendingQuarantine) bool { return len(q.Replayed) > 0 })
}

// Ticket says that records of the quarantine table may be read in order to replay
// them: everything that was replayed before is marked there, and nobody else can
// replay while the writer epoch in it lasts.
type Ticket struct{ epoch ident.WriterEpoch }

// Epoch is for the names of files.
func (k Ticket) Epoch() ident.WriterEpoch { return k.epoch }

// BeginReplay applies the outbox and returns a ticket. The caller must not have
// two at a time.
func (t *Table) BeginReplay(ctx context.Context) (Ticket, error) {
	return ask(ctx, t, func(ctx context.Context) (Ticket, error) {
		t.applyOutbox(ctx, t.o.Outbox)
		if n := len(pendingOf(t.head.State, t.applied)); n > 0 {
			return Ticket{}, fault.New(fault.Unavailable, "beginning a replay into table %s: %d entries wait for its quarantine table: %s",
				t.o.Name, n, t.Status().Reason)
		}
		return Ticket{epoch: t.epoch}, nil
	})
}

// Replay is what a replay lands: closed files, and the quarantined offsets that
// their rows are.
type Replay struct {
	// ID is the commit id; the files were written under its intent record.
	ID      ident.UUID
	Ticket  Ticket
	Files   []lake.File
	Offsets map[ident.Partition][]ident.Range // ascending, each without a gap
}

// Replayed says what became of a Replay that landed.
type Replayed struct {
	SnapshotID int64
	// Marked says that the quarantine table shows it too. If not, the outbox holds
	// it and it is tried again.
	Marked bool
}

// errTicket: another writer epoch has begun, in which somebody may have replayed
// the same records.
var errTicket = errors.New("the table was taken over since the replay began: begin it again")

// LandReplay lands a replay, and this is what a crash between the steps leaves
// (docs/design/quarantine.md):
//
//  1. the files were written under their intent record. A crash leaves them; the
//     successor deletes what the record names, after its fence.
//  2. The commit. One snapshot of kind replay moves the totals, leaves positions
//     as they are, and puts the offsets into the outbox. Its outcome is settled
//     as any other's, so a lost answer lands nothing twice (G1).
//  3. The buffer is told.
//  4. The outbox is applied: the quarantine table says replayed_in. A crash
//     before or within leaves the entry in the state of the main table, which
//     every successor applies before it replays anything. A mark that takes
//     several snapshots goes on in the loop.
//
// After an error nothing has landed and the files are gone, unless ctx ended; those
// of a replay that the catalog denied go after the next commit.
func (t *Table) LandReplay(ctx context.Context, r Replay) (Replayed, error) {
	done, err := ask(ctx, t, func(ctx context.Context) (Replayed, error) {
		head, err := t.land(ctx, lake.KindReplay, false, func(head lake.Head) (lake.Change, error) {
			if t.epoch != r.Ticket.epoch {
				return lake.Change{}, fault.New(fault.Conflict, "replaying into table %s: %w", t.o.Name, errTicket)
			}
			state, err := replayed(head.State, r, t.applied)
			if err != nil {
				return lake.Change{}, err
			}
			return lake.Change{CommitID: r.ID, State: state, Files: r.Files}, nil
		})
		if err != nil {
			if !stops(err) && !ended(ctx) && !t.awaitsProof(r.ID) {
				t.dropReplay(ctx, r, err)
			}
			return Replayed{}, err
		}
		t.intents.RemoveIntent(ctx, r.ID)
		t.log.Info("replayed", "snapshot", head.SnapshotID, "commit", r.ID, "files", len(r.Files))
		t.unreported = true
		t.report(ctx) // first, since a mark may take long
		t.applyOutbox(ctx, t.o.Outbox)
		return Replayed{SnapshotID: head.SnapshotID, Marked: t.applied[r.ID]}, nil
	})
	if _, never := errors.AsType[unbegun](err); never { // nothing of it was ever sent
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.o.Outbox)
		defer cancel()
		t.dropReplay(call, r, err)
	}
	return done, err
}

// awaitsProof reports whether the files of a denied change have to stay for now.
func (t *Table) awaitsProof(id ident.UUID) bool {
	return slices.ContainsFunc(t.denied, func(d denial) bool { return d.staged.CommitID == id })
}

// dropReplay removes the files of a replay that cannot land: as in giveUp, land
// has returned before anything was sent, or after the head had left the base of
// what was sent, or it was never begun (G6).
func (t *Table) dropReplay(ctx context.Context, r Replay, cause error) {
	t.log.Warn("replay does not fit the table: its files are removed", "commit", r.ID, "error", cause)
	if err := t.undo(ctx, func(in lake.Intent) bool { return in.Attempt == r.ID }); err != nil {
		t.log.Warn("files of a replay stay until the next start", "commit", r.ID, "error", err)
	}
}

// replayed is the state after a replay landed on base. It is pure. It refuses
// offsets that are not committed, and more records of a partition than are
// quarantined.
func replayed(base lake.State, r Replay, applied map[ident.UUID]bool) (lake.State, error) {
	s := anchored(base, r.ID, applied)
	for part, ranges := range r.Offsets {
		p := s.Pipelines[part.Pipeline]
		if p == nil {
			return lake.State{}, fault.New(fault.InvalidArgument, "replaying %v: the table does not know its pipeline", part)
		}
		pos, ok := p.Positions[part]
		if !ok {
			return lake.State{}, fault.New(fault.InvalidArgument, "replaying %v: the table does not know the partition", part)
		}
		var rows int64
		for _, o := range ranges {
			if o.First < pos.Start || o.Next > pos.Next {
				return lake.State{}, fault.New(fault.InvalidArgument, "replaying %v %v: only [%d,%d) is committed", part, o, pos.Start, pos.Next)
			}
			rows += o.Len()
		}
		if have := p.Totals[part].Quarantined; rows > have {
			return lake.State{}, fault.New(fault.Conflict, "replaying %d records of %v: %d are quarantined", rows, part, have)
		}
		move := lake.Totals{Rows: rows, Quarantined: -rows}
		p.Totals[part] = p.Totals[part].Add(move)
		p.Delta = p.Delta.Add(move)
		enter(p, r.ID, part, ranges)
	}
	return s, nil
}

// enter puts replayed offsets into the outbox entry of commit id.
func enter(p *lake.Pipeline, id ident.UUID, part ident.Partition, ranges []ident.Range) {
	n := len(p.Pending)
	if n == 0 || p.Pending[n-1].CommitID != id {
		p.Pending = append(p.Pending, lake.PendingQuarantine{CommitID: id, Replayed: map[ident.Partition][]ident.Range{}})
		n++
	}
	p.Pending[n-1].Replayed[part] = ranges
}
