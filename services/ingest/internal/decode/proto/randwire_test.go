package proto

import (
	"math"
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// wireMaker makes records straight on the wire, as no encoder would: fields in any
// order and number, packed or not whatever the schema says, messages split over
// many occurrences, map entries with doubled, swapped or missing halves, unknown
// fields and groups, wrong wire types, varints longer than they need be. Most are
// legal.
type wireMaker struct {
	r   *rand.Rand
	old []byte // an earlier record, for splices
}

func (w *wireMaker) chance(n int) bool { return w.r.IntN(n) == 0 }

// record makes one record; about one in four is damaged afterwards.
func (w *wireMaker) record(b []byte, md protoreflect.MessageDescriptor) []byte {
	b = w.message(b, md, 4)
	if w.chance(4) {
		b = w.damage(b)
	}
	if w.chance(16) {
		w.old = append(w.old[:0], b...)
	}
	return b
}

func (w *wireMaker) damage(b []byte) []byte {
	if len(b) == 0 {
		return append(b, byte(w.r.IntN(256)))
	}
	at := w.r.IntN(len(b))
	switch w.r.IntN(7) {
	case 0:
		return b[:at]
	case 1:
		b[at] = byte(w.r.IntN(256))
	case 2:
		b[at] ^= 1 << w.r.IntN(8)
	case 3: // a byte more
		b = append(b, 0)
		copy(b[at+1:], b[at:])
		b[at] = byte(w.r.IntN(256))
	case 4: // a byte less
		b = append(b[:at], b[at+1:]...)
	case 5: // the end of another record
		if len(w.old) > 0 {
			b = append(b[:at], w.old[w.r.IntN(len(w.old)):]...)
		}
	default: // another record behind: a merge
		b = append(b, w.old...)
	}
	return b
}

func (w *wireMaker) message(b []byte, md protoreflect.MessageDescriptor, depth int) []byte {
	fs := md.Fields()
	for i := range fs.Len() {
		if fs.Get(i).Cardinality() == protoreflect.Required && !w.chance(30) {
			b = w.field(b, fs.Get(i), depth)
		}
	}
	n := 0
	if fs.Len() > 0 {
		n = w.r.IntN(fs.Len() + 3)
	}
	for range n {
		if w.chance(25) {
			b = w.unknown(b, depth)
			continue
		}
		fd := fs.Get(w.r.IntN(fs.Len()))
		if depth <= 0 && fd.Message() != nil {
			continue
		}
		b = w.field(b, fd, depth)
	}
	return b
}

func (w *wireMaker) tag(b []byte, num protowire.Number, typ protowire.Type) []byte {
	return w.varint(b, protowire.EncodeTag(num, typ))
}

// varint is now and then longer than it need be, and seldom too long.
func (w *wireMaker) varint(b []byte, v uint64) []byte {
	if !w.chance(40) {
		return protowire.AppendVarint(b, v)
	}
	size := protowire.SizeVarint(v)
	pad := w.r.IntN(11 - size)
	if w.chance(60) {
		pad = 11 - size // eleven bytes: malformed
	}
	b = protowire.AppendVarint(b, v)
	if pad == 0 {
		return b
	}
	b[len(b)-1] |= 0x80
	for range pad - 1 {
		b = append(b, 0x80)
	}
	return append(b, 0)
}

// sized writes a length and then what body appends.
func (w *wireMaker) sized(b []byte, body func([]byte) []byte) []byte {
	start := len(b)
	b = body(b)
	n := len(b) - start
	var room [16]byte
	prefix := w.varint(room[:0], uint64(n))
	b = append(b, prefix...)
	copy(b[start+len(prefix):], b[start:start+n])
	copy(b[start:], prefix)
	return b
}

func (w *wireMaker) field(b []byte, fd protoreflect.FieldDescriptor, depth int) []byte {
	if w.chance(60) { // another wire type than the schema's
		return w.unknownNumber(b, fd.Number(), depth)
	}
	if fd.IsMap() {
		b = w.tag(b, fd.Number(), protowire.BytesType)
		return w.sized(b, func(b []byte) []byte { return w.entry(b, fd, depth) })
	}
	typ := wireType(fd)
	if fd.IsList() && typ != protowire.BytesType && typ != protowire.StartGroupType && w.chance(2) {
		b = w.tag(b, fd.Number(), protowire.BytesType)
		return w.sized(b, func(b []byte) []byte {
			for range w.r.IntN(5) {
				b = w.value(b, fd, depth)
			}
			return b
		})
	}
	b = w.tag(b, fd.Number(), typ)
	return w.value(b, fd, depth)
}

// entry is a map entry: mostly key and value, now and then less, more, or swapped.
func (w *wireMaker) entry(b []byte, fd protoreflect.FieldDescriptor, depth int) []byte {
	order := []int{1, 2}
	if w.chance(5) {
		order = [][]int{{}, {1}, {2}, {2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 2, 1}, {1, 3, 2}, {2, 2}}[w.r.IntN(9)]
	}
	for _, half := range order {
		switch half {
		case 1:
			b = w.tag(b, 1, wireType(fd.MapKey()))
			b = w.value(b, fd.MapKey(), depth)
		case 2:
			b = w.tag(b, 2, wireType(fd.MapValue()))
			b = w.value(b, fd.MapValue(), depth)
		default:
			b = w.unknown(b, depth)
		}
	}
	return b
}

// value is one value without its tag.
func (w *wireMaker) value(b []byte, fd protoreflect.FieldDescriptor, depth int) []byte {
	switch wireType(fd) {
	case protowire.VarintType:
		return w.varint(b, w.integer(fd))
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, uint32(w.bits()))
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, w.bits())
	case protowire.StartGroupType:
		b = w.body(b, fd.Message(), depth)
		end := fd.Number()
		if w.chance(200) {
			end++ // a group that is closed as another one
		}
		return w.tag(b, end, protowire.EndGroupType)
	default:
		return w.sized(b, func(b []byte) []byte {
			switch fd.Kind() {
			case protoreflect.MessageKind, protoreflect.GroupKind:
				return w.body(b, fd.Message(), depth)
			case protoreflect.StringKind:
				return append(b, w.text()...)
			default:
				return append(b, texts[w.r.IntN(len(texts))]...)
			}
		})
	}
}

