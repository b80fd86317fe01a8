package pipeline

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
)

// Compile makes the factory of batches that decode records of a source into the mapped columns of target. Fields that
// an operator left out are decoded all the same, into columns that are taken away at the end: so every rule of the
// format holds for them too, and no decoder knows of it.
func Compile(src Source, target *schema.Schema) (func() batch.Rows, error) {
	if len(target.Ignored) == 0 {
		return src.Compile(target)
	}
	wide, err := src.Compile(target.WithIgnored(src.Candidate()))
	if err != nil {
		return nil, err
	}
	mapped := target.Mapped()
	return func() batch.Rows { return &narrowRows{wideRows: wide(), mapped: mapped} }, nil
}

type wideRows = batch.Rows

// narrowRows takes away the columns of fields that are left out.
type narrowRows struct {
	wideRows

	mapped []*schema.Node
}

// NextKey implements batch.Keyed, for rows that hold keys.
func (r *narrowRows) NextKey(key []byte) {
	if k, ok := r.wideRows.(batch.Keyed); ok {
		k.NextKey(key)
	}
}

func (r *narrowRows) Finish() []arrow.Array {
	wide := r.wideRows.Finish()
	out := make([]arrow.Array, len(r.mapped))
	for i, a := range wide {
		if i < len(out) {
			d := narrow(a.Data(), r.mapped[i])
			out[i] = array.MakeFromData(d)
			d.Release()
		}
		a.Release()
	}
	return out
}

// narrow is a column with only those children that n has; they come first. The caller releases it.
func narrow(a arrow.ArrayData, n *schema.Node) arrow.ArrayData {
	children := a.Children()
	switch n.Type.Kind {
	case schema.Struct, schema.List:
		children = narrowAll(children[:len(n.Kids)], n.Kids)
	case schema.Map: // its one child is the struct of key and value
		entries := children[0]
		kids := narrowAll(entries.Children(), n.Kids)
		t := n.ArrowField().Type.(*arrow.MapType).Elem()
		children = []arrow.ArrayData{array.NewData(t, entries.Len(), entries.Buffers(), kids, entries.NullN(), entries.Offset())}
		releaseAll(kids)
	default:
		a.Retain()
		return a
	}
	out := array.NewData(n.ArrowField().Type, a.Len(), a.Buffers(), children, a.NullN(), a.Offset())
	releaseAll(children)
	return out
}

func narrowAll(children []arrow.ArrayData, nodes []*schema.Node) []arrow.ArrayData {
	out := make([]arrow.ArrayData, len(children))
	for i, c := range children {
		out[i] = narrow(c, nodes[i])
	}
	return out
}

func releaseAll(children []arrow.ArrayData) {
	for _, c := range children {
		c.Release()
	}
}
