package avro

import (
	"fmt"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// maxNodes bounds the columns of one schema at all depths.
const maxNodes = 20000

// ValueName is the column of a schema that is no record.
const ValueName = "value"

// Candidate derives the columns that the schema wants, without field ids: those of
// the record's fields, or one named value. Each has the field's name as its source.
func (s *Schema) Candidate() (*schema.Schema, error) {
	w := &walker{root: s.root.name}
	if s.root.kind == kindRecord {
		columns, err := w.record(s.root, nil, true)
		if err != nil {
			return nil, err
		}
		schema.TextInLists(columns)
		return &schema.Schema{Columns: columns}, nil
	}
	n, err := w.node(s.root, ValueName, nil)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, fmt.Errorf("mapping the schema: its only type is null, which makes no column")
	}
	n.Source = ValueName
	schema.TextInLists([]*schema.Node{n})
	return &schema.Schema{Columns: []*schema.Node{n}}, nil
}

// IsRecord reports whether the schema's columns are the fields of a record.
func (s *Schema) IsRecord() bool { return s.root.kind == kindRecord }

type walker struct {
	root  string
	nodes int
}

// inside are the records and maps around a type.
type inside []*typ

func (in inside) push(t *typ) inside { return append(slices.Clip(in), t) }

func (in inside) has(t *typ) bool {
	return slices.Contains(in, t)
}

// tooManyMaps reports whether more than cell.MaxMaps maps are around the type.
func (in inside) tooManyMaps() bool {
	maps := 0
	for _, t := range in {
		if t.kind == kindMap {
			maps++
		}
	}
	return maps > cell.MaxMaps
}

func (w *walker) record(t *typ, in inside, top bool) ([]*schema.Node, error) {
	in = in.push(t)
	var out []*schema.Node
	for _, f := range t.fields {
		n, err := w.node(f.typ, f.name, in)
		if err != nil {
			return nil, err
		}
		if n == nil { // null alone
			continue
		}
		n.Source, n.Aliases, n.Doc = f.name, f.aliases, f.doc
		out = append(out, n)
	}
	if len(out) == 0 {
		return []*schema.Node{presence()}, nil
	}
	schema.ResolveNames(out, top)
	return out, nil
}

func presence() *schema.Node {
	return &schema.Node{
		Name: schema.PresenceName, Number: schema.PresenceNumber, Type: schema.Of(schema.Boolean),
		Doc: "true where the empty record is present",
	}
}

// node is the column of a value, nil for the type null.
func (w *walker) node(t *typ, name string, in inside) (*schema.Node, error) {
	if w.nodes++; w.nodes > maxNodes {
		return nil, fmt.Errorf("mapping %s: it expands to more than %d columns; its types refer to each other in too many ways", w.root, maxNodes)
	}
	n := &schema.Node{Name: name}
	var err error
	switch s := t.shape(in); s {
	case shapeNull:
		return nil, nil
	case shapeScalar, shapeJSON:
		n.Type = t.scalar(s)
	case shapeOptional:
		return w.node(t.only(), name, in)
	case shapeRecord:
		n.Type = schema.Of(schema.Struct)
		n.Kids, err = w.record(t, in, false)
	case shapeUnion:
		n.Type = schema.Of(schema.Struct)
		n.Kids, err = w.members(t, in)
	case shapeDuration:
		n.Type = schema.Of(schema.Struct)
		n.Kids, err = w.record(durationParts, in, false)
	case shapeArray:
		n.Type = schema.Of(schema.List)
		n.Kids, err = w.element(t.items, schema.ElementName, in)
	case shapeMap:
		n.Type = schema.Of(schema.Map)
		n.Kids, err = w.element(t.items, schema.ValueName, in.push(t))
		n.Kids = append([]*schema.Node{{Name: schema.KeyName, Type: schema.Of(schema.String), Required: true}}, n.Kids...)
	}
	return n, err
}

// durationParts is a duration as a record, in the order of its bytes.
var durationParts = func() *typ {
	long := &typ{kind: kindLong, name: "long"}
	return &typ{kind: kindRecord, name: "duration", fields: []field{{name: "months", typ: long}, {name: "days", typ: long}, {name: "millis", typ: long}}}
}()

