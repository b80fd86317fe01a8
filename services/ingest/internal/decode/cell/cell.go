// Package cell is what the decoders of several record formats share: the outcome of
// decoding one value, the checks of values that are the same whatever their bytes
// looked like, and the batch of columns that a record is taken back from.
package cell

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/icestream/icestream/services/ingest/internal/column"
)

// ErrBatchFull is returned by Append when the record does not fit into the batch's
// 32-bit offsets any more: finish the batch and append the record to the next one.
// It is no fault of the record.
var ErrBatchFull = errors.New("decoding record: the batch is full, finish it first")

// Error is a record that cannot be decoded. It is always the record's fault.
type Error struct {
	Format string // "Avro", "JSON", for people
	Reason string // short code, kept in the quarantine table
	Field  string // dotted path of the field, empty where it is not known
	Detail string
}

// Error is the fault in words.
func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("decoding %s record: %s", e.Format, e.Detail)
	}
	return fmt.Sprintf("decoding %s field %s: %s", e.Format, e.Field, e.Detail)
}

// Fail is the outcome of one step of decoding; 0 is success. It is a number so that
// the hot path neither allocates nor compares interfaces.
type Fail uint8

// What can be wrong with a record.
const (
	OK Fail = iota
	Truncated
	Trailing
	Length
	Varint
	Boolean
	Branch
	Symbol
	UTF8
	Depth
	Timestamp
	Date
	TimeOfDay
	Decimal
	UUID
	Base64
	Complex
	Syntax
	Type
	Range
	Duplicate
	Nanos
	Full
)

// MaxDepth is how deep values may nest in a record.
const MaxDepth = 1000

// MaxMaps is in how many maps a value with children may stand; one in more of them
// becomes JSON text. Arrow makes the array of a map's values twice, so each level of maps
// doubles the work of everything below it.
const MaxMaps = 8

// Describe is the reason code of a failure and the failure in words.
func (f Fail) Describe() (reason, detail string) {
	switch f {
	case Truncated:
		return "truncated", "the record ends inside a value"
	case Trailing:
		return "trailing_data", "there are bytes behind the record: it was written with another schema"
	case Length:
		return "bad_length", "a length or a count is negative or too large"
	case Varint:
		return "bad_varint", "a number has more digits than its type"
	case Boolean:
		return "bad_boolean", "a boolean is neither 0 nor 1"
	case Branch:
		return "bad_union", "a union has no such branch"
	case Symbol:
		return "bad_enum", "an enum has no such symbol"
	case UTF8:
		return "invalid_utf8", "the string is not valid UTF-8"
	case Depth:
		return "too_deep", fmt.Sprintf("values nest deeper than %d", MaxDepth)
	case Timestamp:
		return "invalid_timestamp", "the timestamp is malformed or outside the years 0001 to 9999"
	case Date:
		return "invalid_date", "the date is malformed, does not exist, or is outside the years 0001 to 9999"
	case TimeOfDay:
		return "invalid_time_of_day", "the time of day is malformed or out of range"
	case Decimal:
		return "invalid_decimal", "the decimal is malformed or does not fit its column"
	case UUID:
		return "invalid_uuid", "the text is not a UUID"
	case Base64:
		return "invalid_base64", "the text is not base64"
	case Complex:
		return "too_complex", "the record holds too many values without bytes"
	case Syntax:
		return "invalid_json", "the text is not JSON"
	case Type:
		return "wrong_type", "the value is not of the column's type"
	case Range:
		return "out_of_range", "the number does not fit its column exactly"
	case Duplicate:
		return "duplicate_key", "an object has a key twice"
	case Nanos:
		return ReasonNanos, DetailNanos
	case Full:
		return "oversized", fmt.Sprintf("the row is larger than a batch can be (%d bytes)", math.MaxInt32)
	default:
		return "malformed", "the record is malformed"
	}
}

const highBits = 0x8080808080808080

// ValidUTF8 looks at eight bytes at a time for any that is not ASCII, and only
// then at characters.
func ValidUTF8(s []byte) bool {
	n := len(s)
	switch {
	case n >= 8:
		var all uint64
		for j := 0; j+16 <= n; j += 16 {
			all |= binary.LittleEndian.Uint64(s[j:]) | binary.LittleEndian.Uint64(s[j+8:])
		}
		if n&8 != 0 {
			all |= binary.LittleEndian.Uint64(s[n&^15:])
		}
		all |= binary.LittleEndian.Uint64(s[n-8:])
		if all&highBits == 0 {
			return true
		}
	case n >= 4:
		if (binary.LittleEndian.Uint32(s)|binary.LittleEndian.Uint32(s[n-4:]))&0x80808080 == 0 {
			return true
		}
	default:
		var all byte
		for _, c := range s {
			all |= c
		}
		if all < 0x80 {
			return true
		}
	}
	return utf8.Valid(s)
}

// Bounds of instants and dates: the years 0001 to 9999, which every engine reads.
const (
	minMicros = -62135596800 * 1_000_000
	maxMicros = 253402300799*1_000_000 + 999_999
	minDays   = -719162
	maxDays   = 2932896
)

