package avro

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// maxEmpty is how many values without bytes (nulls, empty records) one record may hold
// in its arrays: a count alone must not fill the memory.
const maxEmpty = 1 << 16

// maxGrown is how many bytes the names of enum symbols and JSON texts may take in one
// record: a byte on the wire can stand for a long name. No message could carry more.
const maxGrown = 1 << 28

// Batch collects decoded records as columns; see cell.Batch.
type Batch struct {
	cell.Batch

	root    *value
	dedupe  *column.Dedupe
	fail    cell.Fail // why the record is refused
	at      []string  // where, innermost first
	empty   int       // values without bytes in this record
	grown   int       // bytes of enum symbols and JSON texts in this record
	most    int       // maxGrown, less in tests
	scratch []byte

	variants cell.Variants
	words8   []uint64
	words4   []uint32
	one      [1]int
}

// Append decodes one record into the next row. On an error the batch is exactly what
// it was before. The error is cell.ErrBatchFull, or a *cell.Error. The payload is not
// kept.
func (b *Batch) Append(payload []byte) error {
	if err := b.Room(1 + len(payload) + maxEmpty); err != nil {
		return err
	}
	b.fail, b.empty, b.grown, b.at = cell.OK, 0, 0, b.at[:0]
	i := b.read(b.root, payload, 0, b.Rows(), cell.MaxDepth)
	if i >= 0 && i < len(payload) {
		b.fail = cell.Trailing
	}
	if b.fail != cell.OK {
		return b.Failed(b.fail, b.path())
	}
	b.Took(1 + len(payload) + b.empty)
	return nil
}

// Grown is about how many bytes the last row may take beyond a multiple of its payload.
func (b *Batch) Grown() int { return b.Batch.Grown() + b.grown }

func (b *Batch) path() string {
	out := make([]string, len(b.at))
	for i, name := range b.at {
		out[len(out)-1-i] = name
	}
	return strings.Join(out, ".")
}

// no notes why the record is refused; a negative index ends the walk.
func (b *Batch) no(f cell.Fail) int {
	if b.fail == cell.OK {
		b.fail = f
	}
	return -1
}

func (b *Batch) stored(f cell.Fail, i int) int {
	if f != cell.OK {
		return b.no(f)
	}
	return i
}

// read decodes one value at data[i:] into row of its column and gives the index behind
// it, negative when the record is refused.
func (b *Batch) read(v *value, data []byte, i, row, depth int) int {
	switch v.op {
	case opNull:
		return i
	case opInt, opIntLong, opIntDec, opDate:
		x, i := b.int(data, i)
		if i < 0 {
			return i
		}
		switch v.op {
		case opInt:
			v.col.Set4(row, uint32(int32(x)))
		case opIntLong:
			v.col.Set8(row, uint64(x))
		case opIntDec:
			v.col.Set16(row, uint64(x), uint64(x>>63))
		default:
			return b.stored(cell.StoreDays(v.col, row, x), i)
		}
		return i
	case opLong, opLongDec:
		x, i := b.long(data, i)
		if i < 0 {
			return i
		}
		if v.op == opLong {
			v.col.Set8(row, uint64(x))
		} else {
			v.col.Set16(row, uint64(x), uint64(x>>63))
		}
		return i
	case opString, opBytes, opDecimal, opDecimalLog, opFixed, opUUID:
		s, i := b.bytes(v, data, i)
		if i < 0 {
			return i
		}
		return b.stored(b.text(v, s, row), i)
	case opRecord:
		return b.record(v, data, i, row, depth)
	case opUnion:
		x, i := b.long(data, i)
		if i < 0 {
			return i
		}
		if x < 0 || x >= int64(len(v.kids)) {
			return b.no(cell.Branch)
		}
		k := v.kids[x]
		if v.open && k.op != opNull {
			v.col.Open(row)
		}
		return b.kid(k, data, i, row, depth)
	case opArray:
		return b.array(v, data, i, row, depth)
	case opMap:
		return b.mapped(v, data, i, row, depth)
	default:
		return b.rare(v, data, i, row, depth)
	}
}

