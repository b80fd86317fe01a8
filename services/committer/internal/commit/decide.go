package commit

import (
	"context"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Question selects refusals; an empty word selects all.
type Question struct {
	Action   schema.Action
	Pipeline string
	Source   string
	Column   string // path of the column or number path of the field; not with Quarantine
}

// Made is a decision of a pipeline.
type Made struct {
	Pipeline string
	schema.Decision
}

// Decided is the answer to Decide.
type Decided struct {
	Made    []Made    // what the question stands for
	Already bool      // all of it was decided before
	Waiting []Waiting // what still waits
}

// Decide answers the refusals that the question selects, and keeps the answers in
// the table. Whoever waits goes on at his next proposal. A question that selects
// nothing that waits is answered from the decisions made before, or refused.
func (t *Table) Decide(ctx context.Context, q Question) (Decided, error) {
	if q.Action == schema.Quarantine && q.Column != "" {
		return Decided{}, fault.New(fault.InvalidArgument,
			"deciding about table %s: quarantine is about all records of a source schema, not about column %q: name the source schema", t.o.Name, q.Column)
	}
	return ask(ctx, t, func(ctx context.Context) (Decided, error) {
		made := q.answers(t.allWaiting())
		if len(made) == 0 {
			made = q.before(t.head.Evolution.Decisions)
		}
		if len(made) == 0 {
			return Decided{}, t.nothingWaits(q)
		}
		if _, changed := decide(t.head.Evolution, made); !changed {
			return Decided{Made: made, Already: true, Waiting: t.allWaiting()}, nil
		}
		_, err := t.land(ctx, lake.KindSchema, false, func(head lake.Head) (lake.Change, error) {
			id := NewID()
			e, _ := decide(head.Evolution, made)
			return lake.Change{CommitID: id, State: anchored(head.State, id, t.applied), Evolution: &e}, nil
		})
		if err != nil {
			return Decided{}, err
		}
		t.unreported = true
		for _, m := range made {
			t.log.Info("schema decided", "pipeline", m.Pipeline, "decision", m.String())
		}
		t.judgeWaiting()
		t.report(ctx)
		return Decided{Made: made, Waiting: t.allWaiting()}, nil
	})
}

// answers makes the decisions that answer what waits.
func (q Question) answers(waiting []Waiting) []Made {
	var out []Made
	add := func(m Made) {
		same := func(o Made) bool {
			return o.Pipeline == m.Pipeline && o.Field == m.Field && (m.Action != schema.Quarantine || o.Source == m.Source)
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, m)
		}
	}
	for _, w := range waiting {
		if q.Pipeline != "" && q.Pipeline != w.Pipeline || q.Source != "" && q.Source != w.Source {
			continue
		}
		if q.Action == schema.Quarantine {
			add(Made{w.Pipeline, schema.Decision{Action: q.Action, Source: w.Source, At: now()}})
			continue
		}
		for _, r := range w.Refusals {
			if r.Field == "" {
				continue // only a change of the table helps
			}
			if q.Column == "" || q.Column == r.Field || within(r.Path, q.Column) {
				add(Made{w.Pipeline, schema.Decision{
					Action: q.Action, Field: r.Field, Source: w.Source, Column: r.Path,
					TableType: r.TableType, SourceType: r.CandidateType, At: now(),
				}})
			}
		}
	}
	return out
}

// before are the decisions made earlier that the question stands for.
func (q Question) before(all map[string][]schema.Decision) []Made {
	var out []Made
	for pipeline, list := range all {
		for _, d := range list {
			if d.Action == q.Action && (q.Pipeline == "" || q.Pipeline == pipeline) && (q.Source == "" || q.Source == d.Source) &&
				(q.Column == "" || q.Column == d.Field || within(d.Column, q.Column)) {
				out = append(out, Made{pipeline, d})
			}
		}
	}
	slices.SortFunc(out, func(a, b Made) int { return strings.Compare(a.Pipeline+a.Field+a.Source, b.Pipeline+b.Field+b.Source) })
	return out
}

// within reports whether a column is another one or below it.
func within(path, above string) bool { return path == above || strings.HasPrefix(path, above+".") }

// decide adds decisions to what a table remembers.
func decide(e lake.Evolution, made []Made) (after lake.Evolution, changed bool) {
	after = e.Clone()
	for _, m := range made {
		list, news := schema.Decide(after.Decisions[m.Pipeline], m.Decision)
		if !news {
			continue
		}
		changed = true
		after.Decisions[m.Pipeline] = list
		after = after.With(lake.Evolved{At: m.At, Pipeline: m.Pipeline, Source: m.Source, Decision: m.String()})
	}
	return after, changed
}

// judgeWaiting takes away what the decisions answered.
func (t *Table) judgeWaiting() {
	for key, w := range t.waiting {
		target := t.verdict(t.head, w.Proposal)
		switch {
		case !target.Refused(), schema.Quarantined(t.head.Evolution.Decisions[key.pipeline], key.source):
			delete(t.waiting, key)
		default:
			w.Refusals = target.Refusals
			t.waiting[key] = w
		}
	}
}

func (t *Table) nothingWaits(q Question) error {
	var have []string
	for _, w := range t.allWaiting() {
		have = append(have, w.Pipeline+": "+w.Source+": "+refusals(w.Refusals))
	}
	if len(have) == 0 {
		return fault.New(fault.NotFound, "deciding about table %s: nothing waits for a decision (a partition that waits asks again every few seconds)", t.o.Name)
	}
	return fault.New(fault.NotFound, "deciding about table %s: nothing that waits matches pipeline %q, schema %q, column %q; what waits: %s",
		t.o.Name, q.Pipeline, q.Source, q.Column, strings.Join(have, "; "))
}