// DayMicros is the number of microseconds of a day.
const DayMicros = 24 * 60 * 60 * 1_000_000

// StoreMicros stores an instant in microseconds since 1970.
func StoreMicros(c *column.Column, row int, v int64) Fail {
	if v < minMicros || v > maxMicros {
		return Timestamp
	}
	c.Set8(row, uint64(v))
	return OK
}

// What is said about an instant that nanoseconds in 64 bits do not reach.
const (
	ReasonNanos = "invalid_timestamp_range"
	DetailNanos = "the timestamp is not between 1677-09-21T00:12:43.145224192Z and 2262-04-11T23:47:16.854775807Z, which is how far nanoseconds reach; timestamp: micros reaches the years 0001 to 9999"
)

// Nanoseconds is an instant in nanoseconds since 1970, if they reach it. nanos are 0
// to 999,999,999.
func Nanoseconds(seconds int64, nanos int32) (int64, bool) {
	const (
		firstSecond, firstNanos = -9223372037, 145224192
		lastSecond, lastNanos   = 9223372036, 854775807
	)
	if seconds < firstSecond || seconds == firstSecond && nanos < firstNanos ||
		seconds > lastSecond || seconds == lastSecond && nanos > lastNanos {
		return 0, false
	}
	return seconds*1_000_000_000 + int64(nanos), true // what the product overflows the sum takes back
}

// StoreNanos stores an instant in nanoseconds since 1970.
func StoreNanos(c *column.Column, row int, seconds int64, nanos int32) Fail {
	if seconds < minMicros/1_000_000 || seconds > maxMicros/1_000_000 {
		return Timestamp
	}
	v, ok := Nanoseconds(seconds, nanos)
	if !ok {
		return Nanos
	}
	c.Set8(row, uint64(v))
	return OK
}

// StoreDays stores a date in days since 1970.
func StoreDays(c *column.Column, row int, v int64) Fail {
	if v < minDays || v > maxDays {
		return Date
	}
	c.Set4(row, uint32(int32(v)))
	return OK
}

// StoreLong stores an integer in a long column, or in a decimal column that holds all
// longs.
func StoreLong(c *column.Column, row int, v int64) {
	if c.Type().ID() == arrow.DECIMAL128 {
		c.Set16(row, uint64(v), uint64(v>>63))
		return
	}
	c.Set8(row, uint64(v))
}

// StoreDecimal stores an unscaled number, if it has at most the given digits.
func StoreDecimal(c *column.Column, row int, n decimal128.Num, digits int32) Fail {
	if !n.FitsInPrecision(digits) {
		return Decimal
	}
	c.Set16(row, n.LowBits(), uint64(n.HighBits()))
	return OK
}

// StoreBytes stores a text or binary.
func StoreBytes(c *column.Column, row int, v []byte) Fail {
	if !c.SetBytes(row, v) {
		return Full
	}
	return OK
}

// Words reads up to 16 bytes of a big-endian number in two's complement.
func Words(b []byte) decimal128.Num {
	var high, low uint64
	if len(b) > 0 && b[0] >= 0x80 {
		high, low = math.MaxUint64, math.MaxUint64
	}
	for _, x := range b {
		high = high<<8 | low>>56
		low = low<<8 | uint64(x)
	}
	return decimal128.New(int64(high), low)
}

// Big reads a big-endian number in two's complement of any length.
func Big(b []byte) *big.Int {
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && bits.LeadingZeros8(b[0]) == 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}

// AppendDecimal writes an unscaled number and its scale as plain digits, without an
// exponent.
func AppendDecimal(dst []byte, n *big.Int, scale int) []byte {
	if n.Sign() < 0 {
		dst = append(dst, '-')
		n = new(big.Int).Neg(n)
	}
	digits := n.Append(nil, 10)
	if scale <= 0 {
		if n.Sign() == 0 {
			return append(dst, '0')
		}
		return append(append(dst, digits...), bytes.Repeat([]byte{'0'}, -scale)...)
	}
	if short := scale + 1 - len(digits); short > 0 {
		digits = append(bytes.Repeat([]byte{'0'}, short), digits...)
	}
	point := len(digits) - scale
	return append(append(append(dst, digits[:point]...), '.'), digits[point:]...)
}

const hexDigits = "0123456789abcdef"

// AppendUUID writes 16 bytes in the form with dashes.
func AppendUUID(dst, b []byte) []byte {
	for i, x := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[x>>4], hexDigits[x&15])
	}
	return dst
}

// AppendJSON writes valid UTF-8 as a JSON string.
func AppendJSON(dst, s []byte) []byte {
	dst = append(dst, '"')
	for _, x := range s {
		switch {
		case x == '"' || x == '\\':
			dst = append(dst, '\\', x)
		case x < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[x>>4], hexDigits[x&15])
		default:
			dst = append(dst, x)
		}
	}
	return append(dst, '"')
}
