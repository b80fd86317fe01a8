package arrowx

import "encoding/binary"

// flat reads the few tables of an Arrow IPC message header out of a flatbuffer,
// checking every position before it is used. Layouts: Arrow format, Message.fbs.
// A read outside the buffer sets bad and yields zero; nothing ever panics.
type flat struct {
	b   []byte
	bad bool
}

func (f *flat) u16(at int) int {
	if at < 0 || at+2 > len(f.b) {
		f.bad = true
		return 0
	}
	return int(binary.LittleEndian.Uint16(f.b[at:]))
}

func (f *flat) i32(at int) int {
	if at < 0 || at+4 > len(f.b) {
		f.bad = true
		return 0
	}
	return int(int32(binary.LittleEndian.Uint32(f.b[at:])))
}

func (f *flat) i64(at int) int64 {
	if at < 0 || at+8 > len(f.b) {
		f.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint64(f.b[at:]))
}

// root is the position of the root table.
func (f *flat) root() int { return f.i32(0) }

// field is the position of field number n of the table at pos, 0 when absent.
func (f *flat) field(pos, n int) int {
	vtable := pos - f.i32(pos)
	entry := 4 + 2*n
	if entry+2 > f.u16(vtable) {
		return 0
	}
	off := f.u16(vtable + entry)
	if off == 0 {
		return 0
	}
	return pos + off
}

// ref follows the offset stored at pos.
func (f *flat) ref(pos int) int {
	off := f.i32(pos)
	if off <= 0 {
		f.bad = true
		return 0
	}
	return pos + off
}

// structs returns the position of the first element and the length of a vector
// of 16-byte structs in field n of the table at pos.
func (f *flat) structs(pos, n int) (first, count int) {
	at := f.field(pos, n)
	if at == 0 {
		return 0, 0
	}
	v := f.ref(at)
	count = f.i32(v)
	if count < 0 || count > (len(f.b)-v-4)/16 {
		f.bad = true
		return 0, 0
	}
	return v + 4, count
}
