// Package orders makes the records of `icestream dev` and knows what must become of each: a seeded generator of Protobuf
// orders (orders.proto), the ledger of what was produced, and the check that compares a table with the ledger.
//
// # Checksum of a row
//
// The generator computes a row's checksum from its own values, never by decoding. HashRows computes the same from the
// Arrow rows of a table, so agreement means that decoding, transport, storage and reading kept every value.
//
// The checksum is xxh3-64 over the canonical bytes of the mapped columns, one after another in the order of orders.proto,
// at every depth, found by name; other columns do not count. The canonical bytes of a value are:
//
//	null                  00
//	any other value       01 and then, by the kind of the column:
//	  int, long           8 bytes, little endian, two's complement (durations: nanoseconds)
//	  timestamp           8 bytes, little endian: microseconds since 1970, rounded down
//	  boolean             00 or 01
//	  float, double       8 bytes, little endian, as IEEE double; every NaN is 7ff8000000000001
//	  string, binary      uvarint length and the bytes (an enum is its value's name, or the number as text if unknown)
//	  decimal(20,0)       as string: its decimal text (uint64 and fixed64)
//	  struct              its fields (an empty message: the boolean field present)
//	  list                uvarint count and the elements
//	  map                 uvarint count and each key and value, ascending by the canonical bytes of the key
//
// So an unset optional, message or oneof member is null, an unset plain scalar is its default, and a repeated field or
// map is never null but empty. Units and nanos of an amount stay two columns.
//
// The checksum of a quarantined record is HashValue of the raw value.
package orders

import _ "embed" // for the schema

//go:embed orders.proto
var schemaText string

// MessageName is the full name of the message that the generator produces. It is not the first one of the file, so the
// message index list of a framed record is not the short form.
const MessageName = "shop.v1.Order"

// messageIndex is the place of Order among the messages of orders.proto.
const messageIndex = 7

// Schema returns the text of orders.proto. All its imports are well known, so it is registered without references.
func Schema() string { return schemaText }
