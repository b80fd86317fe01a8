package commit

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Proposal is a source schema that records of a pipeline have.
type Proposal struct {
	Pipeline string
	// Source names the schema, for people and for decisions.
	Source string
	// Order is its age among the schemas of the registry, 0 where it is not known.
	Order int64
	// Rename says that columns follow the names of newer schemas.
	Rename bool
	// DryRun asks for the verdict alone: nothing is changed, published or noted.
	DryRun    bool
	Candidate *schema.Schema
}

// Proposed is the verdict on a source schema.
type Proposed struct {
	Schema   event.Schema // target, when nothing was refused
	Changes  []schema.Change
	Refusals []schema.Refusal
	// Quarantine says that an operator sends the records of the refused schema to
	// quarantine.
	Quarantine bool
}

// Waiting is a refused source schema, with which partitions wait.
type Waiting struct {
	Proposal
	Refusals []schema.Refusal
	At       time.Time // of the last proposal
}

// waitingKey names a source schema of a pipeline.
type waitingKey struct{ pipeline, source string }

// maxWaiting bounds what is remembered of refused schemas: whoever waits proposes
// again.
const maxWaiting = 1000

// Propose decides how records of the candidate's shape are written to the table
// and evolves it where the rules and the decisions of operators allow. It answers
// once the buffer knows the target, so a batch of that fingerprint is never early
// for long. Idempotent.
func (t *Table) Propose(ctx context.Context, p Proposal) (Proposed, error) {
	return ask(ctx, t, func(ctx context.Context) (Proposed, error) {
		if p.DryRun {
			return t.dryRun(p)
		}
		target, err := t.evolve(ctx, p)
		if err != nil {
			return Proposed{}, err
		}
		key := waitingKey{p.Pipeline, p.Source}
		out := Proposed{Changes: target.Changes, Refusals: target.Refusals}
		if target.Refused() {
			out.Quarantine = schema.Quarantined(t.head.Evolution.Decisions[p.Pipeline], p.Source)
			t.refused(key, p, target.Refusals, out.Quarantine)
			return out, nil
		}
		delete(t.waiting, key)
		if out.Schema, err = eventSchema(t.head.SchemaID, target.Schema); err != nil {
			return Proposed{}, err
		}
		bare := target.Schema.Clone()
		bare.Ignored = nil // says how to decode, nothing about the rows
		published, err := eventSchema(t.head.SchemaID, bare)
		if err != nil {
			return Proposed{}, err
		}
		return out, t.publish(ctx, published)
	})
}

// dryRun is the verdict alone. The field ids of new columns are those that they
// would get now.
func (t *Table) dryRun(p Proposal) (Proposed, error) {
	target := t.verdict(t.head, p)
	out := Proposed{Changes: target.Changes, Refusals: target.Refusals}
	if target.Refused() {
		out.Quarantine = schema.Quarantined(t.head.Evolution.Decisions[p.Pipeline], p.Source)
		return out, nil
	}
	var err error
	out.Schema, err = eventSchema(t.head.SchemaID, target.Schema)
	return out, err
}

// refused notes a refusal for those who decide, and says so once.
func (t *Table) refused(key waitingKey, p Proposal, list []schema.Refusal, quarantine bool) {
	if quarantine {
		delete(t.waiting, key)
		return
	}
	if _, known := t.waiting[key]; !known {
		t.log.Warn("schema refused", "pipeline", p.Pipeline, "source", p.Source, "refusals", refusals(list))
		if len(t.waiting) >= maxWaiting {
			return
		}
	}
	t.waiting[key] = Waiting{Proposal: p, Refusals: list, At: time.Now()}
}

// WantMetadata says which metadata columns rows shall carry. A table that another
// tool made gets those that it lacks with the next schema that is proposed.
func (t *Table) WantMetadata(lsn, kafka bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wantLSN, t.wantKafka = t.wantLSN || lsn, t.wantKafka || kafka
}

