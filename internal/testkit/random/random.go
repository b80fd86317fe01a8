// Package random makes columns of everything that Arrow allows: cut out of larger
// arrays at every depth with offsets that differ, bitmaps that are there and all set,
// counts of nulls that are not known, values below nulls. It is for tests alone.
package random

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Leaves are all types that a leaf of a table can have.
var Leaves = []arrow.DataType{
	arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Timestamp_us, &arrow.TimestampType{Unit: arrow.Nanosecond},
	arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, &arrow.FixedSizeBinaryType{ByteWidth: 16},
	&arrow.Decimal128Type{Precision: 9, Scale: 2}, &arrow.Decimal128Type{Precision: 18, Scale: 2}, &arrow.Decimal128Type{Precision: 38, Scale: 2},
}

// Field is a field of structs, lists and maps, nested up to depth times, and of the given leaves.
func Field(r *rand.Rand, name string, depth int, leaves ...arrow.DataType) arrow.Field {
	f := arrow.Field{Name: name, Nullable: r.IntN(3) > 0}
	kind := r.IntN(5)
	if depth == 0 {
		kind = 0
	}
	leaf := leaves[r.IntN(len(leaves))]
	switch kind {
	case 1, 2:
		var fields []arrow.Field
		for i := range 1 + r.IntN(3) {
			fields = append(fields, Field(r, fmt.Sprint("f", i), depth-1, leaves...))
		}
		f.Type = arrow.StructOf(fields...)
	case 3:
		f.Type = arrow.ListOfField(Field(r, "element", depth-1, leaves...))
	case 4:
		f.Type = arrow.MapOfFields(arrow.Field{Name: "key", Type: leaf}, Field(r, "value", depth-1, leaves...))
	default:
		f.Type = leaf
	}
	return f
}

// Batch is n rows of the given fields.
func Batch(r *rand.Rand, n int, fields ...arrow.Field) arrow.RecordBatch {
	columns := make([]arrow.Array, len(fields))
	for i, f := range fields {
		columns[i] = array.MakeFromData(data(r, f, n, nil))
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(n))
}

// data is n values, cut out of more; above says which of them are below a null, where lists must be empty.
func data(r *rand.Rand, f arrow.Field, n int, above []bool) arrow.ArrayData {
	before, behind := r.IntN(2)*r.IntN(20), r.IntN(2)*r.IntN(20)
	all := before + n + behind
	below := make([]bool, all)
	if above != nil {
		copy(below[before:], above)
	}
	valid, nulls := validity(r, f, below)
	var d arrow.ArrayData
	switch t := f.Type.(type) {
	case *arrow.StructType:
		var kids []arrow.ArrayData
		for _, k := range t.Fields() {
			kids = append(kids, data(r, k, all, below))
		}
		d = array.NewData(t, all, []*memory.Buffer{valid}, kids, nulls, 0)
	case *arrow.ListType:
		offsets, elements := lengths(r, below)
		d = array.NewData(t, all, []*memory.Buffer{valid, offsets}, []arrow.ArrayData{data(r, t.ElemField(), elements, nil)}, nulls, 0)
	case *arrow.MapType:
		offsets, elements := lengths(r, below)
		pairs := data(r, arrow.Field{Name: "entries", Type: t.Elem()}, elements, nil)
		d = array.NewData(t, all, []*memory.Buffer{valid, offsets}, []arrow.ArrayData{pairs}, nulls, 0)
	default:
		buffers := append([]*memory.Buffer{valid}, leaf(r, t, all).Data().Buffers()[1:]...)
		d = array.NewData(t, all, buffers, nil, nulls, 0)
	}
	if before+behind == 0 {
		return d
	}
	return array.NewSliceData(d, int64(before), int64(before+n))
}

// validity is the bitmap of as many values as below has, where it notes what is null, and
// the number of nulls as the array says it.
func validity(r *rand.Rand, f arrow.Field, below []bool) (valid *memory.Buffer, nulls int) {
	all := len(below)
	switch {
	case !f.Nullable || r.IntN(3) == 0: // none
		if r.IntN(3) == 0 {
			valid = memory.NewBufferBytes(bytes.Repeat([]byte{0xff}, all/8+1))
		}
	default:
		share := []int{1, 5, 9, 10}[r.IntN(4)]
		b := make([]byte, all/8+1)
		for i := range all {
			if r.IntN(10) >= share {
				b[i/8] |= 1 << (i % 8)
			} else {
				below[i] = true
				nulls++
			}
		}
		valid = memory.NewBufferBytes(b)
	}
	if valid != nil && f.Name != "key" && f.Name != "entries" && r.IntN(2) == 0 { // for a map the library must know
		nulls = array.UnknownNullCount
	}
	return valid, nulls
}

// lengths are the offsets of lists, which are empty below nulls, and the number of elements.
func lengths(r *rand.Rand, below []bool) (buffer *memory.Buffer, elements int) {
	offsets := make([]int32, len(below)+1)
	offsets[0] = int32(r.IntN(2) * r.IntN(10))
	most := []int{0, 1, 4, 4, 40}[r.IntN(5)]
	for i, null := range below {
		offsets[i+1] = offsets[i]
		if !null {
			offsets[i+1] += int32(r.IntN(most + 1))
		}
	}
	return memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), int(offsets[len(below)]) + r.IntN(2)*r.IntN(10)
}

// leaf is n values.
func leaf(r *rand.Rand, t arrow.DataType, n int) arrow.Array {
	b := array.NewBuilder(memory.DefaultAllocator, t)
	for range n {
		add(r, b)
	}
	return b.NewArray()
}

// add appends a value of few or of many.
func add(r *rand.Rand, b array.Builder) {
	n := r.Int64N(50)
	if r.IntN(2) == 0 {
		n = r.Int64N(1e8)
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(n%3 == 0)
	case *array.Int32Builder:
		b.Append(int32(n))
	case *array.Int64Builder:
		b.Append(n)
	case *array.Float32Builder:
		b.Append(float32(n) / 7)
	case *array.Float64Builder:
		b.Append(float64(n) / 7)
	case *array.Date32Builder:
		b.Append(arrow.Date32(n % 40000))
	case *array.Time64Builder:
		b.Append(arrow.Time64(n))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(n))
	case *array.StringBuilder:
		b.Append(fmt.Sprint(n))
	case *array.BinaryBuilder:
		b.Append(fmt.Append(nil, n))
	case *array.FixedSizeBinaryBuilder:
		b.Append(fmt.Appendf(nil, "%016d", n))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(n))
	default:
		panic(fmt.Sprintf("no value for %s", b.Type()))
	}
}
