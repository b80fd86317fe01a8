package jsonrec

import (
	"encoding/base64"
	"math"
	"math/big"
	"strconv"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// fromText stores what a JSON string says.
func (b *Batch) fromText(v *value, s []byte, row int) cell.Fail {
	switch v.kind {
	case kindText:
		return cell.StoreBytes(v.col, row, s)
	case kindDate:
		days, ok := date(s)
		if !ok {
			return cell.Date
		}
		return cell.StoreDays(v.col, row, days)
	case kindTimestamp:
		seconds, nanos, ok := instant(s, v.to.Kind == schema.TimestampTZ || v.to.Kind == schema.TimestampTZNano)
		switch {
		case !ok:
			return cell.Timestamp
		case v.to.Kind.FormatVersion() > 2:
			return cell.StoreNanos(v.col, row, seconds, nanos)
		default:
			return cell.StoreMicros(v.col, row, seconds*1_000_000+int64(nanos)/1000)
		}
	case kindDecimal:
		if end, _ := scan(s, 0); end != len(s) {
			return cell.Decimal
		}
		return b.decimal(v, s, row, cell.Decimal)
	case kindBase64, kindDecimalBase64:
		raw, ok := b.base64(s)
		if !ok {
			return cell.Base64
		}
		if v.kind == kindBase64 {
			return cell.StoreBytes(v.col, row, raw)
		}
		if len(raw) > 16 {
			return cell.Decimal
		}
		return cell.StoreDecimal(v.col, row, cell.Words(raw), v.to.Precision)
	default:
		return cell.Type
	}
}

// base64 decodes the standard or the URL alphabet, with or without padding.
func (b *Batch) base64(s []byte) ([]byte, bool) {
	for len(s) > 0 && s[len(s)-1] == '=' {
		s = s[:len(s)-1]
	}
	for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if raw, err := e.Strict().AppendDecode(b.decoded[:0], s); err == nil {
			b.decoded = raw
			return raw, true
		}
	}
	return nil, false
}

// fromNumber stores a JSON number, whose text was checked.
func (b *Batch) fromNumber(v *value, s []byte, whole bool, row int) cell.Fail {
	switch v.kind {
	case kindInteger, kindEpochMillis, kindEpochDays, kindMillisOfDay:
		x, ok := integer(s, whole)
		switch {
		case v.kind == kindInteger && v.to.Kind == schema.Decimal:
			return b.decimal(v, s, row, cell.Range)
		case !ok:
			return cell.Range
		}
		return storeInteger(v, x, row)
	case kindFloat:
		return storeFloat(v, s, row)
	case kindDecimal:
		return b.decimal(v, s, row, cell.Decimal)
	default:
		return cell.Type
	}
}

func storeInteger(v *value, x int64, row int) cell.Fail {
	switch v.kind {
	case kindEpochMillis:
		if x > math.MaxInt64/1000 || x < math.MinInt64/1000 {
			return cell.Timestamp
		}
		return cell.StoreMicros(v.col, row, x*1000)
	case kindEpochDays:
		return cell.StoreDays(v.col, row, x)
	case kindMillisOfDay:
		if x < 0 || x >= cell.DayMicros/1000 {
			return cell.TimeOfDay
		}
		cell.StoreLong(v.col, row, x*1000)
		return cell.OK
	default: // kindInteger
	}
	if v.to.Kind == schema.Int {
		if x != int64(int32(x)) {
			return cell.Range
		}
		v.col.Set4(row, uint32(int32(x)))
		return cell.OK
	}
	v.col.Set8(row, uint64(x))
	return cell.OK
}

// integer is the number if it is a whole one of 64 bits: 12, and 12.0 and 1.2e1 too.
func integer(s []byte, whole bool) (int64, bool) {
	if !whole {
		n, ok := unscaled(s, 0)
		if !ok || !n.IsInt64() {
			return 0, false
		}
		return n.Int64(), true
	}
	negative := s[0] == '-'
	if negative {
		s = s[1:]
	}
	if len(s) > 19 {
		return 0, false
	}
	x := uint64(0)
	for _, c := range s {
		x = x*10 + uint64(c-'0')
	}
	switch {
	case negative && x <= 1<<63:
		return -int64(x), true
	case !negative && x < 1<<63:
		return int64(x), true
	}
	return 0, false
}

func storeFloat(v *value, s []byte, row int) cell.Fail {
	// The text is only read.
	x, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(s), len(s)), 64)
	if err != nil {
		return cell.Range
	}
	if v.to.Kind == schema.Double {
		v.col.Set8(row, math.Float64bits(x))
		return cell.OK
	}
	x, err = strconv.ParseFloat(unsafe.String(unsafe.SliceData(s), len(s)), 32)
	if err != nil {
		return cell.Range
	}
	v.col.Set4(row, math.Float32bits(float32(x)))
	return cell.OK
}

