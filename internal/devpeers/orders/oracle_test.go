package orders

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The slow path: records are decoded with dynamicpb and turned into Arrow by the mapping of the design, field by field
// from the descriptor. It shares nothing with the generator but orders.proto.

func orderDescriptor(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"orders.proto": Schema()}),
	})}
	files, err := compiler.Compile(t.Context(), "orders.proto")
	require.NoError(t, err)
	require.Equal(t, MessageName, string(files[0].Messages().Get(messageIndex).FullName()))
	return files[0].Messages().Get(messageIndex)
}

func decode(t testing.TB, desc protoreflect.MessageDescriptor, value []byte) (protoreflect.Message, error) {
	t.Helper()
	require.Greater(t, len(value), 7)
	require.Equal(t, []byte{0, 0, 0, 0, 42, 2, 2 * messageIndex}, value[:7], "magic, id, index list")
	m := dynamicpb.NewMessage(desc)
	return m, proto.Unmarshal(value[7:], m)
}

var timestampUTC = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

func messageType(m protoreflect.MessageDescriptor) arrow.DataType {
	switch m.FullName() {
	case "google.protobuf.Timestamp":
		return timestampUTC
	case "google.protobuf.Duration":
		return arrow.PrimitiveTypes.Int64
	case "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.Int64Value":
		return scalarType(m.Fields().ByNumber(1))
	}
	fields := structFields(m)
	if len(fields) == 0 {
		fields = []arrow.Field{{Name: "present", Type: arrow.FixedWidthTypes.Boolean, Nullable: true}}
	}
	return arrow.StructOf(fields...)
}

func scalarType(f protoreflect.FieldDescriptor) arrow.DataType {
	switch f.Kind() {
	case protoreflect.DoubleKind:
		return arrow.PrimitiveTypes.Float64
	case protoreflect.FloatKind:
		return arrow.PrimitiveTypes.Float32
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return arrow.PrimitiveTypes.Int32
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return arrow.PrimitiveTypes.Int64
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return &arrow.Decimal128Type{Precision: 20}
	case protoreflect.BoolKind:
		return arrow.FixedWidthTypes.Boolean
	case protoreflect.StringKind, protoreflect.EnumKind:
		return arrow.BinaryTypes.String
	case protoreflect.BytesKind:
		return arrow.BinaryTypes.Binary
	case protoreflect.MessageKind:
		return messageType(f.Message())
	default:
		panic(f.FullName())
	}
}

func fieldType(f protoreflect.FieldDescriptor) arrow.DataType {
	switch {
	case f.IsMap():
		return arrow.MapOf(scalarType(f.MapKey()), scalarType(f.MapValue()))
	case f.IsList():
		return arrow.ListOf(scalarType(f))
	}
	return scalarType(f)
}

func structFields(m protoreflect.MessageDescriptor) []arrow.Field {
	var fields []arrow.Field
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		fields = append(fields, arrow.Field{Name: string(f.Name()), Type: fieldType(f), Nullable: true})
	}
	return fields
}

func appendScalar(b array.Builder, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch f.Kind() {
	case protoreflect.DoubleKind:
		b.(*array.Float64Builder).Append(v.Float())
	case protoreflect.FloatKind:
		b.(*array.Float32Builder).Append(float32(v.Float()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		b.(*array.Int32Builder).Append(int32(v.Int()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		b.(*array.Int64Builder).Append(v.Int())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		b.(*array.Int64Builder).Append(int64(v.Uint()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		b.(*array.Decimal128Builder).Append(decimal128.FromU64(v.Uint()))
	case protoreflect.BoolKind:
		b.(*array.BooleanBuilder).Append(v.Bool())
	case protoreflect.StringKind:
		b.(*array.StringBuilder).Append(v.String())
	case protoreflect.EnumKind:
		name := strconv.Itoa(int(v.Enum()))
		if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
			name = string(value.Name())
		}
		b.(*array.StringBuilder).Append(name)
	case protoreflect.BytesKind:
		b.(*array.BinaryBuilder).Append(v.Bytes())
	case protoreflect.MessageKind:
		appendMessage(b, v.Message())
	default:
		panic(f.FullName())
	}
}

func appendMessage(b array.Builder, m protoreflect.Message) {
	desc := m.Descriptor()
	integer := func(n protoreflect.FieldNumber) int64 { return m.Get(desc.Fields().ByNumber(n)).Int() }
	switch desc.FullName() {
	case "google.protobuf.Timestamp":
		b.(*array.TimestampBuilder).Append(arrow.Timestamp(integer(1)*1_000_000 + integer(2)/1000))
		return
	case "google.protobuf.Duration":
		b.(*array.Int64Builder).Append(integer(1)*1_000_000_000 + integer(2))
		return
	case "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.Int64Value":
		f := desc.Fields().ByNumber(1)
		appendScalar(b, f, m.Get(f))
		return
	}
	s := b.(*array.StructBuilder)
	s.Append(true)
	if desc.Fields().Len() == 0 {
		s.FieldBuilder(0).(*array.BooleanBuilder).Append(true)
	}
	for i := range desc.Fields().Len() {
		appendField(s.FieldBuilder(i), desc.Fields().Get(i), m)
	}
}

func appendField(b array.Builder, f protoreflect.FieldDescriptor, m protoreflect.Message) {
	switch {
	case f.IsMap():
		mb := b.(*array.MapBuilder)
		mb.Append(true)
		m.Get(f).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			appendScalar(mb.KeyBuilder(), f.MapKey(), k.Value())
			appendScalar(mb.ItemBuilder(), f.MapValue(), v)
			return true
		})
	case f.IsList():
		lb := b.(*array.ListBuilder)
		lb.Append(true)
		for i := range m.Get(f).List().Len() {
			appendScalar(lb.ValueBuilder(), f, m.Get(f).List().Get(i))
		}
	case f.HasPresence() && !m.Has(f):
		b.AppendNull()
	default:
		appendScalar(b, f, m.Get(f))
	}
}

// table builds the rows of the table with their place, as the pipeline would.
func table(t testing.TB, desc protoreflect.MessageDescriptor, values [][]byte, part int32, offsets []int64) arrow.RecordBatch {
	t.Helper()
	place := arrow.StructOf(arrow.Field{Name: "topic", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "partition", Type: arrow.PrimitiveTypes.Int32}, arrow.Field{Name: "offset", Type: arrow.PrimitiveTypes.Int64})
	fields := append(structFields(desc), arrow.Field{Name: "_lsn", Type: arrow.PrimitiveTypes.Int64}, arrow.Field{Name: "_kafka", Type: place})
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	for i, value := range values {
		m, err := decode(t, desc, value)
		require.NoError(t, err, fmt.Sprint("record ", i))
		for j := range desc.Fields().Len() {
			appendField(b.Field(j), desc.Fields().Get(j), m)
		}
		b.Field(desc.Fields().Len()).(*array.Int64Builder).Append(int64(i))
		k := b.Field(desc.Fields().Len() + 1).(*array.StructBuilder)
		k.Append(true)
		k.FieldBuilder(0).(*array.StringBuilder).Append("orders")
		k.FieldBuilder(1).(*array.Int32Builder).Append(part)
		k.FieldBuilder(2).(*array.Int64Builder).Append(offsets[i])
	}
	return b.NewRecordBatch()
}