// element is the child of a list or map. Of nothing but nulls, it is a boolean that is
// always null: the count is kept.
func (w *walker) element(t *typ, name string, in inside) ([]*schema.Node, error) {
	n, err := w.node(t, name, in)
	if n == nil {
		n = &schema.Node{Name: name, Type: schema.Of(schema.Boolean)}
	}
	return []*schema.Node{n}, err
}

// members are the columns of a union of several types.
func (w *walker) members(t *typ, in inside) ([]*schema.Node, error) {
	var out []*schema.Node
	for _, b := range t.branches {
		n, err := w.node(b, b.short(), in)
		if err != nil {
			return nil, err
		}
		if n != nil {
			n.Source = b.name
			out = append(out, n)
		}
	}
	schema.ResolveNames(out, false)
	return out, nil
}

// short is the type's name without its namespace.
func (t *typ) short() string { return t.name[strings.LastIndexByte(t.name, '.')+1:] }

type shape uint8

const (
	shapeNull shape = iota
	shapeScalar
	shapeJSON     // a record inside itself, anything with children inside too many maps
	shapeOptional // a union of one type, or one number type after all, with or without null
	shapeRecord
	shapeUnion
	shapeDuration
	shapeArray
	shapeMap
)

func (t *typ) shape(in inside) shape {
	switch t.kind {
	case kindNull:
		return shapeNull
	case kindRecord:
		if in.has(t) || in.tooManyMaps() {
			return shapeJSON
		}
		return shapeRecord
	case kindArray:
		if in.tooManyMaps() {
			return shapeJSON
		}
		return shapeArray
	case kindMap:
		if in.tooManyMaps() {
			return shapeJSON
		}
		return shapeMap
	case kindUnion:
		if t.empty() {
			return shapeNull
		}
		if t.only() != nil {
			return shapeOptional
		}
		if in.tooManyMaps() {
			return shapeJSON
		}
		return shapeUnion
	default:
		if t.logical == "duration" {
			return shapeDuration
		}
		return shapeScalar
	}
}

func (t *typ) empty() bool {
	for _, b := range t.branches {
		if b.kind != kindNull {
			return false
		}
	}
	return true
}

// only is the one type of a union, null apart: the one that all its branches fit
// without loss. nil if there is none.
func (t *typ) only() *typ {
	var one *typ
	for _, b := range t.branches {
		switch {
		case b.kind == kindNull:
		case one == nil:
			one = b
		case plainPair(one, b, kindInt, kindLong), plainPair(one, b, kindFloat, kindDouble):
			if b.kind > one.kind {
				one = b
			}
		default:
			return nil
		}
	}
	return one
}

func plainPair(a, b *typ, small, large kind) bool {
	fits := func(t *typ) bool { return t.logical == "" && (t.kind == small || t.kind == large) }
	return fits(a) && fits(b)
}

// scalar is the column type of a value without children.
func (t *typ) scalar(s shape) schema.Type {
	if s == shapeJSON {
		if t.variant {
			return schema.Of(schema.Variant)
		}
		return schema.Of(schema.String)
	}
	switch t.logical {
	case "decimal":
		if t.precision > 38 {
			return schema.Of(schema.String)
		}
		return schema.DecimalOf(int32(t.precision), int32(t.scale))
	case "date":
		return schema.Of(schema.Date)
	case "time-millis", "time-micros":
		return schema.Of(schema.Long)
	case "timestamp-millis", "timestamp-micros", "timestamp-nanos":
		if t.nanos {
			return schema.Of(schema.TimestampTZNano)
		}
		return schema.Of(schema.TimestampTZ)
	case "local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos":
		if t.nanos {
			return schema.Of(schema.TimestampNano)
		}
		return schema.Of(schema.Timestamp)
	case "uuid":
		return schema.Of(schema.String)
	}
	switch t.kind {
	case kindBoolean:
		return schema.Of(schema.Boolean)
	case kindInt:
		return schema.Of(schema.Int)
	case kindLong:
		return schema.Of(schema.Long)
	case kindFloat:
		return schema.Of(schema.Float)
	case kindDouble:
		return schema.Of(schema.Double)
	case kindBytes, kindFixed:
		return schema.Of(schema.Binary)
	default: // string, enum
		return schema.Of(schema.String)
	}
}
