package avro

import (
	"fmt"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// op is what the walk does with a value, chosen when the plan is made.
type op uint8

const (
	opNull op = iota
	opBoolean
	opInt        // 4 bytes to 4
	opIntLong    // 4 bytes to 8
	opLong       // 8 bytes to 8
	opIntDec     // 4 bytes to a decimal
	opLongDec    // 8 bytes to a decimal
	opFloat      // 4 bytes to 4
	opFloatWide  // 4 bytes to a double
	opDouble     // 8 bytes to 8
	opString     // checked to be UTF-8
	opBytes      // taken as it is
	opFixed      // the same, without a length
	opEnum       // name of a symbol
	opDate       // days
	opTime       // time of day in units of v.num/v.den microseconds
	opTimestamp  // the same as an instant or local time
	opNanos      // the same in nanoseconds, taken as it is
	opDecimal    // unscaled bytes, with a length or fixed
	opDecimalLog // the same as text
	opUUID
	opDuration
	opJSON
	opRecord
	opUnion // branch, then its value
	opArray
	opMap
)

// value is one place of the schema, bound to the columns of a batch.
type value struct {
	op     op
	typ    *typ
	col    *column.Column
	kids   []*value // fields, branches by index, or the one element
	num    int64    // microseconds per unit, or
	den    int64    // units per microsecond
	digits int32    // precision of a decimal column
	spread int      // cells of an element of a list or map
	name   string   // field name, for error texts
	open   bool     // the union's column is a struct
	free   bool     // JSON goes into a variant
	seen   *column.Column
}

// Plan is how records of one schema are written to one target schema.
type Plan struct {
	schema *Schema
	target *schema.Schema
}

// Compile makes a plan for records of a schema written to a table of the target
// schema. Fields find their columns by source; a column that nothing feeds is null (a
// list or map empty); a column wider than its field is filled with the same value. It
// fails when a field has no column or one that cannot hold its values: then the target
// was not made by schema.Reconcile for this schema.
func Compile(s *Schema, target *schema.Schema) (*Plan, error) {
	p := &Plan{schema: s, target: target.Clone()}
	if _, err := p.build(); err != nil {
		return nil, fmt.Errorf("compiling decoder for %s: %w", s.Name(), err)
	}
	return p, nil
}

// NewBatch makes an empty batch. A batch is meant to be reused: see Batch.Reset.
func (p *Plan) NewBatch() *Batch {
	b, err := p.build()
	if err != nil {
		panic("avro: a plan that was built once cannot be built again: " + err.Error())
	}
	return b
}

func (p *Plan) build() (*Batch, error) {
	nodes := p.target.Mapped()
	base, err := cell.NewBatch("Avro", nodes)
	if err != nil {
		return nil, err
	}
	b := &Batch{Batch: base, dedupe: column.NewDedupe(), most: maxGrown}
	if p.schema.root.kind == kindRecord {
		b.root, err = bindRecord(p.schema.root, nodes, base.Columns(), nil)
		return b, err
	}
	at := -1
	for i, n := range nodes {
		if n.Source == ValueName {
			at = i
		} else {
			cell.Unfed(n, base.Columns()[i])
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("the target has no column for the value")
	}
	b.root, err = bind(p.schema.root, nodes[at], base.Columns()[at], nil)
	return b, err
}

// bindRecord binds the fields of a record to the columns of its struct, or of the table.
func bindRecord(t *typ, nodes []*schema.Node, columns []*column.Column, in inside) (*value, error) {
	in = in.push(t)
	v := &value{op: opRecord, typ: t}
	bySource := make(map[string]int, len(nodes))
	for i, n := range nodes {
		switch {
		case n.Number == schema.PresenceNumber:
			v.seen = columns[i]
		case n.Source != "":
			bySource[n.Source] = i
		default:
			cell.Unfed(n, columns[i])
		}
	}
	for _, f := range t.fields {
		at, found := bySource[f.name]
		if !found {
			if f.typ.shape(in) != shapeNull {
				return nil, fmt.Errorf("field %s of %s has no column in the target schema", f.name, t.name)
			}
			v.kids = append(v.kids, bindNull(f.typ, f.name))
			continue
		}
		k, err := bind(f.typ, nodes[at], columns[at], in)
		if err != nil {
			return nil, err
		}
		k.name = f.name
		v.kids = append(v.kids, k)
	}
	return v, nil
}

// bindNull is a value that makes no column; a union of nulls still has its index.
func bindNull(t *typ, name string) *value {
	v := &value{typ: t, name: name}
	if t.kind == kindUnion {
		v.op = opUnion
		for _, b := range t.branches {
			v.kids = append(v.kids, bindNull(b, ""))
		}
	}
	return v
}

func kidsOf(c *column.Column) []*column.Column {
	out := make([]*column.Column, c.Kids())
	for i := range out {
		out[i] = c.Kid(i)
	}
	return out
}

func bind(t *typ, n *schema.Node, c *column.Column, in inside) (*value, error) {
	s := t.shape(in)
	v := &value{typ: t, col: c}
	want := map[shape]schema.Kind{
		shapeRecord: schema.Struct, shapeUnion: schema.Struct, shapeDuration: schema.Struct, shapeArray: schema.List, shapeMap: schema.Map,
	}[s]
	if want != schema.Invalid && n.Type.Kind != want {
		return nil, mismatch(t, n)
	}
	switch s {
	case shapeNull:
		return bindNull(t, ""), nil
	case shapeOptional:
		return bindOptional(t, n, c, in)
	case shapeRecord:
		r, err := bindRecord(t, n.Kids, kidsOf(c), in)
		if err == nil {
			r.col = c
		}
		return r, err
	case shapeUnion:
		return bindUnion(v, n, in)
	case shapeDuration:
		r, err := bindRecord(durationParts, n.Kids, kidsOf(c), in)
		if err == nil {
			r.op, r.col = opDuration, c
		}
		return r, err
	case shapeArray, shapeMap:
		c.AbsentIsZero()
		v.op = opArray
		last := 0
		if s == shapeMap {
			v.op, last, in = opMap, 1, in.push(t)
		}
		cell.Unfed(n.Kids[last], c.Kid(last))
		element, err := bind(t.items, n.Kids[last], c.Kid(last), in)
		v.kids = []*value{element}
		v.spread = cell.Spread(c.Kid(last))
		return v, err
	default: // a scalar
	}
	if !schema.CanHold(n.Type, t.scalar(s)) && (s != shapeJSON || n.Type.Kind != schema.String) {
		return nil, mismatch(t, n)
	}
	if t.kind == kindUnion { // as text; null stays null
		v.op = opUnion
		for _, b := range t.branches {
			k := &value{op: opJSON, typ: b, col: c, free: n.Type.Kind == schema.Variant}
			if b.kind == kindNull {
				k = bindNull(b, "")
			}
			v.kids = append(v.kids, k)
		}
		return v, nil
	}
	v.digits = n.Type.Precision
	v.setOp(s, n.Type.Kind)
	return v, nil
}

// bindOptional binds all branches to the one column.
func bindOptional(t *typ, n *schema.Node, c *column.Column, in inside) (*value, error) {
	v := &value{op: opUnion, typ: t, col: c}
	for _, b := range t.branches {
		k, err := bind(b, n, c, in)
		if err != nil {
			return nil, err
		}
		v.kids = append(v.kids, k)
	}
	return v, nil
}

// bindUnion binds each branch to a column of its own.
func bindUnion(v *value, n *schema.Node, in inside) (*value, error) {
	v.op, v.open = opUnion, true
	members := map[string]int{}
	for i, k := range n.Kids {
		if k.Source != "" {
			members[k.Source] = i
		} else {
			cell.Unfed(k, v.col.Kid(i))
		}
	}
	for _, b := range v.typ.branches {
		if b.kind == kindNull {
			v.kids = append(v.kids, &value{typ: b})
			continue
		}
		at, found := members[b.name]
		if !found {
			return nil, fmt.Errorf("branch %s of a union has no column in the target schema", b.name)
		}
		k, err := bind(b, n.Kids[at], v.col.Kid(at), in)
		if err != nil {
			return nil, err
		}
		k.name = n.Kids[at].Name
		v.kids = append(v.kids, k)
	}
	return v, nil
}

func mismatch(t *typ, n *schema.Node) error {
	return fmt.Errorf("a value of type %s cannot be written to column %s of type %s", t.name, n.Name, n.Type)
}

// setOp chooses how a scalar is read and stored.
func (v *value) setOp(s shape, to schema.Kind) {
	if s == shapeJSON {
		v.op, v.free = opJSON, to == schema.Variant
		return
	}
	switch v.typ.logical {
	case "decimal":
		v.op = opDecimal
		if v.typ.precision > 38 {
			v.op = opDecimalLog
		}
		return
	case "date":
		v.op = opDate
		return
	case "time-millis":
		v.op, v.num, v.den = opTime, 1000, 1
		return
	case "time-micros":
		v.op, v.num, v.den = opTime, 1, 1
		return
	case "timestamp-millis", "local-timestamp-millis":
		v.op, v.num, v.den = opTimestamp, 1000, 1
		return
	case "timestamp-micros", "local-timestamp-micros":
		v.op, v.num, v.den = opTimestamp, 1, 1
		return
	case "timestamp-nanos", "local-timestamp-nanos":
		v.op, v.num, v.den = opTimestamp, 1, 1000
		if v.typ.nanos {
			v.op = opNanos
		}
		return
	case "uuid":
		v.op = opUUID
		return
	}
	v.op = map[kind]op{
		kindBoolean: opBoolean, kindInt: opInt, kindLong: opLong, kindFloat: opFloat, kindDouble: opDouble,
		kindBytes: opBytes, kindString: opString, kindFixed: opFixed, kindEnum: opEnum,
	}[v.typ.kind]
	switch {
	case v.op == opInt && to == schema.Long:
		v.op = opIntLong
	case v.op == opInt && to == schema.Decimal:
		v.op = opIntDec
	case v.op == opLong && to == schema.Decimal:
		v.op = opLongDec
	case v.op == opFloat && to == schema.Double:
		v.op = opFloatWide
	}
}
