// Package plan says what source schemas and records would do to a table, without
// doing it: the verdict of the committer, taken in the order in which the schemas
// were registered, and a trial decode of records. It talks to nobody; whoever
// calls it has looked the schemas, the table and the records up.
package plan

import (
	"slices"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
)

// Table is the live table as far as a verdict depends on it.
type Table struct {
	Name      string
	Exists    bool
	Schema    *schema.Schema   // nil where it does not exist
	Numbers   schema.NumberMap // of the pipeline
	Decisions []schema.Decision
	Newest    int64           // order of the newest schema whose names it follows
	Pinned    map[string]bool // columns whose names must stay
	// FormatVersion is the table's, or what it would be made with.
	FormatVersion int
}

// Verdict is what becomes of records of a source schema.
type Verdict string

// The verdicts.
const (
	Fits        Verdict = "fits"        // the table stays as it is
	Changes     Verdict = "changes"     // the table is changed, and they fit
	Refused     Verdict = "refused"     // their partitions wait for an operator
	Quarantined Verdict = "quarantined" // refused, and an operator sends them to quarantine
	Unusable    Verdict = "unusable"    // the schema cannot be read or mapped: all go to quarantine
	Unknown     Verdict = "unknown"     // it could not be found out
)

// Breaking reports whether records of the schema would not land as rows.
func (v Verdict) Breaking() bool { return v == Refused || v == Unusable }

// Refusal is one reason against a source schema.
type Refusal struct {
	Column     string `json:"column"`
	Field      string `json:"field"` // number path
	TableType  string `json:"table_type"`
	SourceType string `json:"source_type"`
	Why        string `json:"why"`
}

// Step is the verdict on one source schema.
type Step struct {
	Pipeline string    `json:"pipeline"`
	Table    string    `json:"table"`
	Subject  string    `json:"subject,omitempty"`
	Version  int       `json:"version,omitempty"`
	Source   string    `json:"source"`
	Verdict  Verdict   `json:"verdict"`
	Changes  []string  `json:"changes,omitempty"`
	Casts    []string  `json:"casts,omitempty"`   // fields that are stored in another type, without loss
	Ignored  []string  `json:"ignored,omitempty"` // number paths of fields that an operator left out
	Refusals []Refusal `json:"refusals,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// Judge gives verdicts on one table for one pipeline, each on top of the ones
// before. It is for one goroutine.
type Judge struct {
	pipeline string
	rename   bool
	table    Table
	seen     map[string]*agreed // by name of the source
}

// agreed is what was found out about a source schema.
type agreed struct {
	step   Step
	target *schema.Schema // nil unless it fits or changes
}

// NewJudge makes a judge. With rename, columns follow the names of newer schemas.
func NewJudge(pipeline string, rename bool, t Table) *Judge {
	if t.Schema == nil {
		t.Schema = &schema.Schema{}
	}
	return &Judge{pipeline: pipeline, rename: rename, table: t, seen: map[string]*agreed{}}
}

// Table is the name of the table.
func (j *Judge) Table() string { return j.table.Name }

// Judge says what records of a source schema would do to the table. A schema that
// was judged before gets the same answer.
func (j *Judge) Judge(src pipeline.Source) Step { return j.judge(src).step }

func (j *Judge) judge(src pipeline.Source) *agreed {
	if have := j.seen[src.Name()]; have != nil {
		return have
	}
	a := &agreed{step: Step{Pipeline: j.pipeline, Table: j.table.Name, Source: src.Name(), Verdict: Fits}}
	j.seen[src.Name()] = a
	order := pipeline.Order(src)
	newer := j.rename && order > j.table.Newest
	target := schema.Evolve(j.table.Schema, src.Candidate(), j.table.Numbers, schema.Options{
		Decisions: j.table.Decisions, Rename: newer, Pinned: j.table.Pinned, FormatVersion: j.table.FormatVersion,
	})
	for _, r := range target.Refusals {
		a.step.Refusals = append(a.step.Refusals, Refusal{
			Column: r.Path, Field: r.Field, TableType: r.TableType, SourceType: r.CandidateType, Why: r.Why,
		})
	}
	if target.Refused() {
		a.step.Verdict = Refused
		if schema.Quarantined(j.table.Decisions, src.Name()) {
			a.step.Verdict = Quarantined
		}
		return a
	}
	for _, c := range target.Changes {
		a.step.Changes = append(a.step.Changes, c.String())
	}
	if target.Changed {
		a.step.Verdict = Changes
	}
	for _, c := range schema.Casts(target.Schema, src.Candidate()) {
		a.step.Casts = append(a.step.Casts, c.String())
	}
	a.step.Ignored = slices.Clone(target.Schema.Ignored)
	a.target = target.Schema
	after := target.Schema.Clone()
	after.Ignored = nil
	j.table.Schema, j.table.Numbers = after, target.Numbers
	if newer {
		j.table.Newest = order
	}
	return a
}

// Failed is the step of a source schema that could not be had. An error that is a
// record's makes it unusable, any other leaves it unknown.
func (j *Judge) Failed(source string, err error) Step {
	step := Step{Pipeline: j.pipeline, Table: j.table.Name, Source: source, Verdict: Unknown, Error: err.Error()}
	if _, text, bad := pipeline.Reason(err); bad {
		step.Verdict, step.Error = Unusable, text
	}
	return step
}
