// Package variant writes JSON texts as values of Iceberg's type variant and reads
// such values as JSON: the binary form of Parquet's Variant, version 1, a
// dictionary of keys (metadata) beside the value.
//
// Encoder belongs to one goroutine; JSON is safe for concurrent use. Neither knows
// Arrow or Parquet, so a process needs no Parquet library to make variants.
package variant

import "errors"

// MaxDepth is how deep objects and arrays may nest.
const MaxDepth = 1000

// What can be wrong with a text that is JSON.
var (
	ErrDuplicateKey = errors.New("an object has a key twice")
	ErrRange        = errors.New("a number is beyond what a double can hold")
	ErrDepth        = errors.New("values nest deeper than 1000")
	ErrSyntax       = errors.New("the text is not JSON")
)

// errMalformed says that bytes are no variant.
var errMalformed = errors.New("reading a variant: the bytes are malformed")

// Basic types, the two lowest bits of a value's first byte.
const (
	basicPrimitive = iota
	basicShort     // a string of less than 64 bytes
	basicObject
	basicArray
)

// Primitive types, the other six bits.
const (
	typeNull = iota
	typeTrue
	typeFalse
	typeInt8
	typeInt16
	typeInt32
	typeInt64
	typeDouble
	typeDecimal4
	typeDecimal8
	typeDecimal16
	typeDate
	typeTimestampTZ
	typeTimestamp
	typeFloat
	typeBinary
	typeString
	typeTime
	typeTimestampTZNanos
	typeTimestampNanos
	typeUUID
)

const (
	version    = 1
	maxShort   = 63
	smallCount = 255 // more members than that need four bytes to count
)

// width is the number of bytes that hold n.
func width(n int) int {
	switch {
	case n < 1<<8:
		return 1
	case n < 1<<16:
		return 2
	case n < 1<<24:
		return 3
	default:
		return 4
	}
}

func appendUint(b []byte, n, size int) []byte {
	for range size {
		b = append(b, byte(n))
		n >>= 8
	}
	return b
}
