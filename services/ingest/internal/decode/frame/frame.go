// Package frame takes the schema reference off a Kafka record value.
//
// Three forms are known: the Confluent prefix (magic byte 0, schema id of 4 bytes
// big endian), the header form of newer serializers (the record header
// __value_schema_id holds 00 and an id, or 01 and a GUID, the value is bare), and
// bare payloads whose schema is fixed by configuration. For Protobuf the reference
// ends with the path of the message in its file, as zig-zag varints, or as plain ones
// in an old form that only configuration can tell: ParseUnsigned.
//
// Nothing is copied and nothing is allocated: a Frame aliases its record.
package frame

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// HeaderName is the record header that holds the schema reference in the header
// form. Its name for the key of a record is KeyHeaderName.
const (
	HeaderName    = "__value_schema_id"
	KeyHeaderName = "__key_schema_id"
)

// MaxPath is the deepest nesting of message types that is followed.
const MaxPath = 64

// Form says where the schema reference stood.
type Form uint8

// The forms of a reference.
const (
	Fixed      Form = iota // no reference: the schema is configured
	PrefixID               // magic byte and id before the payload
	HeaderID               // id in a header
	HeaderGUID             // GUID in a header
)

// Frame is a record value taken apart.
type Frame struct {
	Form    Form
	ID      int32    // schema id, for PrefixID and HeaderID
	GUID    [16]byte // for HeaderGUID
	Index   []byte   // the message path as it stood on the wire, checked; empty for formats without
	Payload []byte   // the encoded message

	unsigned bool // the path is written in the old form
}

// Key names what a record is decoded with, for a cache. Two spellings of one
// message path give two keys, which is harmless.
type Key struct {
	Form  Form
	ID    int32
	GUID  [16]byte
	Index string
}

// Key is the cache key of the frame. Looking a map up with
// m[Key{..., string(f.Index)}] does not allocate; this method may.
func (f *Frame) Key() Key { return Key{Form: f.Form, ID: f.ID, GUID: f.GUID, Index: string(f.Index)} }

// Reference is the schema reference for people: "id 12" or "guid 3f2a...".
func (f *Frame) Reference() string {
	switch f.Form {
	case HeaderGUID:
		return "guid " + FormatGUID(f.GUID)
	case PrefixID, HeaderID:
		return fmt.Sprintf("id %d", f.ID)
	default:
		return "the configured schema"
	}
}

