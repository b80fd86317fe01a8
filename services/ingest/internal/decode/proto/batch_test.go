package proto

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/icestream/icestream/internal/schema"
)

func TestUnknownFieldsAreSkippedAndCounted(t *testing.T) {
	tb := newTable(t, one+`message M { int32 a = 1; In in = 2; } message In { int32 b = 1; }`, "M", Options{})
	require.NoError(t, tb.batch.Append([]byte{0x08, 1, 0x98, 0x01, 5, 0x12, 4, 0x50, 1, 0x08, 2}))
	require.EqualValues(t, 2, tb.batch.Unknown())
	require.Equal(t, fields{"a": int64(1), "in": fields{"b": int64(2)}}, tb.rows()[0])
}

// With NoteUnknown a record has an unknown field if and only if the count grows,
// wherever the field is: in messages that become one value and in JSON text, too.
func TestUnknownFieldsAreCountedWhereverTheyAre(t *testing.T) {
	const text = `syntax = "proto2"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
import "google/protobuf/field_mask.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
import "google/type/date.proto"; import "google/type/timeofday.proto"; import "google/type/decimal.proto"; import "confluent/type/decimal.proto";
message M {
  optional google.protobuf.Timestamp ts = 1; optional google.protobuf.Duration d = 2; optional google.type.Date date = 3;
  optional google.type.TimeOfDay tod = 4; optional google.protobuf.FieldMask mask = 5; optional google.type.Decimal text = 6;
  optional confluent.type.Decimal dec = 7; optional google.protobuf.Int32Value w = 8; optional google.protobuf.Struct js = 9;
  optional Tree tree = 10; map<string, In> m = 11; repeated In l = 12; optional group G = 13 { optional int32 a = 1; }
  repeated int32 packed = 14; extensions 100 to 200;
}
message In { optional int32 b = 1; }
message Tree { optional Tree kid = 1; map<string, int32> m = 2; repeated int32 n = 3; optional google.protobuf.Any any = 4; extensions 100 to 200; }
extend M { optional int32 x = 100; }
extend Tree { optional int32 y = 100; }`
	tb := newTable(t, text, "M", Options{NoteUnknown: true})
	off := newTable(t, text, "M", Options{})
	for _, known := range []string{
		`ts { seconds: 1 nanos: 2 } d { seconds: 1 nanos: 2 } date { year: 2024 month: 1 day: 2 } tod { hours: 1 minutes: 2 seconds: 3 nanos: 4 }`,
		`mask { paths: ["a", "b"] } text { value: "1" } dec { value: "\001" precision: 3 scale: 1 } w { value: 3 }`,
		`js { fields { key: "a" value { list_value { values { number_value: 1 } } } } } m { key: "k" value { b: 1 } } l { b: 1 } G { a: 1 } packed: [1, 2]`,
		`tree { kid { kid { m { key: "k" value: 1 } n: [1, 2] any { type_url: "t/p.In" value: "\x08\x01" }  } } }`,
	} {
		require.NoError(t, tb.text(known), known)
		require.Zero(t, tb.batch.Unknown(), known)
	}
	const below = "\x98\x01\x05" // field 19
	at := func(path []int, s string) []byte {
		b := []byte(s)
		for _, num := range slices.Backward(path) {
			b = protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(num), protowire.BytesType), b)
		}
		return b
	}
	require.NoError(t, tb.batch.Append(at([]int{10, 1}, "\xa0\x06\x01")))
	require.Contains(t, tb.rows()[4]["tree"].(fields)["kid"], "[p.y]")
	require.Zero(t, tb.batch.Unknown(), "an extension that JSON text shows")
	for name, record := range map[string][]byte{
		"top": at(nil, below), "extension": at(nil, "\xa0\x06\x01"), "wire type": at(nil, "\x08\x01"),
		"timestamp": at([]int{1}, below), "timestamp 3": at([]int{1}, "\x18\x01"), "timestamp wire": at([]int{1}, "\x0d\x01\x00\x00\x00"),
		"duration 4": at([]int{2}, "\x20\x01"), "date 4": at([]int{3}, "\x08\x01\x10\x01\x18\x01\x20\x01"), "time of day 5": at([]int{4}, "\x28\x01"),
		"mask": at([]int{5}, below), "mask wire": at([]int{5}, "\x08\x01"), "mask fixed": at([]int{5}, "\x0d\x01\x00\x00\x00"), "text": at([]int{6}, below),
		"decimal": at([]int{7}, below), "decimal wire": at([]int{7}, "\x08\x01"), "wrapper": at([]int{8}, below),
		"struct": at([]int{9}, below), "in struct": at([]int{9, 1}, "\x0a\x01k\x12\x04\x20\x01\x48\x01"), "tree": at([]int{10, 1, 1}, below),
		"entry in tree": at([]int{10, 1, 2}, below), "wire type in tree": at([]int{10, 1}, "\x12\x00\x0d\x01\x00\x00\x00"),
		"any in tree": at([]int{10, 1, 4}, "\x0a\x06t/p.In\x12\x03"+below), "entry": at([]int{11}, below), "in map": at([]int{11, 2}, below),
		"in list": at([]int{12}, below), "in group": at(nil, "\x6b"+below+"\x6c"),
	} {
		before := tb.batch.Unknown()
		require.NoError(t, tb.batch.Append(record), name)
		require.Equal(t, before+1, tb.batch.Unknown(), name)
		require.NoError(t, off.batch.Append(record), name)
	}
	require.Equal(t, off.rows(), tb.rows()[5:], "the option changes no value")
}