// texts are strings, the last of them not UTF-8.
var texts = []string{
	"", "a", "b", "key", "äöü", "hello wide world, longer than one word", "x\x00y", "12345678", "\U0001f600", "1.50", "-0", "seven b",
	"abc", "1234567", "a_b.c", "\xff", "aaaaaaaa\xc3", "\xed\xa0\x80",
}

const badTexts = 3

func (w *wireMaker) text() string {
	if w.chance(60) {
		return texts[w.r.IntN(len(texts))]
	}
	return texts[w.r.IntN(len(texts)-badTexts)]
}

// bits are zero, all ones, small, or anything.
func (w *wireMaker) bits() uint64 {
	switch w.r.IntN(6) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	case 2:
		return 1 << 63
	default:
		return w.r.Uint64() >> w.r.IntN(64)
	}
}

func (w *wireMaker) integer(fd protoreflect.FieldDescriptor) uint64 {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		return uint64([]int64{0, 1, 2, 5, 1000, -1, -5, 99, 1 << 40}[w.r.IntN(9)])
	case protoreflect.BoolKind:
		return uint64([]int64{0, 1, 1, 2, -1}[w.r.IntN(5)])
	default:
		return w.bits()
	}
}

// body is the content of a message. The messages that become one value are
// mostly in range, or no record would be a row.
func (w *wireMaker) body(b []byte, md protoreflect.MessageDescriptor, depth int) []byte {
	integer := func(num protowire.Number, v int64) {
		if !w.chance(6) {
			b = w.varint(w.tag(b, num, protowire.VarintType), uint64(v))
		}
	}
	if w.chance(50) {
		return w.message(b, md, depth-1)
	}
	switch md.FullName() {
	case "google.protobuf.Timestamp":
		if w.chance(4) { // where nanoseconds in 64 bits end
			integer(1, []int64{-9223372037, -9223372036, 9223372036, 9223372037}[w.r.IntN(4)])
		} else if w.chance(4) {
			integer(1, minSeconds+w.r.Int64N(maxSeconds-minSeconds+1))
		} else {
			integer(1, w.r.Int64N(8e9)-4e9)
		}
		integer(2, w.r.Int64N(1e9))
	case "google.protobuf.Duration":
		sign := 1 - 2*w.r.Int64N(2)
		integer(1, sign*w.r.Int64N(9e9))
		integer(2, sign*w.r.Int64N(1e9))
	case "google.type.Date":
		b = w.varint(append(b, 1<<3), uint64(1+w.r.IntN(9999)))
		b = w.varint(append(b, 2<<3), uint64(1+w.r.IntN(12)))
		b = w.varint(append(b, 3<<3), uint64(1+w.r.IntN(28+w.r.IntN(4))))
	case "google.type.TimeOfDay":
		integer(1, w.r.Int64N(24))
		integer(2, w.r.Int64N(60))
		integer(3, w.r.Int64N(61))
		integer(4, w.r.Int64N(1e9))
	case "confluent.type.Decimal":
		if !w.chance(4) {
			raw := make([]byte, w.r.IntN(20))
			for i := range raw {
				raw[i] = byte(w.r.IntN(256))
			}
			b = protowire.AppendBytes(append(b, 1<<3|2), raw)
		}
		integer(3, w.r.Int64N(60)-20)
	case "google.protobuf.Value":
		if w.chance(2) {
			return append(b, 1<<3, 0)
		}
		return append(b, 4<<3, 1)
	default:
		return w.message(b, md, depth-1)
	}
	return b
}

// unknown is a field that no schema here has, or an extension.
func (w *wireMaker) unknown(b []byte, depth int) []byte {
	return w.unknownNumber(b, []protowire.Number{900, 901, 3000, 3001, 60000, 9044585, 536870910}[w.r.IntN(7)], depth)
}

func (w *wireMaker) unknownNumber(b []byte, num protowire.Number, depth int) []byte {
	typ := []protowire.Type{
		protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType, protowire.StartGroupType,
	}[w.r.IntN(5)]
	b = w.tag(b, num, typ)
	switch typ {
	case protowire.VarintType:
		return w.varint(b, w.bits())
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, uint32(w.bits()))
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, w.bits())
	case protowire.BytesType:
		return w.sized(b, func(b []byte) []byte { return append(b, texts[w.r.IntN(len(texts))]...) })
	default:
		for range w.r.IntN(3) {
			if depth > 0 {
				b = w.unknown(b, depth-1)
			}
		}
		if w.chance(100) {
			return b // never closed
		}
		return w.tag(b, num, protowire.EndGroupType)
	}
}
