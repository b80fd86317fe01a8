package jsonrec

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
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

func of(t testing.TB, text string, refs map[string]string) string {
	t.Helper()
	s, err := FromSchema(text, refs)
	require.NoError(t, err, text)
	c, err := s.Candidate()
	require.NoError(t, err, text)
	c.AssignIDs()
	require.NoError(t, c.Validate(), text)
	return columns(c.Columns)
}

func property(text string) string { return `{"type":"object","properties":{"x":` + text + `}}` }

func TestJSONSchemaBecomesColumns(t *testing.T) { // docs/other-formats.md, JSON Schema, each row of the table
	for text, want := range map[string]string{
		`{"type":"string"}`:                                              "string",
		`{"type":"boolean"}`:                                             "boolean",
		`{"type":"integer"}`:                                             "long",
		`{"type":"integer","connect.type":"int16"}`:                      "int",
		`{"type":"integer","maximum":18446744073709551615}`:              "decimal(38,0)",
		`{"type":"integer","maximum":9223372036854775807}`:               "long",
		`{"type":"number"}`:                                              "double",
		`{"type":"number","connect.type":"float32"}`:                     "float",
		`{"type":"string","format":"date-time"}`:                         "timestamptz",
		`{"type":"string","format":"date"}`:                              "date",
		`{"type":"string","format":"uuid"}`:                              "string",
		`{"type":"string","format":"time"}`:                              "string",
		`{"type":"string","contentEncoding":"base64"}`:                   "binary",
		`{"type":"string","connect.type":"bytes"}`:                       "binary",
		`{"type":["null","integer"]}`:                                    "long",
		`{"type":["integer","number"]}`:                                  "double",
		`{"type":["integer","string"]}`:                                  "string", // JSON
		`{}`:                                                             "string",
		`true`:                                                           "string",
		`{"enum":["A","B",null]}`:                                        "string",
		`{"enum":[1,2]}`:                                                 "long",
		`{"const":true}`:                                                 "boolean",
		`{"enum":[1,2.5]}`:                                               "double",
		`{"enum":[1,"a"]}`:                                               "string",
		`{"type":"array","items":{"type":"integer"}}`:                    "list{element long}",
		`{"type":"array","items":{"type":"null"}}`:                       "list{element boolean}",
		`{"type":"array"}`:                                               "string",
		`{"type":"array","items":[{"type":"integer"}]}`:                  "string",
		`{"type":"object"}`:                                              "string",
		`{"type":"object","additionalProperties":false}`:                 "struct{present boolean}",
		`{"type":"object","additionalProperties":{"type":"integer"}}`:    "map{key string, value long}",
		`{"type":"object","patternProperties":{"^a":{"type":"string"}}}`: "map{key string, value string}",
		`{"properties":{"a":{"type":"string"}}}`:                         "struct{a string}",
		`{"oneOf":[{"type":"null"},{"type":"object","properties":{"a":{"type":"string"}}}]}`:                                                   "struct{a string}",
		`{"anyOf":[{"type":"integer"},{"type":"number"}]}`:                                                                                     "double",
		`{"oneOf":[{"type":"integer"},{"type":"object","properties":{"a":{"type":"string"}}}]}`:                                                "string",
		`{"oneOf":[{"const":"a"},{"const":"b"}]}`:                                                                                              "string",
		`{"allOf":[{"properties":{"a":{"type":"string"}}},{"properties":{"b":{"type":"integer"}}}]}`:                                           "struct{a string, b long}",
		`{"allOf":[{"type":"string"}],"description":"d"}`:                                                                                      "string",
		`{"type":"integer","title":"org.apache.kafka.connect.data.Date","connect.type":"int32"}`:                                               "date",
		`{"type":"integer","title":"org.apache.kafka.connect.data.Time","connect.type":"int32"}`:                                               "long",
		`{"type":"integer","title":"org.apache.kafka.connect.data.Timestamp","connect.type":"int64"}`:                                          "timestamptz",
		`{"type":"number","title":"org.apache.kafka.connect.data.Decimal","connect.parameters":{"scale":"2","connect.decimal.precision":"9"}}`: "decimal(9,2)",
		`{"type":"string","title":"org.apache.kafka.connect.data.Decimal","connect.parameters":{"scale":"2"}}`:                                 "decimal(38,2)",
		`{"$ref":"#"}`: "string", // inside itself
		`{"type":"object","properties":{"b":{"type":"string","connect.index":1},"a":{"type":"integer","connect.index":0}}}`: "struct{a long, b string}",
	} {
		require.Equal(t, "x "+want, of(t, property(text), nil), text)
	}
	require.Equal(t, "value string", of(t, `{"type":"string"}`, nil))
	require.Equal(t, "value list{element long}", of(t, `{"type":"array","items":{"type":"integer"}}`, nil))
	require.Equal(t, "value string", of(t, `true`, nil))
	require.Equal(t, "a long, A_2 string, _lsn_3 string, _ string", of(t, `{"properties":{"a":{"type":"integer"},"A":{"type":"string"},"_lsn":{},"":{}}}`, nil))
}

