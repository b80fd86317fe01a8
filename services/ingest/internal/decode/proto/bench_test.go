package proto

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The three shapes of the speed notes: a flat event, a nested order, a wide record
// of which few fields are set. Each is decoded by us, walked with protowire (the
// floor: it stores nothing), and decoded with dynamicpb into Arrow builders (the
// ceiling of what is easy). Ratios within one run are what counts.
func BenchmarkDecode(b *testing.B) {
	for _, s := range benchShapes(b) {
		bytes := 0
		for _, r := range s.records {
			bytes += len(r)
		}
		perRecord := int64(bytes / len(s.records))
		b.Run(s.name+"/decoder", func(b *testing.B) {
			batch := planOf(b, s.md).NewBatch()
			b.SetBytes(perRecord)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := batch.Append(s.records[i%len(s.records)]); err != nil {
					b.Fatal(err)
				}
				if batch.Rows() == len(s.records) {
					for _, c := range batch.Finish() {
						c.Release()
					}
					batch.Reset()
				}
			}
		})
		b.Run(s.name+"/walk", func(b *testing.B) {
			b.SetBytes(perRecord)
			for i := 0; b.Loop(); i++ {
				if !walk(s.md, s.records[i%len(s.records)]) {
					b.Fatal("malformed")
				}
			}
		})
		b.Run(s.name+"/dynamicpb", func(b *testing.B) {
			builder := array.NewRecordBuilder(memory.DefaultAllocator, targetOf(b, s.md, Options{}).Arrow())
			b.SetBytes(perRecord)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m := dynamicpb.NewMessage(s.md)
				if err := protobuf.Unmarshal(s.records[i%len(s.records)], m); err != nil {
					b.Fatal(err)
				}
				appendScalars(m, builder)
				if i%len(s.records) == len(s.records)-1 {
					builder.NewRecordBatch().Release()
				}
			}
		})
	}
}

// BenchmarkDecodeWithBadRecords has one record in ten cut short at its end: the
// price of rolling back.
func BenchmarkDecodeWithBadRecords(b *testing.B) {
	for _, s := range benchShapes(b) {
		for i := 0; i < len(s.records); i += 10 {
			s.records[i] = append(append([]byte{}, s.records[i]...), 0x0a, 0x7f)
		}
		b.Run(s.name, func(b *testing.B) {
			batch := planOf(b, s.md).NewBatch()
			for i := 0; b.Loop(); i++ {
				_ = batch.Append(s.records[i%len(s.records)])
				if batch.Rows() == 4000 {
					batch.Reset()
				}
			}
		})
	}
}

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

type benchShape struct {
	name    string
	md      protoreflect.MessageDescriptor
	records [][]byte
}

func benchShapes(t testing.TB) []benchShape {
	var wide strings.Builder
	wide.WriteString(`syntax = "proto3"; message Wide {`)
	for i := range 60 {
		kind := []string{"string", "int64", "double", "bool", "int32", "uint64"}[i%6]
		fmt.Fprintf(&wide, "optional %s f%d = %d;", kind, i+1, i+1)
	}
	wide.WriteString("}")
	out := []benchShape{
		{name: "Event", md: messageOf(t, shapes, "Event")},
		{name: "Order", md: messageOf(t, shapes, "Order")},
		{name: "Wide", md: messageOf(t, wide.String(), "Wide")},
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range out {
		for range 4096 {
			m := dynamicpb.NewMessage(out[i].md)
			fill(r, m, out[i].name == "Wide")
			b, err := protobuf.Marshal(m)
			require.NoError(t, err)
			out[i].records = append(out[i].records, b)
		}
	}
	return out
}

// fill makes realistic values: short ASCII strings, small numbers.
func fill(r *rand.Rand, m protoreflect.Message, sparse bool) {
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		fd := fs.Get(i)
		switch {
		case sparse && r.IntN(60) >= 8:
		case fd.ContainingOneof() != nil && !fd.ContainingOneof().IsSynthetic() && r.IntN(3) > 0:
		case fd.IsMap():
			for range 2 {
				m.Mutable(fd).Map().Set(realistic(r, fd.MapKey()).MapKey(), realistic(r, fd.MapValue()))
			}
		case fd.IsList():
			for range 1 + r.IntN(4) {
				l := m.Mutable(fd).List()
				if fd.Message() != nil {
					fill(r, l.AppendMutable().Message(), false)
				} else {
					l.Append(realistic(r, fd))
				}
			}
		case fd.Message() != nil && fd.Message().Name() == "Timestamp":
			ts := m.Mutable(fd).Message()
			ts.Set(ts.Descriptor().Fields().ByNumber(1), protoreflect.ValueOfInt64(1.7e9+r.Int64N(1e8)))
			ts.Set(ts.Descriptor().Fields().ByNumber(2), protoreflect.ValueOfInt32(r.Int32N(1e9)))
		case fd.Message() != nil:
			fill(r, m.Mutable(fd).Message(), false)
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
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(r.Int32N(1000) + 1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(r.Uint64N(1e9) + 1)
	default:
		return protoreflect.ValueOfInt64(r.Int64N(1e6) + 1)
	}
}

// walk reads a record with protowire, goes into sub-messages, and stores nothing.
func walk(md protoreflect.MessageDescriptor, b []byte) bool {
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
			if fd := md.Fields().ByNumber(num); fd != nil && fd.Message() != nil && !walk(fd.Message(), v) {
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
