// Package shapes makes the records of the benchmarks: a flat event, a nested order
// and a wide record of which few fields are set. A record is a function of its
// number, so every run and every peer sees the same rows.
//
// Records are encoded field by field, without a message object: a million of them
// take a second or two, and the producer does not become the measurement.
package shapes

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

//go:embed event.proto
var eventProto string

//go:embed order.proto
var orderProto string

// Shape is one kind of record.
type Shape struct {
	Name    string // event, order, wide: also the name of the topic and the table
	Message string // full name of the Protobuf message
	Proto   string // the schema's text
	Index   []byte // message index of the frame: which message of the schema it is
	make    func(b *encoder, n uint64)
}

// All returns the three shapes.
func All() []Shape {
	return []Shape{
		{Name: "event", Message: "icestream.bench.Event", Proto: eventProto, Index: []byte{0}, make: (*encoder).event},
		{Name: "order", Message: "icestream.bench.Order", Proto: orderProto, Index: []byte{2, 6}, make: (*encoder).order},
		{Name: "wide", Message: "icestream.bench.Wide", Proto: wideProto(), Index: []byte{0}, make: (*encoder).wide},
	}
}

// Find returns the shape of a name.
func Find(name string) (Shape, error) {
	var names []string
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Shape{}, fmt.Errorf("finding shape %q: want one of %s", name, strings.Join(names, ", "))
}

// Maker makes the records of one shape. It belongs to one goroutine.
type Maker struct {
	shape Shape
	enc   encoder
}

// NewMaker returns a maker.
func (s Shape) NewMaker() *Maker {
	src := rand.NewPCG(0, 0)
	return &Maker{shape: s, enc: encoder{src: src, r: rand.New(src)}}
}

// Append appends the payload of record n to dst, without a frame.
func (m *Maker) Append(dst []byte, n uint64) []byte {
	m.enc.src.Seed(n, 0x1ce)
	m.enc.b = dst
	m.shape.make(&m.enc, n)
	return m.enc.b
}

// AppendFramed appends record n in the Confluent frame of a schema id.
func (m *Maker) AppendFramed(dst []byte, schemaID uint32, n uint64) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, schemaID)
	return m.Append(append(dst, m.shape.Index...), n)
}

// encoder appends fields in the wire format. Zero values are left out where the
// field has no presence, as every Protobuf library does.
type encoder struct {
	b   []byte
	src *rand.PCG
	r   *rand.Rand
}

func (e *encoder) str(num protowire.Number, s string) {
	if s != "" {
		e.b = protowire.AppendString(protowire.AppendTag(e.b, num, protowire.BytesType), s)
	}
}

func (e *encoder) varint(num protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, num, protowire.VarintType), v)
	}
}

func (e *encoder) double(num protowire.Number, v float64) {
	if v != 0 {
		e.b = protowire.AppendFixed64(protowire.AppendTag(e.b, num, protowire.Fixed64Type), math.Float64bits(v))
	}
}

// sub appends a message field whose length fits one byte or two.
func (e *encoder) sub(num protowire.Number, fill func()) {
	e.b = protowire.AppendTag(e.b, num, protowire.BytesType)
	at := len(e.b)
	e.b = append(e.b, 0)
	fill()
	n := len(e.b) - at - 1
	if n < 0x80 {
		e.b[at] = byte(n)
		return
	}
	e.b = append(e.b, 0)
	copy(e.b[at+2:], e.b[at+1:len(e.b)-1])
	e.b[at], e.b[at+1] = byte(n)|0x80, byte(n>>7)
}

func (e *encoder) timestamp(num protowire.Number, seconds, nanos uint64) {
	e.sub(num, func() {
		e.varint(1, seconds)
		e.varint(2, nanos)
	})
}

var (
	words     = []string{"alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo", "lima"}
	firstTime = uint64(1_790_000_000)
)

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

func (e *encoder) word() string { return words[e.r.IntN(len(words))] }

func (e *encoder) text(n int) string {
	var b [32]byte
	for i := range n {
		b[i] = letters[e.r.IntN(len(letters))]
	}
	return string(b[:n])
}

func (e *encoder) uuid() string {
	const hex = "0123456789abcdef"
	var b [36]byte
	bits := [2]uint64{e.r.Uint64(), e.r.Uint64()}
	digit := 0
	for i := range b {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			b[i] = '-'
			continue
		}
		b[i] = hex[bits[digit/16]>>(digit%16*4)&15]
		digit++
	}
	return string(b[:])
}

