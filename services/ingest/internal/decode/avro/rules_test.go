package avro

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// columns are the candidate's columns as "name type", nested ones in braces.
func columns(nodes []*schema.Node) string {
	var out []string
	for _, n := range nodes {
		s := n.Name + " " + n.Type.String()
		if len(n.Kids) > 0 {
			s += "{" + columns(n.Kids) + "}"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func parse(t testing.TB, text string, refs ...string) *Schema {
	t.Helper()
	s, err := Parse(text, refs...)
	require.NoError(t, err)
	return s
}

func record(fields ...string) string {
	return `{"type":"record","name":"shop.Order","fields":[` + strings.Join(fields, ",") + `]}`
}

func f(name, typ string) string { return fmt.Sprintf(`{"name":%q,"type":%s}`, name, typ) }

func TestTypesBecomeColumns(t *testing.T) { // docs/other-formats.md, Avro, each row of the table
	for typ, want := range map[string]string{
		`"boolean"`: "boolean", `"int"`: "int", `"long"`: "long", `"float"`: "float", `"double"`: "double",
		`"string"`: "string", `"bytes"`: "binary",
		`{"type":"fixed","name":"F","size":4}`:                              "binary",
		`{"type":"enum","name":"E","symbols":["A"]}`:                        "string",
		`{"type":"array","items":"int"}`:                                    "list{element int}",
		`{"type":"map","values":"int"}`:                                     "map{key string, value int}",
		`{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}`: "struct{a int}",
		`{"type":"record","name":"R","fields":[]}`:                          "struct{present boolean}",
		`["null","int"]`:          "int",
		`["int"]`:                 "int",
		`["int","null","long"]`:   "long",
		`["float","double"]`:      "double",
		`["null","int","string"]`: "struct{int int, string string}",
		`[{"type":"fixed","name":"a.X","size":1},{"type":"fixed","name":"b.X","size":1}]`:              "struct{X binary, X_2 binary}",
		`{"type":"array","items":"null"}`:                                                              "list{element boolean}",
		`{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}`:                             "decimal(9,2)",
		`{"type":"bytes","logicalType":"decimal","precision":39,"scale":2}`:                            "string",
		`{"type":"bytes","logicalType":"decimal","precision":2,"scale":3}`:                             "binary",
		`{"type":"fixed","name":"F","size":4,"logicalType":"decimal","precision":9}`:                   "decimal(9,0)",
		`{"type":"int","logicalType":"date"}`:                                                          "date",
		`{"type":"int","logicalType":"time-millis"}`:                                                   "long",
		`{"type":"long","logicalType":"time-micros"}`:                                                  "long",
		`{"type":"long","logicalType":"timestamp-millis"}`:                                             "timestamptz",
		`{"type":"long","logicalType":"timestamp-micros"}`:                                             "timestamptz",
		`{"type":"long","logicalType":"timestamp-nanos"}`:                                              "timestamptz",
		`{"type":"long","logicalType":"local-timestamp-millis"}`:                                       "timestamp",
		`{"type":"string","logicalType":"uuid"}`:                                                       "string",
		`{"type":"fixed","name":"F","size":16,"logicalType":"uuid"}`:                                   "string",
		`{"type":"fixed","name":"F","size":12,"logicalType":"duration"}`:                               "struct{months long, days long, millis long}",
		`{"type":"long","logicalType":"date"}`:                                                         "long",
		`{"type":"string","logicalType":"made-up"}`:                                                    "string",
		`["null",{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]}]}]`:         "struct{next string}",
		`{"type":"record","name":"T","fields":[{"name":"k","type":{"type":"array","items":"T"}}]}`:     "struct{k list{element string}}",
		`{"type":"record","name":"T","fields":[{"name":"k","type":{"type":"map","values":"shop.T"}}]}`: "struct{k map{key string, value string}}",
		`{"type":{"type":"string","avro.java.string":"String"}}`:                                       "string",
	} {
		c, err := parse(t, record(f("x", typ))).Candidate()
		require.NoError(t, err, typ)
		require.Equal(t, "x "+want, columns(c.Columns), typ)
		c.AssignIDs()
		require.NoError(t, c.Validate())
	}
}

func TestFieldOfNullMakesNoColumn(t *testing.T) {
	c, err := parse(t, record(f("a", `"null"`), f("b", `["null"]`), f("c", `"int"`))).Candidate()
	require.NoError(t, err)
	require.Equal(t, "c int", columns(c.Columns))
}

func TestSchemaThatIsNoRecordIsOneColumn(t *testing.T) {
	for _, text := range []string{`"string"`, `string`, `{"type":"string"}`, `["null","string"]`} {
		s := parse(t, text)
		c, err := s.Candidate()
		require.NoError(t, err)
		require.Equal(t, "value string", columns(c.Columns))
		require.False(t, s.IsRecord())
	}
	_, err := parse(t, `"null"`).Candidate()
	require.ErrorContains(t, err, "no column")
}

func TestNamesAreResolved(t *testing.T) { // F6, interop F10
	c, err := parse(t, record(f("userId", `"int"`), f("userid", `"int"`), f("_lsn", `"int"`))).Candidate()
	require.NoError(t, err)
	require.Equal(t, "userId int, userid_2 int, _lsn_3 int", columns(c.Columns))
}

func TestReferencesAreNamedTypes(t *testing.T) { // F9
	address := `{"type":"record","name":"shop.Address","fields":[{"name":"city","type":"shop.City"}]}`
	city := `{"type":"enum","name":"City","namespace":"shop","symbols":["ROME"]}`
	c, err := parse(t, record(f("to", `"Address"`), f("from", `["null","shop.Address"]`)), city, address).Candidate()
	require.NoError(t, err)
	require.Equal(t, "to struct{city string}, from struct{city string}", columns(c.Columns))
	_, err = Parse(record(f("to", `"Address"`)))
	require.ErrorContains(t, err, `field to of shop.Order: the type "Address" is neither defined before nor among the references`)
}

func TestSchemasWithHarmlessFaultsAreRead(t *testing.T) {
	_, err := Parse(`{"type":"record","name":"my-topic.Value","fields":[{"name":"a","type":"int","default":null}]}`)
	require.NoError(t, err)
	for _, bad := range []string{
		``, `{`, `7`, `{"type":"record","name":"R"}`, `{"type":"record","fields":[]}`, `[]`, `["null",["null"]]`, `"x"`, `"string" "int"`,
		`{"type":"enum","name":"E"}`, `{"type":"fixed","name":"F"}`, `{"type":"array"}`, record(f("a", `"int"`), f("a", `"int"`)), strings.Repeat(`{"type":"array","items":`, 600),
	} {
		_, err := Parse(bad)
		require.Error(t, err, bad)
	}
}

func TestTypesThatExpandWithoutEndAreRefused(t *testing.T) {
	var defs []string
	prev := `"int"`
	for i := range 20 {
		prev = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"a","type":%s},{"name":"b","type":%q}]}`, i, prev, lastName(i))
		defs = append(defs, prev)
	}
	_, err := parse(t, prev).Candidate()
	require.ErrorContains(t, err, "more than 20000 columns")
	_ = defs
}

func lastName(i int) string {
	if i == 0 {
		return "int"
	}
	return fmt.Sprintf("R%d", i-1)
}

// reject decodes a record of one field x and gives the reason of the refusal.
func reject(t testing.TB, typ string, payload ...byte) string {
	t.Helper()
	s := parse(t, record(f("x", typ)))
	c, err := s.Candidate()
	require.NoError(t, err)
	p, err := Compile(s, schema.Reconcile(&schema.Schema{}, c, nil).Schema)
	require.NoError(t, err)
	err = p.NewBatch().Append(payload)
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*cell.Error](err)
	require.True(t, ok)
	if e.Reason != "trailing_data" {
		require.Contains(t, e.Error(), "x")
	}
	return e.Reason
}

// timestamp: nanos keeps the nanoseconds of the types that have them, and leaves the
// others and their reach alone (issue 4 point 3).
func TestNanosecondsAreKept(t *testing.T) {
	long := func(logical string) string { return fmt.Sprintf(`{"type":"long","logicalType":%q}`, logical) }
	text := record(f("n", long("timestamp-nanos")), f("l", long("local-timestamp-nanos")), f("u", long("timestamp-micros")), f("o", `["null",`+long("timestamp-nanos")+`]`))
	x := newTool(t, text, Options{Nanos: true})
	kinds := map[string]string{}
	for _, n := range x.nodes {
		kinds[n.Name] = n.Type.String()
	}
	require.Equal(t, map[string]string{"n": "timestamptz_ns", "l": "timestamp_ns", "u": "timestamptz", "o": "timestamptz_ns"}, kinds)
	var payload []byte
	for _, v := range []int64{1_700_000_000_123_456_789, math.MinInt64, 5} {
		payload = binary.AppendVarint(payload, v)
	}
	payload = binary.AppendVarint(append(payload, 2), -1)
	require.NoError(t, x.batch.Append(payload))
	arrays := x.batch.Finish()
	for i, want := range []int64{1_700_000_000_123_456_789, math.MinInt64, 5, -1} {
		require.EqualValues(t, want, arrays[i].(*array.Timestamp).Value(0))
	}
	plain := parse(t, text)
	c, err := plain.Candidate()
	require.NoError(t, err)
	require.Equal(t, "timestamptz", c.Column("n").Type.String(), "the default stays")
}

// json: variant makes a record inside itself a variant.
func TestARecordInsideItselfMayBeAVariant(t *testing.T) {
	const text = `{"type":"record","name":"N","fields":[{"name":"v","type":"int"},{"name":"next","type":["null","N"]}]}`
	x := newTool(t, text, Options{Variant: true})
	require.Equal(t, "variant", x.nodes[1].Type.String())
	require.NoError(t, x.batch.Append([]byte{2, 2, 4, 2, 6, 0}))
	require.NoError(t, x.batch.Append([]byte{2, 0}))
	v := x.batch.Finish()[1].(*array.Struct)
	require.True(t, v.IsNull(1))
	out, err := variant.JSON(nil, v.Field(0).(*array.Binary).Value(0), v.Field(1).(*array.Binary).Value(0))
	require.NoError(t, err)
	require.JSONEq(t, `{"v":2,"next":{"v":3,"next":null}}`, string(out))
}

func TestMalformedRecordsAreRefusedWithTheReason(t *testing.T) { // F8, P1
	require.Equal(t, "truncated", reject(t, `"int"`))
	require.Equal(t, "truncated", reject(t, `"int"`, 0x80))
	require.Equal(t, "bad_varint", reject(t, `"int"`, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01))
	require.Equal(t, "bad_varint", reject(t, `"long"`, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	require.Equal(t, "trailing_data", reject(t, `"int"`, 2, 2))
	require.Equal(t, "bad_length", reject(t, `"string"`, 1))
	require.Equal(t, "truncated", reject(t, `"string"`, 4, 'a'))
	require.Equal(t, "invalid_utf8", reject(t, `"string"`, 2, 0xff))
	require.Equal(t, "invalid_utf8", reject(t, `{"type":"map","values":"int"}`, 2, 2, 0xff, 2, 0))
	require.Equal(t, "bad_boolean", reject(t, `"boolean"`, 2))
	require.Equal(t, "bad_union", reject(t, `["null","int"]`, 4))
	require.Equal(t, "bad_union", reject(t, `["null","int"]`, 1))
	require.Equal(t, "bad_enum", reject(t, `{"type":"enum","name":"E","symbols":["A"]}`, 2))
	require.Equal(t, "truncated", reject(t, `"double"`, 1, 2, 3))
	require.Equal(t, "truncated", reject(t, `{"type":"fixed","name":"F","size":4}`, 1))
	require.Equal(t, "truncated", reject(t, `{"type":"array","items":"int"}`, 100, 2))
	require.Equal(t, "bad_length", reject(t, `{"type":"array","items":"int"}`, 1, 1, 2))
	require.Equal(t, "too_complex", reject(t, `{"type":"array","items":"null"}`, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0))
	require.Equal(t, "invalid_date", reject(t, `{"type":"int","logicalType":"date"}`, 0xfe, 0xff, 0xff, 0xff, 0x0f))
	require.Equal(t, "invalid_time_of_day", reject(t, `{"type":"int","logicalType":"time-millis"}`, 1))
	require.Equal(t, "invalid_timestamp", reject(t, `{"type":"long","logicalType":"timestamp-millis"}`, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	require.Equal(t, "invalid_decimal", reject(t, `{"type":"bytes","logicalType":"decimal","precision":2}`, 4, 0x10, 0))
	require.Empty(t, reject(t, `{"type":"bytes","logicalType":"decimal","precision":2}`, 38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99))
	deep := make([]byte, 3000)
	for i := range deep {
		deep[i] = 2 // the branch with another one inside
	}
	require.Equal(t, "too_deep", reject(t, `{"type":"record","name":"N","fields":[{"name":"next","type":["null","N"]}]}`, deep...))
	require.Equal(t, "too_deep", reject(t, `{"type":"record","name":"N","fields":[{"name":"next","type":"N"}]}`))
}

func TestRecordsThatGrowBeyondAnyMessageAreRefused(t *testing.T) {
	symbol := strings.Repeat("A", 1<<10)
	tree := `{"type":"record","name":"T","fields":[{"name":"kids","type":{"type":"array","items":"T"}},{"name":"` + symbol + `","type":"null"}]}`
	for typ, payload := range map[string][]byte{
		`{"type":"array","items":{"type":"enum","name":"E","symbols":["` + symbol + `"]}}`: append([]byte{200, 1}, make([]byte, 101)...),
		tree: append([]byte{200, 1}, make([]byte, 101)...),
	} {
		x := newTool(t, record(f("x", typ)), Options{})
		require.NoError(t, x.batch.Append(payload))
		x.batch.Reset()
		x.batch.most = 50 << 10
		err := x.batch.Append(payload)
		e, ok := errors.AsType[*cell.Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "oversized", e.Reason)
		x.batch.most = 200 << 10
		require.NoError(t, x.batch.Append(payload))
		x.batch.most = 50 << 10
		require.ErrorIs(t, x.batch.Append(payload), cell.ErrBatchFull, "it may fit alone")
	}
}

// Each level of maps doubles the work that Arrow has with everything below it. With 25
// levels of maps a single batch took minutes.
func TestMapsInMapsEndInJSONText(t *testing.T) {
	const levels = 40
	for bottom, value := range map[string]any{
		`"int"`:                                    int32(7),
		`["null","int"]`:                           nil,
		`["null","int","string"]`:                  object{"string": "x"},
		`{"type":"array","items":"int"}`:           []any{int32(7)},
		record(f("a", `"int"`)):                    object{"a": int32(7)},
		`["null",` + record(f("a", `"int"`)) + `]`: nil,
	} {
		for _, maps := range []int{cell.MaxMaps, cell.MaxMaps + 1, levels} {
			typ, v := bottom, value
			for range maps {
				typ, v = `{"type":"map","values":`+typ+`}`, object{"k": v}
			}
			x := newTool(t, `{"type":"record","name":"Top","fields":[`+f("x", typ)+`]}`, Options{})
			payload, err := x.judge.Encode(object{"x": v})
			require.NoError(t, err, typ)
			require.NoError(t, x.batch.Append(payload), typ)
			x.compare(t, payload)
			depth := 0
			for at := x.nodes[0]; at.Type.Kind == schema.Map; at = at.Kids[1] {
				depth++
			}
			require.Equal(t, min(maps, cell.MaxMaps+1), depth)
		}
	}
}

func TestElementsThatFillTooManyColumnsAreRefused(t *testing.T) {
	wide := `["null","int","long","float","string","bytes","boolean"]`
	for _, typ := range []string{`{"type":"array","items":` + wide + `}`, `{"type":"map","values":` + wide + `}`} {
		x := newTool(t, record(f("x", typ)), Options{})
		payload := []byte{40}
		for i := range byte(20) {
			if strings.Contains(typ, "map") {
				payload = append(payload, 2, 'a'+i)
			}
			payload = append(payload, 2, 2)
		}
		payload = append(payload, 0)
		x.batch.Limit(20 * 7)
		require.NoError(t, x.batch.Append(payload))
		require.ErrorIs(t, x.batch.Append(payload), cell.ErrBatchFull, "the batch has no more of them")
		x.batch.Reset()
		require.NoError(t, x.batch.Append(payload))
		x.batch.Reset()
		x.batch.Limit(20*7 - 1)
		require.ErrorContains(t, x.batch.Append(payload), "larger than a batch can be")
	}
}

func TestOlderWritersFillTheirColumnsOfAWiderTable(t *testing.T) { // S5, S6
	old := parse(t, record(f("id", `"int"`), f("ratio", `"float"`), f("tags", `{"type":"array","items":"string"}`)))
	fresh := parse(t, record(f("id", `"long"`), f("ratio", `"double"`), f("note", `["null","string"]`), f("marks", `{"type":"array","items":"int"}`)))
	oldC, err := old.Candidate()
	require.NoError(t, err)
	freshC, err := fresh.Candidate()
	require.NoError(t, err)
	first := schema.Reconcile(&schema.Schema{}, oldC, nil)
	second := schema.Reconcile(first.Schema, freshC, first.Numbers)
	require.Empty(t, second.Refusals)
	again := schema.Reconcile(second.Schema, oldC, second.Numbers) // the older writer goes on
	require.False(t, again.Changed)
	p, err := Compile(old, again.Schema)
	require.NoError(t, err)
	b := p.NewBatch()
	require.NoError(t, b.Append([]byte{5, 0, 0, 0xc0, 0x3f, 2, 2, 'a', 0}))
	arrays := b.Finish()
	require.Equal(t, "id long, ratio double, tags list{element string}, note string, marks list{element int}", columns(again.Schema.Columns))
	require.Equal(t, "-3", arrays[0].ValueStr(0))
	require.Equal(t, "1.5", arrays[1].ValueStr(0))
	require.True(t, arrays[3].IsNull(0))
	require.False(t, arrays[4].IsNull(0), "a list is empty, never null")
}

// widened compiles a plan for a table of the given columns that holds the records as
// it is.
func widened(t testing.TB, s *Schema, columns ...*schema.Node) *Batch {
	t.Helper()
	c, err := s.Candidate()
	require.NoError(t, err)
	table := &schema.Schema{Columns: columns}
	table.AssignIDs()
	r := schema.Reconcile(table, c, nil)
	require.Empty(t, r.Refusals)
	p, err := Compile(s, r.Schema)
	require.NoError(t, err)
	return p.NewBatch()
}

func TestLongsOfEveryKindFillDecimalColumns(t *testing.T) { // S6
	whole := func(name string) *schema.Node { return &schema.Node{Name: name, Type: schema.DecimalOf(20, 0)} }
	b := widened(t, parse(t, record(
		f("l", `"long"`), f("i", `"int"`),
		f("us", `{"type":"long","logicalType":"time-micros"}`), f("ms", `["null",{"type":"int","logicalType":"time-millis"}]`),
		f("d", `{"type":"fixed","name":"D","size":12,"logicalType":"duration"}`),
		f("all", `{"type":"array","items":{"type":"long","logicalType":"time-micros"}}`),
	)), whole("l"), whole("i"), whole("us"), whole("ms"),
		&schema.Node{Name: "d", Type: schema.Of(schema.Struct), Kids: []*schema.Node{whole("months"), whole("days"), whole("millis")}},
		&schema.Node{Name: "all", Type: schema.Of(schema.List), Kids: []*schema.Node{whole("element")}})
	row := []byte{1, 3, 4, 2, 6, 1, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 4, 8, 10, 0}
	require.NoError(t, b.Append(row))
	require.NoError(t, b.Append(row))
	b.Undo()
	require.NoError(t, b.Append(row))
	var out []string
	for _, a := range b.Finish() {
		out = append(out, a.ValueStr(1))
	}
	require.Equal(t, []string{"-1", "-2", "2", "3000", `{"days":"2","millis":"4294967295","months":"1"}`, `["4","5"]`}, out)
}

func TestPartsOfADurationFindTheirColumnsByName(t *testing.T) {
	s := parse(t, record(f("d", `{"type":"fixed","name":"D","size":12,"logicalType":"duration"}`)))
	row := []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}
	long, text := schema.Of(schema.Long), schema.Of(schema.String)
	for _, c := range []struct {
		kids []*schema.Node
		want string
	}{
		{[]*schema.Node{{Name: "days", Type: long}, {Name: "millis", Type: schema.DecimalOf(19, 0)}, {Name: "months", Type: long}}, `{"days":2,"millis":"3","months":1}`},
		{[]*schema.Node{ // what was a record before
			{Name: "a", Type: text}, {Name: "list", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: schema.ElementName, Type: text}}},
		}, `{"a":null,"days":2,"list":[],"millis":3,"months":1}`},
	} {
		b := widened(t, s, &schema.Node{Name: "d", Type: schema.Of(schema.Struct), Kids: c.kids})
		require.NoError(t, b.Append(row))
		require.Equal(t, c.want, b.Finish()[0].ValueStr(0))
		require.NoError(t, b.AppendNull())
	}
	empty := parse(t, record(f("d", `{"type":"record","name":"E","fields":[]}`)))
	c, err := empty.Candidate()
	require.NoError(t, err)
	first := schema.Reconcile(&schema.Schema{}, c, nil)
	c, err = s.Candidate()
	require.NoError(t, err)
	p, err := Compile(s, schema.Reconcile(first.Schema, c, first.Numbers).Schema)
	require.NoError(t, err)
	b := p.NewBatch()
	require.NoError(t, b.Append(row))
	require.Equal(t, `{"days":2,"millis":3,"months":1,"present":true}`, b.Finish()[0].ValueStr(0))
	_, err = Compile(s, &schema.Schema{Columns: []*schema.Node{{Name: "d", Source: "d", Type: schema.Of(schema.Struct), Kids: []*schema.Node{
		{Name: "months", Source: "months", Type: text},
	}}}})
	require.ErrorContains(t, err, "cannot be written to column months of type string")
}

func TestTargetOfAnotherSchemaDoesNotCompile(t *testing.T) {
	s := parse(t, record(f("x", `"string"`)))
	_, err := Compile(s, &schema.Schema{Columns: []*schema.Node{{Name: "x", Source: "x", Type: schema.Of(schema.Long)}}})
	require.ErrorContains(t, err, "a value of type string cannot be written to column x of type long")
	_, err = Compile(s, &schema.Schema{Columns: []*schema.Node{{Name: "y", Type: schema.Of(schema.Long)}}})
	require.ErrorContains(t, err, "field x of shop.Order has no column")
}

func TestUndoTakesTheLastRowBack(t *testing.T) {
	x := newTool(t, record(f("a", `{"type":"array","items":"int"}`), f("s", `"string"`)), Options{})
	one, two := []byte{2, 2, 0, 2, 'x'}, []byte{4, 4, 6, 0, 2, 'y'}
	require.NoError(t, x.batch.Append(one))
	require.NoError(t, x.batch.Append(two))
	x.batch.Undo()
	require.NoError(t, x.batch.AppendNull())
	x.batch.Undo()
	require.NoError(t, x.batch.Append(two))
	x.compare(t, one, two)
}
