// Package column holds growable Arrow columns that are made for decoding records
// one after another.
//
// They differ from Arrow's builders in four ways that the decoder lives on.
// Values are written by row number, so an absent value costs nothing until a
// later row, or Finish, fills the gap in bulk. Writing a row again overwrites it
// (the last value of a field wins). A row can be taken back at every depth with
// Truncate, without any snapshot. And Reset keeps the buffers, so a column that
// is reused allocates nothing.
//
// Finish wraps the buffers without a copy: the array is valid until the column's
// next Reset or write. Children of a null struct hold fill values, so a reader
// must look at the parent first, as with any Arrow array. A column and its
// children belong to one goroutine at a time.
package column

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
)

type kind uint8

const (
	kind4      kind = iota // any value of 4 bytes
	kind8                  // any value of 8 bytes
	kind16                 // decimal128: two words, low first
	kindBool               // bitmap
	kindBytes              // strings and binaries
	kindFixed              // fixed-size binary
	kindStruct             // children of the same length
	kindList               // one child
	kindMap                // two children, keys and values
)

// Column is one column with its children. Invariants: no bit is set beyond n in
// a bitmap; offsets has n+1 entries where the kind has offsets; the words of a
// fixed kind have exactly n entries.
type Column struct {
	kind       kind
	absentNull bool // what filling a gap means: null, or zero (or absent)
	hasValid   bool // valid is kept only after the first null
	n          int
	nulls      int
	width      int // bytes per value of kindFixed
	words8     []uint64
	words4     []uint32
	bits       []byte
	valid      []byte
	offsets    []int32
	data       []byte
	absent     []byte // what an absent value of kindBytes is, unless null
	kids       []*Column
	dt         arrow.DataType
}

// New makes an empty column for an Arrow type, with children as the type wants.
// An absent value becomes null. Types: boolean, 32 and 64 bit integers and
// floats, date32, time64, timestamp, decimal128, string, binary, fixed-size
// binary (also as storage of an extension type), struct, list, map; any other is
// an error.
func New(dt arrow.DataType) (*Column, error) {
	c := &Column{dt: dt, absentNull: true}
	storage := dt
	if ext, ok := dt.(arrow.ExtensionType); ok {
		storage = ext.StorageType()
	}
	switch t := storage.(type) {
	case *arrow.BooleanType:
		c.kind = kindBool
	case *arrow.Int32Type, *arrow.Float32Type, *arrow.Date32Type, *arrow.Uint32Type, *arrow.Time32Type:
		c.kind = kind4
	case *arrow.Int64Type, *arrow.Float64Type, *arrow.TimestampType, *arrow.Time64Type, *arrow.Uint64Type:
		c.kind = kind8
	case *arrow.Decimal128Type:
		c.kind = kind16
	case *arrow.StringType, *arrow.BinaryType:
		c.kind = kindBytes
	case *arrow.FixedSizeBinaryType:
		c.kind, c.width = kindFixed, t.ByteWidth
	case *arrow.StructType:
		c.kind = kindStruct
		return c, c.addKids(t.Fields()...)
	case *arrow.MapType:
		c.kind = kindMap
		c.offsets = append(c.offsets, 0)
		return c, c.addKids(t.KeyField(), t.ItemField())
	case *arrow.ListType:
		c.kind = kindList
		c.offsets = append(c.offsets, 0)
		return c, c.addKids(t.ElemField())
	default:
		return nil, fmt.Errorf("making column: no column for the Arrow type %s", dt)
	}
	if c.kind == kindBytes {
		c.offsets = append(c.offsets, 0)
	}
	return c, nil
}

func (c *Column) addKids(fields ...arrow.Field) error {
	for _, f := range fields {
		k, err := New(f.Type)
		if err != nil {
			return fmt.Errorf("making column: child %s: %w", f.Name, err)
		}
		if !f.Nullable {
			k.AbsentIsZero()
		}
		c.kids = append(c.kids, k)
	}
	return nil
}

// AbsentIsZero makes an absent value zero, empty, or a present struct with
// absent children, instead of null. It is for an empty column.
func (c *Column) AbsentIsZero() { c.absentNull = false }

// AbsentIs makes an absent value of a string or binary column v instead of null.
// It is for an empty column; v must not change afterwards.
func (c *Column) AbsentIs(v []byte) { c.absentNull, c.absent = false, v }

// Type is the Arrow type the column was made for.
func (c *Column) Type() arrow.DataType { return c.dt }

// Len is the number of rows written or filled so far.
func (c *Column) Len() int { return c.n }

// Kid is child i: field i of a struct, the element of a list, key (0) or value
// (1) of a map.
func (c *Column) Kid(i int) *Column { return c.kids[i] }

// Kids is the number of children.
func (c *Column) Kids() int { return len(c.kids) }

