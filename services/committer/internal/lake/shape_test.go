package lake

import (
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

func everyKind() *schema.Schema {
	s := &schema.Schema{Columns: []*schema.Node{
		{Name: "boolean", Type: schema.Of(schema.Boolean)},
		{Name: "int", Type: schema.Of(schema.Int)},
		{Name: "long", Type: schema.Of(schema.Long), Required: true, Doc: "d"},
		{Name: "float", Type: schema.Of(schema.Float)},
		{Name: "double", Type: schema.Of(schema.Double)},
		{Name: "decimal", Type: schema.DecimalOf(20, 0)},
		{Name: "date", Type: schema.Of(schema.Date)},
		{Name: "time", Type: schema.Of(schema.Time)},
		{Name: "timestamptz", Type: schema.Of(schema.TimestampTZ)},
		{Name: "timestamp", Type: schema.Of(schema.Timestamp)},
		{Name: "timestamptz_ns", Type: schema.Of(schema.TimestampTZNano)},
		{Name: "timestamp_ns", Type: schema.Of(schema.TimestampNano)},
		{Name: "string", Type: schema.Of(schema.String)},
		{Name: "uuid", Type: schema.Of(schema.UUID)},
		{Name: "binary", Type: schema.Of(schema.Binary)},
		{Name: "fixed", Type: schema.Type{Kind: schema.Fixed, Length: 7}},
		{Name: "struct", Type: schema.Of(schema.Struct), Kids: []*schema.Node{
			{Name: "list", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: "element", Type: schema.Of(schema.Int), Required: true}}},
			{Name: "map", Type: schema.Of(schema.Map), Kids: []*schema.Node{
				{Name: "key", Type: schema.Of(schema.String), Required: true}, {Name: "value", Type: schema.Of(schema.Date)},
			}},
		}},
	}}
	s.AssignIDs()
	return s
}

func TestSchemasSurviveTheLibrary(t *testing.T) {
	s := everyKind()
	converted, err := toIceberg(s, 3)
	require.NoError(t, err)
	got, err := fromIceberg(converted, int(s.LastID))
	require.NoError(t, err)
	require.Equal(t, s, got)
	require.Equal(t, s.Fingerprint(), got.Fingerprint())

	_, err = fromIceberg(iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "g", Type: iceberg.UnknownType{}}), 1)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
	require.ErrorContains(t, err, `"g"`)
}

func TestPartitionSettingsThatEnginesMisreadAreRefused(t *testing.T) {
	s := everyKind()
	for _, good := range []string{
		"", "day(timestamptz)", "hour(timestamp), bucket(16, string)", "hour(timestamptz_ns), year(timestamp_ns)", "year(date),month(timestamptz)", "int", "long", "boolean", "date",
		"bucket(3,long), truncate(10, int)", "bucket(8, decimal)",
	} {
		require.NoError(t, CheckShape(good, "", s), good)
	}
	for bad, why := range map[string]string{
		"string":                "empty string", // T3, F2
		"truncate(4, string)":   "bucket",
		"decimal":               "misread", // F3
		"uuid":                  "misread", // F5
		"bucket(4, uuid)":       "bucket",  // F18
		"fixed":                 "misread",
		"double":                "misread", // F8, W1
		"timestamptz":           "use day or hour",
		"hour(date)":            "needs a timestamp",
		"day(long)":             "needs a timestamp or date",
		"day(missing)":          `no column "missing"`,
		"bucket(long)":          "needs a number",
		"bucket(0, long)":       "needs a number",
		"day(3, date)":          "takes no number",
		"week(date)":            `no transform "week"`,
		"day(date":              "cannot be read",
		"struct.list":           "misread",
		"bucket(4,struct.none)": "no column",
	} {
		err := CheckShape(bad, "", s)
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument), bad)
		require.ErrorContains(t, err, why, bad)
	}
	require.NoError(t, CheckShape("", "long, string desc nulls last, date ASC NULLS FIRST", s))
	require.Error(t, CheckShape("", "long down", s))
	require.Error(t, CheckShape("", "struct", s))
	require.Error(t, CheckShape("", "missing", s))
	fields, err := parseSort("a, b desc, c desc nulls first")
	require.NoError(t, err)
	require.Equal(t, []sortField{{column: "a"}, {column: "b", desc: true, nullsLast: true}, {column: "c", desc: true}}, fields)
}

// G10: columns come and widen, old rows keep their values.
func TestASchemaChangeRidesWithASnapshotOfOurs(t *testing.T) {
	b := newBench(t, Settings{})
	old := b.Head()
	b.commitRows(part(0), 5)
	sch := b.Head().Schema.Clone()
	sch.Column("address").Kids = append(sch.Column("address").Kids, &schema.Node{Name: "city", Type: schema.Of(schema.String)})
	sch.Columns = append(sch.Columns[:len(sch.Columns)-2], append([]*schema.Node{{Name: "count", Type: schema.Of(schema.Int)}}, sch.Columns[len(sch.Columns)-2:]...)...)
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema = sch
	c.Numbers = map[string]schema.NumberMap{"q": {"7": sch.Column("count").FieldID}}
	st := b.commit(c)
	h := b.Head()
	require.Greater(t, h.SchemaID, old.SchemaID)
	require.Equal(t, sch.Fingerprint(), h.Schema.Fingerprint())
	require.Equal(t, int(h.SchemaID), *b.handle().CurrentSnapshot().SchemaID)
	require.Contains(t, h.Numbers, "p")
	require.Equal(t, c.Numbers["q"], h.Numbers["q"])
	require.Equal(t, st.SnapshotID, h.StateSnapshot)
	require.Greater(t, sch.Column("count").FieldID, old.Schema.HighestID())

	wide := h.Schema.Clone()
	wide.Column("count").Type = schema.Of(schema.Long)
	c = b.change(KindSchema)
	c.Schema = wide
	b.commit(c)
	require.Equal(t, int64(5), b.rows(tableName))
	require.Equal(t, schema.Long, b.Head().Schema.Column("count").Type.Kind)
}

