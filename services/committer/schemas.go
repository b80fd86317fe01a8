package committer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// TableSchema is the schema of a live table with what the table remembers about
// it.
type TableSchema struct {
	Table      string `json:"table"`
	UUID       string `json:"uuid"`
	SnapshotID int64  `json:"snapshot_id"`
	SchemaID   int32  `json:"schema_id"`
	// FormatVersion is the version of the table format that the table has.
	FormatVersion int `json:"format_version"`

	Schema    *schema.Schema               `json:"schema"`
	Numbers   map[string]schema.NumberMap  `json:"numbers"`   // number path to field id, by pipeline
	Decisions map[string][]schema.Decision `json:"decisions"` // by pipeline
	Newest    map[string]int64             `json:"newest,omitempty"`
	Partition string                       `json:"partition,omitempty"`
	Sort      string                       `json:"sort,omitempty"`
	Pinned    map[string]bool              `json:"-"` // columns whose names must stay
	History   []SchemaChange               `json:"history"`
}

// SchemaChange is one schema of a table, or one decision about it.
type SchemaChange struct {
	// Time is zero where nothing that is left of the table tells it.
	Time       time.Time `json:"time"`
	SchemaID   int32     `json:"schema_id,omitempty"` // 0 as well for a decision
	Decision   string    `json:"decision,omitempty"`
	Current    bool      `json:"current,omitempty"`
	SnapshotID int64     `json:"snapshot_id,omitempty"` // oldest one that is left
	Pipeline   string    `json:"pipeline,omitempty"`
	Cause      string    `json:"cause"` // source schema, or who made it
	Changes    []string  `json:"changes"`
}

// ReadSchema reads the schema of a table from the catalog. It needs no running
// service. The error has the reason fault.UnknownTable where there is no table.
func ReadSchema(ctx context.Context, settings *config.Config, table string, log *slog.Logger) (*TableSchema, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := lake.Open(ctx, lakeConfig(settings.Catalog), log)
	if err != nil {
		return nil, err
	}
	t, err := loadTable(ctx, l, table)
	if err == nil {
		err = t.RefuseQuarantine()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	h := t.Head()
	out := &TableSchema{
		Table: table, UUID: h.Table.String(), SnapshotID: h.SnapshotID, SchemaID: h.SchemaID, Schema: h.Schema, Numbers: h.Numbers,
		Decisions: h.Evolution.Decisions, Newest: h.Evolution.Newest, Partition: h.Partition, Sort: h.Sort, Pinned: h.Pinned(),
		FormatVersion: h.FormatVersion,
		History:       history(t.Schemas(ctx), h.Evolution.Log),
	}
	return out, l.Close()
}

// history puts the schemas of the metadata and the log together, oldest first.
func history(past []lake.PastSchema, log []lake.Evolved) []SchemaChange {
	causes := map[int32]lake.Evolved{}
	var out []SchemaChange
	for _, e := range log {
		if e.Decision != "" {
			out = append(out, SchemaChange{
				Time: e.At, Decision: e.Decision, Pipeline: e.Pipeline, Cause: cmp.Or(e.Source, "an operator"), Changes: []string{e.Decision},
			})
		} else {
			causes[e.SchemaID] = e
		}
	}
	before := &schema.Schema{}
	var decided []SchemaChange
	decided, out = out, nil
	for i, p := range past {
		c := SchemaChange{Time: p.Time, SchemaID: p.ID, Current: p.Current, SnapshotID: p.SnapshotID, Cause: "another tool"}
		e, known := causes[p.ID]
		switch {
		case known:
			c.Time, c.Pipeline, c.Cause, c.Changes = e.At, e.Pipeline, e.Source, e.Changes
		case i == 0:
			c.Cause = "the table was made"
		case p.Ours:
			c.Cause = "icestream, no longer remembered why"
		}
		if p.Schema == nil {
			c.Changes = []string{"it has a type that Icestream cannot write"}
		} else {
			if !known {
				for _, d := range schema.Diff(before, p.Schema) {
					c.Changes = append(c.Changes, d.String())
				}
			}
			before = p.Schema
		}
		for len(decided) > 0 && !c.Time.IsZero() && decided[0].Time.Before(c.Time) {
			out, decided = append(out, decided[0]), decided[1:]
		}
		out = append(out, c)
	}
	return append(out, decided...)
}

// Feeds lists what feeds a column, "pipeline number-path", sorted.
func (t *TableSchema) Feeds(fieldID int32) []string {
	var out []string
	for _, pipeline := range slices.Sorted(maps.Keys(t.Numbers)) {
		for _, path := range slices.Sorted(maps.Keys(t.Numbers[pipeline])) {
			if t.Numbers[pipeline][path] == fieldID {
				out = append(out, pipeline+" "+path)
			}
		}
	}
	return out
}

// Missing reports whether err says that there is no such table.
func Missing(err error) bool { return fault.ReasonOf(err) == fault.UnknownTable }