// timestamp: nanos makes the date-times of a JSON Schema nanoseconds; instants that come in milliseconds stay what they are.
func TestDateTimesOfASchemaMayBeNanoseconds(t *testing.T) {
	plain, err := FromSchema(`{"properties":{"at":{"type":"string","format":"date-time"},"in":{"type":"array","items":{"type":"string","format":"date-time"}},
		"ms":{"type":"integer","title":"org.apache.kafka.connect.data.Timestamp","connect.type":"int64"}}}`, nil)
	require.NoError(t, err)
	x := newTool(t, plain.With(Options{Nanos: true}))
	require.NoError(t, x.batch.Append([]byte(`{"at":"2024-02-29T12:34:56.1234567899+01:00","in":["1969-12-31T23:59:59.999999999Z"],"ms":1}`)))
	arrays := x.batch.Finish()
	require.EqualValues(t, time.Date(2024, 2, 29, 11, 34, 56, 123456789, time.UTC).UnixNano(), arrays[0].(*array.Timestamp).Value(0))
	require.EqualValues(t, -1, arrays[1].(*array.List).ListValues().(*array.Timestamp).Value(0))
	require.Equal(t, arrow.Microsecond, arrays[2].DataType().(*arrow.TimestampType).Unit)
	c, err := plain.Candidate()
	require.NoError(t, err)
	require.Equal(t, "timestamptz", c.Column("at").Type.String(), "the default stays")
}

