package jsonrec

import (
	"fmt"
	"slices"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

type kind uint8

const (
	kindNull kind = iota // nothing but null: no column
	kindText
	kindBoolean
	kindInteger
	kindFloat
	kindDecimal       // a number, or a number in a string
	kindDecimalBase64 // unscaled bytes in base64, as Kafka Connect writes them
	kindDate          // 2006-01-02
	kindTimestamp     // RFC 3339; without offset for a timestamp without zone
	kindEpochMillis
	kindEpochDays
	kindMillisOfDay
	kindBase64
	kindJSON // any value, as its text
	kindStruct
	kindList
	kindMap
)

// typ is the type of a value; it is a tree.
type typ struct {
	kind   kind
	column schema.Type // of kinds without children
	fields []field     // struct
	item   *typ        // list, and the values of a map
}

type field struct {
	name string // the key in the record
	doc  string
	typ  *typ
}

// Shape is which columns the records of a pipeline make.
type Shape struct {
	name string
	root *typ
}

// Options choose between the alternatives of the mapping. The zero value is the
// default mapping.
type Options struct {
	// Nanos maps timestamps in text to timestamptz_ns instead of cutting them to
	// microseconds. Only tables of format version 3 have the type.
	Nanos bool
	// Variant maps what has no fixed columns to variant instead of JSON text. Only
	// tables of format version 3 have the type.
	Variant bool
}

// With is the shape of a JSON Schema, or of a whole document, with other options than
// the default ones.
func (s *Shape) With(o Options) *Shape { return &Shape{name: s.name, root: s.root.with(o)} }

func (t *typ) with(o Options) *typ {
	out := *t
	if o.Nanos && t.kind == kindTimestamp && t.column.Kind == schema.TimestampTZ {
		out.column = schema.Of(schema.TimestampTZNano)
	}
	if o.Variant && t.kind == kindJSON {
		out.column = schema.Of(schema.Variant)
	}
	if t.item != nil {
		out.item = t.item.with(o)
	}
	out.fields = slices.Clone(t.fields)
	for i := range out.fields {
		out.fields[i].typ = out.fields[i].typ.with(o)
	}
	return &out
}

// Name is for people.
func (s *Shape) Name() string { return s.name }

// ValueName is the column of records that are no object.
const ValueName = "value"

// Document is the shape of one column with the record's text as it is.
func Document() *Shape {
	return &Shape{name: "JSON text", root: &typ{kind: kindJSON, column: schema.Of(schema.String)}}
}

// IsObject reports whether the shape's columns are the properties of an object.
func (s *Shape) IsObject() bool { return s.root.kind == kindStruct }

// Candidate is the columns that the shape wants, without field ids. Each has the key
// in the record as its source.
func (s *Shape) Candidate() (*schema.Schema, error) {
	if s.root.kind == kindStruct {
		columns := nodes(s.root.fields, true)
		schema.TextInLists(columns)
		return &schema.Schema{Columns: columns}, nil
	}
	n := s.root.node(ValueName)
	if n == nil {
		return nil, fmt.Errorf("mapping %s: its only type is null, which makes no column", s.name)
	}
	n.Source = ValueName
	schema.TextInLists([]*schema.Node{n})
	return &schema.Schema{Columns: []*schema.Node{n}}, nil
}

func nodes(fields []field, top bool) []*schema.Node {
	var out []*schema.Node
	for _, f := range fields {
		name := f.name
		if name == "" {
			name = "_"
		}
		if n := f.typ.node(name); n != nil {
			n.Source, n.Doc = source(f.name), f.doc
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return []*schema.Node{{
			Name: schema.PresenceName, Number: schema.PresenceNumber, Type: schema.Of(schema.Boolean),
			Doc: "true where the empty object is present",
		}}
	}
	schema.ResolveNames(out, top)
	return out
}

// source is the key, with a stand-in for the empty one: no source means none at all.
func source(key string) string {
	if key == "" {
		return "\x00"
	}
	return key
}

// node is the column of a value, nil for null alone.
func (t *typ) node(name string) *schema.Node {
	switch t.kind {
	case kindNull:
		return nil
	case kindStruct:
		return &schema.Node{Name: name, Type: schema.Of(schema.Struct), Kids: nodes(t.fields, false)}
	case kindList:
		return &schema.Node{Name: name, Type: schema.Of(schema.List), Kids: []*schema.Node{t.item.child(schema.ElementName)}}
	case kindMap:
		key := &schema.Node{Name: schema.KeyName, Type: schema.Of(schema.String), Required: true}
		return &schema.Node{Name: name, Type: schema.Of(schema.Map), Kids: []*schema.Node{key, t.item.child(schema.ValueName)}}
	default:
		return &schema.Node{Name: name, Type: t.column}
	}
}

// child is the element of a list or map; of nothing but nulls, it is a boolean that is
// always null.
func (t *typ) child(name string) *schema.Node {
	if n := t.node(name); n != nil {
		return n
	}
	return &schema.Node{Name: name, Type: schema.Of(schema.Boolean)}
}

func scalar(k kind, column schema.Kind) *typ { return &typ{kind: k, column: schema.Of(column)} }

func anyJSON() *typ { return scalar(kindJSON, schema.String) }

// hasChildren reports whether the type is a struct, list or map.
func (t *typ) hasChildren() bool {
	return t.kind == kindStruct || t.kind == kindList || t.kind == kindMap
}

// flattened is the type with JSON text for what has children inside more than
// cell.MaxMaps maps; so many are around it.
func (t *typ) flattened(maps int) *typ {
	switch {
	case t.hasChildren() && maps > cell.MaxMaps:
		return anyJSON()
	case t.kind == kindMap:
		maps++
	}
	out := *t
	if t.item != nil {
		out.item = t.item.flattened(maps)
	}
	out.fields = slices.Clone(t.fields)
	for i := range out.fields {
		out.fields[i].typ = out.fields[i].typ.flattened(maps)
	}
	return &out
}

// same reports whether two types make the same columns from the same values.
func same(a, b *typ) bool {
	if a.kind != b.kind || a.column != b.column || len(a.fields) != len(b.fields) {
		return false
	}
	for i := range a.fields {
		if a.fields[i].name != b.fields[i].name || !same(a.fields[i].typ, b.fields[i].typ) {
			return false
		}
	}
	return a.item == nil && b.item == nil || a.item != nil && b.item != nil && same(a.item, b.item)
}
