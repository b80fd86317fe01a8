// Package schema holds the shape of an Icestream table: a tree of columns with
// Iceberg field ids and, where a column is fed from Protobuf, the field number
// that feeds it.
//
// The same tree is used for three things: the candidate that a decoder derives
// from a source schema (no field ids), the schema of a table (field ids, no
// numbers), and the target that both sides agree on (ids and numbers). Reconcile
// turns the first two into the third. Everything here is pure: no clock, no
// network, no disk. Trees are plain data; a tree that is shared between
// goroutines must not be changed.
package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is the kind of an Iceberg type.
type Kind uint8

// The kinds of Iceberg types that a table of ours can hold. Those that
// FormatVersion says 3 of are made where the pipeline asks for them alone.
const (
	Invalid Kind = iota
	Boolean
	Int
	Long
	Float
	Double
	Decimal
	Date
	Time
	TimestampTZ // microseconds, an instant (UTC)
	Timestamp   // microseconds, no zone
	TimestampTZNano
	TimestampNano
	String
	UUID
	Binary
	Fixed
	Variant // any value; see package variant
	Struct
	List
	Map
)

var kindNames = [...]string{
	Invalid: "invalid", Boolean: "boolean", Int: "int", Long: "long", Float: "float", Double: "double",
	Decimal: "decimal", Date: "date", Time: "time", TimestampTZ: "timestamptz", Timestamp: "timestamp",
	TimestampTZNano: "timestamptz_ns", TimestampNano: "timestamp_ns", String: "string", UUID: "uuid",
	Binary: "binary", Fixed: "fixed", Variant: "variant", Struct: "struct", List: "list", Map: "map",
}

// String is Iceberg's word for the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// FormatVersion is the lowest version of the table format that has the kind.
func (k Kind) FormatVersion() int {
	if k == TimestampTZNano || k == TimestampNano || k == Variant {
		return 3
	}
	return 2
}

// Nested reports whether values of the kind consist of other values.
func (k Kind) Nested() bool { return k == Struct || k == List || k == Map }

// Type is a kind with its parameters. Precision and Scale belong to Decimal
// (precision 1..38), Length (bytes) to Fixed; they are 0 elsewhere.
type Type struct {
	Kind      Kind
	Precision int32
	Scale     int32
	Length    int32
}

// Of is a type without parameters.
func Of(k Kind) Type { return Type{Kind: k} }

// DecimalOf is decimal(precision, scale).
func DecimalOf(precision, scale int32) Type {
	return Type{Kind: Decimal, Precision: precision, Scale: scale}
}

// String is the type as Iceberg writes it: "long", "decimal(20,0)", "fixed[16]".
func (t Type) String() string {
	switch t.Kind {
	case Decimal:
		return fmt.Sprintf("decimal(%d,%d)", t.Precision, t.Scale)
	case Fixed:
		return fmt.Sprintf("fixed[%d]", t.Length)
	default:
		return t.Kind.String()
	}
}

// ParseType reads what Type.String writes; blanks after a comma are allowed.
func ParseType(s string) (Type, error) {
	if rest, ok := strings.CutPrefix(s, "decimal("); ok {
		return parseDecimal(s, rest)
	}
	if rest, ok := strings.CutPrefix(s, "fixed["); ok {
		n, err := strconv.ParseInt(strings.TrimSuffix(rest, "]"), 10, 32)
		if err != nil || n < 1 || !strings.HasSuffix(rest, "]") {
			return Type{}, fmt.Errorf("parsing type %q: want fixed[LENGTH]", s)
		}
		return Type{Kind: Fixed, Length: int32(n)}, nil
	}
	for k, name := range kindNames {
		if name == s && Kind(k) != Invalid && Kind(k) != Decimal && Kind(k) != Fixed {
			return Of(Kind(k)), nil
		}
	}
	return Type{}, fmt.Errorf("parsing type %q: not an Iceberg type that Icestream knows", s)
}

func parseDecimal(whole, rest string) (Type, error) {
	body, closed := strings.CutSuffix(rest, ")")
	p, s, found := strings.Cut(body, ",")
	precision, errP := strconv.ParseInt(strings.TrimSpace(p), 10, 32)
	scale, errS := strconv.ParseInt(strings.TrimSpace(s), 10, 32)
	if !closed || !found || errP != nil || errS != nil || precision < 1 || precision > 38 || scale < 0 || scale > precision {
		return Type{}, fmt.Errorf("parsing type %q: want decimal(PRECISION,SCALE) with 1 <= PRECISION <= 38 and 0 <= SCALE <= PRECISION", whole)
	}
	return DecimalOf(int32(precision), int32(scale)), nil
}

// Names of the children of lists and maps, as Iceberg and Arrow call them.
const (
	ElementName = "element"
	KeyName     = "key"
	ValueName   = "value"
)

// PresenceNumber stands in Node.Number of the column that keeps the presence of
// an empty message; no Protobuf field can have it.
const PresenceNumber int32 = -1

// PresenceName is the name of that column.
const PresenceName = "present"

// OneofNumber is the Node.Number of the column that names the set member of a
// oneof, derived from the lowest field number of its members. It is below
// PresenceNumber and so never a field number.
func OneofNumber(lowestMember int32) int32 { return -1 - lowestMember }

// RecordKeyName is the column that holds the key of the record, where the
// pipeline asks for one; RecordKeyNumber is its Node.Number, below every number
// that a source can have.
const (
	RecordKeyName         = "_key"
	RecordKeyNumber int32 = -1 << 30
)

// RawName is the column that holds the encoded record where fields of it were
// skipped, where the pipeline asks for that; RawNumber is its Node.Number.
const (
	RawName         = "_raw"
	RawNumber int32 = RecordKeyNumber - 1
)

