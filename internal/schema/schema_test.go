package schema

import (
	"encoding/json"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/stretchr/testify/require"
)

func col(name string, number int32, k Kind, kids ...*Node) *Node {
	return &Node{Name: name, Number: number, Type: Of(k), Kids: kids}
}

func list(name string, number int32, element *Node) *Node {
	element.Name, element.Number = ElementName, 0
	return col(name, number, List, element)
}

func mapOf(name string, number int32, key Kind, value *Node) *Node {
	value.Name, value.Number = ValueName, 0
	k := col(KeyName, 0, key)
	k.Required = true
	return col(name, number, Map, k, value)
}

func of(columns ...*Node) *Schema { return &Schema{Columns: columns} }

// everything has each kind, nested in each way.
func everything() *Schema {
	s := of(
		col("b", 1, Boolean), col("i", 2, Int), col("l", 3, Long), col("f", 4, Float), col("d", 5, Double),
		&Node{Name: "dec", Number: 6, Type: DecimalOf(20, 0), Doc: "exact"}, col("date", 7, Date), col("time", 8, Time),
		col("tz", 9, TimestampTZ), col("ts", 10, Timestamp), col("tzn", 11, TimestampTZNano), col("tsn", 12, TimestampNano),
		col("s", 13, String), col("u", 14, UUID), col("bin", 15, Binary), &Node{Name: "fix", Number: 16, Type: Type{Kind: Fixed, Length: 5}},
		col("st", 17, Struct, col("x", 1, Int), list("xs", 2, col("", 0, Struct, col("y", 1, String)))),
		mapOf("m", 18, String, mapOf("", 0, Long, col("", 0, Double))),
	)
	s.Columns[1].Required = true
	s.Columns = append(s.Columns, MetadataColumns(true, true)...)
	s.AssignIDs()
	return s
}

func withoutNumbers(s *Schema) *Schema {
	c := s.Clone()
	clearNumbers(c.Columns)
	c.LastID = 0
	return c
}

func TestArrowAndBackKeepsEverythingButNumbers(t *testing.T) {
	s := everything()
	back, err := FromArrow(s.Arrow())
	require.NoError(t, err)
	require.Equal(t, withoutNumbers(s), back)
}

func TestArrowHasFieldIDsAtEveryDepth(t *testing.T) {
	s := of(list("xs", 1, col("", 0, Struct, col("y", 1, String))), mapOf("m", 2, String, col("", 0, Long)), col("t", 3, TimestampTZ))
	s.AssignIDs()
	a := s.Arrow()
	id := func(f arrow.Field) string { v, _ := f.Metadata.GetValue(FieldIDKey); return v }
	element := a.Field(0).Type.(*arrow.ListType).ElemField()
	require.Equal(t, "element", element.Name)
	m := a.Field(1).Type.(*arrow.MapType)
	require.Equal(t, []string{"1", "2", "3", "4", "5", "6", "7"}, []string{
		id(a.Field(0)), id(a.Field(1)), id(a.Field(2)), id(element),
		id(element.Type.(*arrow.StructType).Field(0)), id(m.KeyField()), id(m.ItemField()),
	}, "a level gets its ids before the levels below it")
	require.False(t, m.KeyField().Nullable)
	require.Equal(t, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, a.Field(2).Type)
}

func TestFromArrowNamesTheColumnItCannotHold(t *testing.T) {
	_, err := FromArrow(arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.StructOf(arrow.Field{Name: "b", Type: arrow.PrimitiveTypes.Uint8})}}, nil))
	require.ErrorContains(t, err, "column a: field b")
}

func TestJSONRoundTrip(t *testing.T) {
	s := everything()
	b, err := json.Marshal(s)
	require.NoError(t, err)
	var back Schema
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, s, &back)
	require.Equal(t, s.Fingerprint(), back.Fingerprint())
}

func TestJSONRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, bad := range []string{
		`{"columns":[{"name":"a","type":"long","new":1}]}`, `{"columns":[{"name":"a","type":"geometry"}]}`,
		`{"columns":[null]}`, `{"columns":[{"name":"a","type":"list"}]}`, `{"columns":[{"name":"a","type":"struct"}]}`,
		`{"columns":[{"name":"a","type":"long"},{"name":"a","type":"int"}]}`, `{"columns":[{"name":"","type":"long"}]}`,
		`{"columns":[{"name":"a","type":"long","id":1},{"name":"b","type":"int","id":1}]}`, `{"columns":[{"name":"a","type":"decimal(39,0)"}]}`,
		`{"columns":[{"name":"a","type":"fixed[0]"}]}`, `{"columns":[{"name":"a","type":"decimal(5,6)"}]}`,
	} {
		var s Schema
		require.Error(t, json.Unmarshal([]byte(bad), &s), bad)
	}
}