// Valid reports whether the row was written and is not null.
func (c *Column) Valid(row int) bool {
	return row < c.n && (!c.hasValid || c.valid[row>>3]&(1<<(row&7)) != 0)
}

// Written reports whether the row was written, be it with WriteNull.
func (c *Column) Written(row int) bool {
	return c.Valid(row) || row < c.n && c.kind == kind4 && c.words4[row] != 0
}

// Span is the range of child rows that belong to a row of a list or map.
func (c *Column) Span(row int) (start, end int) {
	return int(c.offsets[row]), int(c.offsets[row+1])
}

// Size is the number of bytes that the given rows take in an Arrow message, those of
// the children included and those of absent values, too. There are no more rows in the
// column than that.
func (c *Column) Size(rows int) int {
	gap := max(rows-c.n, 0)
	size := bytesPerNode
	if c.hasValid || c.absentNull && gap > 0 {
		size += padded((rows + 7) / 8)
	}
	below := rows // rows of the children
	switch c.kind {
	case kind4:
		size += padded(4 * rows)
	case kind8:
		size += padded(8 * rows)
	case kind16:
		size += padded(16 * rows)
	case kindBool:
		size += padded((rows + 7) / 8)
	case kindFixed:
		size += padded(c.width * rows)
	case kindBytes:
		data := len(c.data)
		if !c.absentNull {
			data += gap * len(c.absent)
		}
		size += padded(4*(rows+1)) + padded(data)
	case kindList, kindMap:
		size += padded(4 * (rows + 1))
		below = c.kids[0].n
	case kindStruct:
	}
	for _, k := range c.kids {
		size += k.Size(below)
	}
	return size
}

// bytesPerNode is what the head of an Arrow message holds for a column: its counts, and
// place and length of up to three buffers.
const bytesPerNode = 16 + 3*16

// padded is the length of a buffer in an Arrow message.
func padded(n int) int { return (n + 63) &^ 63 }

// Put8 is Set8 in the usual case, small enough to become part of a decoder: the
// next row of a column without nulls that has room. False: nothing was written.
func (c *Column) Put8(row int, v uint64) bool {
	if c.n != row || c.hasValid || row >= cap(c.words8) {
		return false
	}
	c.words8 = c.words8[:row+1]
	c.words8[row] = v
	c.n = row + 1
	return true
}

// Put4 is Set4 in the usual case, as Put8 is Set8.
func (c *Column) Put4(row int, v uint32) bool {
	if c.n != row || c.hasValid || row >= cap(c.words4) {
		return false
	}
	c.words4 = c.words4[:row+1]
	c.words4[row] = v
	c.n = row + 1
	return true
}

// Set8 writes a value of 8 bytes: an integer, a timestamp, the bits of a double.
func (c *Column) Set8(row int, v uint64) {
	if c.n != row {
		if c.n > row {
			c.words8[row] = v
			c.unnull(row)
			return
		}
		c.gap(row)
		c.words8 = growZero(c.words8, row-c.n+1)
		c.words8[row] = v
		c.n = row + 1
		return
	}
	if c.hasValid {
		c.mark(row)
	}
	c.words8 = append(c.words8, v)
	c.n = row + 1
}

// Set4 writes a value of 4 bytes: an integer, a date, the bits of a float.
func (c *Column) Set4(row int, v uint32) {
	if c.n != row {
		if c.n > row {
			c.words4[row] = v
			c.unnull(row)
			return
		}
		c.gap(row)
		c.words4 = growZero(c.words4, row-c.n+1)
		c.words4[row] = v
		c.n = row + 1
		return
	}
	if c.hasValid {
		c.mark(row)
	}
	c.words4 = append(c.words4, v)
	c.n = row + 1
}

// Set16 writes a decimal128 as its two words, two's complement.
func (c *Column) Set16(row int, low, high uint64) {
	if c.n != row {
		if c.n > row {
			c.words8[2*row], c.words8[2*row+1] = low, high
			c.unnull(row)
			return
		}
		c.gap(row)
		c.words8 = growZero(c.words8, 2*(row-c.n+1))
		c.words8[2*row], c.words8[2*row+1] = low, high
		c.n = row + 1
		return
	}
	if c.hasValid {
		c.mark(row)
	}
	c.words8 = append(c.words8, low, high)
	c.n = row + 1
}

// SetBool writes a boolean.
func (c *Column) SetBool(row int, v bool) {
	var bit byte // without a branch: values may be random
	if v {
		bit = 1 << (row & 7)
	}
	if c.n == row && !c.hasValid && row>>3 < len(c.bits) { // the bit is not set: none is beyond n
		c.bits[row>>3] |= bit
		c.n = row + 1
		return
	}
	if c.n > row {
		c.unnull(row)
	} else {
		c.gap(row)
		if row>>3 >= len(c.bits) {
			c.bits = growBits(c.bits, row+1)
		}
		c.n = row + 1
	}
	c.bits[row>>3] = c.bits[row>>3]&^(1<<(row&7)) | bit
}

