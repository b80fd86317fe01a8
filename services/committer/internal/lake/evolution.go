package lake

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// propertyEvolution holds an Evolution as JSON.
const propertyEvolution = prefix + "evolution"

// maxLog is how many changes a table remembers, maxLines how many lines of each.
const (
	maxLog   = 200
	maxLines = 50
)

// Evolution is what a table remembers about changes of its schema, beside the
// number maps.
type Evolution struct {
	// Decisions of operators, by pipeline.
	Decisions map[string][]schema.Decision `json:"decisions,omitempty"`
	// Newest is the highest order of a source schema whose names the columns
	// follow, by pipeline.
	Newest map[string]int64 `json:"newest,omitempty"`
	// Log is what was changed, oldest first; the last ones of it.
	Log []Evolved `json:"log,omitempty"`
}

// Evolved is one entry of the log.
type Evolved struct {
	At       time.Time `json:"at"`
	SchemaID int32     `json:"schema_id,omitempty"` // table schema after it
	Pipeline string    `json:"pipeline"`
	Source   string    `json:"source,omitempty"` // source schema that asked for it
	Changes  []string  `json:"changes,omitempty"`
	Decision string    `json:"decision,omitempty"`
}

// Clone copies it; maps and the log can be changed in the copy, and its maps are
// never nil. The lists of decisions are shared: replace them.
func (e Evolution) Clone() Evolution {
	out := Evolution{Decisions: maps.Clone(e.Decisions), Newest: maps.Clone(e.Newest), Log: slices.Clone(e.Log)}
	if out.Decisions == nil {
		out.Decisions = map[string][]schema.Decision{}
	}
	if out.Newest == nil {
		out.Newest = map[string]int64{}
	}
	return out
}

// With is a copy with one more entry in the log.
func (e Evolution) With(entry Evolved) Evolution {
	out := e.Clone()
	entry.Changes = fault.FirstOf(slices.Clone(entry.Changes), maxLines)
	out.Log = append(out.Log, entry)
	if extra := len(out.Log) - maxLog; extra > 0 {
		out.Log = slices.Clone(out.Log[extra:])
	}
	return out
}

func decodeEvolution(v string) (Evolution, error) {
	var out Evolution
	err := decodeProperty(propertyEvolution, v, &out)
	return out, err
}

func encodeEvolution(e Evolution) (string, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return "", err
	}
	return pack(string(text))
}

// nextSchemaID is the id of the next schema: above all that the table has, the
// current one need not be the highest.
func nextSchemaID(meta table.Metadata) int {
	next := 0
	for _, s := range meta.Schemas() {
		next = max(next, s.ID+1)
	}
	return next
}

// identified gives the new schema those identifier fields of the old one that
// are still required, as the format wants. Other tools set them.
func identified(s, before *iceberg.Schema) *iceberg.Schema {
	var keep []int
	for _, id := range before.IdentifierFieldIDs {
		if f, ok := s.FindFieldByID(id); ok && f.Required {
			keep = append(keep, id)
		}
	}
	if len(keep) == 0 {
		return s
	}
	return iceberg.NewSchemaWithIdentifiers(s.ID, keep, s.Fields()...)
}

// PastSchema is one schema that a table has or had.
type PastSchema struct {
	ID      int32
	Schema  *schema.Schema
	Current bool
	// Time and SnapshotID are those of the oldest snapshot with the schema that is
	// left; zero when there is none.
	Time       time.Time
	SnapshotID int64
	// Ours says that the snapshot is ours.
	Ours bool
}

// Schemas lists the schemas in the metadata of the loaded table, oldest first. A
// schema that Icestream cannot read is listed without its columns.
func (t *Table) Schemas(_ context.Context) []PastSchema {
	meta := t.handle().Metadata()
	first := map[int]*table.Snapshot{}
	for _, s := range meta.Snapshots() {
		if s.SchemaID == nil {
			continue
		}
		if have := first[*s.SchemaID]; have == nil || s.SequenceNumber < have.SequenceNumber {
			first[*s.SchemaID] = &s
		}
	}
	var out []PastSchema
	for _, s := range meta.Schemas() {
		p := PastSchema{ID: int32(s.ID), Current: s.ID == meta.CurrentSchema().ID}
		if converted, err := fromIceberg(s, s.HighestFieldID()); err == nil {
			p.Schema = converted
		}
		if snap := first[s.ID]; snap != nil {
			p.Time, p.SnapshotID, p.Ours = time.UnixMilli(snap.TimestampMs).UTC(), snap.SnapshotID, isOwn(snap)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b PastSchema) int { return int(a.ID) - int(b.ID) })
	return out
}

// Pinned are the columns that the settings of partition and order name: a rename
// would make the settings name nothing.
func (h Head) Pinned() map[string]bool {
	out := map[string]bool{}
	partition, _ := parsePartition(h.Partition) // checked when they were set
	for _, f := range partition {
		out[f.column] = true
	}
	order, _ := parseSort(h.Sort)
	for _, f := range order {
		out[f.column] = true
	}
	return out
}
