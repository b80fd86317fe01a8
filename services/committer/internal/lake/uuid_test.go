package lake

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
)

// Tables of other tools have uuid columns: a file says that they are, at every depth, and readers that want uuids take
// it.
func TestUUIDColumnsAreMarkedInFiles(t *testing.T) {
	l := newLake(t, t.TempDir())
	u := func(name string) *schema.Node { return &schema.Node{Name: name, Type: schema.Of(schema.UUID)} }
	kind := func(name string, k schema.Kind, kids ...*schema.Node) *schema.Node {
		return &schema.Node{Name: name, Type: schema.Of(k), Kids: kids}
	}
	key := u("key")
	key.Required = true
	sch := &schema.Schema{Columns: []*schema.Node{
		u("top"), kind("s", schema.Struct, u("in")), kind("l", schema.List, u("element")), kind("m", schema.Map, key, kind("value", schema.Struct, u("in"))),
		{Name: "fixed", Type: schema.Type{Kind: schema.Fixed, Length: 16}},
	}}
	sch.AssignIDs()
	require.NoError(t, l.create(t.Context(), tableName, sch, nil))
	tbl, err := l.Load(t.Context(), tableName)
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl}
	const a = `"AQIDBAUGBwgJCgsMDQ4PEA=="`
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, sch.Arrow(), strings.NewReader(
		`[{"top":`+a+`,"s":{"in":`+a+`},"l":[`+a+`,null],"m":[{"key":`+a+`,"value":{"in":`+a+`}}],"fixed":`+a+`},{"top":null,"s":null,"l":[],"m":[],"fixed":null}]`))
	require.NoError(t, err)
	layout, err := newLayout(sch.Arrow())
	require.NoError(t, err)
	var buf bytes.Buffer
	f, err := layout.open(&buf)
	require.NoError(t, err)
	require.NoError(t, f.write(rec))
	_, err = f.close()
	require.NoError(t, err)
	rd, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
	require.NoError(t, err)
	marked := map[string]bool{}
	for i := range rd.MetaData().Schema.NumColumns() {
		c := rd.MetaData().Schema.Column(i)
		marked[c.Path()] = c.LogicalType().String() == "UUID"
	}
	require.Equal(t, map[string]bool{"top": true, "s.in": true, "l.list.element": true, "m.key_value.key": true, "m.key_value.value.in": true, "fixed": false}, marked)

	c := b.change(KindData)
	c.advance(part(0), Totals{Rows: 2})
	c.Files = b.write(rec)
	b.commit(c)
	require.EqualValues(t, 2, b.rows(tableName), "the library reads it with the table's types")
}