func TestASchemaChangeLosesAgainstAnotherOne(t *testing.T) {
	b := newBench(t, Settings{})
	sch := b.Head().Schema.Clone()
	sch.Columns = append(sch.Columns, &schema.Node{Name: "mine", Type: schema.Of(schema.Int)})
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema = sch
	st := b.stage(c)
	b.other().do(func(tx *table.Transaction) error {
		return tx.UpdateSchema(true, false).AddColumn([]string{"theirs"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit()
	})
	require.Error(t, b.Send(t.Context(), st))
	b.reload()
	require.Nil(t, b.Head().Schema.Column("mine"))
	require.NotNil(t, b.Head().Schema.Column("theirs"))
}

func TestTheSettingsOfATableTakeEffectWithItsColumns(t *testing.T) {
	l := newLake(t, t.TempDir())
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test", Partition: "day(created_at)", Sort: "id"})
	require.NoError(t, err)
	spec := tbl.handle().Spec()
	require.True(t, spec.IsUnpartitioned())
	b := &bench{TB: t, lake: l, Table: tbl}
	b.setSchema()
	spec = b.handle().Spec()
	require.Equal(t, "created_at_day", spec.Field(0).Name)
	require.Equal(t, "day(created_at)", b.Head().Partition)

	changed, none := "bucket(4, id)", ""
	c := b.change(KindSchema)
	c.Partition, c.Sort = &changed, &none
	b.commit(c)
	spec = b.handle().Spec()
	require.Equal(t, 1, spec.NumFields())
	require.Equal(t, "id_bucket_4", spec.Field(0).Name)
	require.Zero(t, b.handle().SortOrder().Len())
	b.commitRows(part(0), 10)
	require.Equal(t, int64(10), b.rows(tableName))
}

func TestASettingWhoseColumnIsMissingRefusesTheSchema(t *testing.T) {
	l := newLake(t, t.TempDir())
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Partition: "day(nowhere)"})
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl}
	sch := b.Head().Schema.Clone()
	sch.Columns = append(columns(), sch.Columns...)
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema = sch
	_, err = b.Stage(t.Context(), c)
	require.ErrorContains(t, err, `no column "nowhere"`)
}

func TestATableWithoutAnyColumnTakesCommits(t *testing.T) {
	l := newLake(t, t.TempDir())
	tbl, err := l.Create(t.Context(), tableName, Settings{Owner: "test"})
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl}
	c := b.change(KindWriter)
	b.commit(c)
	require.Equal(t, ident.WriterEpoch(1), b.Head().State.WriterEpoch)
}

func TestTablePropertiesThatWouldHurtAreRefused(t *testing.T) {
	l := newLake(t, t.TempDir())
	for _, props := range []map[string]string{
		{"s3.endpoint": "http://elsewhere"}, {"icestream.state": "{}"}, {"write.parquet.compression-codec": "lz4_raw"},
	} {
		_, err := l.Create(t.Context(), tableName, Settings{Properties: props})
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
	}
}

func TestCatalogSettingsAreCheckedWithoutANetwork(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		reason fault.Reason
		want   string
	}{
		{Config{Type: "rest", URI: "catalog"}, fault.InvalidArgument, "catalog.uri"},
		{Config{Type: "nessie"}, fault.InvalidArgument, "catalog.type"},
		{Config{Type: "sql", URI: "postgres://db", Warehouse: "file:///w"}, fault.InvalidArgument, "PostgreSQL"},
		{Config{Type: "sql", URI: "mysql://db/x", Warehouse: "file:///w"}, fault.InvalidArgument, "mysql"},
		{Config{Type: "sql", URI: "postgres://db/x"}, fault.InvalidArgument, "warehouse"},
		{Config{Type: "sql", URI: "sqlite:///x.db"}, fault.InvalidArgument, "warehouse"},
		{Config{Type: "sql", URI: "x.db", Warehouse: "ftp://x"}, fault.InvalidArgument, "ftp"},
	} {
		_, err := Open(t.Context(), c.cfg, nil)
		require.ErrorIs(t, err, fault.Of(c.reason))
		require.ErrorContains(t, err, c.want)
	}
	if !cloudBuild {
		for _, cfg := range []Config{{Type: "glue"}, {Type: "hive"}, {Type: "rest", URI: "http://c", Warehouse: "gs://b"}} {
			_, err := Open(t.Context(), cfg, nil)
			require.ErrorIs(t, err, fault.Of(fault.Unsupported))
			require.ErrorContains(t, err, "-tags cloud")
		}
	}
	// A catalog that is away is no reason not to start (G11).
	l, err := Open(t.Context(), Config{Type: "rest", URI: "http://127.0.0.1:1"}, nil)
	require.NoError(t, err)
	require.ErrorIs(t, l.Ping(t.Context()), fault.Of(fault.Unavailable))
}
