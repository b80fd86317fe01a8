package avro

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// long reads a zig-zag varint of up to 64 bits.
func (b *Batch) long(data []byte, i int) (int64, int) {
	if i < len(data) && data[i] < 0x80 {
		x := uint64(data[i])
		return int64(x>>1 ^ -(x & 1)), i + 1
	}
	x, n := binary.Uvarint(data[min(i, len(data)):])
	switch {
	case n == 0:
		return 0, b.no(cell.Truncated)
	case n < 0:
		return 0, b.no(cell.Varint)
	}
	return int64(x>>1 ^ -(x & 1)), i + n
}

// int reads a zig-zag varint of up to 32 bits.
func (b *Batch) int(data []byte, i int) (int64, int) {
	x, next := b.long(data, i)
	if next >= 0 && (x != int64(int32(x)) || next-i > 5) {
		return 0, b.no(cell.Varint)
	}
	return x, next
}

// slice reads bytes with their length before them.
func (b *Batch) slice(data []byte, i int) ([]byte, int) {
	n, i := b.long(data, i)
	switch {
	case i < 0:
		return nil, i
	case n < 0:
		return nil, b.no(cell.Length)
	case n > int64(len(data)-i):
		return nil, b.no(cell.Truncated)
	}
	return data[i : i+int(n)], i + int(n)
}

// bytes reads the bytes of a value, which have a length before them or are fixed.
func (b *Batch) bytes(v *value, data []byte, i int) ([]byte, int) {
	if v.typ.kind == kindFixed {
		return b.fixed(v.typ, data, i)
	}
	return b.slice(data, i)
}

func (b *Batch) fixed(t *typ, data []byte, i int) ([]byte, int) {
	if t.size > len(data)-i {
		return nil, b.no(cell.Truncated)
	}
	return data[i : i+t.size], i + t.size
}

// text stores a value that comes as bytes.
func (b *Batch) text(v *value, s []byte, row int) cell.Fail {
	switch v.op {
	case opString:
		if !cell.ValidUTF8(s) {
			return cell.UTF8
		}
	case opUUID:
		b.scratch = cell.AppendUUID(b.scratch[:0], s)
		s = b.scratch
	case opDecimalLog:
		if len(s) > maxDigits {
			return cell.Decimal
		}
		b.scratch = cell.AppendDecimal(b.scratch[:0], cell.Big(s), v.typ.scale)
		s = b.scratch
	case opDecimal:
		for len(s) > 16 && (s[0] == 0 && s[1] < 0x80 || s[0] == 0xff && s[1] >= 0x80) {
			s = s[1:] // a sign that is written out
		}
		if len(s) > 16 {
			return cell.Decimal
		}
		return cell.StoreDecimal(v.col, row, cell.Words(s), int32(min(v.typ.precision, int(v.digits))))
	default: // as it is
	}
	return cell.StoreBytes(v.col, row, s)
}

// json appends a value as JSON: what has no fixed columns, since its type contains
// itself. Unions are the plain value, bytes are base64, numbers are as they are
// encoded, decimals are text.
func (b *Batch) json(dst []byte, t *typ, data []byte, i, depth int) ([]byte, int) {
	if depth--; depth < 0 {
		return dst, b.no(cell.Depth)
	}
	if len(dst) > b.most {
		return dst, b.no(cell.Full)
	}
	switch t.kind {
	case kindNull:
		return append(dst, "null"...), i
	case kindBoolean:
		if i >= len(data) {
			return dst, b.no(cell.Truncated)
		}
		if data[i] > 1 {
			return dst, b.no(cell.Boolean)
		}
		return strconv.AppendBool(dst, data[i] == 1), i + 1
	case kindInt:
		x, i := b.int(data, i)
		return strconv.AppendInt(dst, x, 10), i
	case kindLong:
		x, i := b.long(data, i)
		return strconv.AppendInt(dst, x, 10), i
	case kindFloat:
		if len(data)-i < 4 {
			return dst, b.no(cell.Truncated)
		}
		return appendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(data[i:]))), 32), i + 4
	case kindDouble:
		if len(data)-i < 8 {
			return dst, b.no(cell.Truncated)
		}
		return appendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(data[i:])), 64), i + 8
	case kindString:
		s, i := b.slice(data, i)
		if i >= 0 && !cell.ValidUTF8(s) {
			return dst, b.no(cell.UTF8)
		}
		return cell.AppendJSON(dst, s), i
	case kindEnum:
		x, i := b.int(data, i)
		if i >= 0 && (x < 0 || x >= int64(len(t.symbols))) {
			return dst, b.no(cell.Symbol)
		}
		if i < 0 {
			return dst, i
		}
		return cell.AppendJSON(dst, t.symbols[x]), i
	case kindBytes:
		s, i := b.slice(data, i)
		return b.jsonBytes(dst, t, s, i)
	case kindFixed:
		s, i := b.fixed(t, data, i)
		return b.jsonBytes(dst, t, s, i)
	case kindUnion:
		x, i := b.long(data, i)
		if i < 0 {
			return dst, i
		}
		if x < 0 || x >= int64(len(t.branches)) {
			return dst, b.no(cell.Branch)
		}
		return b.json(dst, t.branches[x], data, i, depth)
	case kindRecord:
		return b.jsonRecord(dst, t, data, i, depth)
	default:
		return b.jsonMany(dst, t, data, i, depth)
	}
}

func (b *Batch) jsonBytes(dst []byte, t *typ, s []byte, i int) ([]byte, int) {
	if i < 0 {
		return dst, i
	}
	dst = append(dst, '"')
	switch t.logical {
	case "decimal":
		if len(s) > maxDigits {
			return dst, b.no(cell.Decimal)
		}
		dst = cell.AppendDecimal(dst, cell.Big(s), t.scale)
	case "uuid":
		dst = cell.AppendUUID(dst, s)
	default:
		dst = base64.StdEncoding.AppendEncode(dst, s)
	}
	return append(dst, '"'), i
}

func appendFloat(dst []byte, x float64, size int) []byte {
	switch {
	case math.IsNaN(x):
		return append(dst, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, x, 'g', -1, size)
}

func (b *Batch) jsonRecord(dst []byte, t *typ, data []byte, i, depth int) ([]byte, int) {
	dst = append(dst, '{')
	for n, f := range t.fields {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(cell.AppendJSON(dst, []byte(f.name)), ':')
		if dst, i = b.json(dst, f.typ, data, i, depth); i < 0 {
			b.at = append(b.at, f.name)
			return dst, i
		}
	}
	return append(dst, '}'), i
}

// jsonMany writes an array or a map.
func (b *Batch) jsonMany(dst []byte, t *typ, data []byte, i, depth int) ([]byte, int) {
	open, end, least := byte('['), byte(']'), t.items.least
	if t.kind == kindMap {
		open, end, least = '{', '}', least+1
	}
	dst = append(dst, open)
	for first := true; ; {
		var n int
		if n, i = b.block(data, i, least); i < 0 {
			return dst, i
		}
		if n == 0 {
			return append(dst, end), i
		}
		for ; n > 0; n-- {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			if t.kind == kindMap {
				var s []byte
				if s, i = b.slice(data, i); i < 0 {
					return dst, i
				}
				if !cell.ValidUTF8(s) {
					return dst, b.no(cell.UTF8)
				}
				dst = append(cell.AppendJSON(dst, s), ':')
			}
			if dst, i = b.json(dst, t.items, data, i, depth); i < 0 {
				return dst, i
			}
		}
	}
}
