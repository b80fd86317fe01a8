package shapes_test

import (
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/test/bench/shapes"
)

const someRecords = 2000

// compile returns the message of a shape as its framed records name it.
func compile(t *testing.T, s shapes.Shape) protoreflect.MessageDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		Accessor: protocompile.SourceAccessorFromMap(map[string]string{"s.proto": s.Proto}),
	})}
	files, err := c.Compile(t.Context(), "s.proto")
	require.NoError(t, err)
	index := 0
	if len(s.Index) > 1 { // one zig-zag number
		index = int(s.Index[1]) / 2
	}
	md := files[0].Messages().Get(index)
	require.EqualValues(t, s.Message, md.FullName())
	return md
}

// The encoders know the schemas only by heart: every record must be one that
// Protobuf's own library would have written, without a field it does not know.
func TestRecordsAreThoseOfTheirSchema(t *testing.T) {
	for _, s := range shapes.All() {
		md, maker := compile(t, s), s.NewMaker()
		set := map[protoreflect.Name]int{}
		size := 0
		for n := range uint64(someRecords) {
			b := maker.Append(nil, n)
			size += len(b)
			m := dynamicpb.NewMessage(md)
			require.NoError(t, proto.Unmarshal(b, m), "%s %d", s.Name, n)
			requireAllKnown(t, m)
			m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
				set[fd.Name()]++
				return true
			})
		}
		require.Len(t, set, md.Fields().Len(), "%s: fields that are never set", s.Name)
		t.Logf("%s: %d bytes a record", s.Name, size/someRecords)
	}
}

func requireAllKnown(t *testing.T, m protoreflect.Message) {
	t.Helper()
	require.Empty(t, m.GetUnknown(), "%s", m.Descriptor().FullName())
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				requireAllKnown(t, v.List().Get(i).Message())
			}
		default:
			requireAllKnown(t, v.Message())
		}
		return true
	})
}

func TestARecordIsAFunctionOfItsNumber(t *testing.T) {
	for _, s := range shapes.All() {
		a, b := s.NewMaker(), s.NewMaker()
		b.Append(nil, 7)
		require.Equal(t, a.Append(nil, 42), b.Append(nil, 42), s.Name)
		require.NotEqual(t, a.Append(nil, 42), a.Append(nil, 43), s.Name)
	}
}

func TestAFramedRecordNamesSchemaAndMessage(t *testing.T) {
	order, err := shapes.Find("order")
	require.NoError(t, err)
	b := order.NewMaker().AppendFramed(nil, 258, 1)
	require.Equal(t, []byte{0, 0, 0, 1, 2, 2, 6}, b[:7])
	require.Equal(t, order.NewMaker().Append(nil, 1), b[7:])
	_, err = shapes.Find("cube")
	require.ErrorContains(t, err, "event, order, wide")
}
