package proto

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// encode makes wire bytes from Protobuf's text format.
func encode(t testing.TB, md protoreflect.MessageDescriptor, text string) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(md)
	require.NoError(t, prototext.UnmarshalOptions{AllowPartial: true}.Unmarshal([]byte(text), m))
	return marshal(t, m)
}

func marshal(t testing.TB, m protobuf.Message) []byte {
	t.Helper()
	b, err := protobuf.MarshalOptions{AllowPartial: true, Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return b
}

// table decodes records and reads the rows back.
type table struct {
	t     testing.TB
	md    protoreflect.MessageDescriptor
	batch *Batch
	names []string
}

func newTable(t testing.TB, text, name string, opts Options) *table {
	t.Helper()
	md := messageOf(t, text, name)
	return newTableFor(t, md, targetOf(t, md, opts), opts)
}

func newTableFor(t testing.TB, md protoreflect.MessageDescriptor, target *schema.Schema, opts Options) *table {
	t.Helper()
	plan, err := Compile(md, target, opts)
	require.NoError(t, err)
	tb := &table{t: t, md: md, batch: plan.NewBatch()}
	for _, n := range target.Mapped() {
		tb.names = append(tb.names, n.Name)
	}
	return tb
}

func (tb *table) text(text string) error { return tb.batch.Append(encode(tb.t, tb.md, text)) }

func (tb *table) rows() []fields {
	columns := tb.batch.Finish()
	var out []fields
	for i := range tb.batch.Rows() {
		out = append(out, arrowRow(tb.names, columns, i))
	}
	return out
}

func (tb *table) one(text string) fields {
	tb.t.Helper()
	tb.batch.Reset()
	require.NoError(tb.t, tb.text(text))
	return tb.rows()[0]
}

func reasonOf(t testing.TB, err error) string {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}

const one = `syntax = "proto3"; package p; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto"; import "google/protobuf/field_mask.proto"; import "google/protobuf/any.proto";
import "google/type/date.proto"; import "google/type/timeofday.proto"; import "google/type/decimal.proto";
import "confluent/type/decimal.proto"; import "confluent/meta.proto"; `

func requireReason(t testing.TB, want string, err error) {
	t.Helper()
	require.Equal(t, want, reasonOf(t, err))
}

// P1: unsigned 64-bit values above the signed maximum keep their value, alone, in
// lists, and in maps.
func TestUnsignedValuesAreLossless(t *testing.T) {
	tb := newTable(t, one+`message M { uint64 u = 1; fixed64 f = 2; repeated uint64 r = 3; map<string, fixed64> m = 4; uint32 w = 5; }`, "M", Options{})
	sum := new(big.Int)
	for _, v := range []uint64{1<<63 - 1, 1 << 63, math.MaxUint64} {
		row := tb.one(fmt.Sprintf(`u: %d f: %d r: %d r: 0 m { key: "k" value: %d } w: 4294967295`, v, v, v, v))
		want := new(big.Int).SetUint64(v)
		for _, got := range []any{row["u"], row["f"], row["r"].([]any)[0], row["m"].(map[any]any)["k"]} {
			require.Zero(t, want.Cmp(got.(*big.Int)))
		}
		require.EqualValues(t, 4294967295, row["w"])
		sum.Add(sum, row["u"].(*big.Int))
	}
	require.Equal(t, "36893488147419103230", sum.String())
}

// P2: every scalar kind at its ends, singular, repeated, and as a map value.
func TestEveryScalarKindIsExactAtItsEnds(t *testing.T) {
	kinds := map[string][]string{
		"int32": {"-2147483648", "0", "2147483647"}, "sint32": {"-2147483648", "0", "2147483647"}, "sfixed32": {"-2147483648", "0", "2147483647"},
		"int64": {"-9223372036854775808", "0", "9223372036854775807"}, "sint64": {"-9223372036854775808", "0", "9223372036854775807"},
		"sfixed64": {"-9223372036854775808", "0", "9223372036854775807"}, "uint32": {"0", "1", "4294967295"}, "fixed32": {"0", "1", "4294967295"},
		"uint64": {"0", "1", "18446744073709551615"}, "fixed64": {"0", "1", "18446744073709551615"},
		"float": {"-3.4028234663852886e+38", "0", "1e-45"}, "double": {"-1.7976931348623157e+308", "0", "5e-324"},
		"bool": {"false", "true"}, "string": {`""`, `"\u00e4"`}, "bytes": {`""`, `"\377\000"`},
	}
	for kind, values := range kinds {
		text := fmt.Sprintf(`%s message M { %s s = 1; repeated %s r = 2; map<string, %s> m = 3; optional %s o = 4; }`, one, kind, kind, kind, kind)
		tb := newTable(t, text, "M", Options{})
		for _, v := range values {
			record := encode(t, tb.md, fmt.Sprintf(`s: %s r: %s m { key: "k" value: %s } o: %s`, v, v, v, v))
			want, accepted, _ := oracle(tb.md, record)
			require.True(t, accepted)
			tb.batch.Reset()
			require.NoError(t, tb.batch.Append(record))
			require.True(t, same(tb.rows()[0], want), "%s %s: %v against %v", kind, v, tb.rows()[0], want)
			require.NotNil(t, want["o"])
		}
	}
}

// P4: an enum number that the schema does not know never gets another name.
func TestUnknownEnumNumberIsItsDecimalText(t *testing.T) {
	text := one + `enum E { ZERO = 0; ONE = 1; } message M { E e = 1; repeated E r = 2; map<string, E> m = 3; optional E o = 4; }`
	tb := newTable(t, text, "M", Options{})
	row := tb.one(`e: 100 r: -5 r: 1 m { key: "k" value: 7 } o: 0`)
	require.Equal(t, fields{"e": "100", "r": []any{"-5", "ONE"}, "m": map[any]any{"k": "7"}, "o": "ZERO"}, row)
	require.Equal(t, fields{"e": "ZERO", "r": []any{}, "m": map[any]any{}, "o": nil}, tb.one(``))

	numbers := newTable(t, text, "M", Options{EnumAsInt: true})
	require.EqualValues(t, 100, numbers.one(`e: 100`)["e"])
}

// P5: closed enums of proto2 follow the same rule as open ones: the number is kept.
func TestClosedEnumKeepsUnknownNumber(t *testing.T) {
	tb := newTable(t, `syntax = "proto2"; enum C { ONE = 1; TWO = 2; } message M { repeated C c = 1 [packed = true]; optional C s = 2; }`, "M", Options{})
	require.NoError(t, tb.batch.Append([]byte{0x0a, 3, 1, 99, 2, 0x10, 99}))
	require.Equal(t, fields{"c": []any{"ONE", "99", "TWO"}, "s": "99"}, tb.rows()[0])
}

// P7: unset, zero and set are told apart exactly where Protobuf can tell them.
func TestUnsetAndZero(t *testing.T) {
	plain := newTable(t, one+`message M { int32 i = 1; string s = 2; }`, "M", Options{})
	optional := newTable(t, one+`message M { optional int32 i = 1; optional string s = 2; }`, "M", Options{})
	old := newTable(t, `syntax = "proto2"; message M { optional int32 i = 1 [default = 7]; optional string s = 2 [default = "x"]; }`, "M", Options{})
	for _, tb := range []*table{plain, optional, old} {
		unset := fields{"i": nil, "s": nil}
		if tb == plain {
			unset = fields{"i": int64(0), "s": ""}
		}
		require.Equal(t, unset, tb.one(``))
		require.NoError(t, tb.batch.Append([]byte{0x08, 0, 0x12, 0})) // zero, spelled out
		require.Equal(t, fields{"i": int64(0), "s": ""}, tb.rows()[1])
		require.Equal(t, fields{"i": int64(3), "s": "y"}, tb.one(`i: 3 s: "y"`))
	}
}

// P8: each use of a type with a oneof has its own columns; a member set to its
// default is not null; the last member on the wire wins.
func TestOneofMembers(t *testing.T) {
	text := one + `message O { oneof k { string s = 1; int32 i = 2; In m = 3; } } message In { string a = 1; } message M { O x = 1; O y = 2; }`
	tb := newTable(t, text, "M", Options{})
	require.Equal(t, fields{
		"x": fields{"s": "", "i": nil, "m": nil},
		"y": fields{"s": nil, "i": nil, "m": fields{"a": ""}},
	}, tb.one(`x { s: "" } y { m {} }`))
	tb.batch.Reset()
	// x: s = "abc", then m.a = "q", then i = 0
	require.NoError(t, tb.batch.Append([]byte{0x0a, 12, 0x0a, 3, 'a', 'b', 'c', 0x1a, 3, 0x0a, 1, 'q', 0x10, 0}))
	require.Equal(t, fields{"s": nil, "i": int64(0), "m": nil}, tb.rows()[0]["x"])

	named := newTable(t, text, "M", Options{OneofCase: true})
	require.Equal(t, fields{"s": nil, "i": int64(4), "m": nil, "k": "i"}, named.one(`x { i: 4 }`)["x"])
	require.Equal(t, fields{"s": nil, "i": nil, "m": nil, "k": nil}, named.one(`x {}`)["x"])
}

// P10: recursion ends in JSON text; a deep record harms nobody.
func TestRecursionBecomesJSONText(t *testing.T) {
	tb := newTable(t, one+`message N { int32 v = 1; N next = 2; repeated N many = 3; map<string, N> by = 4; Other o = 5; } message Other { N back = 1; string s = 2; }`, "N", Options{})
	row := tb.one(`v: 1 next { v: 2 next { v: 3 } } many { v: 4 } many {} by { key: "k" value { v: 5 } } o { back { v: 6 } s: "x" }`)
	require.Equal(t, fields{
		"v": int64(1), "next": `{"v":2,"next":{"v":3}}`, "many": []any{`{"v":4}`, `{}`},
		"by": map[any]any{"k": `{"v":5}`}, "o": fields{"back": `{"v":6}`, "s": "x"},
	}, row)

	deep := []byte{0x08, 9}
	for range 100 {
		deep = append(protowire.AppendVarint([]byte{0x12}, uint64(len(deep))), deep...)
	}
	require.NoError(t, tb.batch.Append(deep))
	next := tb.rows()[1]["next"].(string)
	require.True(t, json.Valid([]byte(next)))
	require.Equal(t, 99, strings.Count(next, "next"))
	for range 12000 {
		deep = append(protowire.AppendVarint([]byte{0x12}, uint64(len(deep))), deep...)
	}
	requireReason(t, ReasonJSON, tb.batch.Append(deep))
	require.Equal(t, 2, tb.batch.Rows())
}

// P10: Struct, Value and ListValue are JSON text.
func TestStructIsJSONText(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.Struct s = 1; google.protobuf.Value v = 2; google.protobuf.ListValue l = 3; repeated google.protobuf.Value r = 4; }`, "M", Options{})
	require.Equal(t, fields{"s": `{"a":{"b":[1,null]}}`, "v": `"x"`, "l": `[true]`, "r": []any{`null`, `2.5`}}, tb.one(
		`s { fields { key: "a" value { struct_value { fields { key: "b" value { list_value { values { number_value: 1 } values { null_value: NULL_VALUE } } } } } } } }
		 v { string_value: "x" } l { values { bool_value: true } } r { null_value: NULL_VALUE } r { number_value: 2.5 }`))
	require.Equal(t, fields{"s": nil, "v": nil, "l": nil, "r": []any{}}, tb.one(``))
	requireReason(t, ReasonJSON, tb.text(`v { number_value: nan }`)) // NaN has no JSON form
}

// P11: an empty message keeps its presence, as field, oneof member and element.
func TestEmptyMessageKeepsPresence(t *testing.T) {
	tb := newTable(t, one+`message Ping {} message M { Ping p = 1; oneof k { Ping q = 2; int32 i = 3; } repeated Ping r = 4; map<int32, Ping> m = 5; }`, "M", Options{})
	here := fields{"present": true}
	require.Equal(t, fields{"p": here, "q": here, "i": nil, "r": []any{here, here}, "m": map[any]any{int64(1): here}},
		tb.one(`p {} q {} r {} r {} m { key: 1 value {} }`))
	require.Equal(t, fields{"p": nil, "q": nil, "i": nil, "r": []any{}, "m": map[any]any{}}, tb.one(``))
	require.NoError(t, tb.batch.Append([]byte{0x2a, 2, 0x08, 3})) // entry without a value
	require.Equal(t, map[any]any{int64(3): here}, tb.rows()[1]["m"])
}

// P13: entries longer than 127 bytes keep key and value.
func TestLongMapKeys(t *testing.T) {
	tb := newTable(t, one+`message M { map<string, string> m = 1; }`, "M", Options{})
	for _, n := range []int{1, 127, 128, 20000} {
		k := strings.Repeat("k", n)
		require.Equal(t, map[any]any{k: "v"}, tb.one(fmt.Sprintf(`m { key: %q value: "v" }`, k))["m"])
	}
}

// P14: lists and maps of structs, nested as one likes; a doubled key is won by
// the last entry, also when there are very many.
func TestNestedCollectionsAndDoubledKeys(t *testing.T) {
	tb := newTable(t, one+`enum E { Z = 0; A = 1; } message L { repeated string s = 1; map<string, int32> m = 2; }
		message M { map<string, L> a = 1; repeated L b = 2; map<int32, E> c = 3; map<bool, bytes> d = 4; map<uint64, int32> e = 5; }`, "M", Options{})
	row := tb.one(`a { key: "x" value { s: "1" s: "2" m { key: "q" value: 1 } } } b { s: "3" } b {} c { key: -1 value: A } d { key: true value: "z" }`)
	require.Equal(t, fields{
		"a": map[any]any{"x": fields{"s": []any{"1", "2"}, "m": map[any]any{"q": int64(1)}}},
		"b": []any{fields{"s": []any{"3"}, "m": map[any]any{}}, fields{"s": []any{}, "m": map[any]any{}}},
		"c": map[any]any{int64(-1): "A"}, "d": map[any]any{true: []byte("z")}, "e": map[any]any{},
	}, row)

	entry := func(k string, inner ...string) []byte {
		l := []byte{}
		for _, s := range inner {
			l = append(append(l, 0x0a, byte(len(s))), s...)
			l = append(l, 0x12, 4, 0x0a, 0, 0x10, s[0]) // inner map, always the key ""
		}
		e := append([]byte{0x0a, byte(len(k))}, k...)
		e = append(append(e, 0x12, byte(len(l))), l...)
		return append([]byte{0x0a, byte(len(e))}, e...)
	}
	var record []byte
	for _, e := range [][]byte{entry("k", "a", "b"), entry("o", "c"), entry("k", "d", "e", "f"), entry("k", "g")} {
		record = append(record, e...)
	}
	tb.batch.Reset()
	require.NoError(t, tb.batch.Append(record))
	require.NoError(t, tb.text(`a { key: "after" value { s: "s" } }`))
	rows := tb.rows()
	require.Equal(t, map[any]any{
		"k": fields{"s": []any{"g"}, "m": map[any]any{"": int64('g')}},
		"o": fields{"s": []any{"c"}, "m": map[any]any{"": int64('c')}},
	}, rows[0]["a"])
	require.Equal(t, []any{"s"}, rows[1]["a"].(map[any]any)["after"].(fields)["s"])
}

// A map that repeats a few keys a great many times takes linear time. With a scan
// per entry this test would take minutes.
func TestManyDoubledKeysAreNotQuadratic(t *testing.T) {
	tb := newTable(t, one+`message M { map<uint32, uint32> m = 1; repeated L l = 2; } message L { map<uint32, uint32> m = 1; }`, "M", Options{})
	var record, list []byte
	for i := range 300_000 {
		e := protowire.AppendVarint([]byte{0x08}, uint64(i%100_000))
		e = protowire.AppendVarint(append(e, 0x10), uint64(i))
		record = append(append(record, 0x0a, byte(len(e))), e...)
	}
	for range 100_000 { // two entries with the key 0 in each of many maps
		list = append(list, 0x12, 8, 0x0a, 2, 0x10, 1, 0x0a, 2, 0x10, 2)
	}
	start := time.Now()
	require.NoError(t, tb.batch.Append(append(record, list...)))
	require.Less(t, time.Since(start), 20*time.Second)
	row := tb.rows()[0]
	require.Len(t, row["m"], 100_000)
	require.EqualValues(t, 299_999, row["m"].(map[any]any)[int64(99_999)])
	require.Equal(t, map[any]any{int64(0): int64(2)}, row["l"].([]any)[99_999].(fields)["m"])
}

// P16: timestamps of the years 0001 and 9999 are exact, impossible nanos are the
// fault of their own record only (G8).
func TestTimestampRange(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.Timestamp t = 1; }`, "M", Options{})
	bad := 0
	for i := range 1000 {
		text := fmt.Sprintf(`t { seconds: %d }`, i)
		switch i {
		case 10:
			text = `t { nanos: -1 }`
		case 20:
			text = `t { nanos: 1000000000 }`
		case 30:
			text = `t { seconds: 253402300800 }`
		case 40:
			text = `t { seconds: -62135596801 }`
		case 50:
			text = `t { seconds: -62135596800 }`
		case 60:
			text = `t { seconds: 253402300799 nanos: 999999999 }`
		}
		if err := tb.text(text); err != nil {
			require.Equal(t, ReasonTimestamp, reasonOf(t, err))
			require.Contains(t, err.Error(), "p.M.t")
			bad++
		}
	}
	require.Equal(t, 4, bad)
	rows := tb.rows()
	require.Len(t, rows, 996)
	require.Equal(t, time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), rows[46]["t"])
	require.Equal(t, time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), rows[56]["t"])
}