// FormatGUID writes a GUID the way registries do, with dashes.
func FormatGUID(g [16]byte) string {
	h := hex.EncodeToString(g[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseGUID reads what FormatGUID writes; dashes may be missing.
func ParseGUID(s string) (guid [16]byte, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != len(guid) {
		return guid, fmt.Errorf("reading GUID %q: it has not 32 hexadecimal digits", s)
	}
	return [16]byte(raw), nil
}

// Path is the message path as numbers: [1, 0] is the first message nested in the
// second one of the file. It is [0] for the one-byte shorthand.
func (f *Frame) Path() []int {
	number := zigzag
	if f.unsigned {
		number = plain
	}
	count, rest, _ := number(f.Index)
	if count == 0 {
		return []int{0}
	}
	path := make([]int, 0, count)
	for range count {
		var v int64
		v, rest, _ = number(rest)
		path = append(path, int(v))
	}
	return path
}

// Reason codes of an Error.
const (
	ReasonShort    = "frame_short"     // the value ends inside the prefix
	ReasonUnframed = "frame_missing"   // the value does not start with the magic byte
	ReasonIndex    = "frame_bad_index" // the message path is malformed
	ReasonHeader   = "frame_bad_header"
)

// Error says why a record has no readable schema reference. It is a fault of the
// record, never of a dependency.
type Error struct {
	Reason string
	Detail string
}

// Error is the fault in words.
func (e *Error) Error() string { return "reading schema reference: " + e.Detail }

// ParseUnsigned is Parse for records of Protobuf serializers from before 2020 and of
// those that were told to write the deprecated form: the numbers of the message path
// in the prefix are plain varints, not zig-zag ones. The two forms cannot be told
// apart by looking, so it is for configuration to say. The header form is younger
// and always zig-zag.
func ParseUnsigned(value, header []byte) (Frame, error) {
	if header != nil {
		return parseHeader(value, header, true)
	}
	f, err := Parse(value, nil, false)
	if err != nil {
		return Frame{}, err
	}
	f.unsigned = true
	if f.Index, f.Payload, err = splitIndex(f.Payload, plain); err != nil {
		return Frame{}, err
	}
	return f, nil
}

// Parse takes a value apart. header is the value of the HeaderName header, nil
// if the record has none; it goes before the prefix, and the value is then bare.
// indexed says whether the format has a message path (Protobuf has). A null value
// (a tombstone) is the caller's business. Every error is an *Error.
func Parse(value, header []byte, indexed bool) (Frame, error) {
	if header != nil {
		return parseHeader(value, header, indexed)
	}
	if len(value) == 0 {
		return Frame{}, &Error{ReasonShort, "the value is empty; set the pipeline's schema if its records are not framed"}
	}
	if value[0] != 0 {
		return Frame{}, &Error{ReasonUnframed, fmt.Sprintf(
			"the value starts with byte 0x%02x, not with the magic byte 0x00; set the pipeline's schema if its records are not framed", value[0])}
	}
	if len(value) < 5 {
		return Frame{}, &Error{ReasonShort, fmt.Sprintf("the value has %d bytes, the prefix alone has 5", len(value))}
	}
	f := Frame{Form: PrefixID, ID: int32(binary.BigEndian.Uint32(value[1:]))}
	rest := value[5:]
	if indexed {
		var err error
		if f.Index, rest, err = splitIndex(rest, zigzag); err != nil {
			return Frame{}, err
		}
	}
	f.Payload = rest
	return f, nil
}

// Unframed is the frame of a bare payload whose schema is configured.
func Unframed(value []byte) Frame { return Frame{Form: Fixed, Payload: value} }

func parseHeader(value, header []byte, indexed bool) (Frame, error) {
	f := Frame{Payload: value}
	var rest []byte
	switch {
	case len(header) >= 5 && header[0] == 0:
		f.Form, f.ID = HeaderID, int32(binary.BigEndian.Uint32(header[1:]))
		rest = header[5:]
	case len(header) >= 17 && header[0] == 1:
		f.Form = HeaderGUID
		copy(f.GUID[:], header[1:])
		rest = header[17:]
	default:
		return Frame{}, &Error{ReasonHeader, fmt.Sprintf(
			"the header with the schema reference holds %d bytes that are neither 00 and an id of 4 bytes nor 01 and a GUID of 16", len(header))}
	}
	if !indexed {
		return f, nil
	}
	if len(rest) == 0 { // a reference without a path means the first message
		return f, nil
	}
	index, rest, err := splitIndex(rest, zigzag)
	if err != nil {
		return Frame{}, err
	}
	if len(rest) > 0 {
		return Frame{}, &Error{ReasonHeader, fmt.Sprintf("the header with the schema reference has %d bytes after its message path", len(rest))}
	}
	f.Index = index
	return f, nil
}

// splitIndex cuts the message path off and checks it. The path is written in the
// given kind of numbers.
func splitIndex(b []byte, number func([]byte) (int64, []byte, bool)) (index, rest []byte, err error) {
	count, rest, ok := number(b)
	if !ok || count < 0 || count > MaxPath {
		return nil, nil, &Error{ReasonIndex, "the length of the message path is malformed"}
	}
	for i := range count {
		var v int64
		if v, rest, ok = number(rest); !ok || v < 0 || v > 1<<20 {
			return nil, nil, &Error{ReasonIndex, fmt.Sprintf("entry %d of %d in the message path is malformed", i+1, count)}
		}
	}
	return b[:len(b)-len(rest)], rest, nil
}

// zigzag reads one zig-zag varint. An empty input gives 0 and false.
func zigzag(b []byte) (int64, []byte, bool) {
	v, n := binary.Varint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

// plain reads a varint; one beyond an int64 is negative, and refused as such.
func plain(b []byte) (int64, []byte, bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return int64(v), b[n:], true
}
