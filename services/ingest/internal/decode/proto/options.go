// Package proto decodes Protobuf records straight from the wire into Arrow
// columns.
//
// Candidate derives the columns that a message type wants. Once a target schema
// is agreed on (schema.Reconcile), Compile turns message type and target into a
// Plan, and the plan's batches decode record after record into it. A batch knows
// each field by its wire tag in a dense table, writes values by row number into
// lazy columns, and takes a bad record's row back without a trace. The rules of
// the mapping are in docs/protobuf-mapping.md.
//
// Candidate, Compile and Plan are safe for concurrent use; a Batch belongs to one
// goroutine at a time.
package proto

import (
	"fmt"
	"math"

	"github.com/icestream/icestream/internal/variant"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// Version is the version of the mapping. It changes whenever the same record
// would be decoded into another row, and is part of a pipeline's revision.
const Version = 2

// Options choose between the alternatives of the mapping. The zero value is the
// default mapping.
type Options struct {
	// EnumAsInt maps enums to their number instead of their name.
	EnumAsInt bool
	// OneofCase adds a string column for each oneof, named like it, that holds
	// the name of the member that is set.
	OneofCase bool
	// TimeOfDayAsTime maps google.type.TimeOfDay to time instead of long. A table
	// with a time column cannot be read by Spark.
	TimeOfDayAsTime bool
	// TimestampNanos maps google.protobuf.Timestamp to timestamptz_ns instead of
	// timestamptz. Only tables of format version 3 have the type.
	TimestampNanos bool
	// Variant maps what has no fixed columns (recursion, Struct and its kin) to variant
	// instead of JSON text. Only tables of format version 3 have the type.
	Variant bool
	// NoteUnknown counts also the unknown fields that are lost inside JSON text,
	// so that Batch.Unknown grows with every record that has any.
	NoteUnknown bool
}

// maxDepth is how deep messages may nest in a record, as in Google's parsers.
const maxDepth = 10000

// maxNodes bounds the columns of one message type at all depths. Types that
// refer to each other in many ways could expand without end.
const maxNodes = 20000

// Reason codes of an Error: why a record cannot be a row.
const (
	ReasonTruncated = "truncated"
	ReasonTag       = "bad_tag"
	ReasonWire      = "bad_wire"
	ReasonUTF8      = "invalid_utf8"
	ReasonDepth     = "too_deep"
	ReasonTimestamp = "invalid_timestamp"
	ReasonDuration  = "invalid_duration"
	ReasonDate      = "invalid_date"
	ReasonTimeOfDay = "invalid_time_of_day"
	ReasonDecimal   = "invalid_decimal"
	ReasonJSON      = "invalid_json"
	ReasonRequired  = "required_missing"
	ReasonComplex   = "too_complex"
	ReasonOversized = "oversized"
)

// ErrBatchFull is returned by Append when the record does not fit into the batch any
// more; see cell.ErrBatchFull.
var ErrBatchFull = cell.ErrBatchFull

// Error is a record that cannot be decoded. Its field is a full name.
type Error = cell.Error

// fail is the outcome of one step of decoding; 0 is success. It is a number so
// that the hot path neither allocates nor compares interfaces.
type fail uint8

const (
	ok fail = iota
	failTruncated
	failTag
	failWire
	failUTF8
	failDepth
	failTimestamp
	failNanos
	failDuration
	failDate
	failTimeOfDay
	failDecimal
	failJSON
	failDeepVariant
	failRequired
	failComplex
	failFull
	failUnknown // of eachField's visit only: no failure
)

func (f fail) describe() (reason, detail string) {
	switch f {
	case failTruncated:
		return ReasonTruncated, "the record ends inside a value"
	case failTag:
		return ReasonTag, "a tag is not a valid field number and wire type"
	case failWire:
		return ReasonWire, "an unknown field or group is malformed"
	case failUTF8:
		return ReasonUTF8, "the string is not valid UTF-8"
	case failDepth:
		return ReasonDepth, fmt.Sprintf("messages nest deeper than %d", maxDepth)
	case failTimestamp:
		return ReasonTimestamp, "the timestamp is outside the years 0001 to 9999 or its nanos are outside 0 to 999999999"
	case failNanos:
		return cell.ReasonNanos, cell.DetailNanos
	case failDuration:
		return ReasonDuration, "the duration does not fit 64-bit nanoseconds, or its nanos are out of range or of another sign than its seconds"
	case failDate:
		return ReasonDate, "the date is partial or does not exist"
	case failTimeOfDay:
		return ReasonTimeOfDay, "the time of day is out of range"
	case failDecimal:
		return ReasonDecimal, "the decimal does not fit its column, or its scale is absurd"
	case failJSON:
		return ReasonJSON, "the message has no JSON form"
	case failDeepVariant:
		return ReasonDepth, fmt.Sprintf("values of a variant nest deeper than %d", variant.MaxDepth)
	case failRequired:
		return ReasonRequired, "a required field is missing"
	case failComplex:
		return ReasonComplex, "a field that should come once is repeated too often"
	case failFull:
		return ReasonOversized, fmt.Sprintf("the row is larger than a batch can be (%d bytes)", math.MaxInt32)
	default:
		return ReasonWire, "the record is malformed"
	}
}
