package proto

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// A message of 2,000 fields of every kind, up to the greatest field number, holds
// each value in its own column.
func TestMessageOfTwoThousandFields(t *testing.T) {
	kinds := []string{"int32", "string", "double", "bool", "bytes", "sint64", "fixed32", "float", "uint64"}
	var text strings.Builder
	text.WriteString(`syntax = "proto3"; package p; message M {`)
	for i := range 2000 {
		number := i + 1
		if i == 1999 {
			number = 536870911
		}
		fmt.Fprintf(&text, "%s %s f%d = %d;\n", []string{"", "optional", "repeated"}[i%3], kinds[i%len(kinds)], i, number)
	}
	text.WriteString("}")
	md := messageOf(t, text.String(), "M")
	d := newDifferential(t, md, Options{})
	wire := &wireMaker{r: rand.New(rand.NewPCG(1, 1))}
	d.run(20, func() []byte { return wire.message(nil, md, 4) })
	require.GreaterOrEqual(t, d.accepted, 3)
	require.Len(t, d.names, 2000)
}

// A hundred levels of types that are all different are a hundred structs, with
// lists and oneofs between them; the value at the bottom is there.
func TestHundredLevels(t *testing.T) {
	var text strings.Builder
	text.WriteString(`syntax = "proto3"; package p;`)
	for i := range 100 {
		shape := []string{"M%d next = 1;", "repeated M%d next = 1;", "optional M%d next = 1;", "oneof o { M%d next = 1; int32 other = 3; }"}[i%4]
		fmt.Fprintf(&text, "message M%d { "+shape+" string at = 2; }\n", i, i+1)
	}
	text.WriteString("message M100 { string at = 2; }")
	md := messageOf(t, text.String(), "M0")
	record := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "level 100")
	for i := 99; i >= 0; i-- {
		record = append(protowire.AppendVarint([]byte{0x0a}, uint64(len(record))), record...)
		record = protowire.AppendString(append(record, 0x12), fmt.Sprintf("level %d", i))
	}
	d := newDifferential(t, md, Options{})
	d.run(3, func() []byte { return record })
	require.Equal(t, 3, d.accepted)

	tb := newTableFor(t, md, targetOf(t, md, Options{}), Options{})
	require.NoError(t, tb.batch.Append(record))
	var at any = tb.rows()[0]
	for i := range 100 {
		next := at.(fields)["next"]
		if i%4 == 1 {
			next = next.([]any)[0]
		}
		at = next
	}
	require.Equal(t, fields{"at": "level 100"}, at)
}

// Each level of maps doubles the work that Arrow has with everything below it: a
// message inside more than eight of them is JSON text. With 25 levels of maps a single
// batch took minutes and 20 GB.
func TestMapsInMapsEndInJSONText(t *testing.T) {
	var text strings.Builder
	text.WriteString(`syntax = "proto3"; package p;`)
	const levels = 40
	for i := range levels {
		fmt.Fprintf(&text, "message M%d { map<string, M%d> next = 1; string at = 2; }\n", i, i+1)
	}
	fmt.Fprintf(&text, "message M%d { string at = 2; }", levels)
	md := messageOf(t, text.String(), "M0")
	record := protowire.AppendString([]byte{0x12}, "bottom")
	for i := levels - 1; i >= 0; i-- {
		record = append(protowire.AppendVarint([]byte{0x12}, uint64(len(record))), record...)
		record = append(protowire.AppendVarint([]byte{0x0a}, uint64(len(record))), record...)
		record = protowire.AppendString(append(record, 0x12), fmt.Sprintf("level %d", i))
	}
	d := newDifferential(t, md, Options{})
	d.run(3, func() []byte { return record })
	require.Equal(t, 3, d.accepted)

	tb := newTableFor(t, md, targetOf(t, md, Options{}), Options{})
	require.NoError(t, tb.batch.Append(record))
	var at any = tb.rows()[0]
	for range cell.MaxMaps {
		at = at.(fields)["next"].(map[any]any)[""]
	}
	json := at.(fields)["next"].(map[any]any)[""].(string)
	require.Contains(t, json, "bottom")
	require.Contains(t, json, "level 39")
}

