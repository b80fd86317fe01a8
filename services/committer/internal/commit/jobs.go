package commit

import (
	"context"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Opened is the state of a table for a pipeline.
type Opened struct {
	Table     ident.UUID
	Positions ident.Positions // of the pipeline
	Schema    event.Schema    // newest
}

// OpenPipeline makes the table know the pipeline and the starts of its
// partitions, in one empty snapshot when something is new, and answers once the
// buffer knows them and the schema too: ingest makes rows by it where no record
// has one, and it is the target of no proposal (G11). Partitions that the table knows keep their position. A
// pipeline that another owner feeds is refused.
func (t *Table) OpenPipeline(ctx context.Context, owner, pipeline string, starts ident.Vector) (Opened, error) {
	return ask(ctx, t, func(ctx context.Context) (Opened, error) {
		if err := t.ensureStarts(ctx, owner, pipeline, starts); err != nil {
			return Opened{}, err
		}
		if err := t.mustReport(ctx, "opening"); err != nil {
			return Opened{}, err
		}
		s, err := eventSchema(t.head.SchemaID, t.head.Schema)
		if err != nil {
			return Opened{}, err
		}
		if err := t.publish(ctx, s); err != nil {
			return Opened{}, err
		}
		return Opened{Table: t.head.Table, Positions: t.head.State.Pipelines[pipeline].Positions.Clone(), Schema: s}, nil
	})
}

// mustReport fails unless the buffer knows the head.
func (t *Table) mustReport(ctx context.Context, doing string) error {
	if t.reopen() {
		if _, err := t.talkToBuffer(ctx, time.Now()); err != nil {
			return err
		}
	} else if t.unreported {
		t.report(ctx)
	}
	if t.unreported || t.reopen() {
		return fault.New(fault.Unavailable, "%s table %s: the buffer does not know its state yet: %s", doing, t.o.Name, t.Status().Reason)
	}
	return nil
}

func (t *Table) ensureStarts(ctx context.Context, owner, pipeline string, starts ident.Vector) error {
	if p := t.head.State.Pipelines[pipeline]; p != nil && p.Owner != owner {
		return fault.New(fault.Stopped,
			"opening table %s: pipeline %q of this table belongs to %s, not to %s: two owners would each land the same records; "+
				"give the pipeline another name, or take it over", t.o.Name, pipeline, p.Owner, owner)
	}
	if _, changed := started(t.head.State, ident.UUID{}, t.applied, owner, pipeline, starts); !changed {
		return nil
	}
	head, err := t.land(ctx, kindStart, false, func(head lake.Head) (lake.Change, error) {
		id := NewID()
		s, _ := started(head.State, id, t.applied, owner, pipeline, starts)
		return lake.Change{CommitID: id, State: s}, nil
	})
	if err != nil {
		return err
	}
	t.log.Info("starts of partitions fixed", "pipeline", pipeline, "partitions", len(starts), "snapshot", head.SnapshotID)
	t.unreported = true
	return nil
}

// RecordReplaced makes the table remember that Kafka has other records at the offsets
// of r now than were read, in one empty snapshot where that is new. Rows of them that
// are still hot are committed first; where some are not even here yet, it is refused
// and to be asked again.
func (t *Table) RecordReplaced(ctx context.Context, part ident.Partition, r ident.Range) error {
	_, err := ask(ctx, t, func(ctx context.Context) (struct{}, error) {
		if t.head.State.Vector()[part] < r.Next {
			if err := t.commitHeld(ctx, cut.Asked); err != nil {
				return struct{}{}, err
			}
		}
		if err := t.ensureReplaced(ctx, part, r); err != nil {
			return struct{}{}, err
		}
		if at := t.head.State.Vector()[part]; at < r.Next {
			return struct{}{}, fault.New(fault.Unavailable, "recording in table %s that Kafka replaced offsets %v of %v: it is at %d, the rest is not committed yet", t.o.Name, r, part, at)
		}
		return struct{}{}, nil
	})
	return err
}

func (t *Table) ensureReplaced(ctx context.Context, part ident.Partition, r ident.Range) error {
	if _, changed, err := replaced(t.head.State, ident.UUID{}, t.applied, part, r); err != nil || !changed {
		return err
	}
	head, err := t.land(ctx, lake.KindProgress, false, func(head lake.Head) (lake.Change, error) {
		id := NewID()
		s, _, err := replaced(head.State, id, t.applied, part, r)
		return lake.Change{CommitID: id, State: s}, err
	})
	if err != nil {
		return err
	}
	t.log.Warn("recorded that Kafka replaced records which were read", "partition", part.String(), "offsets", r.String(), "snapshot", head.SnapshotID)
	t.unreported = true
	return nil
}

// Committed is the answer to CommitNow.
type Committed struct {
	Commit event.Commit // the head
	New    bool         // a snapshot was made
}

// CommitNow commits what had arrived when it was called, and answers once the
// commit landed and was reported.
func (t *Table) CommitNow(ctx context.Context) (Committed, error) {
	return ask(ctx, t, func(ctx context.Context) (Committed, error) {
		before := t.head.SnapshotID
		if err := t.commitHeld(ctx, cut.Asked); err != nil {
			return Committed{}, err
		}
		if err := t.mustReport(ctx, "committing"); err != nil {
			return Committed{}, err
		}
		return Committed{Commit: t.head.Event(), New: t.head.SnapshotID != before}, nil
	})
}