// P17: all six digits of a microsecond are kept, before 1970 too.
func TestMicrosecondsAreKept(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.Timestamp t = 1; }`, "M", Options{})
	require.NoError(t, tb.text(`t { seconds: 1731508712 nanos: 229224000 }`))
	require.NoError(t, tb.text(`t { seconds: -2 nanos: 229224999 }`))
	require.NoError(t, tb.batch.Append([]byte{0x0a, 2, 0x08, 5, 0x0a, 3, 0x10, 0xe8, 0x07}), "two occurrences merge")
	col := tb.batch.Finish()[0].(*array.Timestamp)
	require.EqualValues(t, 1731508712229224, col.Value(0))
	require.EqualValues(t, -1770776, col.Value(1))
	require.EqualValues(t, 5000001, col.Value(2))
	require.Equal(t, arrow.Microsecond, col.DataType().(*arrow.TimestampType).Unit)
	require.Equal(t, "UTC", col.DataType().(*arrow.TimestampType).TimeZone)
}

// With timestamp: nanos every digit is kept, as far as 64 bits of them reach; what is beyond is the fault of its own
// record, and said to be so (G8; issue 4 point 3).
func TestNanosecondsAreKept(t *testing.T) {
	const text = one + `message M { google.protobuf.Timestamp t = 1; repeated google.protobuf.Timestamp r = 2; map<string, google.protobuf.Timestamp> m = 3; }`
	tb := newTable(t, text, "M", Options{TimestampNanos: true})
	require.NoError(t, tb.text(`t { seconds: 1731508712 nanos: 229224001 } r { nanos: 1 } r { seconds: -1 nanos: 999999999 } m { key: "k" value { nanos: 7 } }`))
	require.NoError(t, tb.batch.Append([]byte{0x0a, 2, 0x08, 5, 0x0a, 3, 0x10, 0xe9, 0x07}), "two occurrences merge")
	require.NoError(t, tb.text(`t { seconds: -9223372037 nanos: 145224192 }`))
	require.NoError(t, tb.text(`t { seconds: 9223372036 nanos: 854775807 }`))
	for _, bad := range []string{
		`t { seconds: -9223372037 nanos: 145224191 }`, `t { seconds: 9223372036 nanos: 854775808 }`,
		`t { seconds: -62135596800 }`, `t { seconds: 253402300799 }`, `r { seconds: 9223372037 }`,
	} {
		err := tb.text(bad)
		require.Equal(t, cell.ReasonNanos, reasonOf(t, err), bad)
		require.ErrorContains(t, err, "1677-09-21")
		require.ErrorContains(t, err, "timestamp: micros")
	}
	require.Equal(t, ReasonTimestamp, reasonOf(t, tb.text(`t { nanos: 1000000000 }`)))
	require.Equal(t, ReasonTimestamp, reasonOf(t, tb.text(`t { seconds: 253402300800 }`)))
	columns := tb.batch.Finish()
	col := columns[0].(*array.Timestamp)
	require.Equal(t, 4, col.Len())
	require.EqualValues(t, 1731508712229224001, col.Value(0))
	require.EqualValues(t, 5000001001, col.Value(1))
	require.EqualValues(t, math.MinInt64, col.Value(2))
	require.EqualValues(t, math.MaxInt64, col.Value(3))
	require.Equal(t, &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, col.DataType())
	r := columns[1].(*array.List).ListValues().(*array.Timestamp)
	require.Equal(t, []arrow.Timestamp{1, -1}, r.Values())
	require.EqualValues(t, 7, columns[2].(*array.Map).Items().(*array.Timestamp).Value(0))
}

// With json: variant what has no fixed columns is a value and no text, wherever it stands; a message without a JSON
// form is the fault of its record as before (G8; issue 4 point 3).
func TestWhatHasNoColumnsMayBeAVariant(t *testing.T) {
	const text = one + `message M { google.protobuf.Struct s = 1; repeated google.protobuf.Value l = 2; map<string, google.protobuf.ListValue> m = 3; M self = 4; string x = 5; }`
	tb := newTable(t, text, "M", Options{Variant: true})
	row := tb.one(`s { fields { key: "a" value { number_value: 1.5 } } fields { key: "b" value { null_value: 0 } } } l { string_value: "t" } l { bool_value: true }
		m { key: "k" value { values { number_value: -3 } } } self { x: "in" s { } }`)
	require.Equal(t, fields{
		"s": variantText([]byte(`{"a":1.5,"b":null}`)), "l": []any{`"t"`, `true`}, // text in lists and maps
		"m": map[any]any{"k": `[-3]`}, "self": variantText([]byte(`{"s":{},"x":"in"}`)), "x": "",
	}, row)
	require.Nil(t, tb.one(``)["s"], "unset is null")
	require.Equal(t, variantText([]byte(`{}`)), tb.one(`s { }`)["s"])
	tb.batch.Reset()
	requireReason(t, ReasonJSON, tb.text(`l { number_value: nan }`))
	require.NoError(t, tb.text(`x: "after"`))
	require.Len(t, tb.rows(), 1)
	kinds := map[string]string{}
	for _, n := range targetOf(t, tb.md, Options{}).Columns {
		kinds[n.Name] = n.Type.String()
	}
	require.Equal(t, map[string]string{"s": "string", "l": "list", "m": "map", "self": "string", "x": "string"}, kinds, "the default stays")
}

func TestDurationIsNanoseconds(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.Duration d = 1; }`, "M", Options{})
	require.EqualValues(t, 1500000001, tb.one(`d { seconds: 1 nanos: 500000001 }`)["d"])
	require.EqualValues(t, -1, tb.one(`d { nanos: -1 }`)["d"])
	require.Nil(t, tb.one(``)["d"])
	for _, bad := range []string{`d { seconds: 1 nanos: -1 }`, `d { nanos: 1000000000 }`, `d { seconds: 9223372037 }`, `d { seconds: 9223372036 nanos: 999999999 }`} {
		require.Equal(t, ReasonDuration, reasonOf(t, tb.text(bad)), bad)
	}
}