// verdict is what the rules and the decisions say about a proposal on a head.
func (t *Table) verdict(head lake.Head, p Proposal) schema.Target {
	t.mu.Lock()
	table, added := head.Schema.WithMetadata(t.wantLSN, t.wantKafka)
	t.mu.Unlock()
	target := schema.Evolve(table, p.Candidate, head.Numbers[p.Pipeline], schema.Options{
		Decisions: head.Evolution.Decisions[p.Pipeline], Rename: follows(head, p), Pinned: head.Pinned(),
		FormatVersion: head.FormatVersion,
	})
	if !target.Refused() && len(added) > 0 {
		target.Changes, target.Changed = append(target.Changes, added...), true
	}
	return target
}

// follows reports whether columns take the names of the proposal: only those of a
// schema newer than all before it, so that writers of different age cannot make a
// name flap.
func follows(head lake.Head, p Proposal) bool {
	return p.Rename && p.Order > head.Evolution.Newest[p.Pipeline]
}

// evolve makes the table able to hold the candidate. The change rides with an
// empty snapshot of ours, which asserts the schema that it was decided upon; a
// table that moved meanwhile is judged again.
func (t *Table) evolve(ctx context.Context, p Proposal) (schema.Target, error) {
	target := t.verdict(t.head, p)
	if target.Refused() || !target.Changed && maps.Equal(target.Numbers, t.head.Numbers[p.Pipeline]) && !follows(t.head, p) {
		return target, nil
	}
	var changes []schema.Change
	head, err := t.land(ctx, lake.KindSchema, false, func(head lake.Head) (lake.Change, error) {
		target = t.verdict(head, p)
		if target.Refused() {
			return lake.Change{}, errRefused
		}
		changes = target.Changes
		id := NewID()
		c := lake.Change{
			CommitID: id, State: anchored(head.State, id, t.applied),
			Numbers: map[string]schema.NumberMap{p.Pipeline: target.Numbers},
		}
		if target.Changed {
			c.Schema = target.Schema
		}
		c.Evolution = remembered(head, p, target)
		return c, nil
	})
	if err == errRefused { //nolint:errorlint // a sentinel of ours that nobody wraps
		return target, nil
	}
	if err != nil {
		return target, err
	}
	t.unreported = true
	t.log.Info("table schema changed", "pipeline", p.Pipeline, "source", p.Source, "schema_id", head.SchemaID, "changes", changes)
	// As the table has it now: what the catalog made of it counts, not what we asked for.
	target = t.verdict(head, p)
	if target.Changed || target.Refused() {
		return target, fault.New(fault.Internal, "evolving table %s: the change landed, but the table still differs: %v %v",
			t.o.Name, target.Changes, refusals(target.Refusals))
	}
	target.Changes = changes
	return target, nil
}

// remembered is what the table remembers after an accepted proposal, nil for no
// change.
func remembered(head lake.Head, p Proposal, target schema.Target) *lake.Evolution {
	if !target.Changed && !follows(head, p) {
		return nil
	}
	e := head.Evolution
	if target.Changed {
		entry := lake.Evolved{At: now(), SchemaID: head.NextSchemaID, Pipeline: p.Pipeline, Source: p.Source}
		for _, c := range target.Changes {
			entry.Changes = append(entry.Changes, c.String())
		}
		e = e.With(entry)
	} else {
		e = e.Clone()
	}
	if follows(head, p) {
		e.Newest[p.Pipeline] = p.Order
	}
	return &e
}

// now is the time as it is kept in the table.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

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

// Waiting lists the refused schemas, by pipeline and name.
func (t *Table) Waiting(ctx context.Context) ([]Waiting, error) {
	return ask(ctx, t, func(context.Context) ([]Waiting, error) { return t.allWaiting(), nil })
}

func (t *Table) allWaiting() []Waiting {
	return slices.SortedFunc(maps.Values(t.waiting), func(a, b Waiting) int {
		return cmp.Or(strings.Compare(a.Pipeline, b.Pipeline), strings.Compare(a.Source, b.Source))
	})
}