// An element of two bytes stands for a cell in each column of its struct: a record that
// would fill more columns than any message could carry is refused.
func TestElementsThatFillTooManyColumnsAreRefused(t *testing.T) {
	const types = `syntax = "proto2"; package p;
message M { repeated E l = 1; map<int32, E> m = 2; repeated group G = 3 { optional int32 a = 1; optional F f = 2; } repeated W w = 4; }
message E { optional int32 a = 1; optional F f = 2; }
message F { optional int32 b = 1; repeated int64 c = 2; }
message W { repeated E l = 1; }`
	for name, text := range map[string]string{
		"list":         `l {} l {} l { a: 1 f { b: 1 } }`,
		"map":          `m { key: 1 value {} } m { key: 2 value {} } m { key: 3 value { a: 1 } }`,
		"group":        `G {} G {} G { a: 1 }`,
		"list in list": `w { l {} } w { l {} } w {}`,
	} {
		const cells = 3 * 5 // an element is itself, a, f, f.b, and f.c
		most := cells
		if name == "list in list" {
			most = 3*2 + 2*5
		}
		tb := newTable(t, types, "M", Options{})
		md := messageOf(t, types, "M")
		record := encode(t, md, text)
		tb.batch.cells.Limit(most)
		require.NoError(t, tb.batch.Append(record), name)
		require.ErrorIs(t, tb.batch.Append(record), cell.ErrBatchFull, "the batch has no more of them")
		require.NoError(t, tb.batch.Append(nil))
		require.NoError(t, tb.batch.AppendNull())
		tb.batch.Reset()
		require.Error(t, tb.batch.Append(append(slices.Clone(record), 0x0a)))
		require.NoError(t, tb.batch.Append(record), "what was refused costs nothing")
		tb.batch.Undo()
		require.NoError(t, tb.batch.Append(record), "nor does what was taken back")
		tb.batch.Reset()
		tb.batch.cells.Limit(most - 1)
		requireReason(t, ReasonOversized, tb.batch.Append(record))
	}
}

// Strings and bytes of one MiB stay whole, alone, in lists, and in maps; one with a
// bad character at its end is refused and harms nobody (G8).
func TestMebibyteStrings(t *testing.T) {
	tb := newTable(t, one+`message M { string s = 1; repeated string r = 2; map<string, bytes> m = 3; }`, "M", Options{})
	long := strings.Repeat("0123456789abcde\u00e4", 1<<20/17+1)[:1<<20]
	long = strings.ToValidUTF8(long, "")
	var b []byte
	b = protowire.AppendString(append(b, 0x0a), long)
	b = protowire.AppendString(append(b, 0x12), long)
	b = protowire.AppendString(append(b, 0x12), long)
	entry := protowire.AppendString(protowire.AppendString([]byte{0x0a}, "k"), "")[:3]
	entry = protowire.AppendString(append(entry, 0x12), long)
	b = protowire.AppendBytes(append(b, 0x1a), entry)
	require.NoError(t, tb.batch.Append(b))
	requireReason(t, ReasonUTF8, tb.batch.Append(protowire.AppendString([]byte{0x0a}, long+"\xc3")))
	require.NoError(t, tb.batch.Append(b))
	rows := tb.rows()
	require.Len(t, rows, 2)
	for _, row := range rows {
		require.Equal(t, fields{"s": long, "r": []any{long, long}, "m": map[any]any{"k": []byte(long)}}, row)
	}
}

// P10: recursion is found when the schema is loaded, wherever it hides: through maps,
// oneofs, lists, groups, and around several corners. Everything before it has columns.
func TestRecursionIsFoundWhereverItHides(t *testing.T) {
	for name, text := range map[string]string{
		"itself":  `syntax = "proto3"; message M { M a = 1; string s = 2; }`,
		"list":    `syntax = "proto3"; message M { repeated M a = 1; string s = 2; }`,
		"map":     `syntax = "proto3"; message M { map<string, M> a = 1; string s = 2; }`,
		"oneof":   `syntax = "proto3"; message M { oneof o { M a = 1; int32 i = 3; } string s = 2; }`,
		"group":   `syntax = "proto2"; message M { optional group A = 1 { optional M m = 1; } optional string s = 2; }`,
		"corners": `syntax = "proto3"; message M { map<int32, B> a = 1; string s = 2; } message B { oneof o { C c = 1; } } message C { repeated M m = 1; }`,
	} {
		md := messageOf(t, text, "M")
		candidate, err := Candidate(md, Options{})
		require.NoError(t, err, name)
		texts := 0
		candidate.Walk(func(path string, n *schema.Node) {
			if n.Type.Kind == schema.String && path != "s" && !strings.HasSuffix(path, ".key") {
				texts++
			}
		})
		require.Equal(t, 1, texts, "%s: one column is JSON", name)
		d := newDifferential(t, md, Options{})
		wire := &wireMaker{r: rand.New(rand.NewPCG(1, 2))}
		d.run(300, func() []byte { return wire.record(nil, md) })
		require.Greater(t, d.accepted, 100, name)
	}
}