// Node is one column, or one level of a nested column. A struct has its fields
// in Kids, a list one kid named element, a map two kids named key and value.
type Node struct {
	Name string
	// Number is the Protobuf field number that feeds the column, PresenceNumber
	// or OneofNumber for columns made by the mapping, 0 where nothing feeds it
	// by number (also for element, key and value).
	Number int32
	// Source is the name of the field that feeds the column, for sources whose
	// fields have names and no numbers; "" elsewhere. It plays the part of the
	// number: the column follows it whatever the table calls the column.
	Source string
	// Aliases are names that the field had before, in a candidate with sources.
	Aliases []string
	// FieldID is the Iceberg field id, 0 in a candidate.
	FieldID  int32
	Type     Type
	Required bool
	Doc      string
	Kids     []*Node
}

// Schema is the shape of a table, columns in table order.
type Schema struct {
	Columns []*Node
	// LastID is the highest field id the table ever gave away, also to columns
	// that were dropped since. 0 means: the highest one in Columns.
	LastID int32
	// Ignored are the number paths of fields that records bring and that an
	// operator said to leave out. Only the target of a candidate has any.
	Ignored []string
}

// Kid is the child with the given name, nil if there is none.
func (n *Node) Kid(name string) *Node {
	for _, k := range n.Kids {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// Clone copies the node and everything below it.
func (n *Node) Clone() *Node {
	c := *n
	c.Kids = cloneAll(n.Kids)
	return &c
}

func cloneAll(nodes []*Node) []*Node {
	if nodes == nil {
		return nil
	}
	out := make([]*Node, len(nodes))
	for i, k := range nodes {
		out[i] = k.Clone()
	}
	return out
}

// Clone copies the whole schema.
func (s *Schema) Clone() *Schema {
	return &Schema{Columns: cloneAll(s.Columns), LastID: s.LastID, Ignored: slices.Clone(s.Ignored)}
}

// Column is the top-level column with the given name, nil if there is none.
func (s *Schema) Column(name string) *Node {
	for _, c := range s.Columns {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Mapped are the columns that a decoder fills, in table order: all but the
// metadata columns.
func (s *Schema) Mapped() []*Node {
	out := make([]*Node, 0, len(s.Columns))
	for _, c := range s.Columns {
		if !IsMetadata(c.Name) {
			out = append(out, c)
		}
	}
	return out
}

// HighestID is the field id after which new ones are given: LastID, or the
// highest id found in the tree if that is higher.
func (s *Schema) HighestID() int32 {
	high := s.LastID
	s.Walk(func(_ string, n *Node) { high = max(high, n.FieldID) })
	return high
}

// Ignores reports whether the field with that number path is left out.
func (s *Schema) Ignores(field string) bool { return slices.Contains(s.Ignored, field) }

// Walk visits every node, parents first, with its dotted path.
func (s *Schema) Walk(visit func(path string, n *Node)) { walk("", s.Columns, visit) }

func walk(prefix string, nodes []*Node, visit func(string, *Node)) {
	for _, n := range nodes {
		path := join(prefix, n.Name)
		visit(path, n)
		walk(path, n.Kids, visit)
	}
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

// AssignIDs gives every node without a field id the next one after HighestID,
// a level before the levels below it as Iceberg does, and raises LastID.
func (s *Schema) AssignIDs() {
	next := s.HighestID()
	assignIDs(s.Columns, &next)
	s.LastID = next
}

func assignIDs(nodes []*Node, last *int32) {
	for _, n := range nodes {
		if n.FieldID == 0 {
			*last++
			n.FieldID = *last
		}
	}
	for _, n := range nodes {
		assignIDs(n.Kids, last)
	}
}

// Validate checks the shape of the tree: known types, the right children, no
// empty or doubled names in one struct, no field id used twice.
func (s *Schema) Validate() error {
	ids := map[int32]string{}
	if err := validateNames("", s.Columns); err != nil {
		return err
	}
	return validateAll("", s.Columns, ids)
}

func validateNames(path string, nodes []*Node) error {
	seen := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if n.Name == "" {
			return fmt.Errorf("checking schema: a column under %q has no name", path)
		}
		if seen[n.Name] {
			return fmt.Errorf("checking schema: two columns are named %q", join(path, n.Name))
		}
		seen[n.Name] = true
	}
	return nil
}

func validateAll(prefix string, nodes []*Node, ids map[int32]string) error {
	for _, n := range nodes {
		path := join(prefix, n.Name)
		if other, taken := ids[n.FieldID]; taken && n.FieldID != 0 {
			return fmt.Errorf("checking schema: field id %d belongs to both %s and %s", n.FieldID, other, path)
		}
		ids[n.FieldID] = path
		if err := validateShape(path, n); err != nil {
			return err
		}
		if err := validateAll(path, n.Kids, ids); err != nil {
			return err
		}
	}
	return nil
}

func validateShape(path string, n *Node) error {
	want := 0
	switch n.Type.Kind {
	case Struct:
		if len(n.Kids) == 0 {
			return fmt.Errorf("checking schema: struct %s has no fields, which Parquet cannot store", path)
		}
		return validateNames(path, n.Kids)
	case List:
		want = 1
	case Map:
		want = 2
	case Decimal:
		if t := n.Type; t.Precision < 1 || t.Precision > 38 || t.Scale < 0 || t.Scale > t.Precision {
			return fmt.Errorf("checking schema: column %s has the impossible type %s", path, t)
		}
	default:
		if _, err := ParseType(n.Type.String()); err != nil {
			return fmt.Errorf("checking schema: column %s: %w", path, err)
		}
	}
	if len(n.Kids) != want {
		return fmt.Errorf("checking schema: %s is a %s and has %d children instead of %d", path, n.Type, len(n.Kids), want)
	}
	return nil
}
