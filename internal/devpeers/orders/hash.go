package orders

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/zeebo/xxh3"
)

// HashRows returns the checksum of every row of a table's batch, as the package comment defines it. Columns are found by
// name at every depth; a column that is missing or of another kind than the mapping gives is an error. It keeps nothing
// of the batch.
func HashRows(rec arrow.RecordBatch) ([]uint64, error) {
	var readers []reader
	for _, c := range rowColumns() {
		at := rec.Schema().FieldIndices(c.name)
		if len(at) != 1 {
			return nil, fmt.Errorf("hashing rows: the batch has %d columns named %q, wanted is one", len(at), c.name)
		}
		r, err := bind(rec.Column(at[0]), c)
		if err != nil {
			return nil, fmt.Errorf("hashing rows: column %w", err)
		}
		readers = append(readers, r)
	}
	sums := make([]uint64, rec.NumRows())
	var canon []byte
	for row := range sums {
		canon = canon[:0]
		for _, r := range readers {
			canon = r(canon, row)
		}
		sums[row] = xxh3.Hash(canon)
	}
	return sums, nil
}

// reader appends the canonical form of the value in a row.
type reader func(canon []byte, row int) []byte

// bind makes the reader of an array. Whatever stores the values of a kind is taken: a reader may give a long column as
// int32 or a string column as dictionary.
func bind(arr arrow.Array, c column) (reader, error) {
	switch a := arr.(type) {
	case *array.Dictionary:
		inner, err := bind(a.Dictionary(), c)
		return nullable(arr, func(b []byte, row int) []byte { return inner(b, a.GetValueIndex(row)) }), err
	case array.ExtensionArray:
		return bind(a.Storage(), c)
	}
	var read reader
	var err error
	switch c.kind {
	case kindInt:
		read = bindInt(arr)
	case kindTime:
		read, err = bindTime(arr)
	case kindBool:
		if a, ok := arr.(*array.Boolean); ok {
			read = func(b []byte, row int) []byte { return canonBool(b, a.Value(row)) }
		}
	case kindFloat:
		read = bindFloat(arr)
	case kindText:
		read = bindText(arr)
	case kindDecimal:
		read = bindDecimal(arr)
	case kindStruct:
		read, err = bindStruct(arr, c)
	case kindMap:
		read, err = bindMap(arr, c)
	case kindList:
		read, err = bindList(arr, c)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if read == nil {
		return nil, fmt.Errorf("%s has type %s, the mapping gives a %s", c.name, arr.DataType(), c.kind)
	}
	return nullable(arr, read), nil
}

func nullable(arr arrow.Array, read reader) reader {
	return func(b []byte, row int) []byte {
		if arr.IsNull(row) {
			return canonNull(b)
		}
		return read(b, row)
	}
}

// valuer is what all fixed-width arrays offer.
type valuer[T any] interface{ Value(i int) T }

func ints[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32](a valuer[T]) reader {
	return func(b []byte, row int) []byte { return canonInt(b, int64(a.Value(row))) }
}

func bindInt(arr arrow.Array) reader {
	switch a := arr.(type) {
	case *array.Int64:
		return ints(a)
	case *array.Int32:
		return ints(a)
	case *array.Int16:
		return ints(a)
	case *array.Int8:
		return ints(a)
	case *array.Uint32:
		return ints(a)
	case *array.Uint16:
		return ints(a)
	case *array.Uint8:
		return ints(a)
	}
	return nil
}

func bindTime(arr arrow.Array) (reader, error) {
	a, ok := arr.(*array.Timestamp)
	if !ok {
		return nil, nil //nolint:nilnil // no reader: the caller names the type
	}
	times, divide := int64(1), int64(1)
	switch unit := a.DataType().(*arrow.TimestampType).Unit; unit {
	case arrow.Second:
		times = 1_000_000
	case arrow.Millisecond:
		times = 1_000
	case arrow.Microsecond:
	case arrow.Nanosecond:
		divide = 1_000
	default:
		return nil, fmt.Errorf("unit %v of a timestamp is not known", unit)
	}
	return func(b []byte, row int) []byte {
		v := int64(a.Value(row)) * times
		q := v / divide
		if v%divide < 0 {
			q-- // down, not toward zero
		}
		return canonInt(b, q)
	}, nil
}

func bindFloat(arr arrow.Array) reader {
	switch a := arr.(type) {
	case *array.Float64:
		return func(b []byte, row int) []byte { return canonFloat(b, a.Value(row)) }
	case *array.Float32:
		return func(b []byte, row int) []byte { return canonFloat(b, float64(a.Value(row))) }
	}
	return nil
}

func texts[T string | []byte](a valuer[T]) reader {
	return func(b []byte, row int) []byte { return canonText(b, a.Value(row)) }
}

func bindText(arr arrow.Array) reader {
	switch a := arr.(type) {
	case *array.String:
		return texts(a)
	case *array.LargeString:
		return texts(a)
	case *array.StringView:
		return texts(a)
	case *array.Binary:
		return texts(a)
	case *array.LargeBinary:
		return texts(a)
	case *array.BinaryView:
		return texts(a)
	}
	return nil
}

func bindDecimal(arr arrow.Array) reader {
	switch a := arr.(type) {
	case *array.Decimal128:
		scale := a.DataType().(*arrow.Decimal128Type).Scale
		return func(b []byte, row int) []byte { return canonText(b, a.Value(row).ToString(scale)) }
	case *array.Decimal256:
		scale := a.DataType().(*arrow.Decimal256Type).Scale
		return func(b []byte, row int) []byte { return canonText(b, a.Value(row).ToString(scale)) }
	}
	return nil
}

func bindStruct(arr arrow.Array, c column) (reader, error) {
	a, ok := arr.(*array.Struct)
	if !ok {
		return nil, nil //nolint:nilnil // no reader: the caller names the type
	}
	fields := make([]reader, len(c.children))
	for i, child := range c.children {
		at, found := a.DataType().(*arrow.StructType).FieldIdx(child.name)
		if !found {
			return nil, fmt.Errorf("field %q is missing", child.name)
		}
		var err error
		if fields[i], err = bind(a.Field(at), child); err != nil {
			return nil, err
		}
	}
	return func(b []byte, row int) []byte {
		b = canonPresent(b)
		for _, field := range fields {
			b = field(b, row)
		}
		return b
	}, nil
}

func bindList(arr arrow.Array, c column) (reader, error) {
	a, ok := arr.(array.ListLike)
	if !ok {
		return nil, nil //nolint:nilnil // no reader: the caller names the type
	}
	element, err := bind(a.ListValues(), c.children[0])
	if err != nil {
		return nil, err
	}
	return func(b []byte, row int) []byte {
		from, to := a.ValueOffsets(row)
		b = canonCount(b, int(to-from))
		for i := from; i < to; i++ {
			b = element(b, int(i))
		}
		return b
	}, nil
}

func bindMap(arr arrow.Array, c column) (reader, error) {
	a, ok := arr.(*array.Map)
	if !ok {
		return nil, nil //nolint:nilnil // no reader: the caller names the type
	}
	key, keyErr := bind(a.Keys(), c.children[0])
	value, valueErr := bind(a.Items(), c.children[1])
	if err := errors.Join(keyErr, valueErr); err != nil {
		return nil, err
	}
	type entry struct {
		key []byte
		row int
	}
	var entries []entry // kept between rows for its memory only
	return func(b []byte, row int) []byte {
		from, to := a.ValueOffsets(row)
		entries = entries[:0]
		for i := from; i < to; i++ {
			entries = append(entries, entry{key(nil, int(i)), int(i)})
		}
		slices.SortFunc(entries, func(x, y entry) int { return bytes.Compare(x.key, y.key) })
		b = canonCount(b, len(entries))
		for _, e := range entries {
			b = value(append(b, e.key...), e.row)
		}
		return b
	}, nil
}