// json: variant makes the free parts of a schema, and a whole text, variants.
func TestFreePartsMayBeVariants(t *testing.T) {
	s, err := FromSchema(`{"properties":{"free":{},"l":{"type":"array","items":{"type":"object"}}}}`, nil)
	require.NoError(t, err)
	require.Equal(t, "free variant, l list{element string}", columns(target(t, s.With(Options{Variant: true})).Mapped()))
	x := newTool(t, Document().With(Options{Variant: true}))
	for _, text := range []string{` {"a": [1, 2.50]} `, `null`, `"x"`} {
		require.NoError(t, x.batch.Append([]byte(text)))
	}
	for text, reason := range map[string]string{`{"a":1,"a":2}`: "duplicate_key", `[1e999]`: "out_of_range", `{`: "truncated"} {
		e, ok := errors.AsType[*cell.Error](x.batch.Append([]byte(text)))
		require.True(t, ok)
		require.Equal(t, reason, e.Reason)
	}
	v := x.batch.Finish()[0].(*array.Struct)
	require.Equal(t, 3, v.Len())
	require.Zero(t, v.NullN(), "null is a value of a variant")
	for i, want := range []string{`{"a":[1,2.50]}`, `null`, `"x"`} {
		text, err := variant.JSON(nil, v.Field(0).(*array.Binary).Value(i), v.Field(1).(*array.Binary).Value(i))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

func target(t testing.TB, s *Shape) *schema.Schema {
	t.Helper()
	c, err := s.Candidate()
	require.NoError(t, err)
	return schema.Evolve(&schema.Schema{}, c, nil, schema.Options{FormatVersion: 3}).Schema
}

func TestPartsOfAllOfThatSayNoTypeChangeNothing(t *testing.T) {
	const (
		a       = `{"type":"object","properties":{"a":{"type":"string"}}}`
		b       = `{"properties":{"b":{"type":"integer"}}}`
		check   = `{"if":{"required":["a"]},"then":{"required":["b"]}}`
		tuple   = `{"type":"array","items":[{"type":"integer"}]}`
		several = `{"oneOf":[{"type":"string"},{"type":"integer"}]}`
	)
	all := func(parts ...string) string { return `"allOf":[` + strings.Join(parts, ",") + `]` }
	for inside, want := range map[string]string{
		all(`{"type":"object"}`):                         "string",
		all(`{"$ref":"#/definitions/free"}`):             "string",
		all(tuple):                                       "string",
		all(several):                                     "string",
		all(`{"$ref":"#"}`):                              "string",
		all(`{}`, `true`, check):                         "string",
		all(check) + `,"description":"d"`:                "string",
		all(`{"$ref":"#/definitions/free"}`, check):      "string",
		all(a, check, b):                                 "struct{a string, b long}",
		all(check, a, b):                                 "struct{a string, b long}",
		all(a, b, check):                                 "struct{a string, b long}",
		all(a, b) + `,"type":"object"`:                   "struct{a string, b long}",
		all(a, check) + `,"properties":{"c":{}}`:         "struct{a string, c string}",
		all(check, `{"type":"integer"}`):                 "long",
		all(a, check, `{"type":"integer"}`):              "string",
		all(a, b, `{"type":["object","null"]}`):          "struct{a string, b long}",
		all(`{"type":"null"}`, check):                    "",
		all(all2(`{"type":"object"}`), all2(a), all2(b)): "struct{a string, b long}",
		all(`{"additionalProperties":false}`, a, check):  "struct{a string}",
		all(`{"properties":{"m":`+a+`}}`, `{"properties":{"m":`+b+`}}`, `{"properties":{"m":{"properties":{"c":{}}}}}`): "struct{m struct{a string, b long, c string}}",
		all(`{"properties":{"m":`+a+`}}`, `{"properties":{"m":{"type":"integer"}}}`, `{"properties":{"m":`+b+`}}`):      "struct{m string}",
		all(a, `{"properties":{"a":{"minLength":1}}}`):                                                                  "struct{a string}",
		all(`{"properties":{"a":{"minLength":1}}}`, a, tuple):                                                           "struct{a string}",
	} {
		text := `{"type":"object","properties":{"x":{` + inside + `},"y":{}},"definitions":{"free":{"type":"object"}}}`
		if want != "" {
			want = "x " + want + ", "
		}
		require.Equal(t, want+"y string", of(t, text, nil), inside)
	}
	root := `{` + all(`{"$ref":"#/definitions/free"}`) + `,"definitions":{"free":{"type":"object"}}}`
	require.Equal(t, "value string", of(t, root, nil))
	s, err := FromSchema(`{"properties":{"meta":{`+all(`{"type":"object"}`)+`}}}`, nil)
	require.NoError(t, err)
	x := newTool(t, s)
	require.NoError(t, x.batch.Append([]byte(`{"meta":{"k":[1]}}`)))
	require.JSONEq(t, `{"k":[1]}`, x.batch.Finish()[0].ValueStr(0))
}

func all2(part string) string { return `{"allOf":[` + part + `]}` }

func TestJSONSchemaReferencesAreFollowed(t *testing.T) { // F9
	require.Equal(t, "a long, b struct{c string, up string}", of(t, `{"type":"object","properties":{
		"a":{"$ref":"#/definitions/n"},"b":{"$ref":"other.json#/$defs/o"}},"definitions":{"n":{"type":"integer"}}}`,
		map[string]string{"other.json": `{"$id":"http://x/other.json","$defs":{"o":{"type":"object","properties":{"c":{"type":"string"},"up":{"$ref":"#/$defs/o"}}}}}`}))
	require.Equal(t, "a struct{n long}", of(t, `{"properties":{"a":{"$ref":"http://x/other.json"}}}`,
		map[string]string{"other": `{"$id":"http://x/other.json","properties":{"n":{"$ref":"#num"}},"$defs":{"x":{"$anchor":"num","type":"integer"}}}`}))
	for _, ref := range []string{"gone.json", "#/definitions/gone", "#gone"} {
		_, err := FromSchema(property(`{"$ref":"`+ref+`"}`), nil)
		require.ErrorContains(t, err, "property x: $ref \""+ref)
	}
}

func TestReferencesWithTheSameLastNameAreToldApart(t *testing.T) { // F9
	const a, b = `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"b":{"type":"integer"}}}`
	from := func(id, ref string) string {
		return `{"$id":"` + id + `","type":"object","properties":{"x":{"$ref":"` + ref + `"}}}`
	}
	named := func(id, text string) string { return `{"$id":"` + id + `",` + text[1:] }
	for _, c := range []struct {
		root string
		refs map[string]string
		want string
	}{
		{from("", "common.json"), map[string]string{"common.json": a, "b/common.json": b}, "x struct{a string}"},
		{from("", "http://x/b/common.json"), map[string]string{"http://x/a/common.json": a, "http://x/b/common.json": b}, "x struct{b long}"},
		{from("http://x/a/root.json", "common.json"), map[string]string{"http://x/a/common.json": a, "http://x/b/common.json": b}, "x struct{a string}"},
		{from("http://x/a/root.json", "common.json#"), map[string]string{"1": named("http://x/a/common.json", a), "2": named("http://x/b/common.json", b)}, "x struct{a string}"},
		{from("http://x/a/root.json", "../b/common.json"), map[string]string{"1": named("http://x/a/common.json", a), "2": named("http://x/b/common.json", b)}, "x struct{b long}"},
		{from("", "b/order.json"), map[string]string{"a/common.json": a, "b/common.json": b, "b/order.json": from("", "common.json")}, "x struct{x struct{b long}}"},
		{from("", "b/order.json"), map[string]string{"a/common.json": a, "b/common.json": b, "b/order.json": from("", "../a/common.json")}, "x struct{x struct{a string}}"},
		{from("", "common.json"), map[string]string{"a/common.json": a, "b/other.json": b}, "x struct{a string}"},
		{from("", "http://x/a/common.json"), map[string]string{"common.json": a, "other.json": b}, "x struct{a string}"},
		{from("", "http://x/a/common.json"), map[string]string{"common.json": b, "a/common.json": a}, "x struct{a string}"},
		{from("", "common.json"), map[string]string{"a/common.json": named("http://x/common.json", a), "b/other.json": b}, "x struct{a string}"},
		{from("", "http://x/c.json"), map[string]string{"1": named("http://x/c.json", a), "2": named("http://x/c.json", a)}, "x struct{a string}"},
		{from("http://x/c.json", "c.json"), map[string]string{"a/other.json": b}, "x string"}, // inside itself
	} {
		for range 20 { // maps have another order each time
			require.Equal(t, c.want, of(t, c.root, c.refs), "%s %v", c.root, c.refs)
		}
	}
	for want, c := range map[string]struct {
		root string
		refs map[string]string
	}{
		`property x: $ref "common.json" may be any of a/common.json, b/common.json`: {
			from("", "common.json"), map[string]string{"a/common.json": a, "b/common.json": b},
		},
		`property x: $ref "common.json" may be any of 1, 2`: {
			from("", "common.json"), map[string]string{"1": named("http://x/a/common.json", a), "2": named("http://x/b/common.json", b)},
		},
		`property x: $ref "http://x/c.json" may be any of 1, 2`: {
			from("", "http://x/c.json"), map[string]string{"1": named("http://x/c.json", a), "2": named("http://x/c.json", b)},
		},
	} {
		for range 20 {
			_, err := FromSchema(c.root, c.refs)
			require.ErrorContains(t, err, want)
		}
	}
}

func TestSchemasThatAreNoneAreRefused(t *testing.T) {
	for _, bad := range []string{``, `{`, `7`, `"x"`, `{} {}`, property(`{"type":"int"}`), strings.Repeat(`{"a":`, 600), `{"type":"null"}`} {
		s, err := FromSchema(bad, nil)
		if err == nil {
			_, err = s.Candidate()
		}
		require.Error(t, err, bad)
	}
	deep := `{"type":"integer"}`
	for i := range 18 {
		deep = fmt.Sprintf(`{"properties":{"a":%s,"b":{"$ref":"#/definitions/d%d"}}}`, deep, i)
	}
	defs := `"d0":{"type":"integer"}`
	for i := 1; i < 18; i++ {
		defs += fmt.Sprintf(`,"d%d":{"properties":{"a":{"$ref":"#/definitions/d%d"},"b":{"$ref":"#/definitions/d%d"}}}`, i, i-1, i-1)
	}
	_, err := FromSchema(`{"properties":{"x":`+deep+`},"definitions":{`+defs+`}}`, nil)
	require.ErrorContains(t, err, "more than 20000 columns")
}

func TestDeclaredColumns(t *testing.T) {
	s, err := FromColumns(` id long, "odd name": string, at timestamptz , p decimal(10, 2), lines list<struct<sku: string, n int>>, tags map<string, list<date>>, extra JSON, b binary`)
	require.NoError(t, err)
	c, err := s.Candidate()
	require.NoError(t, err)
	require.Equal(t, "id long, odd name string, at timestamptz, p decimal(10,2), lines list{element struct{sku string, n int}}, tags map{key string, value list{element date}}, extra string, b binary", columns(c.Columns))
	for bad, why := range map[string]string{
		"": "a name is missing", "id": "is not a type", "id long,": "a name is missing", "id long x": `there is "x" behind them`, "id bigint": `"bigint" is not a type`,
		"a long, a int": "declared twice", "l list<int": "is missing", "m map<int, int>": "keys of an object are text", "d decimal(50,2)": "write decimal", "s struct<>": "a name is missing",
		`"a long`: "closing quote", "l list": "write list<type>", "s struct": "write struct", strings.Repeat("a list<struct<", 200): "nest deeper",
	} {
		_, err := FromColumns(bad)
		require.ErrorContains(t, err, why, bad)
	}
}

// reject decodes a record and gives the reason and field of the refusal.
func reject(t testing.TB, columns, payload string) string {
	t.Helper()
	s, err := FromColumns(columns)
	require.NoError(t, err)
	err = newTool(t, s).batch.Append([]byte(payload))
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*cell.Error](err)
	require.True(t, ok, "%v", err)
	return strings.TrimSpace(e.Reason + " " + e.Field)
}

func TestRecordsThatDoNotFitAreRefusedWithTheReason(t *testing.T) { // F8, P1
	for _, c := range []struct{ columns, payload, want string }{
		{"x long", ``, "truncated"},
		{"x long", `  `, "truncated"},
		{"x long", `{"x":1`, "truncated"},
		{"x long", `{"x":1}}`, "trailing_data"},
		{"x long", `{"x":1} {}`, "trailing_data"},
		{"x long", `[1]`, "wrong_type"},
		{"x long", `null`, "wrong_type"},
		{"x long", `{"x":01}`, "invalid_json x"},
		{"x long", `{'x':1}`, "invalid_json"},
		{"x long", `{"x":1,}`, "invalid_json"},
		{"x long", `{"x":NaN}`, "invalid_json x"},
		{"x long", `{"x":1 "y":2}`, "invalid_json"},
		{"x long", `{"y":[1,2}`, "invalid_json"},
		{"x long", "{\"y\":\"a\nb\"}", "invalid_json"},
		{"x long", `{"x":"1"}`, "wrong_type x"},
		{"x long", `{"x":1.5}`, "out_of_range x"},
		{"x long", `{"x":9223372036854775808}`, "out_of_range x"},
		{"x long", `{"x":-9223372036854775809}`, "out_of_range x"},
		{"x long", `{"x":1e1000000000}`, "out_of_range x"},
		{"x int", `{"x":2147483648}`, "out_of_range x"},
		{"x double", `{"x":1e999}`, "out_of_range x"},
		{"x long", `{"x":1,"x":2}`, "duplicate_key x"},
		{"x long", `{"x":1,"\u0078":2}`, "duplicate_key x"},
		{"x map<string, int>", `{"x":{"a":1,"a":2}}`, "duplicate_key x"},
		{"x string", `{"x":"` + "\xff" + `"}`, "invalid_utf8 x"},
		{"x string", `{"x":"\ud800"}`, "invalid_utf8 x"},
		{"x string", `{"x":"\u12"}`, "invalid_json x"},
		{"x long", `{"y":"` + "\xff" + `"}`, "invalid_utf8"},
		{"s struct<x date>", `{"s":{"x":"2024-02-30"}}`, "invalid_date s.x"},
		{"x timestamptz", `{"x":"2024-01-01T00:00:00"}`, "invalid_timestamp x"},
		{"x timestamptz_ns", `{"x":"2024-01-01T00:00:00"}`, "invalid_timestamp x"},
		{"x timestamptz_ns", `{"x":"2262-04-11T23:47:16.854775808Z"}`, "invalid_timestamp_range x"},
		{"x timestamp_ns", `{"x":"1677-09-21T00:12:43.145224191"}`, "invalid_timestamp_range x"},
		{"x timestamp_ns", `{"x":"1677-09-21T00:12:43.145224192"}`, ""},
		{"x binary", `{"x":"???"}`, "invalid_base64 x"},
		{"x decimal(4,2)", `{"x":1.234}`, "invalid_decimal x"},
		{"x decimal(4,2)", `{"x":123}`, "invalid_decimal x"},
		{"x json", `{"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, "too_deep x"},
		{"x json", `{"x":[1,]}`, "invalid_json x"},
		// And what is fine.
		{"x long", ` {"x" : 1.0e2 , "y": {"z":[true,false,null,"",-0.5E+3]}} `, ""},
		{"x json", `{"x":{"a":1,"a":2}}`, ""},
		{"x list<long>", `{"x":[null,1]}`, ""},
	} {
		require.Equal(t, c.want, reject(t, c.columns, c.payload), "%s: %s", c.columns, c.payload)
	}
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, `"k%d":1,`, i)
	}
	require.Equal(t, "duplicate_key x", reject(t, "x map<string, int>", `{"x":{`+many.String()+`"k3":1}}`))
	require.Empty(t, reject(t, "x map<string, int>", `{"x":{`+many.String()+`"k100":1}}`))
}

// Each level of maps doubles the work that Arrow has with everything below it. With 25
// levels of maps a single batch took minutes.
func TestMapsInMapsEndInJSONText(t *testing.T) {
	const levels = 40
	for bottom, value := range map[string]string{
		`{"type":"integer"}`:                                      `7`,
		`{"type":"array","items":{"type":"integer"}}`:             `[7, 8]`,
		`{"type":"object","properties":{"a":{"type":"integer"}}}`: `{"a":7}`,
	} {
		for _, maps := range []int{cell.MaxMaps, cell.MaxMaps + 1, levels} {
			text, payload := bottom, value
			for range maps {
				text, payload = `{"type":"object","additionalProperties":`+text+`}`, `{"k":`+payload+`}`
			}
			payload = `{"x":` + payload + `}`
			s, err := FromSchema(property(text), nil)
			require.NoError(t, err)
			x := newTool(t, s)
			require.NoError(t, x.batch.Append([]byte(payload)))
			x.compare(t, []byte(payload))
			c, err := s.Candidate()
			require.NoError(t, err)
			depth, at := 0, c.Columns[0]
			for ; at.Type.Kind == schema.Map; at = at.Kids[1] {
				depth++
			}
			require.Equal(t, min(maps, cell.MaxMaps+1), depth)
			require.True(t, len(at.Kids) == 0 || maps == cell.MaxMaps, "%s inside %d maps", at.Type, maps)
		}
	}
}

func TestDeclaredMapsInMapsMustEndInJSON(t *testing.T) {
	declare := func(maps int, bottom string) string {
		return "x " + strings.Repeat("map<string, ", maps) + bottom + strings.Repeat(">", maps) + ", y struct<a int>"
	}
	for _, fine := range []string{declare(cell.MaxMaps, "struct<a int>"), declare(cell.MaxMaps+1, "int"), declare(cell.MaxMaps+1, "json")} {
		_, err := FromColumns(fine)
		require.NoError(t, err, fine)
	}
	for _, bad := range []string{declare(cell.MaxMaps+1, "struct<a int>"), declare(cell.MaxMaps+1, "list<int>"), declare(cell.MaxMaps+2, "int")} {
		_, err := FromColumns(bad)
		require.ErrorContains(t, err, "declare json there", bad)
	}
}

func TestElementsThatFillTooManyColumnsAreRefused(t *testing.T) {
	for columns, payload := range map[string]string{
		"x list<struct<a int, b struct<c int, d int>>>":        `{"x":[{},{},{}]}`,
		"x map<string, struct<a int, b struct<c int, d int>>>": `{"x":{"a":{},"b":{},"c":{}}}`,
	} {
		s, err := FromColumns(columns)
		require.NoError(t, err)
		x := newTool(t, s)
		x.batch.Limit(15)
		require.NoError(t, x.batch.Append([]byte(payload)))
		require.ErrorIs(t, x.batch.Append([]byte(payload)), cell.ErrBatchFull, "the batch has no more of them")
		require.NoError(t, x.batch.Append([]byte(`{}`)))
		x.batch.Reset()
		require.Error(t, x.batch.Append([]byte(payload+"}")))
		require.NoError(t, x.batch.Append([]byte(payload)), "what was refused costs nothing")
		x.batch.Undo()
		require.NoError(t, x.batch.Append([]byte(payload)), "nor does what was taken back")
		x.batch.Reset()
		x.batch.Limit(14)
		require.ErrorContains(t, x.batch.Append([]byte(payload)), "larger than a batch can be")
	}
}

func TestDocumentKeepsTheTextAsItIs(t *testing.T) {
	x := newTool(t, Document())
	texts := []string{`{"a": 1, "a": 2}`, `null`, `[1, 2 ]`, `"s"`, `12345678901234567890123.5`}
	for _, s := range texts {
		require.NoError(t, x.batch.Append([]byte(" "+s+"\n")))
	}
	for _, bad := range []string{"{", "", "x", "1 2"} {
		require.Error(t, x.batch.Append([]byte(bad)))
	}
	a := x.batch.Finish()[0].(*array.String)
	for i, s := range texts {
		require.Equal(t, s, a.Value(i))
	}
}

func TestMembersWithoutAColumnAreCounted(t *testing.T) {
	s, err := FromColumns("x long")
	require.NoError(t, err)
	x := newTool(t, s)
	require.NoError(t, x.batch.Append([]byte(`{"a":{"b":1},"x":1,"c":[1]}`)))
	require.EqualValues(t, 2, x.batch.Unknown())
}

func TestConnectValuesAreDecoded(t *testing.T) {
	s, err := FromSchema(`{"properties":{
		"d":{"type":"integer","title":"org.apache.kafka.connect.data.Date","connect.type":"int32"},
		"m":{"type":"integer","title":"org.apache.kafka.connect.data.Time","connect.type":"int32"},
		"t":{"type":"integer","title":"org.apache.kafka.connect.data.Timestamp","connect.type":"int64"},
		"n":{"type":"string","title":"org.apache.kafka.connect.data.Decimal","connect.parameters":{"scale":"2"}},
		"i":{"type":"integer","maximum":1e30}}}`, nil)
	require.NoError(t, err)
	x := newTool(t, s)
	require.NoError(t, x.batch.Append([]byte(`{"d":19782,"m":3600000,"t":1709210096123,"n":"/zg=","i":123456789012345678901234}`)))
	var out []string
	for _, a := range x.batch.Finish() {
		out = append(out, a.ValueStr(0))
	}
	require.Equal(t, []string{"2024-02-29", "3600000000", "2024-02-29T12:34:56.123Z", "-2", "123456789012345678901234"}, out)
	require.Error(t, x.batch.Append([]byte(`{"m":86400000}`)))
	require.Error(t, x.batch.Append([]byte(`{"i":1e40}`)))
}

func TestColumnsOfAWiderTableAreFilled(t *testing.T) { // S6
	s, err := FromColumns("i int, f float, n long, s string")
	require.NoError(t, err)
	c, err := s.Candidate()
	require.NoError(t, err)
	target := schema.Reconcile(&schema.Schema{Columns: []*schema.Node{
		{Name: "I", FieldID: 1, Type: schema.Of(schema.Long)},
		{Name: "f", FieldID: 2, Type: schema.Of(schema.Double)},
		{Name: "n", FieldID: 3, Type: schema.DecimalOf(20, 0)},
		{Name: "s", FieldID: 4, Type: schema.Of(schema.Binary)},
		{Name: "other", FieldID: 5, Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: "element", FieldID: 6, Type: schema.Of(schema.Int)}}},
	}}, c, nil)
	require.False(t, target.Changed)
	p, err := Compile(s, target.Schema)
	require.NoError(t, err)
	b := p.NewBatch()
	require.NoError(t, b.Append([]byte(`{"i":-3,"f":1.5,"n":-7,"s":"x"}`)))
	a := b.Finish()
	require.Equal(t, "-3 1.5 -7 eA== []", fmt.Sprint(a[0].ValueStr(0), " ", a[1].ValueStr(0), " ", a[2].ValueStr(0), " ", a[3].ValueStr(0), " ", a[4].ValueStr(0)))
	_, err = Compile(s, &schema.Schema{Columns: []*schema.Node{{Name: "i", Source: "i", Type: schema.Of(schema.Date)}}})
	require.ErrorContains(t, err, "cannot be written to column i of type date")
}

func TestTimesOfDayFillDecimalColumns(t *testing.T) { // S6
	s, err := FromSchema(property(`{"type":"integer","title":"org.apache.kafka.connect.data.Time","connect.type":"int32"}`), nil)
	require.NoError(t, err)
	c, err := s.Candidate()
	require.NoError(t, err)
	table := &schema.Schema{Columns: []*schema.Node{{Name: "x", FieldID: 1, Type: schema.DecimalOf(20, 0)}}}
	p, err := Compile(s, schema.Reconcile(table, c, nil).Schema)
	require.NoError(t, err)
	b := p.NewBatch()
	require.NoError(t, b.Append([]byte(`{"x":3600000}`)))
	require.ErrorContains(t, b.Append([]byte(`{"x":86400000}`)), "time of day")
	require.ErrorContains(t, b.Append([]byte(`{"x":1.5}`)), "does not fit")
	require.Equal(t, "3600000000", b.Finish()[0].ValueStr(0), "microseconds, as in a long column")
}

func TestLeapSecondsAreTheStartOfTheNextDay(t *testing.T) { // RFC 3339, section 5.7
	for _, c := range []struct{ typ, text, want string }{
		{"timestamptz", "1990-12-31T23:59:60Z", "1991-01-01T00:00:00Z"},
		{"timestamptz", "1990-12-31T15:59:60-08:00", "1991-01-01T00:00:00Z"},
		{"timestamptz", "2017-01-01T05:29:60.25+05:30", "2017-01-01T00:00:00.25Z"},
		{"timestamp", "2016-12-31 23:59:60", "2017-01-01T00:00:00"},
		{"timestamptz", "1990-12-31T23:59:60-08:00", ""},
		{"timestamptz", "1990-12-31T23:58:60Z", ""},
		{"timestamptz", "1990-12-31T23:59:61Z", ""},
		{"timestamptz", "9999-12-31T23:59:60Z", ""},
		{"timestamp", "2016-12-31 12:59:60", ""},
	} {
		s, err := FromColumns("x " + c.typ)
		require.NoError(t, err)
		b := newTool(t, s).batch
		err = b.Append([]byte(`{"x":"` + c.text + `"}`))
		if c.want == "" {
			require.ErrorContains(t, err, "timestamp", c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, strings.TrimSuffix(b.Finish()[0].ValueStr(0), "+0000"), c.text)
	}
}

const order = `{"id":%d,"customer":"customer number %d","created":"2024-02-29T12:34:56.789Z","amount":1234.56,"paid":true,"note":null,"units":7,"ratio":0.25,"lines":[{"sku":"abc-%d","count":2},{"sku":"def","count":1}],"unknown":{"a":[1,2]}}`

const orderColumns = "id long, customer string, created timestamptz, amount decimal(12,2), paid boolean, note string, units int, ratio double, lines list<struct<sku string, count int>>"

func orders() (out [][]byte, bytes int64) {
	for i := range 1000 {
		b := fmt.Appendf(nil, order, i, i, i)
		out, bytes = append(out, b), bytes+int64(len(b))
	}
	return out, bytes
}

func TestRecordsAreDecodedWithoutAllocation(t *testing.T) { // issue 4 point 5: at most 0.1 per record
	s, err := FromColumns(orderColumns)
	require.NoError(t, err)
	x := newTool(t, s)
	records, _ := orders()
	round := func() {
		x.batch.Reset()
		for _, r := range records {
			require.NoError(t, x.batch.Append(r))
		}
	}
	round()
	require.Less(t, testing.AllocsPerRun(5, round)/float64(len(records)), 0.1)
}