// rare is the rest of read.
func (b *Batch) rare(v *value, data []byte, i, row, depth int) int {
	switch v.op {
	case opBoolean:
		if i >= len(data) {
			return b.no(cell.Truncated)
		}
		if data[i] > 1 {
			return b.no(cell.Boolean)
		}
		v.col.SetBool(row, data[i] == 1)
		return i + 1
	case opFloat, opFloatWide:
		if len(data)-i < 4 {
			return b.no(cell.Truncated)
		}
		x := binary.LittleEndian.Uint32(data[i:])
		if v.op == opFloat {
			v.col.Set4(row, x)
		} else {
			v.col.Set8(row, math.Float64bits(float64(math.Float32frombits(x))))
		}
		return i + 4
	case opDouble:
		if len(data)-i < 8 {
			return b.no(cell.Truncated)
		}
		v.col.Set8(row, binary.LittleEndian.Uint64(data[i:]))
		return i + 8
	case opEnum:
		x, i := b.int(data, i)
		if i < 0 {
			return i
		}
		if x < 0 || x >= int64(len(v.typ.symbols)) {
			return b.no(cell.Symbol)
		}
		if b.grown += len(v.typ.symbols[x]); b.grown > b.most {
			return b.no(cell.Full)
		}
		return b.stored(cell.StoreBytes(v.col, row, v.typ.symbols[x]), i)
	case opNanos:
		x, i := b.long(data, i)
		if i >= 0 {
			v.col.Set8(row, uint64(x))
		}
		return i
	case opTime, opTimestamp:
		return b.time(v, data, i, row)
	case opDuration:
		if len(data)-i < 12 {
			return b.no(cell.Truncated)
		}
		v.col.Open(row)
		if v.seen != nil {
			v.seen.SetBool(row, true)
		}
		for k, part := range v.kids {
			cell.StoreLong(part.col, row, int64(binary.LittleEndian.Uint32(data[i+4*k:])))
		}
		return i + 12
	default: // opJSON
		out, i := b.json(b.scratch[:0], v.typ, data, i, depth)
		if i < 0 {
			return i
		}
		b.scratch = out
		if b.grown += len(out); b.grown > b.most {
			return b.no(cell.Full)
		}
		if v.free {
			return b.stored(b.variants.Store(v.col, row, out), i)
		}
		return b.stored(cell.StoreBytes(v.col, row, out), i)
	}
}

func (b *Batch) time(v *value, data []byte, i, row int) int {
	x, i := b.timeUnits(v.typ, data, i)
	if i < 0 {
		return i
	}
	micros := x / v.den
	if x%v.den < 0 { // towards the past
		micros--
	}
	if v.op == opTime {
		if micros *= v.num; micros < 0 || micros >= cell.DayMicros {
			return b.no(cell.TimeOfDay)
		}
		cell.StoreLong(v.col, row, micros)
		return i
	}
	if micros > math.MaxInt64/v.num || micros < math.MinInt64/v.num {
		return b.no(cell.Timestamp)
	}
	return b.stored(cell.StoreMicros(v.col, row, micros*v.num), i)
}

func (b *Batch) timeUnits(t *typ, data []byte, i int) (int64, int) {
	if t.kind == kindInt {
		return b.int(data, i)
	}
	x, i := b.long(data, i)
	if i >= 0 && t.logical == "time-micros" && (x < 0 || x >= cell.DayMicros) {
		return 0, b.no(cell.TimeOfDay)
	}
	return x, i
}

// kid is read, with the name noted where it fails.
func (b *Batch) kid(k *value, data []byte, i, row, depth int) int {
	i = b.read(k, data, i, row, depth)
	if i < 0 && k.name != "" {
		b.at = append(b.at, k.name)
	}
	return i
}

func (b *Batch) record(v *value, data []byte, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	if v.col != nil {
		v.col.Open(row)
	}
	if v.seen != nil {
		v.seen.SetBool(row, true)
	}
	for _, k := range v.kids {
		switch k.op { // the most frequent ones without a call
		case opLong:
			if i < len(data) && data[i] < 0x80 {
				x := uint64(data[i])
				k.col.Set8(row, x>>1^-(x&1))
				i++
				continue
			}
		case opInt:
			if i < len(data) && data[i] < 0x80 {
				x := uint32(data[i])
				k.col.Set4(row, x>>1^-(x&1))
				i++
				continue
			}
		default:
		}
		if i = b.read(k, data, i, row, depth); i < 0 {
			if k.name != "" {
				b.at = append(b.at, k.name)
			}
			return i
		}
	}
	return i
}

