package lake

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// integerDigits is the precision up to which Parquet stores a decimal as an
// integer; beyond it is a fixed-length byte array.
const integerDigits = 18

// longDecimal reports whether t is, or holds, a decimal that is stored as bytes.
//
// pqarrow v18.8.0 writes such a column wrongly where the column itself has no
// null but a struct above it has one: it takes the values as dense although the
// slots of null parents are among them, so every value moves down by one for each
// null parent, silently. cover works around it.
func longDecimal(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.Decimal128Type:
		return t.Precision > integerDigits
	case *arrow.MapType:
		return longDecimal(t.KeyType()) || longDecimal(t.ItemType())
	case *arrow.ListType:
		return longDecimal(t.Elem())
	case *arrow.StructType:
		for _, f := range t.Fields() {
			if longDecimal(f.Type) {
				return true
			}
		}
	}
	return false
}

// covered returns rec with the nulls of structs shown in the long decimals below
// them. Reading it gives the same rows.
func covered(rec arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, rec.NumCols())
	for i, c := range rec.Columns() {
		if longDecimal(c.DataType()) {
			cols[i] = cover(c, nil)
		} else {
			c.Retain()
			cols[i] = c
		}
	}
	out := array.NewRecordBatch(rec.Schema(), cols, rec.NumRows())
	for _, c := range cols {
		c.Release()
	}
	return out
}

// cover rebuilds arr, at offset 0, for parents whose validity is the bitmap
// above; nil means no parent is null.
func cover(arr arrow.Array, above []byte) arrow.Array {
	n := arr.Len()
	switch a := arr.(type) {
	case *array.Decimal128:
		valid := both(validity(a), above, n)
		values := arrow.Decimal128Traits.CastToBytes(a.Values())
		return wrap(a.DataType(), n, valid, []*memory.Buffer{memory.NewBufferBytes(values)})
	case *array.Struct:
		valid := both(validity(a), above, n)
		kids := make([]arrow.ArrayData, a.NumField())
		for i := range kids {
			kid := a.Field(i)
			if longDecimal(kid.DataType()) {
				rebuilt := cover(kid, valid)
				kids[i] = rebuilt.Data()
				defer rebuilt.Release()
			} else {
				kids[i] = kid.Data()
			}
		}
		return wrap(a.DataType(), n, validity(a), nil, kids...)
	case *array.Map:
		return coverList(a.List)
	case *array.List:
		return coverList(a)
	default:
		arr.Retain()
		return arr
	}
}

// coverList rebuilds the elements; slots of null lists do not exist, so nothing
// comes from above.
func coverList(a *array.List) arrow.Array {
	kid := cover(a.ListValues(), nil)
	defer kid.Release()
	d := a.Data()
	data := array.NewData(a.DataType(), a.Len(), d.Buffers(), []arrow.ArrayData{kid.Data()}, a.NullN(), d.Offset())
	defer data.Release()
	return array.MakeFromData(data)
}

// validity is the bitmap of arr from bit 0 on, nil when it has no null.
func validity(arr arrow.Array) []byte {
	if arr.NullN() == 0 {
		return nil
	}
	out := make([]byte, bitutil.BytesForBits(int64(arr.Len())))
	bitutil.CopyBitmap(arr.NullBitmapBytes(), arr.Data().Offset(), arr.Len(), out, 0)
	return out
}

// both is the bitmap of what is valid in x and y; nil means all of it.
func both(x, y []byte, n int) []byte {
	if x == nil || y == nil {
		if x == nil {
			return y
		}
		return x
	}
	out := make([]byte, bitutil.BytesForBits(int64(n)))
	bitutil.BitmapAnd(x, y, 0, 0, out, 0, int64(n))
	return out
}

func wrap(t arrow.DataType, n int, valid []byte, values []*memory.Buffer, kids ...arrow.ArrayData) arrow.Array {
	var bitmap *memory.Buffer
	nulls := 0
	if valid != nil {
		bitmap, nulls = memory.NewBufferBytes(valid), n-bitutil.CountSetBits(valid, 0, n)
	}
	data := array.NewData(t, n, append([]*memory.Buffer{bitmap}, values...), kids, nulls, 0)
	defer data.Release()
	return array.MakeFromData(data)
}
