package proto

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
)

func TestUnknownFieldsAreSkippedAndCounted(t *testing.T) {
	tb := newTable(t, one+`message M { int32 a = 1; In in = 2; } message In { int32 b = 1; }`, "M", Options{})
	require.NoError(t, tb.batch.Append([]byte{0x08, 1, 0x98, 0x01, 5, 0x12, 4, 0x50, 1, 0x08, 2}))
	require.EqualValues(t, 2, tb.batch.Unknown())
	require.Equal(t, fields{"a": int64(1), "in": fields{"b": int64(2)}}, tb.rows()[0])
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
