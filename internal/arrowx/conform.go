package arrowx

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// Conform returns rec, whose shape is from, in the shape of to, matching columns
// by field id at every depth. A column that from lacks becomes null; one that to
// lacks is dropped; int becomes long, float double, and decimals widen, the
// changes a table may make (design section 5). Any other difference of type is
// an error: it means that to is not a later schema of the same table.
func Conform(rec arrow.RecordBatch, from, to *schema.Schema) (arrow.RecordBatch, error) {
	out := to.Arrow()
	cols := make([]arrow.Array, 0, out.NumFields())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for i, n := range to.Columns {
		at := indexByID(from.Columns, n.FieldID)
		var data arrow.ArrayData
		if at >= 0 {
			var err error
			if data, err = conform(rec.Column(at).Data(), from.Columns[at], n, out.Field(i).Type); err != nil {
				return nil, err
			}
		} else {
			data = nulls(out.Field(i).Type, int(rec.NumRows()))
		}
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(out, cols, rec.NumRows()), nil
}

func indexByID(nodes []*schema.Node, id int32) int {
	for i, n := range nodes {
		if n.FieldID == id {
			return i
		}
	}
	return -1
}

func nulls(t arrow.DataType, n int) arrow.ArrayData {
	arr := array.MakeArrayOfNull(memory.DefaultAllocator, t, n)
	defer arr.Release()
	arr.Data().Retain()
	return arr.Data()
}

func conform(d arrow.ArrayData, from, to *schema.Node, t arrow.DataType) (arrow.ArrayData, error) {
	if from.Type == to.Type {
		switch to.Type.Kind {
		case schema.Struct:
			return conformStruct(d, from, to, t)
		case schema.List:
			return conformList(d, from, to, t)
		case schema.Map:
			return conformMap(d, from, to, t)
		case schema.Variant:
			return conformVariant(d, t)
		default:
			return array.NewData(t, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset()), nil
		}
	}
	switch {
	case from.Type.Kind == schema.Int && to.Type.Kind == schema.Long:
		return widen(d, t, arrow.Int32Traits.CastFromBytes, func(v int32) int64 { return int64(v) }, arrow.Int64Traits.CastToBytes), nil
	case from.Type.Kind == schema.Float && to.Type.Kind == schema.Double:
		return widen(d, t, arrow.Float32Traits.CastFromBytes, func(v float32) float64 { return float64(v) }, arrow.Float64Traits.CastToBytes), nil
	case from.Type.Kind == schema.Decimal && to.Type.Kind == schema.Decimal && from.Type.Scale == to.Type.Scale:
		return array.NewData(t, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset()), nil
	}
	return nil, fault.New(fault.SchemaChanged, "column %q is %v in a batch and %v in the table", to.Name, from.Type, to.Type)
}

// widen converts the values of d one by one; the validity bitmap is shared.
func widen[F, T any](d arrow.ArrayData, t arrow.DataType, read func([]byte) []F, conv func(F) T, write func([]T) []byte) arrow.ArrayData {
	bufs := d.Buffers()
	in := read(bufs[1].Bytes())
	out := make([]T, d.Offset()+d.Len())
	for i := d.Offset(); i < len(out); i++ {
		out[i] = conv(in[i])
	}
	return array.NewData(t, d.Len(), []*memory.Buffer{bufs[0], memory.NewBufferBytes(write(out))}, nil, d.NullN(), d.Offset())
}

func conformStruct(d arrow.ArrayData, from, to *schema.Node, t arrow.DataType) (arrow.ArrayData, error) {
	st := t.(*arrow.StructType)
	kids := make([]arrow.ArrayData, 0, len(to.Kids))
	defer releaseData(&kids)
	for i, n := range to.Kids {
		at := indexByID(from.Kids, n.FieldID)
		if at < 0 {
			kids = append(kids, nulls(st.Field(i).Type, d.Offset()+d.Len()))
			continue
		}
		kid, err := conform(d.Children()[at], from.Kids[at], n, st.Field(i).Type)
		if err != nil {
			return nil, err
		}
		kids = append(kids, kid)
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset()), nil
}

// conformVariant takes a variant of any spelling (Arrow's own type or its storage, the
// parts in any order) as ours.
func conformVariant(d arrow.ArrayData, t arrow.DataType) (arrow.ArrayData, error) {
	have := d.DataType()
	if ext, ok := have.(arrow.ExtensionType); ok {
		have = ext.StorageType()
	}
	st, ok := have.(*arrow.StructType)
	if !ok {
		return nil, fault.New(fault.SchemaChanged, "a variant has the Arrow type %s, which holds none", have)
	}
	kids := make([]arrow.ArrayData, 0, 2)
	for _, f := range t.(*arrow.StructType).Fields() {
		at, found := st.FieldIdx(f.Name)
		if !found || !arrow.TypeEqual(st.Field(at).Type, f.Type) {
			return nil, fault.New(fault.SchemaChanged, "a variant has the Arrow type %s, which lacks its %s as a binary: its file is shredded in a way that this version cannot read", have, f.Name)
		}
		kids = append(kids, d.Children()[at])
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset()), nil
}

func conformList(d arrow.ArrayData, from, to *schema.Node, t arrow.DataType) (arrow.ArrayData, error) {
	kid, err := conform(d.Children()[0], from.Kids[0], to.Kids[0], t.(*arrow.ListType).Elem())
	if err != nil {
		return nil, err
	}
	defer kid.Release()
	return array.NewData(t, d.Len(), d.Buffers(), []arrow.ArrayData{kid}, d.NullN(), d.Offset()), nil
}

// conformMap goes through the entries struct that Arrow puts between a map and
// its key and value.
func conformMap(d arrow.ArrayData, from, to *schema.Node, t arrow.DataType) (arrow.ArrayData, error) {
	entryType := t.(*arrow.MapType).Elem().(*arrow.StructType)
	entries := d.Children()[0]
	kids := make([]arrow.ArrayData, 0, 2)
	defer releaseData(&kids)
	for i := range 2 {
		kid, err := conform(entries.Children()[i], from.Kids[i], to.Kids[i], entryType.Field(i).Type)
		if err != nil {
			return nil, err
		}
		kids = append(kids, kid)
	}
	conformed := array.NewData(entryType, entries.Len(), entries.Buffers(), kids, entries.NullN(), entries.Offset())
	defer conformed.Release()
	return array.NewData(t, d.Len(), d.Buffers(), []arrow.ArrayData{conformed}, d.NullN(), d.Offset()), nil
}

// Project returns the named columns of rec in the order given; no names mean all.
func Project(rec arrow.RecordBatch, columns []string) (arrow.RecordBatch, error) {
	if len(columns) == 0 {
		rec.Retain()
		return rec, nil
	}
	fields := make([]arrow.Field, 0, len(columns))
	cols := make([]arrow.Array, 0, len(columns))
	for _, name := range columns {
		idx := rec.Schema().FieldIndices(name)
		if len(idx) == 0 {
			return nil, fault.New(fault.InvalidArgument, "the table has no column %q", name)
		}
		fields = append(fields, rec.Schema().Field(idx[0]))
		cols = append(cols, rec.Column(idx[0]))
	}
	md := rec.Schema().Metadata()
	return array.NewRecordBatch(arrow.NewSchema(fields, &md), cols, rec.NumRows()), nil
}

// Concat joins batches of one shape into one.
func Concat(s *arrow.Schema, recs []arrow.RecordBatch) (arrow.RecordBatch, error) {
	if len(recs) == 1 {
		recs[0].Retain()
		return recs[0], nil
	}
	cols := make([]arrow.Array, 0, s.NumFields())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	rows := int64(0)
	for _, r := range recs {
		rows += r.NumRows()
	}
	if len(recs) == 0 {
		return Empty(s), nil
	}
	for i := range s.NumFields() {
		parts := make([]arrow.Array, len(recs))
		for j, r := range recs {
			parts[j] = r.Column(i)
		}
		c, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			return nil, fault.New(fault.Internal, "joining %d batches: %w", len(recs), err)
		}
		cols = append(cols, c)
	}
	return array.NewRecordBatch(s, cols, rows), nil
}