// Extensions are unknown fields to the mapping: skipped, counted, and no harm. In JSON
// text, which is Protobuf's own, those that the schema has are written.
func TestExtensionsAreSkippedAndCounted(t *testing.T) {
	tb := newTable(t, `syntax = "proto2"; package p; message M { optional int32 a = 1; optional M again = 2; extensions 100 to 200; }
		extend M { optional string extra = 100; optional M more = 101; }`, "M", Options{})
	inner := protowire.AppendString(protowire.AppendTag([]byte{0x08, 2}, 100, protowire.BytesType), "x")
	record := protowire.AppendBytes([]byte{0x08, 1, 0x12}, inner)
	record = protowire.AppendString(protowire.AppendTag(record, 100, protowire.BytesType), "\xff\xfe")
	record = protowire.AppendBytes(protowire.AppendTag(record, 101, protowire.BytesType), inner)
	require.NoError(t, tb.batch.Append(record))
	require.Equal(t, fields{"a": int64(1), "again": `{"a":2,"[p.extra]":"x"}`}, tb.rows()[0])
	require.EqualValues(t, 2, tb.batch.Unknown())
}

// Names: reserved words of SQL and of Iceberg's partitions are no trouble, whatever
// differs only by case is renamed by number at every depth, and a name that the rule
// makes gives way to a field that has it already.
func TestNamesOfAnyKindHaveTheirOwnColumn(t *testing.T) {
	md := messageOf(t, `syntax = "proto3"; package p; message M {
		int32 select = 1; int32 SELECT = 2; int32 partition = 3; int32 table = 4; int32 file_path = 5; int32 pos = 6; int32 _row_id = 7;
		int32 a = 8; int32 A = 9; int32 a_9 = 10; int32 A_9 = 11; int32 _KAFKA = 12; int32 _kafka_12 = 13; map<string, In> m = 14; repeated In r = 15;
		oneof o { int32 x = 16; int32 X = 17; } int32 O = 18;
	} message In { int32 key = 1; int32 KEY = 2; int32 _lsn = 3; }`, "M")
	opts := Options{OneofCase: true}
	candidate, err := Candidate(md, opts)
	require.NoError(t, err)
	var top []string
	candidate.Walk(func(path string, _ *schema.Node) {
		if !strings.Contains(path, ".") {
			top = append(top, path)
		}
		if strings.HasPrefix(path, "r.element.") {
			require.Contains(t, []string{"r.element.key", "r.element.KEY_2", "r.element._lsn"}, path)
		}
	})
	require.Equal(t, []string{
		"select", "SELECT_2", "partition", "table", "file_path", "pos", "_row_id_7",
		"a", "A_9", "a_9_10", "A_9_11", "_KAFKA_12", "_kafka_12_13", "m", "r", "x", "X_17", "O", top[len(top)-1],
	}, top)
	require.NotEqual(t, "o", top[len(top)-1], "the column of the oneof gives way to the field")
	seen := map[string]bool{}
	for _, name := range top {
		require.False(t, seen[strings.ToLower(name)], name)
		seen[strings.ToLower(name)] = true
	}

	m := dynamicpb.NewMessage(md)
	for i := range md.Fields().Len() {
		if fd := md.Fields().Get(i); fd.Kind() == protoreflect.Int32Kind && fd.ContainingOneof() == nil {
			m.Set(fd, protoreflect.ValueOfInt32(int32(fd.Number())))
		}
	}
	tb := newTableFor(t, md, targetOf(t, md, opts), opts)
	require.NoError(t, tb.batch.Append(marshal(t, m)))
	row := tb.rows()[0]
	for i, name := range top[:13] {
		require.EqualValues(t, i+1, row[name], name)
	}
}
