package cold

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/testkit/spelling"
)

// warehouse is a real Iceberg table in a folder, written as the committer does:
// _kafka in every row, our keys in the summaries of our snapshots.
type warehouse struct {
	t   *testing.T
	cat *sqlcat.Catalog
	tbl *table.Table
	sch *schema.Schema // with the table's field ids
	n   int
}

var tableName = "db.orders"

func newWarehouse(t *testing.T) *warehouse {
	t.Helper()
	return newWarehouseOf(t, "2")
}

// newWarehouseOf is a warehouse whose table has a format version, and more columns.
func newWarehouseOf(t *testing.T, version string, more ...*schema.Node) *warehouse {
	t.Helper()
	icefile.Register()
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "cat.db"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	cat, err := sqlcat.NewCatalog("test", db, sqlcat.SQLite, iceberg.Properties{"warehouse": "file://" + dir + "/wh"})
	require.NoError(t, err)
	ctx := t.Context()
	require.NoError(t, cat.CreateNamespace(ctx, table.Identifier{"db"}, nil))
	s := &schema.Schema{Columns: []*schema.Node{
		{Name: "id", Type: schema.Of(schema.Int)},
		{Name: "tags", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: "element", Type: schema.Of(schema.String)}}},
		{Name: "attrs", Type: schema.Of(schema.Map), Kids: []*schema.Node{
			{Name: "key", Type: schema.Of(schema.String), Required: true}, {Name: "value", Type: schema.Of(schema.String)},
		}},
	}}
	s.Columns = append(append(s.Columns, more...), schema.MetadataColumns(true, true)...)
	s.AssignIDs()
	ice, err := table.ArrowSchemaToIceberg(typed(t, s.Arrow()), false, nil)
	require.NoError(t, err)
	tbl, err := cat.CreateTable(ctx, table.Identifier{"db", "orders"}, ice, catalog.WithProperties(iceberg.Properties{"format-version": version}))
	require.NoError(t, err)
	w := &warehouse{t: t, cat: cat, tbl: tbl}
	w.reload()
	return w
}

func (w *warehouse) reload() {
	var err error
	w.tbl, err = w.cat.LoadTable(w.t.Context(), table.Identifier{"db", "orders"})
	require.NoError(w.t, err)
	a, err := table.SchemaToArrowSchema(w.tbl.Schema(), nil, true, false)
	require.NoError(w.t, err)
	w.sch, err = schema.FromArrow(a)
	require.NoError(w.t, err)
}

type row struct {
	part   int32
	offset int64
}

func rows(part int32, first, next int64) []row {
	var out []row
	for o := first; o < next; o++ {
		out = append(out, row{part, o})
	}
	return out
}

// batch makes rows in the shape of the table.
func (w *warehouse) batch(rs []row) arrow.RecordBatch {
	s := w.sch.Arrow()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for _, r := range rs {
		for i, f := range s.Fields() {
			w.value(b.Field(i), f.Name, r)
		}
	}
	return b.NewRecordBatch()
}

func (w *warehouse) value(b array.Builder, name string, r row) {
	switch fb := b.(type) {
	case *array.Int32Builder:
		if name == "partition" {
			fb.Append(r.part)
		} else {
			fb.Append(r.part*1000 + int32(r.offset))
		}
	case *array.Int64Builder:
		fb.Append(r.offset)
	case *array.StringBuilder:
		if name == "topic" {
			fb.Append("t")
		} else {
			fb.Append(fmt.Sprintf("%s-%d", name, r.offset))
		}
	case *array.ListBuilder:
		fb.Append(true)
		if sb, ok := fb.ValueBuilder().(*array.StringBuilder); ok {
			sb.Append(fmt.Sprintf("tag-%d", r.offset))
		}
	case *array.MapBuilder:
		fb.Append(true)
		w.value(fb.KeyBuilder(), "key", r)
		w.value(fb.ItemBuilder(), "item", r)
	case *array.TimestampBuilder:
		fb.Append(arrow.Timestamp(r.offset*1_000_000_007 + 1))
	case *array.StructBuilder:
		if name == "v" {
			variantOf(fb, r)
			return
		}
		fb.Append(true)
		st, _ := fb.Type().(*arrow.StructType)
		for i, f := range st.Fields() {
			if f.Name == "headers" {
				lb, _ := fb.FieldBuilder(i).(*array.ListBuilder)
				lb.Append(true)
				continue
			}
			w.value(fb.FieldBuilder(i), f.Name, r)
		}
	default:
		b.AppendNull()
	}
}

