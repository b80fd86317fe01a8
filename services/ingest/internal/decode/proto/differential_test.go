package proto

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// TestDecoderAgreesWithDynamicpb decodes random and mutated records with the
// decoder and with dynamicpb and compares acceptance and every value. Good and
// bad records are mixed in one batch, so it also proves that a bad record leaves
// no trace in its neighbours (G8). The seed is fixed; ICESTREAM_DIFF_INPUTS and
// ICESTREAM_DIFF_SEED ask for more.
func TestDecoderAgreesWithDynamicpb(t *testing.T) {
	inputs := envInt("ICESTREAM_DIFF_INPUTS", 20000)
	seed := uint64(envInt("ICESTREAM_DIFF_SEED", 1))
	for _, c := range []struct {
		text, name string
		share      int
	}{
		{everyKind, "R", 2},
		{everyKind, "Leaf", 10},
		{oldSyntax, "G2", 5},
		{edition, "Ed", 10},
		{special, "S", 10},
		{shapes, "Event", 20},
		{shapes, "Order", 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			md := messageOf(t, c.text, c.name)
			d := newDifferential(t, md, Options{})
			d.run(inputs/c.share, func() []byte { return mutate(r, randomRecord(t, md, r), randomRecord(t, md, r)) })
			d.enough(inputs / c.share)
		})
	}
}

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

type differential struct {
	t      testing.TB
	md     protoreflect.MessageDescriptor
	opts   Options
	batch  *Batch
	names  []string
	inputs [][]byte
	want   []fields
	shared []byte // where the decoder reads every record: nothing of it may be kept

	accepted, refused, skipped int
}

func newDifferential(t testing.TB, md protoreflect.MessageDescriptor, opts Options) *differential {
	plan, err := Compile(md, targetOf(t, md, opts), opts)
	require.NoError(t, err, md.FullName())
	d := &differential{t: t, md: md, opts: opts, batch: plan.NewBatch()}
	for _, n := range plan.Target().Mapped() {
		d.names = append(d.names, n.Name)
	}
	return d
}

// run compares records that next makes, and returns when all are compared.
func (d *differential) run(inputs int, next func() []byte) {
	for i := range inputs {
		d.one(next())
		if i%50 == 49 {
			d.compare()
		}
	}
	d.compare()
}

func (d *differential) enough(inputs int) {
	d.t.Logf("%d accepted, %d refused, %d skipped", d.accepted, d.refused, d.skipped)
	require.Greater(d.t, d.accepted, inputs/4, "too few good records to mean anything")
	require.Greater(d.t, d.refused, inputs/50, "too few bad records to mean anything")
	require.LessOrEqual(d.t, d.skipped, inputs/100, "too many records that the oracle cannot judge")
}

func randomRecord(t testing.TB, md protoreflect.MessageDescriptor, r *rand.Rand) []byte {
	m := dynamicpb.NewMessage(md)
	randomMessage(r, m, 3)
	b, err := protobuf.MarshalOptions{AllowPartial: true}.Marshal(m)
	require.NoError(t, err)
	return b
}

// decode appends a record from memory that the next record overwrites and behind
// which other bytes stand: a decoder that keeps or reads too much is found out.
func (d *differential) decode(in []byte) error {
	d.shared = append(append(d.shared[:0], in...), 0xaa, 0x0a, 0x01, 0x7f, 0x08, 0x01, 0xff, 0xff, 0xff)
	return d.batch.Append(d.shared[:len(in)])
}

func (d *differential) one(in []byte) {
	row, accepted, panicked := mapper{d.opts}.judge(d.md, in)
	if panicked { // dynamicpb itself fell over; the record must still do no harm
		d.skipped++
		if d.decode(in) == nil {
			d.inputs, d.want = append(d.inputs, in), append(d.want, nil)
		}
		return
	}
	err := d.decode(in)
	if accepted != (err == nil) {
		// A value that is out of range is refused where it stands, even if a
		// later occurrence of the same field would have replaced it.
		var e *Error
		if errors.As(err, &e) && strings.HasPrefix(e.Reason, "invalid_") {
			d.skipped++
			return
		}
		d.t.Fatalf("oracle accepts: %v, decoder: %v\n%x\n%s", accepted, err, in, describeFile(d.md))
	}
	if err != nil {
		d.refused++
		return
	}
	d.accepted++
	d.inputs, d.want = append(d.inputs, in), append(d.want, row)
}