func TestRequiredFieldsMustBeThereAtEveryDepth(t *testing.T) {
	tb := newTable(t, oldSyntax, "G2", Options{})
	require.Equal(t, ReasonRequired, reasonOf(t, tb.text(`req { may: "x" }`)))
	require.Equal(t, ReasonRequired, reasonOf(t, tb.text(`reqs { must: 1 } reqs {}`)))
	require.Equal(t, ReasonRequired, reasonOf(t, tb.text(`reqm { key: "k" value {} }`)))
	require.NoError(t, tb.text(`req { must: 0 } reqs { must: 1 } reqm { key: "k" value { must: 2 } }`))
	require.Equal(t, 1, tb.batch.Rows())
}

// Strings that go to string columns are checked even where the writer's syntax
// would let bad ones pass, because readers of the table would fail.
func TestInvalidUTF8IsRefusedInEverySyntax(t *testing.T) {
	for _, syntax := range []string{"proto2", "proto3"} {
		tb := newTable(t, `syntax = "`+syntax+`"; message M { repeated string s = 1; map<string, string> m = 2; }`, "M", Options{})
		require.Equal(t, ReasonUTF8, reasonOf(t, tb.batch.Append([]byte{0x0a, 9, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 0xff})))
		require.Equal(t, ReasonUTF8, reasonOf(t, tb.batch.Append([]byte{0x12, 3, 0x0a, 1, 0xc0})))
		require.Zero(t, tb.batch.Rows())
	}
}

// S8: columns that the writer does not have are null, lists and maps empty, with
// the children they need.
func TestColumnsTheWriterLacksAreNull(t *testing.T) {
	wide := messageOf(t, one+`message M { int32 a = 1; In in = 2; repeated In r = 3; map<string, In> m = 4; string s = 5; uint64 u = 6; } message In { int32 b = 1; string c = 2; }`, "M")
	narrow := messageOf(t, one+`message M { int32 a = 1; }`, "M")
	candidate, err := Candidate(narrow, Options{})
	require.NoError(t, err)
	target := schema.Reconcile(targetOf(t, wide, Options{}), candidate, nil)
	require.False(t, target.Changed)
	tb := newTableFor(t, narrow, target.Schema, Options{})
	require.Equal(t, fields{"a": int64(3), "in": nil, "r": []any{}, "m": map[any]any{}, "s": nil, "u": nil}, tb.one(`a: 3`))
}

// S10: a table that is wider than the writer gets the same values.
func TestNarrowValuesAreWidened(t *testing.T) {
	text := one + `message M { %s a = 1; %s b = 2; repeated %s c = 3; %s d = 4; }`
	wide := messageOf(t, fmt.Sprintf(text, "int64", "double", "sint64", "uint64"), "M")
	narrow := messageOf(t, fmt.Sprintf(text, "int32", "float", "sint32", "int64"), "M")
	candidate, err := Candidate(narrow, Options{})
	require.NoError(t, err)
	target := schema.Reconcile(targetOf(t, wide, Options{}), candidate, nil)
	require.False(t, target.Changed)
	require.False(t, target.Refused(), "%v", target.Refusals)
	tb := newTableFor(t, narrow, target.Schema, Options{})
	row := tb.one(`a: -7 b: 0.5 c: -2147483648 c: 3 d: -9`)
	require.EqualValues(t, -7, row["a"])
	require.InDelta(t, 0.5, row["b"], 0)
	require.Equal(t, []any{int64(math.MinInt32), int64(3)}, row["c"])
	require.EqualValues(t, -9, row["d"].(*big.Int).Int64())
}

// S2: the column that kept the presence of an empty message stays filled when the
// message gets fields.
func TestEmptyMessageThatGetsFieldsKeepsItsPresenceColumn(t *testing.T) {
	v1 := messageOf(t, one+`message P {} message M { P p = 1; }`, "M")
	v2 := messageOf(t, one+`message P { string present = 1; int32 n = 2; } message M { P p = 1; }`, "M")
	c1, err := Candidate(v1, Options{})
	require.NoError(t, err)
	c2, err := Candidate(v2, Options{})
	require.NoError(t, err)
	first := schema.Reconcile(&schema.Schema{}, c1, nil)
	second := schema.Reconcile(first.Schema, c2, first.Numbers)
	require.True(t, second.Changed)
	tb := newTableFor(t, v2, second.Schema, Options{})
	require.Equal(t, fields{"present": true, "present_1": "x", "n": int64(0)}, tb.one(`p { present: "x" }`)["p"])
	again := schema.Reconcile(second.Schema, c1, second.Numbers)
	require.False(t, again.Changed, "%v", again.Changes)
	old := newTableFor(t, v1, again.Schema, Options{})
	require.Equal(t, fields{"present": true, "present_1": nil, "n": nil}, old.one(`p {}`)["p"])
}