// SetBytes writes a string or binary; only the last row can be written again. It
// reports false, with nothing written, when the column would grow beyond the
// 2 GiB that 32-bit offsets can address: the batch is full.
func (c *Column) SetBytes(row int, v []byte) bool {
	at, end := len(c.data), len(c.data)+len(v)
	if c.n == row && !c.hasValid && end <= cap(c.data) && end <= math.MaxInt32 && row+1 < cap(c.offsets) { // nothing grows
		c.data = c.data[:end]
		copy(c.data[at:], v)
		c.offsets = c.offsets[:row+2]
		c.offsets[row+1] = int32(end)
		c.n = row + 1
		return true
	}
	return c.setBytes(row, v)
}

func (c *Column) setBytes(row int, v []byte) bool {
	if c.n != row {
		if c.n > row {
			return c.replaceBytes(row, v)
		}
		c.Fill(row)
	}
	if len(c.data)+len(v) > math.MaxInt32 {
		return false
	}
	if c.hasValid {
		c.mark(row)
	}
	c.data = append(c.data, v...)
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.n = row + 1
	return true
}

func (c *Column) replaceBytes(row int, v []byte) bool {
	start := int(c.offsets[row])
	if start+len(v) > math.MaxInt32 {
		return false
	}
	c.unnull(row)
	c.data = append(c.data[:start], v...)
	c.offsets[row+1] = int32(len(c.data))
	return true
}

// SetFixed writes a value of a fixed-size binary column; v has its width.
func (c *Column) SetFixed(row int, v []byte) {
	if c.n > row {
		c.unnull(row)
		copy(c.data[row*c.width:(row+1)*c.width], v)
		return
	}
	c.Fill(row)
	if c.hasValid {
		c.mark(row)
	}
	c.data = append(c.data, v[:c.width]...)
	c.n = row + 1
}

// SetZero writes zero or an empty value, not null.
func (c *Column) SetZero(row int) {
	switch c.kind {
	case kind4:
		c.Set4(row, 0)
	case kind8:
		c.Set8(row, 0)
	case kind16:
		c.Set16(row, 0, 0)
	case kindBool:
		c.SetBool(row, false)
	case kindBytes:
		c.SetBytes(row, nil)
	case kindFixed:
		c.SetFixed(row, make([]byte, c.width))
	case kindStruct, kindList, kindMap:
		c.Open(row)
	}
}

// SetNull writes a null, whatever an absent value means, over any earlier value
// of the row (which must be the last).
func (c *Column) SetNull(row int) {
	c.Truncate(row)
	c.Fill(row)
	was := c.absentNull
	c.absentNull = true
	c.Fill(row + 1)
	c.absentNull = was
}

// WriteNull is SetNull for a column of 4-byte values, told apart from an absent
// value by Written: a value was there, and its meaning is null.
func (c *Column) WriteNull(row int) {
	c.SetNull(row)
	c.words4[row] = 1
}

// Open makes a struct, list or map exist in the row, empty at first. Opening the
// row again goes on with what is there.
func (c *Column) Open(row int) {
	if c.n > row {
		c.unnull(row)
		return
	}
	if c.n < row {
		c.Fill(row)
	}
	if c.hasValid {
		c.mark(row)
	}
	if c.kind != kindStruct {
		c.offsets = append(c.offsets, int32(c.kids[0].n))
	}
	c.n = row + 1
}

// CloseList takes everything that was appended to the children since into the
// last row of a list or map.
func (c *Column) CloseList(row int) { c.offsets[row+1] = int32(c.kids[0].n) }

// Append8 appends values of 8 bytes at the end.
func (c *Column) Append8(v []uint64) {
	c.markTail(len(v))
	c.words8 = append(c.words8, v...)
	c.n += len(v)
}

// Append4 appends values of 4 bytes at the end.
func (c *Column) Append4(v []uint32) {
	c.markTail(len(v))
	c.words4 = append(c.words4, v...)
	c.n += len(v)
}

// AppendRaw appends little-endian values of 4 or 8 bytes at the end; the length
// of raw is a multiple of that.
func (c *Column) AppendRaw(raw []byte) {
	if c.kind == kind4 {
		k := len(raw) / 4
		c.markTail(k)
		old := len(c.words4)
		c.words4 = growZero(c.words4, k)
		copyLittle(bytesOf(c.words4[old:]), raw, 4)
		c.n += k
		return
	}
	k := len(raw) / 8
	c.markTail(k)
	old := len(c.words8)
	c.words8 = growZero(c.words8, k)
	copyLittle(bytesOf(c.words8[old:]), raw, 8)
	c.n += k
}
