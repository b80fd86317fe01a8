package arrowx

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/fault"
)

const (
	recordBatchHeader = 3 // MessageHeader.RecordBatch
	maxDepth          = 200
)

// Decode reads one encapsulated IPC record batch message of shape s, as Encode
// made it, without copying: b must stay untouched while the batch lives.
//
// Everything is checked before it is used: positions, lengths, offsets that must
// ascend and stay inside their data, and that the batch fits s. Compressed
// bodies are refused. Bytes that do not fit give fault.Corrupt, never a panic.
func Decode(s *arrow.Schema, b []byte) (arrow.RecordBatch, error) {
	d, err := open(b)
	if err != nil {
		return nil, err
	}
	cols := make([]arrow.Array, 0, s.NumFields())
	release := func() {
		for _, c := range cols {
			c.Release()
		}
	}
	for _, f := range s.Fields() {
		data, err := d.column(f.Type, int(d.rows), 0)
		if err != nil {
			release()
			return nil, fault.New(fault.Corrupt, "column %q of a batch: %w", f.Name, err)
		}
		if !f.Nullable && data.NullN() > 0 {
			data.Release()
			release()
			return nil, fault.New(fault.Corrupt, "column %q of a batch has %d nulls and may have none", f.Name, data.NullN())
		}
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	defer release()
	if d.node != d.nodes || d.buf != d.bufs {
		return nil, fault.New(fault.Corrupt, "a batch has %d nodes and %d buffers, its schema uses %d and %d", d.nodes, d.bufs, d.node, d.buf)
	}
	return array.NewRecordBatch(s, cols, d.rows), nil
}

// decoder walks the nodes and buffers of a record batch in schema order.
type decoder struct {
	f             flat
	body          []byte
	rows          int64
	nodeAt, bufAt int
	nodes, bufs   int
	node, buf     int
}

func open(b []byte) (*decoder, error) {
	if len(b) < 8 || binary.LittleEndian.Uint32(b) != 0xFFFFFFFF {
		return nil, fault.New(fault.Corrupt, "a batch of %d bytes does not begin as an Arrow IPC message", len(b))
	}
	n := int64(binary.LittleEndian.Uint32(b[4:]))
	if n > int64(len(b)-8) {
		return nil, fault.New(fault.Corrupt, "the header of a batch has %d bytes, %d are there", n, len(b)-8)
	}
	d := &decoder{f: flat{b: b[8 : 8+n]}, body: b[8+n:]}
	msg := d.f.root()
	kind := 0
	if at := d.f.field(msg, 1); at > 0 && at < len(d.f.b) {
		kind = int(d.f.b[at])
	}
	at := d.f.field(msg, 2)
	if d.f.bad || at == 0 || kind != recordBatchHeader {
		return nil, fault.New(fault.Corrupt, "a message is no record batch (header type %d)", kind)
	}
	rb := d.f.ref(at)
	if at := d.f.field(rb, 0); at > 0 {
		d.rows = d.f.i64(at)
	}
	d.nodeAt, d.nodes = d.f.structs(rb, 1)
	d.bufAt, d.bufs = d.f.structs(rb, 2)
	if d.f.field(rb, 3) != 0 {
		return nil, fault.New(fault.Corrupt, "a batch is compressed; batches travel uncompressed")
	}
	if d.f.bad || d.rows < 0 || d.rows > 1<<31-2 {
		return nil, fault.New(fault.Corrupt, "the header of a batch is malformed")
	}
	return d, nil
}

// next takes one node: its length must be n.
func (d *decoder) next(n int) (nulls int, err error) {
	if d.node >= d.nodes {
		return 0, fault.New(fault.Corrupt, "a node is missing")
	}
	at := d.nodeAt + 16*d.node
	d.node++
	length, null := d.f.i64(at), d.f.i64(at+8)
	if d.f.bad || length != int64(n) || null < 0 || null > length {
		return 0, fault.New(fault.Corrupt, "a node has length %d and %d nulls, want length %d", length, null, n)
	}
	return int(null), nil
}

// take returns one buffer of at least min bytes.
func (d *decoder) take(min int64) (*memory.Buffer, error) {
	if d.buf >= d.bufs {
		return nil, fault.New(fault.Corrupt, "a buffer is missing")
	}
	at := d.bufAt + 16*d.buf
	d.buf++
	off, n := d.f.i64(at), d.f.i64(at+8)
	if d.f.bad || off < 0 || n < 0 || off > int64(len(d.body)) || n > int64(len(d.body))-off {
		return nil, fault.New(fault.Corrupt, "a buffer [%d,+%d) lies outside the body of %d bytes", off, n, len(d.body))
	}
	if n < min {
		return nil, fault.New(fault.Corrupt, "a buffer has %d bytes, at least %d are needed", n, min)
	}
	return memory.NewBufferBytes(d.body[off : off+n]), nil
}

// validity takes the validity bitmap; with no nulls it may be empty.
func (d *decoder) validity(n, nulls int) (*memory.Buffer, error) {
	min := int64(0)
	if nulls > 0 {
		min = int64(n+7) / 8
	}
	b, err := d.take(min)
	if err != nil {
		return nil, err
	}
	if nulls == 0 {
		return nil, nil
	}
	return b, nil
}

// offsets takes n+1 int32 offsets that ascend from 0 or more, and returns the
// last one.
func (d *decoder) offsets(n int) (*memory.Buffer, int, error) {
	b, err := d.take(0)
	if err != nil {
		return nil, 0, err
	}
	raw := b.Bytes()
	if n == 0 && len(raw) < 4 {
		return memory.NewBufferBytes(make([]byte, 4)), 0, nil
	}
	if len(raw) < 4*(n+1) {
		return nil, 0, fault.New(fault.Corrupt, "%d bytes of offsets, want %d", len(raw), 4*(n+1))
	}
	last := int32(0)
	for i := 0; i <= n; i++ {
		o := int32(binary.LittleEndian.Uint32(raw[4*i:]))
		if o < last {
			return nil, 0, fault.New(fault.Corrupt, "offset %d at %d runs backwards from %d", o, i, last)
		}
		last = o
	}
	return b, int(last), nil
}

func (d *decoder) column(t arrow.DataType, n, depth int) (arrow.ArrayData, error) {
	if depth > maxDepth {
		return nil, fault.New(fault.Corrupt, "nested more than %d levels deep", maxDepth)
	}
	nulls, err := d.next(n)
	if err != nil {
		return nil, err
	}
	valid, err := d.validity(n, nulls)
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case *arrow.StructType:
		kids := make([]arrow.ArrayData, 0, t.NumFields())
		defer releaseData(&kids)
		for _, f := range t.Fields() {
			kid, err := d.column(f.Type, n, depth+1)
			if err != nil {
				return nil, err
			}
			kids = append(kids, kid)
		}
		return array.NewData(t, n, []*memory.Buffer{valid}, kids, nulls, 0), nil
	case arrow.ListLikeType:
		return d.list(t, n, nulls, valid, depth)
	case arrow.BinaryDataType:
		offs, last, err := d.offsets(n)
		if err != nil {
			return nil, err
		}
		data, err := d.take(int64(last))
		if err != nil {
			return nil, err
		}
		return array.NewData(t, n, []*memory.Buffer{valid, offs, data}, nil, nulls, 0), nil
	case arrow.FixedWidthDataType:
		values, err := d.take((int64(n)*int64(t.BitWidth()) + 7) / 8)
		if err != nil {
			return nil, err
		}
		return array.NewData(t, n, []*memory.Buffer{valid, values}, nil, nulls, 0), nil
	default:
		return nil, fault.New(fault.Corrupt, "type %v has no place in a batch", t)
	}
}

// list reads list and map columns: both are offsets over one child.
func (d *decoder) list(t arrow.ListLikeType, n, nulls int, valid *memory.Buffer, depth int) (arrow.ArrayData, error) {
	if t.ID() != arrow.LIST && t.ID() != arrow.MAP {
		return nil, fault.New(fault.Corrupt, "type %v has no place in a batch", t)
	}
	offs, last, err := d.offsets(n)
	if err != nil {
		return nil, err
	}
	if d.node >= d.nodes {
		return nil, fault.New(fault.Corrupt, "a node is missing")
	}
	length := d.f.i64(d.nodeAt + 16*d.node)
	if length < int64(last) || length > 1<<31-2 {
		return nil, fault.New(fault.Corrupt, "a child has %d elements, its list uses %d", length, last)
	}
	kid, err := d.column(t.Elem(), int(length), depth+1)
	if err != nil {
		return nil, err
	}
	defer kid.Release()
	return array.NewData(t, n, []*memory.Buffer{valid, offs}, []arrow.ArrayData{kid}, nulls, 0), nil
}

func releaseData(list *[]arrow.ArrayData) {
	for _, d := range *list {
		d.Release()
	}
}