func TestDateAndTimeOfDay(t *testing.T) {
	text := one + `message M { google.type.Date d = 1; google.type.TimeOfDay t = 2; repeated google.type.Date r = 3; }`
	tb := newTable(t, text, "M", Options{})
	require.Equal(t, fields{"d": "2024-02-29", "t": int64(86399000001), "r": []any{"0001-01-01", nil}},
		tb.one(`d { year: 2024 month: 2 day: 29 } t { hours: 23 minutes: 59 seconds: 59 nanos: 1000 } r { year: 1 month: 1 day: 1 } r {}`))
	require.Nil(t, tb.one(`d {}`)["d"], "no date at all")
	for _, bad := range []string{`d { year: 2023 month: 2 day: 29 }`, `d { year: 2024 month: 2 }`, `d { month: 2 day: 3 }`, `d { year: 10000 month: 1 day: 1 }`} {
		require.Equal(t, ReasonDate, reasonOf(t, tb.text(bad)), bad)
	}
	require.EqualValues(t, 86400000000, tb.one(`t { hours: 24 }`)["t"])
	require.Equal(t, ReasonTimeOfDay, reasonOf(t, tb.text(`t { hours: 24 minutes: 1 }`)))
	asTime := newTable(t, text, "M", Options{TimeOfDayAsTime: true})
	require.EqualValues(t, 1000000, asTime.one(`t { seconds: 1 }`)["t"])
	require.Equal(t, ReasonTimeOfDay, reasonOf(t, asTime.text(`t { hours: 24 }`)))
}

