package schema

import (
	"slices"
	"strconv"
	"strings"
)

// Names of our own metadata columns.
const (
	LSNColumn   = "_lsn"
	KafkaColumn = "_kafka"
)

// IsMetadata reports whether a top-level column of that name is one of ours,
// made by whoever materialises a row and never by a decoder.
func IsMetadata(name string) bool { return name == LSNColumn || name == KafkaColumn }

// IsReserved reports whether a top-level column must not have that name, in any
// case: Iceberg's own metadata columns (some engines refuse the table, some
// return their own values) and ours.
func IsReserved(name string) bool {
	switch strings.ToLower(name) {
	case "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
		LSNColumn, KafkaColumn:
		return true
	}
	return false
}

// ResolveNames renames siblings so that no two differ only by case and, at top
// level, none is reserved. The rule: siblings are looked at in ascending order
// of their number; the first one keeps its name, a later one whose name is taken
// (or reserved) gets "_<number>" appended, again and again until it is free. So
// the result does not depend on the order of declaration, and a field that is
// added later with a higher number never renames an older one. A node without a
// number (other formats) uses its position, counted from 1.
func ResolveNames(siblings []*Node, topLevel bool) {
	order := make([]int, len(siblings))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return rank(siblings[a].Number) - rank(siblings[b].Number)
	})
	taken := make(map[string]bool, len(siblings))
	for _, i := range order {
		n := siblings[i]
		n.Name = freeName(n.Name, suffix(n.Number, i), func(name string) bool {
			return taken[strings.ToLower(name)] || topLevel && IsReserved(name)
		})
		taken[strings.ToLower(n.Name)] = true
	}
}

// rank puts the columns made by the mapping (negative numbers) after all fields.
func rank(number int32) int {
	if number < 0 {
		return 1<<31 - int(number)
	}
	return int(number)
}

func suffix(number int32, position int) string {
	switch {
	case number == RecordKeyNumber:
		return "_kafka"
	case number == RawNumber:
		return "_record"
	case number > 0:
		return "_" + strconv.Itoa(int(number))
	case number == 0:
		return "_" + strconv.Itoa(position+1)
	default:
		return "_" + strconv.Itoa(int(-number)) + "c"
	}
}

func freeName(name, suffix string, taken func(string) bool) string {
	for taken(name) {
		name += suffix
	}
	return name
}

// MetadataColumns are the columns that Icestream adds to a table, without field
// ids: _lsn, the name of the row in the table log, and _kafka, where the row came
// from. All are optional at every depth.
func MetadataColumns(lsn, kafka bool) []*Node {
	var out []*Node
	if lsn {
		out = append(out, &Node{Name: LSNColumn, Type: Of(Long), Doc: "log sequence number of the row"})
	}
	if kafka {
		out = append(out, &Node{Name: KafkaColumn, Type: Of(Struct), Doc: "the Kafka record the row came from", Kids: []*Node{
			{Name: "topic", Type: Of(String)},
			{Name: "partition", Type: Of(Int)},
			{Name: "offset", Type: Of(Long)},
			{Name: "timestamp", Type: Of(TimestampTZ)},
			{Name: "key", Type: Of(Binary)},
			headersNode(),
			{Name: "schema_id", Type: Of(Int)},
		}})
	}
	return out
}

// misfit is our shape of a metadata column where a column of that name has
// another one, nil where it has ours (with all of its fields or some).
func misfit(t *Node) *Node {
	for _, ours := range MetadataColumns(true, true) {
		if ours.Name == t.Name && !partOf(t, ours) {
			return ours
		}
	}
	return nil
}

func partOf(t, ours *Node) bool {
	if t.Type != ours.Type {
		return false
	}
	for _, k := range t.Kids {
		if o := ours.Kid(k.Name); o == nil || !partOf(k, o) {
			return false
		}
	}
	return true
}

// WithMetadata is the table with the metadata columns that are wanted and whose
// names are free, in any case. The table is not changed; where nothing is to be
// added it is returned as it is.
func (s *Schema) WithMetadata(lsn, kafka bool) (after *Schema, added []Change) {
	after = s
	for _, n := range MetadataColumns(lsn, kafka) {
		if slices.ContainsFunc(s.Columns, func(c *Node) bool { return strings.EqualFold(c.Name, n.Name) }) {
			continue
		}
		if len(added) == 0 {
			after = s.Clone()
		}
		after.Columns = append(after.Columns, n)
		added = append(added, Change{Kind: Added, Path: n.Name, To: Describe(n)})
	}
	if len(added) > 0 {
		after.AssignIDs()
	}
	return after, added
}

func headersNode() *Node {
	return &Node{Name: "headers", Type: Of(List), Kids: []*Node{
		{Name: ElementName, Type: Of(Struct), Kids: []*Node{
			{Name: "key", Type: Of(String)},
			{Name: "value", Type: Of(Binary)},
		}},
	}}
}

// QuarantineSchema is the schema of a quarantine table, field ids given. It is
// the same for every table and only ever grows at its end.
func QuarantineSchema() *Schema {
	s := &Schema{Columns: []*Node{
		{Name: "pipeline", Type: Of(String)},
		{Name: "topic", Type: Of(String)},
		{Name: "topic_id", Type: Of(String), Doc: "Kafka's id of the topic, empty before Kafka 2.8"},
		{Name: "partition", Type: Of(Int)},
		{Name: "offset", Type: Of(Long)},
		{Name: "timestamp", Type: Of(TimestampTZ)},
		{Name: "key", Type: Of(Binary)},
		{Name: "value", Type: Of(Binary), Doc: "the record as it was; cut when the reason is oversized"},
		headersNode(),
		{Name: "schema_id", Type: Of(Int)},
		{Name: "reason", Type: Of(String), Doc: "short code of the fault"},
		{Name: "error", Type: Of(String), Doc: "the fault in words"},
		{Name: "commit_id", Type: Of(String), Doc: "commit of the main table that decided about the record"},
		{Name: "replayed_in", Type: Of(String), Doc: "commit of the main table that landed the record after all"},
	}}
	s.AssignIDs() // before what was added later, whose ids come last
	s.Columns = append(s.Columns,
		&Node{Name: LSNName, Type: Of(Long), Doc: "LSN of the record, which its row gets when it is replayed"})
	s.AssignIDs()
	return s
}

// LSNName is the column of a quarantine table with the LSN of the record. Tables
// of older releases lack it until the next record is quarantined.
const LSNName = "lsn"
