package proto

import (
	"math"
	"math/big"
	"time"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// store writes a scalar, read from the wire as v, to a row of a column.
func (b *Batch) store(f *field, c *column.Column, row int, v uint64) fail {
	switch f.conv {
	case conv8:
		c.Set8(row, v)
	case conv4:
		c.Set4(row, uint32(v))
	case convBool:
		c.SetBool(row, v != 0)
	case convZig8:
		c.Set8(row, v>>1^-(v&1))
	case convZig4:
		v &= math.MaxUint32
		c.Set4(row, uint32(v>>1^-(v&1)))
	case convU4to8:
		c.Set8(row, v&math.MaxUint32)
	case convU8to16:
		c.Set16(row, v, 0)
	case convEnum:
		if name := f.enum.text(int32(v), b.scratch); !c.SetBytes(row, name) {
			return failFull
		}
	default:
		f.wide(c, row, v)
	}
	return ok
}

// wide stores a scalar in a column that is wider than the scalar's own.
func (f *field) wide(c *column.Column, row int, v uint64) {
	var x int64
	switch f.src {
	case srcInt4:
		x = int64(int32(v))
	case srcZig4:
		v &= math.MaxUint32
		x = int64(int32(v>>1 ^ -(v & 1)))
	case srcInt8:
		x = int64(v)
	case srcZig8:
		x = int64(v>>1 ^ -(v & 1))
	case srcUint4:
		x = int64(v & math.MaxUint32)
	case srcUint8:
		c.Set16(row, v, 0)
		return
	case srcFloat:
		c.Set8(row, math.Float64bits(float64(math.Float32frombits(uint32(v)))))
		return
	}
	if f.to16 {
		c.Set16(row, uint64(x), uint64(x>>63))
		return
	}
	c.Set8(row, uint64(x))
}

// value decodes a message that becomes one scalar. s is all that the record says
// about it, earlier occurrences included.
func (b *Batch) value(f *field, c *column.Column, s []byte, row, depth int) fail {
	if depth--; depth < 0 {
		return failDepth
	}
	switch f.conv {
	case convJSON, convVariant:
		store := b.storeText
		if f.conv == convVariant {
			store = b.storeVariant
		}
		failed := store(f.json.append, c, s, row, depth)
		if failed == ok && f.json.note && f.json.unknown(f.json.md, s) {
			b.unknown++
		}
		return failed
	case convMask:
		return b.storeText(b.appendMask, c, s, row, depth)
	case convText:
		return b.storeText(b.appendText, c, s, row, depth)
	case convDecimal, convDecimalText:
		return b.decimal(f, c, s, row)
	default:
		return b.time(f, c, s, row)
	}
}

// time decodes the messages that are a point or a span in time.
func (b *Batch) time(f *field, c *column.Column, s []byte, row int) fail {
	if f.conv == convTime || f.conv == convNanos {
		if seconds, nanos, usual := usualTime(s); usual {
			v, failed := timestamp(f.conv, seconds, nanos)
			if failed == ok && !c.Put8(row, uint64(v)) {
				c.Set8(row, uint64(v))
			}
			return failed
		}
	}
	var known uint64
	switch f.conv {
	case convDate:
		known = 3
	case convDayTime:
		known = 4
	default:
		known = 2
	}
	failed := b.readInts(s, known)
	if failed != ok {
		return failed
	}
	var v int64
	switch n := &b.ints; f.conv {
	case convTime, convNanos:
		v, failed = timestamp(f.conv, int64(n[1]), int32(n[2]))
	case convDuration:
		v, failed = duration(int64(n[1]), int32(n[2]))
	case convDayTime:
		v, failed = timeOfDay(int32(n[1]), int32(n[2]), int32(n[3]), int32(n[4]), c)
	default: // convDate
		return date(c, row, int32(n[1]), int32(n[2]), int32(n[3]))
	}
	if failed == ok {
		cell.StoreLong(c, row, v)
	}
	return failed
}

// usualTime reads a timestamp as every encoder writes it: seconds, then nanos, each
// left out if it is zero. Anything else is for readInts.
func usualTime(s []byte) (seconds int64, nanos int32, usual bool) {
	i := 0
	if len(s) > 0 && s[0] == 1<<3 {
		var v uint64
		if v, i = varint(s, 1); i < 0 {
			return 0, 0, false
		}
		seconds = int64(v)
	}
	if i < len(s) && s[i] == 2<<3 {
		var v uint64
		if v, i = varint(s, i+1); i < 0 {
			return 0, 0, false
		}
		nanos = int32(v)
	}
	return seconds, nanos, i == len(s)
}

// readInts reads the varint fields 1 to known, at most 4, of a small message into
// b.ints.
func (b *Batch) readInts(s []byte, known uint64) fail {
	b.ints = [5]uint64{}
	for i := 0; i < len(s); {
		var tag uint64
		if tag, i = varint(s, i); i < 0 {
			return failTruncated
		}
		if tag&7 == uint64(protowire.VarintType) && tag >= 1<<3 && tag < (known+1)<<3 {
			if b.ints[tag>>3], i = varint(s, i); i < 0 {
				return failTruncated
			}
			continue
		}
		n, failed := skip(tag, s[i:])
		if failed != ok {
			return failed
		}
		b.unknown++
		i += n
	}
	return ok
}

// Bounds of google.protobuf.Timestamp: the years 0001 to 9999.
const (
	minSeconds = -62135596800
	maxSeconds = 253402300799
)

// timestamp gives nanoseconds, or microseconds: then the rest is cut towards the
// past.
func timestamp(c conv, seconds int64, nanos int32) (int64, fail) {
	if seconds < minSeconds || seconds > maxSeconds || nanos < 0 || nanos > 999_999_999 {
		return 0, failTimestamp
	}
	if c == convNanos {
		v, reached := cell.Nanoseconds(seconds, nanos)
		if !reached {
			return 0, failNanos
		}
		return v, ok
	}
	return seconds*1_000_000 + int64(nanos)/1000, ok
}

// duration gives nanoseconds.
func duration(seconds int64, nanos int32) (int64, fail) {
	if nanos <= -1_000_000_000 || nanos >= 1_000_000_000 || seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0 {
		return 0, failDuration
	}
	const most = math.MaxInt64 / 1_000_000_000
	if seconds > most || seconds < -most {
		return 0, failDuration
	}
	v := seconds * 1_000_000_000
	sum := v + int64(nanos)
	if (nanos > 0) != (sum > v) && nanos != 0 {
		return 0, failDuration
	}
	return sum, ok
}

// timeOfDay gives microseconds since midnight. A leap second and 24:00 are kept
// in a long column; a time column has no room for them.
func timeOfDay(hours, minutes, seconds, nanos int32, c *column.Column) (int64, fail) {
	if hours < 0 || hours > 24 || minutes < 0 || minutes > 59 || seconds < 0 || seconds > 60 || nanos < 0 || nanos > 999_999_999 {
		return 0, failTimeOfDay
	}
	v := ((int64(hours)*60+int64(minutes))*60+int64(seconds))*1_000_000 + int64(nanos)/1000
	const day = 24 * 60 * 60 * 1_000_000
	if hours == 24 && v != day || v >= day && isTime(c) {
		return 0, failTimeOfDay
	}
	return v, ok
}

// date stores days since 1970. A date that is all zero is no date: null.
func date(c *column.Column, row int, year, month, day int32) fail {
	if year == 0 && month == 0 && day == 0 {
		c.WriteNull(row)
		return ok
	}
	if year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 || day > 31 {
		return failDate
	}
	t := time.Date(int(year), time.Month(month), int(day), 0, 0, 0, 0, time.UTC)
	if t.Day() != int(day) {
		return failDate
	}
	c.Set4(row, uint32(int32(t.Unix()/86400)))
	return ok
}

func (b *Batch) storeText(text func(dst, s []byte, depth int) ([]byte, fail), c *column.Column, s []byte, row, depth int) fail {
	out, failed := text(b.scratch[:0], s, depth)
	if failed != ok {
		return failed
	}
	b.scratch = out
	if !c.SetBytes(row, out) {
		return failFull
	}
	return ok
}

// storeVariant is storeText for JSON that becomes a variant.
func (b *Batch) storeVariant(text func(dst, s []byte, depth int) ([]byte, fail), c *column.Column, s []byte, row, depth int) fail {
	out, failed := text(b.scratch[:0], s, depth)
	if failed != ok {
		return failed
	}
	b.scratch = out
	switch b.variants.Store(c, row, out) {
	case cell.OK:
		return ok
	case cell.Depth:
		return failDeepVariant
	case cell.Full:
		return failFull
	default: // a number beyond doubles, which no message makes
		return failJSON
	}
}

// eachField calls visit for the fields of a small message; bytes is set for
// length-delimited ones, v for varints, others are only checked. What visit does not
// know it answers with failUnknown: it is counted and skipped.
func (b *Batch) eachField(s []byte, visit func(num protowire.Number, v uint64, bytes []byte) fail) fail {
	for i := 0; i < len(s); {
		var tag, v uint64
		if tag, i = varint(s, i); i < 0 {
			return failTruncated
		}
		var field []byte
		num, typ := protowire.DecodeTag(tag)
		switch typ {
		case protowire.VarintType:
			if v, i = varint(s, i); i < 0 {
				return failTruncated
			}
			field = nil
		case protowire.BytesType:
			if v, i = varint(s, i); i < 0 || v > uint64(len(s)-i) {
				return failTruncated
			}
			field = s[i : i+int(v) : i+int(v)]
			i += int(v)
		default:
			n, failed := skip(tag, s[i:])
			if failed != ok {
				return failed
			}
			b.unknown++
			i += n
			continue
		}
		if num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
			return failTag
		}
		switch failed := visit(num, v, field); failed {
		case ok:
		case failUnknown:
			b.unknown++
		default:
			return failed
		}
	}
	return ok
}