func (d *differential) compare() {
	columns := d.batch.Finish()
	require.Equal(d.t, len(d.want), d.batch.Rows())
	for _, c := range columns {
		require.Equal(d.t, len(d.want), c.Len())
	}
	for i, want := range d.want {
		if want == nil {
			continue
		}
		if got := arrowRow(d.names, columns, i); !same(got, want) {
			d.t.Fatalf("input %x\ndecoder %v\noracle  %v\n%s\n%s", d.inputs[i], got, want, firstDifference("", got, want), describeFile(d.md))
		}
	}
	for _, c := range columns {
		c.Release()
	}
	d.batch.Reset()
	d.inputs, d.want = d.inputs[:0], d.want[:0]
}

func firstDifference(path string, a, b any) string {
	fa, isA := a.(fields)
	fb, isB := b.(fields)
	if !isA || !isB {
		return fmt.Sprintf("%s: %#v against %#v", path, a, b)
	}
	for k := range fb {
		if !same(fa[k], fb[k]) {
			return firstDifference(path+"."+k, fa[k], fb[k])
		}
	}
	return path + ": more fields"
}

// same is equality with NaN equal to itself.
func same(a, b any) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	switch x := a.(type) {
	case float64:
		y, is := b.(float64)
		return is && math.IsNaN(x) && math.IsNaN(y)
	case float32:
		y, is := b.(float32)
		return is && x != x && y != y
	case []byte:
		y, is := b.([]byte)
		return is && string(x) == string(y)
	case interface{ String() string }:
		y, is := b.(interface{ String() string })
		return is && x.String() == y.String()
	case []any:
		y, is := b.([]any)
		if !is || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !same(x[i], y[i]) {
				return false
			}
		}
		return true
	case fields:
		y, is := b.(fields)
		return is && sameMaps(x, y)
	case map[any]any:
		y, is := b.(map[any]any)
		return is && sameMaps(x, y)
	}
	return false
}

func sameMaps[K comparable](a, b map[K]any) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		w, found := b[k]
		if !found || !same(v, w) {
			return false
		}
	}
	return true
}

// oracle judges with the default options.
func oracle(md protoreflect.MessageDescriptor, in []byte) (row fields, accepted, panicked bool) {
	return mapper{}.judge(md, in)
}

// judge is dynamicpb and the slow mapping, in recover because dynamicpb panics on
// some malformed map entries.
func (o mapper) judge(md protoreflect.MessageDescriptor, in []byte) (row fields, accepted, panicked bool) {
	defer func() {
		switch recover().(type) {
		case nil:
		case notARow:
			row, accepted = nil, false
		default:
			row, accepted, panicked = nil, false, true
		}
	}()
	m := dynamicpb.NewMessage(md)
	if protobuf.Unmarshal(in, m) != nil {
		return nil, false, false
	}
	return o.row(m, nil), true, false
}

func randomMessage(r *rand.Rand, m protoreflect.Message, depth int) {
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		fd := fs.Get(i)
		required := fd.Cardinality() == protoreflect.Required
		if !required && r.IntN(3) == 0 || depth <= 0 && fd.Message() != nil && (!fd.IsMap() || fd.MapValue().Message() != nil) {
			continue
		}
		switch {
		case fd.IsMap():
			entries := m.Mutable(fd).Map()
			for range r.IntN(4) {
				entries.Set(randomScalar(r, fd.MapKey()).MapKey(), randomValue(r, fd.MapValue(), entries.NewValue, depth))
			}
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range r.IntN(4) {
				list.Append(randomValue(r, fd, list.NewElement, depth))
			}
		default:
			m.Set(fd, randomValue(r, fd, func() protoreflect.Value { return m.NewField(fd) }, depth))
		}
	}
}

