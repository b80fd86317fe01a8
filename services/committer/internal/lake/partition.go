package lake

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// splitter finds the table partition of each row. It knows every transform that
// a spec may have, also those that we do not offer: the spec may be somebody
// else's (cases T7, T8).
type splitter struct {
	fields []splitField
	key    []byte // reused
}

type splitField struct {
	id        int   // partition field id
	path      []int // of the source column, by index
	source    iceberg.Type
	transform iceberg.Transform
	apply     func(any) any // nil: by literals
}

// group is the rows of a batch that fall into one partition.
type group struct {
	key    string
	values map[int]any // by partition field id
	rows   []int64
}

func newSplitter(spec iceberg.PartitionSpec, table *iceberg.Schema, sch *schema.Schema) (*splitter, error) {
	s := &splitter{}
	for _, f := range spec.Fields() {
		if _, void := f.Transform.(iceberg.VoidTransform); void {
			continue
		}
		path := pathOf(sch.Columns, int32(f.SourceID()))
		source, ok := table.FindTypeByID(f.SourceID())
		if !ok || path == nil {
			return nil, fault.New(fault.InvalidArgument, "splitting rows by partition field %q: its source column (field id %d) is not in the schema", f.Name, f.SourceID())
		}
		field := splitField{id: f.FieldID, path: path, source: source, transform: f.Transform}
		var err error
		if field.apply, err = applier(f.Transform, source); err != nil {
			return nil, fmt.Errorf("splitting rows by partition field %q: %w", f.Name, err)
		}
		s.fields = append(s.fields, field)
	}
	return s, nil
}

// pathOf is the way to a field through structs, by index.
func pathOf(nodes []*schema.Node, id int32) []int {
	for i, n := range nodes {
		if n.FieldID == id {
			return []int{i}
		}
		if n.Type.Kind != schema.Struct {
			continue
		}
		if below := pathOf(n.Kids, id); below != nil {
			return append([]int{i}, below...)
		}
	}
	return nil
}

func applier(t iceberg.Transform, source iceberg.Type) (func(any) any, error) {
	switch t := t.(type) {
	case iceberg.IdentityTransform:
		return func(v any) any { return v }, nil
	case iceberg.BucketTransform:
		return optional(t.Transformer(source), false), nil
	case iceberg.TruncateTransform:
		return t.Transformer(source)
	case iceberg.DayTransform:
		f, err := t.Transformer(source)
		return optional(f, true), err
	case iceberg.TimeTransform:
		f, err := t.Transformer(source)
		return optional(f, false), err
	default:
		return nil, fault.New(fault.Unsupported, "transform %s is not supported", t)
	}
}

func optional(f func(any) iceberg.Optional[int32], date bool) func(any) any {
	return func(v any) any {
		o := f(v)
		switch {
		case !o.Valid:
			return nil
		case date:
			return iceberg.Date(o.Val)
		default:
			return o.Val
		}
	}
}

// split groups the rows of a batch by partition, groups in order of their first
// row.
func (s *splitter) split(rec arrow.RecordBatch) ([]*group, error) {
	readers := make([]func(int) any, len(s.fields))
	for i, f := range s.fields {
		var err error
		if readers[i], err = f.reader(rec); err != nil {
			return nil, err
		}
	}
	byKey := map[string]*group{}
	var out []*group
	values := make([]any, len(s.fields))
	for row := range int(rec.NumRows()) {
		s.key = s.key[:0]
		for i, f := range s.fields {
			values[i] = nil
			if v := readers[i](row); v != nil {
				values[i] = f.apply(v)
			}
			s.key = appendKey(s.key, values[i])
		}
		g := byKey[string(s.key)]
		if g == nil {
			g = &group{key: string(s.key), values: map[int]any{}}
			for i, f := range s.fields {
				if values[i] != nil {
					g.values[f.id] = values[i]
				}
			}
			byKey[g.key] = g
			out = append(out, g)
		}
		g.rows = append(g.rows, int64(row))
	}
	return out, nil
}

