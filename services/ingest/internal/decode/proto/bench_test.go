package proto

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The steady state allocates next to nothing per record, whatever the shape.
func TestDecodingDoesNotAllocate(t *testing.T) {
	for _, s := range benchShapes(t) {
		batch := planOf(t, s.md).NewBatch()
		decode := func() {
			batch.Reset()
			for _, r := range s.records {
				if err := batch.Append(r); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range batch.Finish() {
				c.Release()
			}
		}
		decode()
		perRecord := testing.AllocsPerRun(3, decode) / float64(len(s.records))
		require.LessOrEqual(t, perRecord, 0.1, s.name)
	}
}

// benchShape is one kind of record. The first three are those of the speed notes: a
// flat event, a nested order, a wide record of which few fields are set.
type benchShape struct {
	name    string
	md      protoreflect.MessageDescriptor
	records [][]byte
}

const otherShapes = `
syntax = "proto3";
package speed;
message Strings { string a = 1; string b = 2; string c = 3; string d = 4; string e = 5; string f = 6; string g = 7; bytes h = 8; }
message Deep { int64 v = 1; D1 d = 2; }
message D1 { int64 v = 1; D2 d = 2; } message D2 { int64 v = 1; D3 d = 2; } message D3 { int64 v = 1; D4 d = 2; }
message D4 { int64 v = 1; D5 d = 2; } message D5 { int64 v = 1; D6 d = 2; } message D6 { int64 v = 1; D7 d = 2; }
message D7 { int64 v = 1; D8 d = 2; } message D8 { int64 v = 1; string s = 2; }
message Maps { map<string, int64> a = 1; map<int32, string> b = 2; map<string, D8> c = 3; }
message Numbers { repeated int64 a = 1; repeated double b = 2; repeated sint32 c = 3; repeated float d = 4; repeated bool e = 5; }
`

func benchShapes(t testing.TB) []benchShape {
	var wide strings.Builder
	wide.WriteString(`syntax = "proto3"; message Wide {`)
	for i := range 60 {
		kind := []string{"string", "int64", "double", "bool", "int32", "uint64"}[i%6]
		fmt.Fprintf(&wide, "optional %s f%d = %d;", kind, i+1, i+1)
	}
	wide.WriteString("}")
	out := []benchShape{
		{name: "event", md: messageOf(t, shapes, "Event")},
		{name: "order", md: messageOf(t, shapes, "Order")},
		{name: "wide", md: messageOf(t, wide.String(), "Wide")},
		{name: "strings", md: messageOf(t, otherShapes, "Strings")},
		{name: "deep", md: messageOf(t, otherShapes, "Deep")},
		{name: "maps", md: messageOf(t, otherShapes, "Maps")},
		{name: "numbers", md: messageOf(t, otherShapes, "Numbers")},
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range out {
		many := map[string]int{"maps": 12, "numbers": 24}[out[i].name]
		for range 4096 {
			m := dynamicpb.NewMessage(out[i].md)
			filler{r, out[i].name == "wide", many}.fill(m)
			b, err := protobuf.Marshal(m)
			require.NoError(t, err)
			out[i].records = append(out[i].records, b)
		}
	}
	return out
}

// filler makes realistic values: short ASCII strings, small numbers.
type filler struct {
	r      *rand.Rand
	sparse bool
	many   int // elements of lists and maps, if not a few
}

func (f filler) count(few int) int {
	if f.many > 0 {
		return f.many
	}
	return few
}

func (f filler) fill(m protoreflect.Message) {
	r := f.r
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		fd := fs.Get(i)
		switch {
		case f.sparse && r.IntN(60) >= 8:
		case fd.ContainingOneof() != nil && !fd.ContainingOneof().IsSynthetic() && r.IntN(3) > 0:
		case fd.IsMap():
			for range f.count(2) {
				entries := m.Mutable(fd).Map()
				v := entries.NewValue()
				if fd.MapValue().Message() != nil {
					f.fill(v.Message())
				} else {
					v = realistic(r, fd.MapValue())
				}
				entries.Set(realistic(r, fd.MapKey()).MapKey(), v)
			}
		case fd.IsList():
			for range f.count(1 + r.IntN(4)) {
				l := m.Mutable(fd).List()
				if fd.Message() != nil {
					f.fill(l.AppendMutable().Message())
				} else {
					l.Append(realistic(r, fd))
				}
			}
		case fd.Message() != nil && fd.Message().Name() == "Timestamp":
			ts := m.Mutable(fd).Message()
			ts.Set(ts.Descriptor().Fields().ByNumber(1), protoreflect.ValueOfInt64(1.7e9+r.Int64N(1e8)))
			ts.Set(ts.Descriptor().Fields().ByNumber(2), protoreflect.ValueOfInt32(r.Int32N(1e9)))
		case fd.Message() != nil:
			f.fill(m.Mutable(fd).Message())
		default:
			m.Set(fd, realistic(r, fd))
		}
	}
}

func realistic(r *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("%0*x", 4+r.IntN(12), r.Uint32()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1 + r.IntN(3)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(r.Float64() * 1000)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(r.Int32N(1000) + 1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(r.Float32())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(fmt.Sprintf("%0*x", 20+r.IntN(20), r.Uint64())))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(r.Uint64N(1e9) + 1)
	default:
		return protoreflect.ValueOfInt64(r.Int64N(1e6) + 1)
	}
}

// walked is what a bare protowire walk must know of a field.
type walked struct {
	message []walked // by field number, where it is a message
	packed  bool     // a packed list of varints
}

func walkOf(md protoreflect.MessageDescriptor) []walked {
	var out []walked
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		for len(out) <= int(fd.Number()) {
			out = append(out, walked{})
		}
		if fd.Message() != nil {
			out[fd.Number()].message = walkOf(fd.Message())
		}
		out[fd.Number()].packed = fd.IsPacked() && wireType(fd) == protowire.VarintType
	}
	return out
}

// walk reads a record with protowire, goes into sub-messages and packed lists, and
// stores nothing: the floor.
func walk(fields []walked, b []byte) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return false
			}
			b = b[n:]
			if int(num) >= len(fields) {
				continue
			}
			if f := &fields[num]; f.message != nil && !walk(f.message, v) || f.packed && !walkPacked(v) {
				return false
			}
		case protowire.VarintType:
			_, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return false
			}
			b = b[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return false
			}
			b = b[n:]
		}
	}
	return true
}

func walkPacked(b []byte) bool {
	for len(b) > 0 {
		_, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// appendScalars fills the top-level scalars through Arrow's builders and leaves
// the rest null: less work than the real mapping, to the rival's favour.
func appendScalars(m protoreflect.Message, rb *array.RecordBuilder) {
	for i, builder := range rb.Fields() {
		fd := m.Descriptor().Fields().Get(i)
		v := m.Get(fd)
		switch b := builder.(type) {
		case *array.StringBuilder:
			if fd.Kind() == protoreflect.StringKind {
				b.Append(v.String())
				continue
			}
		case *array.Int32Builder:
			b.Append(int32(v.Int()))
			continue
		case *array.Int64Builder:
			b.Append(v.Int())
			continue
		case *array.Float64Builder:
			b.Append(v.Float())
			continue
		case *array.BooleanBuilder:
			b.Append(v.Bool())
			continue
		}
		builder.AppendNull()
	}
}