// appendMask joins the paths of a field mask with commas.
func (b *Batch) appendMask(dst, s []byte, _ int) ([]byte, fail) {
	first := true
	failed := b.eachField(s, func(num protowire.Number, _ uint64, path []byte) fail {
		if num != 1 || path == nil {
			return failUnknown
		}
		if !cell.ValidUTF8(path) {
			return failUTF8
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, path...)
		return ok
	})
	return dst, failed
}

// appendText takes the string of field 1, the last one if there are several.
func (b *Batch) appendText(dst, s []byte, _ int) ([]byte, fail) {
	failed := b.eachField(s, func(num protowire.Number, _ uint64, text []byte) fail {
		if num != 1 || text == nil {
			return failUnknown
		}
		if !cell.ValidUTF8(text) {
			return failUTF8
		}
		dst = append(dst[:0], text...)
		return ok
	})
	return dst, failed
}

// maxScale bounds the digits that the scale of a decimal can add.
const maxScale = 1000

// decimal decodes confluent.type.Decimal: an unscaled two's complement number, big
// endian, and its scale.
func (b *Batch) decimal(f *field, c *column.Column, s []byte, row int) fail {
	var unscaled []byte
	scale := int32(0)
	failed := b.eachField(s, func(num protowire.Number, v uint64, raw []byte) fail {
		switch {
		case num == 1 && raw != nil:
			unscaled = raw
		case num == 3 && raw == nil:
			scale = int32(v)
		case num == 2 && raw == nil: // the precision, which the digits show
		default:
			return failUnknown
		}
		return ok
	})
	if failed != ok {
		return failed
	}
	if scale < -maxScale || scale > maxScale || len(unscaled) > maxScale {
		return failDecimal
	}
	if f.conv == convDecimalText {
		b.scratch = cell.AppendDecimal(b.scratch[:0], cell.Big(unscaled), int(scale))
		if !c.SetBytes(row, b.scratch) {
			return failFull
		}
		return ok
	}
	if scale == f.scale && len(unscaled) <= 16 {
		return storeDecimal(c, row, cell.Words(unscaled), f.digits)
	}
	n, exact := rescale(cell.Big(unscaled), scale, f.scale)
	if !exact || n.BitLen() > 127 {
		return failDecimal
	}
	return storeDecimal(c, row, decimal128.FromBigInt(n), f.digits)
}

func storeDecimal(c *column.Column, row int, n decimal128.Num, digits int32) fail {
	if !n.FitsInPrecision(digits) {
		return failDecimal
	}
	c.Set16(row, n.LowBits(), uint64(n.HighBits()))
	return ok
}

// rescale changes the scale of a decimal and reports whether that lost nothing.
func rescale(n *big.Int, from, to int32) (*big.Int, bool) {
	diff := int64(to) - int64(from)
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(diff, -diff)), nil)
	if diff >= 0 {
		return n.Mul(n, power), true
	}
	rest := new(big.Int)
	n.QuoRem(n, power, rest)
	return n, rest.Sign() == 0
}