// decimal stores a number exactly, or refuses it with the given failure.
func (b *Batch) decimal(v *value, s []byte, row int, otherwise cell.Fail) cell.Fail {
	n, ok := small(s, v.to.Scale)
	if !ok {
		exact, fits := unscaled(s, v.to.Scale)
		if !fits || exact.BitLen() > 127 {
			return otherwise
		}
		n = decimal128.FromBigInt(exact)
	}
	if !n.FitsInPrecision(v.to.Precision) {
		return otherwise
	}
	v.col.Set16(row, n.LowBits(), uint64(n.HighBits()))
	return cell.OK
}

// small is the unscaled number of a short decimal without an exponent.
func small(s []byte, scale int32) (decimal128.Num, bool) {
	if len(s) > 19 {
		return decimal128.Num{}, false
	}
	x, negative, point, places := int64(0), false, false, int32(0)
	for _, c := range s {
		switch c {
		case '-':
			negative = true
		case '.':
			point = true
		case 'e', 'E':
			return decimal128.Num{}, false
		default:
			x = x*10 + int64(c-'0')
			if point {
				places++
			}
		}
	}
	if places > scale || scale-places+int32(len(s)) > 18 {
		return decimal128.Num{}, false
	}
	for ; places < scale; places++ {
		x *= 10
	}
	if negative {
		x = -x
	}
	return decimal128.FromI64(x), true
}

// maxExponent bounds the digits that an exponent can add.
const maxExponent = 400

// unscaled is the number times ten to the scale, if that is whole and of a size that
// can fit anywhere.
func unscaled(s []byte, scale int32) (*big.Int, bool) {
	var digits []byte
	exponent, at := 0, 0
	negative := s[0] == '-'
	if negative {
		at++
	}
	for point := false; at < len(s); at++ {
		c := s[at]
		if c == '.' {
			point = true
			continue
		}
		if c == 'e' || c == 'E' {
			e, err := strconv.Atoi(string(s[at+1:]))
			if err != nil {
				e = math.MaxInt32
				if s[at+1] == '-' {
					e = math.MinInt32
				}
			}
			exponent += e
			break
		}
		if len(digits) > 0 || c != '0' {
			digits = append(digits, c)
		}
		if point {
			exponent--
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits, exponent = digits[:len(digits)-1], exponent+1
	}
	if len(digits) == 0 {
		return new(big.Int), true
	}
	exponent += int(scale)
	if exponent < 0 || exponent > maxExponent || len(digits) > maxExponent {
		return nil, false
	}
	n, ok := new(big.Int).SetString(string(digits), 10)
	if !ok {
		return nil, false
	}
	n.Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(exponent)), nil))
	if negative {
		n.Neg(n)
	}
	return n, true
}

// date reads 2006-01-02 as days since 1970.
func date(s []byte) (int64, bool) {
	if len(s) != 10 || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	y, okY := number2(s[:4])
	m, okM := number2(s[5:7])
	d, okD := number2(s[8:])
	if !okY || !okM || !okD || m < 1 || m > 12 || d < 1 {
		return 0, false
	}
	t := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
	return t.Unix() / 86400, t.Day() == d && y >= 1
}

func number2(s []byte) (int, bool) {
	n := 0
	for _, c := range s {
		if c-'0' > 9 {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// instant reads 2006-01-02T15:04:05.999999999Z as seconds since 1970 and nanoseconds. T
// may be a blank or in lower case, what is finer than nanoseconds is cut. A zone (Z or an
// offset) must stand there, or must not. A leap second, which is the last one of a day,
// is the first of the next day, as in Unix time.
func instant(s []byte, zone bool) (seconds int64, nanos int32, valid bool) {
	if len(s) < 19 || s[10] != 'T' && s[10] != 't' && s[10] != ' ' || s[13] != ':' || s[16] != ':' {
		return 0, 0, false
	}
	days, ok := date(s[:10])
	h, okH := number2(s[11:13])
	m, okM := number2(s[14:16])
	sec, okS := number2(s[17:19])
	if !ok || !okH || !okM || !okS || h > 23 || m > 59 || sec > 60 {
		return 0, 0, false
	}
	leap := sec == 60
	seconds = days*daySeconds + int64((h*60+m)*60+sec)
	s = s[19:]
	if len(s) > 0 && s[0] == '.' {
		end := digits(s, 1)
		if end == 1 {
			return 0, 0, false
		}
		for i, unit := 1, int32(100_000_000); i < end && unit > 0; i, unit = i+1, unit/10 {
			nanos += int32(s[i]-'0') * unit
		}
		s = s[end:]
	}
	if !zone {
		return seconds, nanos, len(s) == 0 && (!leap || seconds%daySeconds == 0)
	}
	if len(s) == 1 && (s[0] == 'Z' || s[0] == 'z') {
		return seconds, nanos, !leap || seconds%daySeconds == 0
	}
	if len(s) != 6 || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, 0, false
	}
	h, okH = number2(s[1:3])
	m, okM = number2(s[4:])
	if !okH || !okM || h > 23 || m > 59 {
		return 0, 0, false
	}
	offset := int64(h*60+m) * 60
	if s[0] == '-' {
		offset = -offset
	}
	seconds -= offset
	return seconds, nanos, !leap || seconds%daySeconds == 0
}

// daySeconds is the number of seconds of a day.
const daySeconds = 24 * 60 * 60