// append lands rows, with the given summary keys, and returns the snapshot id.
func (w *warehouse) append(props iceberg.Properties, rs ...row) int64 {
	w.t.Helper()
	rec := w.batch(rs)
	defer rec.Release()
	if sch := typed(w.t, rec.Schema()); sch != rec.Schema() {
		cols := slices.Clone(rec.Columns())
		for i, f := range sch.Fields() {
			if v, ok := f.Type.(*extensions.VariantType); ok {
				cols[i] = array.NewExtensionArrayWithStorage(v, cols[i])
			}
		}
		rec = array.NewRecordBatch(sch, cols, rec.NumRows())
	}
	rd, err := array.NewRecordReader(rec.Schema(), []arrow.RecordBatch{rec})
	require.NoError(w.t, err)
	defer rd.Release()
	_, err = w.tbl.Append(w.t.Context(), rd, props)
	require.NoError(w.t, err)
	w.reload()
	return w.tbl.CurrentSnapshot().SnapshotID
}

func (w *warehouse) ours() iceberg.Properties {
	w.n++
	return iceberg.Properties{keyCommitID: fmt.Sprint("c", w.n)}
}

func (w *warehouse) scan(s readapi.ColdScan) ([]row, error) {
	l := New(Config{}, nil)
	s.Table, s.Location = tableName, w.tbl.MetadataLocation()
	if s.Target == nil {
		s.Target = w.sch
	}
	var out []row
	for rec, err := range l.Scan(w.t.Context(), s) {
		if err != nil {
			return nil, err
		}
		out = append(out, rowsIn(w.t, rec)...)
		rec.Release()
	}
	slices.SortFunc(out, func(a, b row) int { return int(a.part-b.part)*10000 + int(a.offset-b.offset) })
	return out, nil
}

func rowsIn(t *testing.T, rec arrow.RecordBatch) []row {
	t.Helper()
	p, err := positionOf(rec)
	require.NoError(t, err)
	var out []row
	for i := range int(rec.NumRows()) {
		out = append(out, row{p.number.Value(i), p.offset.Value(i)})
	}
	return out
}

func part(n int32) ident.Partition { return ident.Partition{Pipeline: "p", Topic: "t", Number: n} }

func TestScanReadsTheSnapshotThatWasAsked(t *testing.T) {
	w := newWarehouse(t)
	first := w.append(w.ours(), rows(0, 0, 5)...)
	second := w.append(w.ours(), rows(0, 5, 8)...)
	got, err := w.scan(readapi.ColdScan{Snapshot: first})
	require.NoError(t, err)
	require.Equal(t, rows(0, 0, 5), got)
	got, err = w.scan(readapi.ColdScan{Snapshot: second})
	require.NoError(t, err)
	require.Equal(t, rows(0, 0, 8), got)
	_, err = w.scan(readapi.ColdScan{Snapshot: 4711})
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone))
}

// T10: DuckDB spells the format of files as the specification does.
func TestFilesAreReadHoweverTheirFormatIsSpelled(t *testing.T) {
	w := newWarehouse(t)
	first := w.append(w.ours(), rows(0, 0, 5)...)
	second := w.append(w.ours(), rows(0, 5, 8)...)
	spelling.Lower(t, w.tbl)
	got, err := w.scan(readapi.ColdScan{Snapshot: second})
	require.NoError(t, err)
	require.Equal(t, rows(0, 0, 8), got)
	got, err = w.scan(readapi.ColdScan{Snapshot: second, Since: first, Below: ident.Vector{part(0): 8}})
	require.NoError(t, err)
	require.Equal(t, rows(0, 5, 8), got)
}