func TestDecimals(t *testing.T) {
	tb := newTable(t, one+`message M {
		confluent.type.Decimal known = 1 [(confluent.field_meta) = { params: [{ key: "precision" value: "9" }, { key: "scale" value: "2" }] }];
		confluent.type.Decimal free = 2; google.type.Decimal text = 3; }`, "M", Options{})
	require.Equal(t, schema.DecimalOf(9, 2), targetOf(t, tb.md, Options{}).Column("known").Type)
	row := tb.one(`known { value: "\377\205" precision: 9 scale: 2 } free { value: "\001\000" scale: 3 } text { value: "1.50" }`)
	require.EqualValues(t, -123, row["known"].(*big.Int).Int64())
	require.Equal(t, "0.256", row["free"])
	require.Equal(t, "1.50", row["text"])
	require.EqualValues(t, 1200, tb.one(`known { value: "\014" scale: 0 }`)["known"].(*big.Int).Int64(), "12 is 12.00")
	require.EqualValues(t, 0, tb.one(`known {}`)["known"].(*big.Int).Int64())
	require.Equal(t, "-500", tb.one(`free { value: "\373" scale: -2 }`)["free"])
	require.Equal(t, ReasonDecimal, reasonOf(t, tb.text(`known { value: "\014" scale: 3 }`)), "0.012 does not fit two digits")
	require.Equal(t, ReasonDecimal, reasonOf(t, tb.text(`known { value: "\077\377\377\377\377" scale: 2 }`)), "too many digits")
	require.Equal(t, ReasonDecimal, reasonOf(t, tb.text(`free { value: "\001" scale: 2000000000 }`)))
}

func TestAnyAndFieldMask(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.Any a = 1; google.protobuf.FieldMask f = 2; }`, "M", Options{})
	require.Equal(t, fields{"a": fields{"type_url": "t/x", "value": []byte("v")}, "f": "a.b,c_d"}, tb.one(
		`a { type_url: "t/x" value: "v" } f { paths: "a.b" paths: "c_d" }`))
}

func TestWrappersAreNullableScalars(t *testing.T) {
	tb := newTable(t, `syntax = "proto3"; import "google/protobuf/wrappers.proto";
		message M { google.protobuf.Int64Value i = 1; google.protobuf.StringValue s = 2; google.protobuf.UInt64Value u = 3; repeated google.protobuf.BoolValue r = 4; }`, "M", Options{})
	row := tb.one(`i { value: 5 } s {} u { value: 18446744073709551615 } r { value: true } r {}`)
	require.EqualValues(t, 5, row["i"])
	require.Equal(t, any(""), row["s"])
	require.Equal(t, "18446744073709551615", row["u"].(*big.Int).String())
	require.Equal(t, []any{true, false}, row["r"])
	require.Equal(t, fields{"i": nil, "s": nil, "u": nil, "r": []any{}}, tb.one(``))
}