// event sets all twelve fields.
func (e *encoder) event(n uint64) {
	e.str(1, e.uuid())
	e.str(2, fmt.Sprintf("user-%07d", e.r.IntN(200_000)))
	e.str(3, e.word()+"."+words[e.r.IntN(4)])
	e.varint(4, n+1_000_000)
	e.varint(5, uint64(e.r.IntN(600)+1))
	e.varint(6, e.r.Uint64()>>16)
	e.varint(7, protowire.EncodeZigZag(int64(e.r.IntN(4000)-2000)))
	e.double(8, float64(e.r.IntN(1_000_000)+1)/100)
	e.double(9, e.r.Float64())
	e.varint(10, protowire.EncodeBool(e.r.IntN(4) != 0))
	e.varint(11, uint64(e.r.IntN(4)))
	e.timestamp(12, firstTime+n/1000, uint64(e.r.IntN(1000)*1_000_000))
}

// order has one to five items, a map, optional fields, a oneof and a sub-message.
func (e *encoder) order(n uint64) {
	e.str(1, fmt.Sprintf("ord-%010d", e.r.IntN(1<<31)))
	e.varint(2, uint64(e.r.IntN(500_000)))
	e.timestamp(3, firstTime+n/1000, uint64(e.r.IntN(1000)*1_000_000))
	for range 1 + e.r.IntN(5) {
		e.sub(4, e.item)
	}
	for range e.r.IntN(5) {
		e.sub(5, func() {
			e.str(1, e.word())
			e.str(2, e.text(4+e.r.IntN(8)))
		})
	}
	if e.r.IntN(4) == 0 {
		e.str(6, "please leave at the door "+e.text(10))
	}
	if e.r.IntN(2) == 0 { // has presence: a zero is written
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, 7, protowire.VarintType), uint64(e.r.IntN(5)))
	}
	e.payment()
	e.sub(11, e.address)
	if k := e.r.IntN(6); k > 0 {
		e.sub(12, func() {
			for range k {
				e.b = protowire.AppendVarint(e.b, uint64(e.r.IntN(1000)))
			}
		})
	}
	for range e.r.IntN(3) {
		e.str(13, e.word())
	}
}

func (e *encoder) item() {
	e.str(1, "sku-"+e.text(6))
	e.varint(2, uint64(1+e.r.IntN(9)))
	e.double(3, float64(e.r.IntN(100_000)+1)/100)
	if e.r.IntN(3) == 0 {
		e.double(4, float64(1+e.r.IntN(50))/100)
	}
	e.str(5, e.word()+" "+e.word()+" "+e.word())
}

func (e *encoder) payment() {
	switch e.r.IntN(4) {
	case 0:
		e.sub(8, func() {
			e.str(1, words[e.r.IntN(4)])
			e.str(2, e.text(4))
			e.varint(3, uint64(202_601+e.r.IntN(12)))
		})
	case 1:
		e.str(9, "DE"+e.text(20))
	case 2:
		e.varint(10, uint64(1+e.r.IntN(1_000_000)))
	}
}

func (e *encoder) address() {
	e.str(1, fmt.Sprintf("%d %s street", e.r.IntN(200), e.word()))
	e.str(2, e.word())
	e.str(3, fmt.Sprintf("%05d", e.r.IntN(99_999)))
	e.str(4, "DE")
	e.double(5, 48+e.r.Float64())
	e.double(6, 11+e.r.Float64())
}

// wideKinds are the types of the wide record's fields, in turn.
var wideKinds = []string{"string", "int64", "double", "bool", "int32", "uint64"}

// wideFields is the number of fields of the wide record, wideSet how many are set
// at most: the first two always, the others at random.
const (
	wideFields = 60
	wideSet    = 8
)

func wideProto() string {
	var b strings.Builder
	b.WriteString("syntax = \"proto3\";\npackage icestream.bench;\n\nmessage Wide {\n")
	for i := range wideFields {
		fmt.Fprintf(&b, "  optional %s f%02d = %d;\n", wideKinds[i%len(wideKinds)], i+1, i+1)
	}
	b.WriteString("}\n")
	return b.String()
}

func (e *encoder) wide(uint64) {
	var set [wideFields]bool
	set[0], set[1] = true, true
	for range wideSet - 2 {
		set[2+e.r.IntN(wideFields-2)] = true
	}
	for i, on := range set {
		if on {
			e.wideField(protowire.Number(i+1), wideKinds[i%len(wideKinds)])
		}
	}
}

func (e *encoder) wideField(num protowire.Number, kind string) {
	switch kind {
	case "string":
		e.str(num, e.text(4+e.r.IntN(16)))
	case "double":
		e.double(num, e.r.Float64())
	case "bool":
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, num, protowire.VarintType), uint64(e.r.IntN(2)))
	case "int32":
		e.varint(num, uint64(1+e.r.IntN(1<<20)))
	case "int64":
		e.varint(num, uint64(1+e.r.IntN(1<<30)))
	default:
		e.varint(num, 1+e.r.Uint64()>>20)
	}
}