// G3: the rest of a token is what our commits added after its snapshot, not what
// others, replays or compactions did.
func TestRestHoldsWhatOurCommitsAddedUpToTheVector(t *testing.T) {
	w := newWarehouse(t)
	base := w.append(w.ours(), rows(0, 0, 5)...)
	w.append(w.ours(), rows(0, 5, 20)...)
	w.append(nil, rows(0, 6, 7)...) // of somebody else
	replay := w.ours()
	replay[keyReplay] = "r1"
	w.append(replay, rows(0, 7, 8)...)
	w.append(w.ours(), append(rows(1, 0, 5), rows(0, 20, 30)...)...)
	head := w.tbl.CurrentSnapshot().SnapshotID

	below := ident.Vector{part(0): 23, part(1): 2}
	got, err := w.scan(readapi.ColdScan{Snapshot: head, Since: base, Below: below, From: ident.Vector{part(0): 5}})
	require.NoError(t, err)
	require.Equal(t, append(rows(0, 5, 23), rows(1, 0, 2)...), got)
}

func TestRestWhoseHistoryIsExpiredIsTooOld(t *testing.T) {
	w := newWarehouse(t)
	base := w.append(w.ours(), rows(0, 0, 5)...)
	middle := w.append(w.ours(), rows(0, 5, 10)...)
	w.append(w.ours(), rows(0, 10, 15)...)
	tx := w.tbl.NewTransaction()
	require.NoError(t, tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0)))
	_, err := tx.Commit(t.Context())
	require.NoError(t, err)
	w.reload()
	require.Nil(t, w.tbl.SnapshotByID(middle))
	_, err = w.scan(readapi.ColdScan{Snapshot: w.tbl.CurrentSnapshot().SnapshotID, Since: base, Below: ident.Vector{part(0): 12}})
	require.ErrorIs(t, err, fault.Of(fault.TooOld))
}

func TestProjectionCountsRowsWithoutTheirColumns(t *testing.T) {
	w := newWarehouse(t)
	snap := w.append(w.ours(), rows(0, 0, 5)...)
	l := New(Config{}, nil)
	target := &schema.Schema{Columns: []*schema.Node{
		{Name: "fresh", FieldID: 999, Type: schema.Of(schema.String)},
		w.sch.Column("id"),
	}}
	for _, columns := range [][]*schema.Node{target.Columns, target.Columns[:1], target.Columns[1:]} {
		n := int64(0)
		for rec, err := range l.Scan(t.Context(), readapi.ColdScan{
			Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap,
			Target: &schema.Schema{Columns: columns}, Below: ident.Vector{part(0): 4},
		}) {
			require.NoError(t, err)
			require.Equal(t, len(columns), int(rec.NumCols()))
			n += rec.NumRows()
			rec.Release()
		}
		require.Equal(t, int64(4), n)
	}
}

// G10: a widened column reads as the wider type in old files too.
func TestOldSnapshotReadsInTheWidenedType(t *testing.T) {
	w := newWarehouse(t)
	snap := w.append(w.ours(), rows(0, 0, 5)...)
	tx := w.tbl.NewTransaction()
	require.NoError(t, tx.UpdateSchema(true, false).UpdateColumn([]string{"id"}, table.ColumnUpdate{
		FieldType: iceberg.Optional[iceberg.Type]{Val: iceberg.PrimitiveTypes.Int64, Valid: true},
	}).Commit())
	_, err := tx.Commit(t.Context())
	require.NoError(t, err)
	w.reload()
	require.Equal(t, schema.Long, w.sch.Column("id").Type.Kind)
	l := New(Config{}, nil)
	for rec, err := range l.Scan(t.Context(), readapi.ColdScan{
		Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: &schema.Schema{Columns: []*schema.Node{w.sch.Column("id")}},
	}) {
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1, 2, 3, 4}, rec.Column(0).(*array.Int64).Int64Values())
		rec.Release()
	}
}

func TestWindowSortsByPartitionAndOffset(t *testing.T) {
	w := newWarehouse(t)
	mixed := append(rows(1, 3, 9), rows(0, 0, 7)...)
	slices.Reverse(mixed)
	w.append(w.ours(), mixed...)
	snap := w.append(w.ours(), append(rows(0, 7, 12), rows(2, 0, 3)...)...)
	l := New(Config{}, nil)
	got, err := l.Window(t.Context(), readapi.ColdScan{
		Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: w.sch,
		From: ident.Vector{part(0): 2}, Below: ident.Vector{part(0): 9, part(1): 6},
	})
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, part(0), got[0].Partition)
	require.Equal(t, rows(0, 2, 9), rowsIn(t, got[0].Rows))
	require.Equal(t, rows(1, 3, 6), rowsIn(t, got[1].Rows))
	list, ok := got[0].Rows.Column(1).(*array.List)
	require.True(t, ok)
	require.Equal(t, `["tag-2"]`, list.ValueStr(0), "nested columns move with their row")
	for _, r := range got {
		r.Rows.Release()
	}
}