func TestTombstoneRowIsNullWithEmptyCollections(t *testing.T) {
	tb := newTable(t, one+`enum E { Z = 0; } message In { int32 b = 1; } message M { int32 a = 1; In in = 2; repeated In r = 3; map<string, In> m = 4; string s = 5; E e = 6; }`, "M", Options{})
	require.NoError(t, tb.text(`a: 1 s: "x"`))
	require.NoError(t, tb.batch.AppendNull())
	require.NoError(t, tb.text(`a: 2`))
	rows := tb.rows()
	require.Equal(t, fields{"a": nil, "in": nil, "r": []any{}, "m": map[any]any{}, "s": nil, "e": nil}, rows[1])
	require.Equal(t, fields{"a": int64(2), "in": nil, "r": []any{}, "m": map[any]any{}, "s": "", "e": "Z"}, rows[2])
}

func TestFieldRepeatedWithoutEndIsRefusedInTime(t *testing.T) {
	tb := newTable(t, one+`message M { google.protobuf.FieldMask f = 1; int32 a = 2; }`, "M", Options{})
	var record []byte
	for range 200_000 {
		record = append(record, 0x0a, 3, 0x0a, 1, 'x')
	}
	require.Equal(t, ReasonComplex, reasonOf(t, tb.batch.Append(record)))
	require.NoError(t, tb.text(`a: 1`))
	require.Equal(t, fields{"f": nil, "a": int64(1)}, tb.rows()[0])
}

func TestTypesThatExpandWithoutEndAreRefused(t *testing.T) {
	var text strings.Builder
	text.WriteString(one)
	for i := range 12 { // each type has all others: 12! paths
		fmt.Fprintf(&text, "message T%d {", i)
		for j := range 12 {
			fmt.Fprintf(&text, "T%d f%d = %d;", j, j, j+1)
		}
		text.WriteString("}")
	}
	_, err := Candidate(messageOf(t, text.String(), "T0"), Options{})
	require.ErrorContains(t, err, "p.T0")
}

// S11, interop F10: names that collide or are reserved are renamed, always the
// same way.
func TestCollidingNamesAreRenamed(t *testing.T) {
	md := messageOf(t, one+`message M { int32 userid = 2; int32 userId = 1; int32 _lsn = 3; int32 _file = 4; In in = 5; } message In { int32 _pos = 1; int32 _POS = 2; }`, "M")
	c, err := Candidate(md, Options{})
	require.NoError(t, err)
	var names []string
	c.Walk(func(path string, _ *schema.Node) { names = append(names, path) })
	require.Equal(t, []string{"userid_2", "userId", "_lsn_3", "_file_4", "in", "in._pos", "in._POS_2"}, names)
}

func TestCompileRefusesATargetThatWasNotMadeForTheType(t *testing.T) {
	md := messageOf(t, one+`message M { string a = 1; int32 b = 2; }`, "M")
	target := targetOf(t, md, Options{})
	target.Column("a").Type = schema.Of(schema.Long)
	_, err := Compile(md, target, Options{})
	require.ErrorContains(t, err, "p.M.a")
	target = targetOf(t, md, Options{})
	target.Columns = target.Columns[:1]
	_, err = Compile(md, target, Options{})
	require.ErrorContains(t, err, "p.M.b")
}

func TestFullBatchRefusesAndKeepsItsRows(t *testing.T) {
	tb := newTable(t, one+`message M { string s = 1; }`, "M", Options{})
	tb.batch.limit = 30
	require.NoError(t, tb.text(`s: "0123456789"`))
	require.ErrorIs(t, tb.text(`s: "01234567890123456789"`), ErrBatchFull)
	require.Equal(t, fields{"s": "0123456789"}, tb.rows()[0])
	tb.batch.Reset()
	require.NoError(t, tb.text(`s: "01234567890123456789"`))
	tb.batch.Reset()
	require.Equal(t, ReasonOversized, reasonOf(t, tb.text(`s: "0123456789012345678901234567890"`)))
}

// A date that is all zero is null in its column, but it is there: a required one
// is not missing. Found by the comparison on random schemas.
func TestRequiredDateThatIsZeroIsNotMissing(t *testing.T) {
	tb := newTable(t, `syntax = "proto2"; import "google/type/date.proto"; message M { required google.type.Date d = 1; optional int32 i = 2; }`, "M", Options{})
	require.Equal(t, fields{"d": nil, "i": int64(1)}, tb.one(`d {} i: 1`))
	requireReason(t, ReasonRequired, tb.text(`i: 1`))
}
