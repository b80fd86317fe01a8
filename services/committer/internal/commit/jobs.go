package commit

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
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
// buffer knows them too. Partitions that the table knows keep their position. A
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

// Proposed is the verdict on a source schema.
type Proposed struct {
	Schema   event.Schema // target, when nothing was refused
	Changes  []schema.Change
	Refusals []schema.Refusal
}

// Propose decides how records of the candidate's shape are written to the table
// and evolves it where the rules allow. It answers once the buffer knows the
// target, so a batch of that fingerprint is never early for long. Idempotent.
func (t *Table) Propose(ctx context.Context, pipeline string, candidate *schema.Schema) (Proposed, error) {
	return ask(ctx, t, func(ctx context.Context) (Proposed, error) {
		target, err := t.evolve(ctx, pipeline, candidate)
		if err != nil {
			return Proposed{}, err
		}
		out := Proposed{Changes: target.Changes, Refusals: target.Refusals}
		if target.Refused() {
			t.log.Warn("schema refused", "pipeline", pipeline, "refusals", refusals(target.Refusals))
			return out, nil
		}
		if out.Schema, err = eventSchema(t.head.SchemaID, target.Schema); err != nil {
			return Proposed{}, err
		}
		return out, t.publish(ctx, out.Schema)
	})
}

// evolve makes the table able to hold the candidate. The change rides with an
// empty snapshot of ours, which asserts the schema that it was decided upon; a
// table that moved meanwhile is judged again.
func (t *Table) evolve(ctx context.Context, pipeline string, candidate *schema.Schema) (schema.Target, error) {
	target := schema.Reconcile(t.head.Schema, candidate, t.head.Numbers[pipeline])
	if target.Refused() || !target.Changed && maps.Equal(target.Numbers, t.head.Numbers[pipeline]) {
		return target, nil
	}
	changes := target.Changes
	head, err := t.land(ctx, lake.KindSchema, false, func(head lake.Head) (lake.Change, error) {
		target = schema.Reconcile(head.Schema, candidate, head.Numbers[pipeline])
		if target.Refused() {
			return lake.Change{}, errRefused
		}
		id := NewID()
		c := lake.Change{
			CommitID: id, State: anchored(head.State, id, t.applied),
			Numbers: map[string]schema.NumberMap{pipeline: target.Numbers},
		}
		if target.Changed {
			c.Schema = target.Schema
		}
		return c, nil
	})
	if err == errRefused { //nolint:errorlint // a sentinel of ours that nobody wraps
		return target, nil
	}
	if err != nil {
		return target, err
	}
	t.unreported = true
	t.log.Info("table schema changed", "pipeline", pipeline, "schema_id", head.SchemaID, "changes", changes)
	// As the table has it now: what the catalog made of it counts, not what we asked for.
	target = schema.Reconcile(head.Schema, candidate, head.Numbers[pipeline])
	if target.Changed || target.Refused() {
		return target, fault.New(fault.Internal, "evolving table %s: the change landed, but the table still differs: %v %v",
			t.o.Name, target.Changes, refusals(target.Refusals))
	}
	target.Changes = changes
	return target, nil
}

var errRefused = fault.New(fault.SchemaRefused, "the table changed and refuses the schema now")

// publish makes a schema known to the buffer, after the commit that it came with.
func (t *Table) publish(ctx context.Context, s event.Schema) error {
	if err := t.mustReport(ctx, "publishing a schema of"); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, t.o.Call)
	defer cancel()
	if err := t.buffer.PublishSchema(call, t.head.Table, t.epoch, s); err != nil {
		t.talkFailed("publishing a schema", err)
		return err
	}
	t.known[s.Fingerprint] = s
	return nil
}

func refusals(list []schema.Refusal) string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = r.String()
	}
	return strings.Join(out, "; ")
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