func randomValue(r *rand.Rand, fd protoreflect.FieldDescriptor, fresh func() protoreflect.Value, depth int) protoreflect.Value {
	md := fd.Message()
	if md == nil {
		return randomScalar(r, fd)
	}
	v := fresh()
	switch md.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		v.Message().Set(md.Fields().ByNumber(1), protoreflect.ValueOfInt64(r.Int64N(4e9)))
		v.Message().Set(md.Fields().ByNumber(2), protoreflect.ValueOfInt32(r.Int32N(1e9)))
	case "google.type.Date":
		for i, most := range []int32{9999, 12, 28} {
			v.Message().Set(md.Fields().ByNumber(protoreflect.FieldNumber(i+1)), protoreflect.ValueOfInt32(1+r.Int32N(most)))
		}
	case "google.type.TimeOfDay":
		for i, most := range []int32{23, 59, 59, 999999999} {
			v.Message().Set(md.Fields().ByNumber(protoreflect.FieldNumber(i+1)), protoreflect.ValueOfInt32(r.Int32N(most)))
		}
	case "google.protobuf.FieldMask": // only such paths have a JSON form
		for range r.IntN(3) {
			v.Message().Mutable(md.Fields().ByNumber(1)).List().Append(protoreflect.ValueOfString([]string{"a", "b_c.d"}[r.IntN(2)]))
		}
	case "google.protobuf.Value":
		if kind := r.IntN(3); kind == 0 {
			v.Message().Set(md.Fields().ByName("number_value"), protoreflect.ValueOfFloat64(float64(r.IntN(100))/4))
		} else {
			v.Message().Set(md.Fields().ByName("bool_value"), protoreflect.ValueOfBool(kind == 1))
		}
	default:
		randomMessage(r, v.Message(), depth-1)
	}
	return v
}

func randomScalar(r *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	u := r.Uint64() >> r.IntN(64)
	if r.IntN(6) == 0 {
		u = 0
	}
	switch fd.Kind() {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum([]protoreflect.EnumNumber{0, 1, 2, 3, 1000, -1, -5, 100}[r.IntN(8)])
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(u))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(u))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(u))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(u)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(uint32(u)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(u))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(u&1 == 1)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "a", "b", "äöü", "hello wide world", "x\u0000y"}[r.IntN(6)])
	default:
		return protoreflect.ValueOfBytes([]byte{1, 2, byte(u)}[:r.IntN(4)])
	}
}

// mutate makes legal and illegal variants on the wire.
func mutate(r *rand.Rand, a, b []byte) []byte {
	out := append([]byte(nil), a...)
	switch r.IntN(10) {
	case 0: // concatenation is a merge
		return append(out, b...)
	case 1:
		return out[:r.IntN(len(out)+1)]
	case 2:
		for k := 1 + r.IntN(3); k > 0 && len(out) > 0; k-- {
			out[r.IntN(len(out))] = byte(r.IntN(256))
		}
	case 3, 4:
		return shuffle(r, a, b)
	case 5: // an unknown group, not always closed as it was opened
		out = protowire.AppendTag(out, protowire.Number(900+r.IntN(3)), protowire.StartGroupType)
		out = protowire.AppendTag(out, 3, protowire.VarintType)
		out = protowire.AppendVarint(out, 5)
		out = protowire.AppendTag(out, protowire.Number(900+r.IntN(3)), protowire.EndGroupType)
	case 6: // splice
		if len(b) > 4 && len(out) > 4 {
			return append(out[:r.IntN(len(out))], b[r.IntN(len(b)):]...)
		}
	case 7:
		at := r.IntN(len(out) + 1)
		return append(out[:at:at], append([]byte{byte(r.IntN(256))}, out[at:]...)...)
	}
	return out
}

// shuffle takes top-level fields in any order and number.
func shuffle(r *rand.Rand, a, b []byte) []byte {
	var parts [][]byte
	for x := append(append([]byte(nil), a...), b...); len(x) > 0; {
		_, _, n := protowire.ConsumeField(x)
		if n < 0 {
			break
		}
		parts = append(parts, x[:n])
		x = x[n:]
	}
	var out []byte
	for k := len(parts) + r.IntN(4); k > 0 && len(parts) > 0; k-- {
		out = append(out, parts[r.IntN(len(parts))]...)
	}
	return out
}
