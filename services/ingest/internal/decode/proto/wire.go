package proto

import (
	"encoding/binary"
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"
)

// varint reads a varint at i and gives the index after it, negative when the
// varint is malformed or the input ends inside it. As in Google's parsers it may be
// longer than it need be, up to ten bytes, the last of them at most 1.
func varint(b []byte, i int) (uint64, int) {
	if len(b)-i >= 8 { // up to eight bytes at once, without a branch for each
		x := binary.LittleEndian.Uint64(b[i:])
		if last := ^x & 0x8080808080808080; last != 0 {
			x &= last ^ (last - 1) // the bytes up to the last one
			x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
			x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
			x = x&0x000000000fffffff | x&0x0fffffff00000000>>4
			return x, i + bits.TrailingZeros64(last)/8 + 1
		}
	}
	var v uint64
	for shift := 0; shift < 63; shift += 7 {
		if i >= len(b) {
			return 0, -1
		}
		c := b[i]
		i++
		if c < 0x80 {
			return v | uint64(c)<<shift, i
		}
		v |= uint64(c&0x7f) << shift
	}
	if i >= len(b) || b[i] > 1 {
		return 0, -1
	}
	return v | uint64(b[i])<<63, i + 1
}

// scalar reads a value of a scalar wire type; the index is negative on an error.
func scalar(o op, b []byte, i int) (uint64, int) {
	switch o {
	case opFix8:
		if len(b)-i < 8 {
			return 0, -1
		}
		return binary.LittleEndian.Uint64(b[i:]), i + 8
	case opFix4:
		if len(b)-i < 4 {
			return 0, -1
		}
		return uint64(binary.LittleEndian.Uint32(b[i:])), i + 4
	default:
		return varint(b, i)
	}
}

// skip gives the length of the value of a field that the schema does not have.
func skip(tag uint64, b []byte) (int, fail) {
	num, typ := protowire.DecodeTag(tag)
	if num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
		return 0, failTag
	}
	n := protowire.ConsumeFieldValue(num, typ, b)
	if n < 0 {
		return 0, failWire
	}
	return n, ok
}