// What a file holds is learned once, from its footer; then files outside of the
// bounds are not touched.
func TestFilesOutsideTheBoundsAreNotReadAgain(t *testing.T) {
	w := newWarehouse(t)
	w.append(w.ours(), rows(0, 0, 10)...)
	files, err := w.tbl.Scan().PlanFiles(t.Context())
	require.NoError(t, err)
	snap := w.append(w.ours(), rows(0, 10, 20)...)
	l := New(Config{}, nil)
	window := func(first, next int64) ([]row, error) {
		got, err := l.Window(t.Context(), readapi.ColdScan{
			Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: w.sch,
			From: ident.Vector{part(0): first}, Below: ident.Vector{part(0): next},
		})
		if err != nil || len(got) == 0 {
			return nil, err
		}
		defer got[0].Rows.Release()
		return rowsIn(t, got[0].Rows), nil
	}
	got, err := window(8, 12)
	require.NoError(t, err)
	require.Equal(t, rows(0, 8, 12), got)
	require.NoError(t, os.Remove(strings.TrimPrefix(files[0].File.FilePath(), "file://")))
	got, err = window(10, 15)
	require.NoError(t, err)
	require.Equal(t, rows(0, 10, 15), got)
	_, err = window(9, 15)
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone), "a file that is needed and gone")
}

func TestPartitionsThatRowsDoNotTellApartNeedEqualBounds(t *testing.T) {
	other := part(0)
	other.Pipeline = "q"
	_, err := newBounds(readapi.ColdScan{Below: ident.Vector{part(0): 5, other: 6}})
	require.ErrorIs(t, err, fault.Of(fault.TooOld))
	_, err = newBounds(readapi.ColdScan{Below: ident.Vector{part(0): 5, other: 5}})
	require.NoError(t, err)
}

func TestSnapshotsAreFoundByIDAndTime(t *testing.T) {
	w := newWarehouse(t)
	id := w.append(w.ours(), rows(0, 0, 5)...)
	l := New(Config{}, nil)
	got, err := l.Snapshot(t.Context(), tableName, w.tbl.MetadataLocation(), id)
	require.NoError(t, err)
	require.Equal(t, int64(1), got.Sequence)
	at, err := l.SnapshotAt(t.Context(), tableName, w.tbl.MetadataLocation(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, got, at)
	_, err = l.SnapshotAt(t.Context(), tableName, w.tbl.MetadataLocation(), time.Unix(0, 0))
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone))
	_, err = l.Snapshot(t.Context(), tableName, w.tbl.MetadataLocation()+".gone", id)
	require.ErrorIs(t, err, fault.Of(fault.SnapshotGone))
}

func TestScanThatIsBrokenOffLeavesNothingBehind(t *testing.T) {
	w := newWarehouse(t)
	snap := w.append(w.ours(), rows(0, 0, 50)...)
	ctx, cancel := context.WithCancel(t.Context())
	l := New(Config{}, nil)
	for rec, err := range l.Scan(ctx, readapi.ColdScan{Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: w.sch}) {
		require.NoError(t, err)
		rec.Release()
		break
	}
	cancel()
	for _, err := range l.Scan(ctx, readapi.ColdScan{Table: tableName, Location: w.tbl.MetadataLocation(), Snapshot: snap, Target: w.sch}) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestLentCredentialsAreOnlyAskedForWhereNoneAreConfigured(t *testing.T) {
	require.True(t, newFiles(Config{Type: "rest"}).lends("s3"))
	require.False(t, newFiles(Config{Type: "rest", Properties: map[string]string{"s3.access-key-id": "k"}}).lends("s3"))
	require.True(t, newFiles(Config{Type: "rest", Properties: map[string]string{"s3.region": "x"}}).lends("s3"))
	require.False(t, newFiles(Config{Type: "sql"}).lends("s3"))
}
