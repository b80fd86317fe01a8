package jsonrec

import (
	"fmt"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// value is one place of the shape, bound to the columns of a batch.
type value struct {
	kind   kind
	to     schema.Type // of the column
	col    *column.Column
	fields []*value          // struct, in the order of the shape
	byKey  map[string]*value // the same by key
	item   *value            // list, map
	seen   *column.Column    // presence of an empty struct
	name   string
	spread int    // cells of an element of a list or map
	index  int    // among the fields
	mark   uint64 // number of the object in which the key was met last
}

// Plan is how records of one shape are written to one target schema.
type Plan struct {
	shape  *Shape
	target *schema.Schema
}

// Compile makes a plan for records of a shape written to a table of the target schema.
// Keys find their columns by source; a column that nothing feeds is null (a list or map
// empty). It fails when a key has no column or one that cannot hold its values: then
// the target was not made by schema.Reconcile for this shape.
func Compile(s *Shape, target *schema.Schema) (*Plan, error) {
	p := &Plan{shape: s, target: target.Clone()}
	if _, err := p.build(); err != nil {
		return nil, fmt.Errorf("compiling decoder for %s: %w", s.name, err)
	}
	return p, nil
}

// NewBatch makes an empty batch. A batch is meant to be reused: see Batch.Reset.
func (p *Plan) NewBatch() *Batch {
	b, err := p.build()
	if err != nil {
		panic("jsonrec: a plan that was built once cannot be built again: " + err.Error())
	}
	return b
}

func (p *Plan) build() (*Batch, error) {
	nodes := p.target.Mapped()
	base, err := cell.NewBatch("JSON", nodes)
	if err != nil {
		return nil, err
	}
	b := &Batch{Batch: base, dedupe: column.NewDedupe()}
	if p.shape.root.kind == kindStruct {
		b.root, err = bindStruct(p.shape.root, nodes, base.Columns())
		return b, err
	}
	for i, n := range nodes {
		if n.Source != ValueName {
			cell.Unfed(n, base.Columns()[i])
			continue
		}
		if b.root, err = bind(p.shape.root, n, base.Columns()[i]); err != nil {
			return nil, err
		}
	}
	if b.root == nil {
		return nil, fmt.Errorf("the target has no column for the value")
	}
	return b, nil
}

func bindStruct(t *typ, nodes []*schema.Node, columns []*column.Column) (*value, error) {
	v := &value{kind: kindStruct, byKey: make(map[string]*value, len(t.fields))}
	at := make(map[string]int, len(nodes))
	for i, n := range nodes {
		switch {
		case n.Number == schema.PresenceNumber:
			v.seen = columns[i]
		case n.Source != "":
			at[n.Source] = i
		default:
			cell.Unfed(n, columns[i])
		}
	}
	for _, f := range t.fields {
		k := &value{kind: kindNull}
		if i, found := at[source(f.name)]; found {
			var err error
			if k, err = bind(f.typ, nodes[i], columns[i]); err != nil {
				return nil, err
			}
		} else if f.typ.kind != kindNull {
			return nil, fmt.Errorf("key %q has no column in the target schema", f.name)
		}
		k.name, k.index = f.name, len(v.fields)
		v.fields = append(v.fields, k)
		v.byKey[f.name] = k
	}
	return v, nil
}

func bind(t *typ, n *schema.Node, c *column.Column) (*value, error) {
	want := map[kind]schema.Kind{kindStruct: schema.Struct, kindList: schema.List, kindMap: schema.Map}[t.kind]
	if want != schema.Invalid && n.Type.Kind != want || want == schema.Invalid && !schema.CanHold(n.Type, t.column) && (t.kind != kindJSON || n.Type.Kind != schema.String) {
		return nil, fmt.Errorf("values of type %s cannot be written to column %s of type %s", t.column, n.Name, n.Type)
	}
	v := &value{kind: t.kind, to: n.Type, col: c}
	switch t.kind {
	case kindStruct:
		kids := make([]*column.Column, c.Kids())
		for i := range kids {
			kids[i] = c.Kid(i)
		}
		s, err := bindStruct(t, n.Kids, kids)
		if err == nil {
			s.col = c
		}
		return s, err
	case kindList, kindMap:
		c.AbsentIsZero()
		last := len(n.Kids) - 1
		v.spread = cell.Spread(c.Kid(last))
		cell.Unfed(n.Kids[last], c.Kid(last))
		if t.item.kind == kindNull {
			v.item = &value{kind: kindNull}
			return v, nil
		}
		var err error
		v.item, err = bind(t.item, n.Kids[last], c.Kid(last))
		return v, err
	default:
		return v, nil
	}
}