// reader gives the source value of a row in the library's Go types, nil where it
// or a struct above it is null.
func (f splitField) reader(rec arrow.RecordBatch) (func(int) any, error) {
	column := rec.Column(f.path[0])
	var above []arrow.Array
	for _, i := range f.path[1:] {
		parent, ok := column.(*array.Struct)
		if !ok {
			return nil, fault.New(fault.Internal, "splitting rows: column type %s is no struct", column.DataType())
		}
		above = append(above, parent)
		column = parent.Field(i)
	}
	value, err := valueOf(column, f.source)
	if err != nil {
		return nil, err
	}
	return func(row int) any {
		for _, a := range above {
			if a.IsNull(row) {
				return nil
			}
		}
		if column.IsNull(row) {
			return nil
		}
		return value(row)
	}, nil
}

func valueOf(column arrow.Array, source iceberg.Type) (func(int) any, error) {
	switch a := column.(type) {
	case *array.Boolean:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Int32:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Int64:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Float32:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Float64:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Date32:
		return func(i int) any { return iceberg.Date(a.Value(i)) }, nil
	case *array.Time64:
		return func(i int) any { return iceberg.Time(a.Value(i)) }, nil
	case *array.Timestamp:
		if a.DataType().(*arrow.TimestampType).Unit == arrow.Nanosecond {
			return func(i int) any { return iceberg.TimestampNano(a.Value(i)) }, nil
		}
		return func(i int) any { return iceberg.Timestamp(a.Value(i)) }, nil
	case *array.Decimal128:
		scale := int(a.DataType().(*arrow.Decimal128Type).Scale)
		return func(i int) any { return iceberg.Decimal{Val: a.Value(i), Scale: scale} }, nil
	case *array.String:
		return func(i int) any { return a.Value(i) }, nil
	case *array.Binary:
		return func(i int) any { return append([]byte(nil), a.Value(i)...) }, nil
	case *array.FixedSizeBinary:
		if _, ok := source.(iceberg.UUIDType); ok {
			return func(i int) any { return uuid.UUID(a.Value(i)) }, nil
		}
		return func(i int) any { return append([]byte(nil), a.Value(i)...) }, nil
	case array.ExtensionArray:
		return valueOf(a.Storage(), source)
	default:
		return nil, fault.New(fault.Unsupported, "splitting rows by a column of type %s is not supported", column.DataType())
	}
}

// appendKey appends a self-delimiting form of a partition value. All NaNs are
// one value, the zeros are two (case W1).
func appendKey(b []byte, v any) []byte {
	number := func(kind byte, n uint64) []byte { return binary.BigEndian.AppendUint64(append(b, kind), n) }
	text := func(kind byte, s string) []byte {
		return append(binary.BigEndian.AppendUint32(append(b, kind), uint32(len(s))), s...)
	}
	switch v := v.(type) {
	case nil:
		return append(b, 0)
	case bool:
		if v {
			return append(b, 1, 1)
		}
		return append(b, 1, 0)
	case int32:
		return number(2, uint64(uint32(v)))
	case int64:
		return number(3, uint64(v))
	case float32:
		if v != v {
			return number(4, math.MaxUint64)
		}
		return number(4, uint64(math.Float32bits(v)))
	case float64:
		if v != v {
			return number(5, math.MaxUint64)
		}
		return number(5, math.Float64bits(v))
	case iceberg.Date:
		return number(6, uint64(v))
	case iceberg.Time:
		return number(7, uint64(v))
	case iceberg.Timestamp:
		return number(8, uint64(v))
	case iceberg.TimestampNano:
		return number(9, uint64(v))
	case string:
		return text(10, v)
	case []byte:
		return text(11, string(v))
	case uuid.UUID:
		return text(12, string(v[:]))
	case iceberg.Decimal:
		return binary.BigEndian.AppendUint64(number(13, uint64(v.Val.HighBits())), v.Val.LowBits())
	default:
		return text(14, fmt.Sprint(v))
	}
}
