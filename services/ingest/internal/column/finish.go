package column

import (
	"encoding/binary"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Finish fills the column up to the given number of rows and wraps its buffers
// as an Arrow array, without a copy. The array is valid until the column is
// written or reset; a reset must wait until nobody uses the array any more.
func (c *Column) Finish(rows int) arrow.Array {
	data := c.wrap(rows)
	defer data.Release()
	return array.MakeFromData(data)
}

func (c *Column) wrap(n int) *array.Data {
	c.Fill(n)
	var validity *memory.Buffer
	nulls := 0
	if c.hasValid && c.nulls > 0 {
		validity, nulls = memory.NewBufferBytes(c.valid), c.nulls
	}
	buffers := []*memory.Buffer{validity}
	var kids []arrow.ArrayData
	switch c.kind {
	case kind8, kind16:
		buffers = append(buffers, memory.NewBufferBytes(bytesOf(c.words8)))
	case kind4:
		buffers = append(buffers, memory.NewBufferBytes(bytesOf(c.words4)))
	case kindBool:
		buffers = append(buffers, memory.NewBufferBytes(c.bits))
	case kindFixed:
		buffers = append(buffers, memory.NewBufferBytes(c.data))
	case kindBytes:
		buffers = append(buffers, memory.NewBufferBytes(bytesOf(c.offsets)), memory.NewBufferBytes(c.data))
	case kindStruct:
		for _, k := range c.kids {
			kids = append(kids, k.wrap(n))
		}
	case kindList:
		buffers = append(buffers, memory.NewBufferBytes(bytesOf(c.offsets)))
		kids = append(kids, c.kids[0].wrap(c.kids[0].n))
	case kindMap:
		buffers = append(buffers, memory.NewBufferBytes(bytesOf(c.offsets)))
		kids = append(kids, c.wrapEntries())
	}
	out := array.NewData(c.dt, n, buffers, kids, nulls, 0)
	for _, k := range kids {
		k.Release()
	}
	return out
}

// wrapEntries makes the struct of keys and values that a map array holds.
func (c *Column) wrapEntries() *array.Data {
	entries := c.kids[0].n
	key, value := c.kids[0].wrap(entries), c.kids[1].wrap(entries)
	defer key.Release()
	defer value.Release()
	mapType := c.dt.(*arrow.MapType)
	return array.NewData(mapType.Elem(), entries, []*memory.Buffer{nil}, []arrow.ArrayData{key, value}, 0, 0)
}

func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}

// copyLittle copies little-endian values of the given width into native words.
func copyLittle(dst, src []byte, width int) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		copy(dst, src)
		return
	}
	for i := 0; i+width <= len(src); i += width {
		for j := range width {
			dst[i+j] = src[i+width-1-j]
		}
	}
}