func TestFingerprintSeesEveryDifferenceThatMatters(t *testing.T) {
	base := everything()
	same := base.Clone()
	same.LastID, same.Columns[5].Doc = 999, "other words"
	require.Equal(t, base.Fingerprint(), same.Fingerprint())
	require.Equal(t, "f3515771", base.Fingerprint()[:8], "the fingerprint is stored: it must never change")
	for name, change := range map[string]func(s *Schema){
		"name": func(s *Schema) { s.Columns[0].Name = "c" }, "number": func(s *Schema) { s.Columns[0].Number = 99 },
		"id": func(s *Schema) { s.Columns[0].FieldID = 99 }, "type": func(s *Schema) { s.Columns[1].Type = Of(Long) },
		"precision": func(s *Schema) { s.Columns[5].Type.Precision = 21 }, "presence": func(s *Schema) { s.Columns[1].Required = false },
		"order": func(s *Schema) { s.Columns[0], s.Columns[1] = s.Columns[1], s.Columns[0] },
		"depth": func(s *Schema) { s.Columns[16].Kids[1].Kids[0].Kids[0].Name = "z" },
		"less":  func(s *Schema) { s.Columns = s.Columns[:3] },
	} {
		changed := base.Clone()
		change(changed)
		require.NotEqual(t, base.Fingerprint(), changed.Fingerprint(), name)
	}
}

func TestQuarantineSchemaIsFixed(t *testing.T) {
	s := QuarantineSchema()
	require.NoError(t, s.Validate())
	require.Equal(t, int32(18), s.LastID)
	require.Equal(t, int32(1), s.Column("pipeline").FieldID)
	require.Equal(t, int32(14), s.Column("replayed_in").FieldID)
	require.Equal(t, int32(15), s.Column("headers").Kids[0].FieldID)
	require.Equal(t, int32(18), s.Column(LSNName).FieldID)
}

func TestMappedLeavesMetadataOut(t *testing.T) {
	s := of(append([]*Node{col("a", 1, Int)}, MetadataColumns(true, true)...)...)
	require.Len(t, s.Mapped(), 1)
	require.Len(t, MetadataColumns(false, true), 1)
	require.Empty(t, MetadataColumns(false, false))
}

// S11 and interop rule 6: names that differ only by case, or are reserved, are
// renamed by number, in whatever order they are declared.
func TestResolveNames(t *testing.T) {
	names := func(top bool, nodes ...*Node) []string {
		ResolveNames(nodes, top)
		var out []string
		for _, n := range nodes {
			out = append(out, n.Name)
		}
		return out
	}
	require.Equal(t, []string{"UserId_9", "userid"}, names(true, col("UserId", 9, Int), col("userid", 2, Int)))
	require.Equal(t, []string{"userid", "UserId_9"}, names(true, col("userid", 2, Int), col("UserId", 9, Int)))
	require.Equal(t, []string{"_File_1", "_LSN_2", "_kafka_3", "_row_id_4"},
		names(true, col("_File", 1, Int), col("_LSN", 2, Int), col("_kafka", 3, Int), col("_row_id", 4, Int)))
	require.Equal(t, []string{"_file"}, names(false, col("_file", 1, Int)), "only top-level names are reserved")
	require.Equal(t, []string{"a", "A_2", "a_2_3"}, names(false, col("a", 1, Int), col("A", 2, Int), col("a_2", 3, Int)),
		"a later field never takes a name from an earlier one")
	require.Equal(t, []string{"k", "K_3c"}, names(false, col("k", 5, Int), col("K", OneofNumber(2), String)))
	require.Equal(t, []string{"a", "A_2"}, names(false, col("a", 0, Int), col("A", 0, Int)), "without numbers the position counts")
}

func TestParseTypeReadsWhatStringWrites(t *testing.T) {
	everything().Walk(func(path string, n *Node) {
		back, err := ParseType(n.Type.String())
		require.NoError(t, err, path)
		require.Equal(t, n.Type, back)
	})
	got, err := ParseType("decimal(9, 2)")
	require.NoError(t, err)
	require.Equal(t, DecimalOf(9, 2), got)
	for _, bad := range []string{"", "invalid", "decimal", "decimal(9)", "fixed", "fixed[x]", "fixed[3", "kind(99)"} {
		_, err := ParseType(bad)
		require.Error(t, err, bad)
	}
}