// block reads the count of the next block of an array or map, 0 at the end. A value
// has at least the given number of bytes.
func (b *Batch) block(data []byte, i, least int) (count, next int) {
	n, i := b.long(data, i)
	if i < 0 {
		return 0, i
	}
	if n < 0 {
		var size int64
		if size, i = b.long(data, i); i < 0 {
			return 0, i
		}
		if n == math.MinInt64 || size < 0 || size > int64(len(data)-i) {
			return 0, b.no(cell.Length)
		}
		n = -n
	}
	if least > 0 {
		if n > int64((len(data)-i)/least) {
			return 0, b.no(cell.Truncated)
		}
		return int(n), i
	}
	if n > int64(maxEmpty-b.empty) {
		return 0, b.no(cell.Complex)
	}
	b.empty += int(n)
	return int(n), i
}

func (b *Batch) array(v *value, data []byte, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	c := v.col
	c.Open(row)
	e, element := v.kids[0], c.Kid(0)
	for {
		var n int
		if n, i = b.block(data, i, v.typ.items.least); i < 0 {
			return i
		}
		if n == 0 {
			c.CloseList(row)
			return i
		}
		if !b.Spend(n * v.spread) {
			return b.no(cell.Full)
		}
		switch e.op {
		case opFloat, opDouble:
			i = b.raw(element, data, i, n*v.typ.items.least)
		case opLong:
			i = b.longs(element, data, i, n)
		case opInt:
			i = b.ints(element, data, i, n)
		default:
			for ; n > 0 && i >= 0; n-- {
				at := element.Len()
				i = b.read(e, data, i, at, depth)
				element.Fill(at + 1)
			}
		}
		if i < 0 {
			return i
		}
	}
}

func (b *Batch) raw(c *column.Column, data []byte, i, size int) int {
	if size > len(data)-i {
		return b.no(cell.Truncated)
	}
	c.AppendRaw(data[i : i+size])
	return i + size
}

func (b *Batch) longs(c *column.Column, data []byte, i, n int) int {
	words := b.words8[:0]
	for ; n > 0; n-- {
		var x int64
		if x, i = b.long(data, i); i < 0 {
			return i
		}
		words = append(words, uint64(x))
	}
	c.Append8(words)
	b.words8 = words
	return i
}

func (b *Batch) ints(c *column.Column, data []byte, i, n int) int {
	words := b.words4[:0]
	for ; n > 0; n-- {
		var x int64
		if x, i = b.int(data, i); i < 0 {
			return i
		}
		words = append(words, uint32(int32(x)))
	}
	c.Append4(words)
	b.words4 = words
	return i
}

// manyKeys is from how many entries on a map is checked for doubled keys as a whole.
const manyKeys = 32

// mapped decodes a map. Of entries with the same key the last wins.
func (b *Batch) mapped(v *value, data []byte, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	c := v.col
	c.Open(row)
	from, _ := c.Span(row)
	e, key, element := v.kids[0], c.Kid(0), c.Kid(1)
	doubled := false
	for {
		var n int
		if n, i = b.block(data, i, 1+v.typ.items.least); i < 0 {
			return i
		}
		if n == 0 {
			break
		}
		if !b.Spend(n * v.spread) {
			return b.no(cell.Full)
		}
		for ; n > 0; n-- {
			var s []byte
			if s, i = b.slice(data, i); i < 0 {
				return i
			}
			if !cell.ValidUTF8(s) {
				return b.no(cell.UTF8)
			}
			at := key.Len()
			if !key.SetBytes(at, s) {
				return b.no(cell.Full)
			}
			if i = b.read(e, data, i, at, depth); i < 0 {
				return i
			}
			element.Fill(at + 1)
			doubled = doubled || at-from == manyKeys || at-from < manyKeys && c.HasKey(from, at)
		}
	}
	c.CloseList(row)
	if doubled {
		b.one[0] = row
		b.dedupe.KeepLast(c, b.one[:])
	}
	return i
}
