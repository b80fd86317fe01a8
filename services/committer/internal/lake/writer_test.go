package lake

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

func readFooter(t testing.TB, location string) *file.Reader {
	t.Helper()
	f, err := os.Open(localPath(location))
	require.NoError(t, err)
	r, err := file.NewParquetReader(f)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func TestFilesAreWhatEveryEngineReads(t *testing.T) {
	b := newBench(t, Settings{})
	files := b.write(b.batch(part(0), ident.Range{Next: 100}))
	require.Len(t, files, 1)
	// Interop F1, W10: no value of a row and no odd character in a name; W8, W7.
	require.Regexp(t, `/data/[A-Za-z0-9._=-]+\.parquet$`, files[0].Path)
	r := readFooter(t, files[0].Path)
	require.Equal(t, int64(100), r.NumRows())
	ids := map[string]int32{}
	b.Head().Schema.Walk(func(path string, n *schema.Node) { ids[path] = n.FieldID })
	s := r.MetaData().Schema
	for i := range s.NumColumns() {
		c := s.Column(i)
		path := strings.NewReplacer(".list.", ".", ".key_value.", ".").Replace(c.Path())
		require.Equal(t, ids[path], c.SchemaNode().FieldID(), c.Path())
		chunk, err := r.MetaData().RowGroup(0).ColumnChunk(i)
		require.NoError(t, err)
		require.Equal(t, compress.Codecs.Zstd, chunk.Compression())
		set, err := chunk.StatsSet()
		require.NoError(t, err)
		require.Equal(t, c.MaxRepetitionLevel() == 0, set, c.Path()) // below lists the library leaves values out of the bounds
	}
	d := files[0].data
	require.Equal(t, int64(100), d.Count())
	require.Equal(t, int64(100), d.ValueCounts()[int(ids["id"])])
	require.Nil(t, d.SortOrderID())
}

// W2, W4, W5, W7: values that statistics and readers stumble over.
func TestOddValuesAreWrittenAndFound(t *testing.T) {
	b := newBench(t, Settings{})
	sch := b.Head().Schema.Clone()
	sch.Columns = append(sch.Columns,
		&schema.Node{Name: "price", Type: schema.DecimalOf(10, 2)},
		&schema.Node{Name: "big", Type: schema.DecimalOf(38, 9)},
		&schema.Node{Name: "local", Type: schema.Of(schema.Timestamp)},
		&schema.Node{Name: "attributes", Type: schema.Of(schema.Map), Kids: []*schema.Node{
			{Name: "key", Type: schema.Of(schema.String), Required: true}, {Name: "value", Type: schema.Of(schema.String)},
		}})
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema = sch
	b.commit(c)

	rb := array.NewRecordBuilder(memory.DefaultAllocator, b.Head().Schema.Arrow())
	defer rb.Release()
	field := func(name string) array.Builder { return rb.Field(rb.Schema().FieldIndices(name)[0]) }
	amounts := []float64{1, math.NaN(), 3}
	for i, v := range amounts {
		field("amount").(*array.Float64Builder).Append(v)
		field("price").(*array.Decimal128Builder).Append(decimal128.FromI64(int64(i-1) * 12345))
		field("big").(*array.Decimal128Builder).Append(decimal128.New(int64(i), 7))
		field("local").(*array.TimestampBuilder).Append(arrow.Timestamp(i))
		m := field("attributes").(*array.MapBuilder)
		m.Append(true)
		for k := range i {
			m.KeyBuilder().(*array.StringBuilder).Append(strings.Repeat("k", k+1))
			m.ItemBuilder().AppendNull()
		}
		for j, f := range rb.Schema().Fields() {
			if rb.Field(j).Len() <= i {
				rb.Field(j).AppendNull()
			}
			_ = f
		}
	}
	rec := rb.NewRecordBatch()
	next := b.change(KindData)
	next.advance(part(0), Totals{Rows: 3})
	next.Files = b.write(rec)
	b.commit(next)

	id := func(name string) int { return int(b.Head().Schema.Column(name).FieldID) }
	d := next.Files[0].data
	upper, err := iceberg.LiteralFromBytes(iceberg.PrimitiveTypes.Float64, d.UpperBoundValues()[id("amount")])
	require.NoError(t, err)
	require.InDelta(t, 3, upper.Any(), 0)
	require.Equal(t, []byte{0xcf, 0xc7}, d.LowerBoundValues()[id("price")], "least two's complement of -12345")

	s := readFooter(t, next.Files[0].Path).MetaData().Schema
	physical := func(name string) parquet.Type { return s.Column(s.ColumnIndexByName(name)).PhysicalType() }
	require.Equal(t, parquet.Types.Int64, physical("price"))
	require.Equal(t, parquet.Types.FixedLenByteArray, physical("big"))
	require.Contains(t, s.Column(s.ColumnIndexByName("local")).LogicalType().String(), "isAdjustedToUTC=false")
	require.Contains(t, s.Column(s.ColumnIndexByName("created_at")).LogicalType().String(), "isAdjustedToUTC=true")

	for filter, want := range map[iceberg.BooleanExpression]int64{
		iceberg.GreaterThan(iceberg.Reference("amount"), 1.0):                   1,
		iceberg.LessThan(iceberg.Reference("price"), iceberg.Decimal{Scale: 2}): 1,
	} {
		require.Equal(t, want, b.count(filter), filter)
	}
	require.Equal(t, int64(3), b.rows(tableName))
}

func (b *bench) count(filter iceberg.BooleanExpression) int64 {
	b.Helper()
	_, recs, err := b.handle().Scan(table.WithRowFilter(filter)).ToArrowRecords(b.Context())
	require.NoError(b, err)
	var n int64
	for r, err := range recs {
		require.NoError(b, err)
		n += r.NumRows()
		r.Release()
	}
	return n
}

func TestRowsGoToTheirPartitionsAndPredicatesFindThem(t *testing.T) {
	b := newBench(t, Settings{Partition: "day(created_at), bucket(4, address.zip)", Sort: "amount desc"})
	spec := b.handle().Spec()
	require.Equal(t, 2, spec.NumFields())
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 60})
	c.Files = b.write(b.batch(part(0), ident.Range{First: r.First, Next: 30}), b.batch(part(0), ident.Range{First: 30, Next: r.Next}))
	b.commit(c)
	require.Greater(t, len(c.Files), 6)
	require.Equal(t, int64(60), b.rows(tableName))
	require.Equal(t, int64(10), b.count(iceberg.EqualTo(iceberg.Reference("created_at"), iceberg.Timestamp(day0.AddDate(0, 0, 2).UnixMicro()))))
	require.Equal(t, int64(9), b.count(iceberg.EqualTo(iceberg.Reference("address.zip"), "zip3")))
	for _, f := range c.Files {
		require.NotContains(t, f.Path, "zip")
	}
	require.Equal(t, Proven, b.audit(true).Verdict)
}

func TestRowsOfAFileAreSorted(t *testing.T) {
	b := newBench(t, Settings{Sort: "amount desc"})
	require.NotEqual(t, table.UnsortedSortOrderID, b.handle().SortOrder().OrderID())
	b.commitRows(part(0), 50)
	_, recs, err := b.handle().Scan(table.WithSelectedFields("amount")).ToArrowRecords(t.Context())
	require.NoError(t, err)
	last := math.Inf(1)
	for r, err := range recs {
		require.NoError(t, err)
		for _, v := range r.Column(0).(*array.Float64).Float64Values() {
			require.LessOrEqual(t, v, last)
			last = v
		}
	}
}

// W11: a backlog over many partitions neither opens them all nor holds them all.
func TestOpenFilesAndTheirMemoryAreBounded(t *testing.T) {
	b := newBench(t, Settings{Partition: "day(created_at)"})
	o := b.options()
	o.MaxOpen, o.Budget = 3, 1
	w, err := b.NewWriter(t.Context(), b.Head().Schema, o)
	require.NoError(t, err)
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 200})
	for from := r.First; from < r.Next; from += 50 {
		require.NoError(t, w.Write(b.batch(part(0), ident.Range{First: from, Next: from + 50})))
		require.NoError(t, w.flush())
		require.LessOrEqual(t, w.Open(), 3)
		require.LessOrEqual(t, w.Buffered(), int64(1))
	}
	require.Positive(t, w.Bytes())
	c.Files, err = w.Close(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(c.Files), 20)
	b.commit(c)
	require.Equal(t, int64(200), b.rows(tableName))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

func TestAFileEndsAtItsSize(t *testing.T) {
	b := newBench(t, Settings{})
	o := b.options()
	o.FileSize = 1
	w, err := b.NewWriter(t.Context(), b.Head().Schema, o)
	require.NoError(t, err)
	for i := range int64(70) {
		require.NoError(t, w.Write(b.batch(part(0), ident.Range{First: i, Next: i + 1})))
	}
	files, err := w.Close(t.Context())
	require.NoError(t, err)
	require.Len(t, files, 70)
	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2*namesAtOnce, intents[0].Files)
	paths, err := b.IntentFiles(t.Context(), intents[0])
	require.NoError(t, err)
	require.Len(t, paths, 70)
}

func TestABatchOfAnotherShapeIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, b.options())
	require.NoError(t, err)
	require.ErrorIs(t, w.Write(quarantined(part(0), ident.Range{Next: 1})), fault.Of(fault.Internal))
	_, err = w.Close(t.Context())
	require.Error(t, err, "a failed writer gives no files")
}

// G8: rows that break the encoder are an error of the batch that holds them, where
// the writer is asked to encode each for itself; and never a panic.
func TestFlushTellsWhichBatchBreaksTheEncoder(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, b.options())
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 3})))
	require.Zero(t, w.Open(), "small batches wait to be joined")
	require.NoError(t, w.Flush())
	require.Equal(t, 1, w.Open())
	require.NoError(t, w.Flush(), "nothing waits")

	broken := b.batch(part(0), ident.Range{First: 3, Next: 6})
	columns := slices.Clone(broken.Columns())
	at := broken.Schema().FieldIndices("tags")[0]
	tags := columns[at].Data()
	offsets := memory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, 1, 500, 1000}))
	columns[at] = array.MakeFromData(array.NewData(tags.DataType(), 3, []*memory.Buffer{nil, offsets}, tags.Children(), 0, 0))
	require.NoError(t, w.Write(array.NewRecordBatch(broken.Schema(), columns, 3)))
	require.ErrorIs(t, w.Flush(), fault.Of(fault.Corrupt))
	require.Error(t, w.Flush())
	w.Abort(t.Context())
	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	require.Empty(t, intents)
}

// W1: NaN is one partition, the zeros are two; every value has its own key.
func TestPartitionKeysTellValuesApart(t *testing.T) {
	key := func(v any) string { return string(appendKey(nil, v)) }
	nan := math.Float64frombits(0x7ff8000000000001)
	require.Equal(t, key(math.NaN()), key(nan))
	require.NotEqual(t, key(0.0), key(math.Copysign(0, -1)))
	require.NotEqual(t, key(nil), key(""))
	require.NotEqual(t, key("a")+key("b"), key("ab")+key(""))
	require.NotEqual(t, key(int32(1)), key(int64(1)))
}

// T7: the spec was changed by others while files of the old one were open.
func TestFilesKeepTheSpecTheyWereWrittenWith(t *testing.T) {
	b := newBench(t, Settings{Partition: "day(created_at)"})
	c := b.rowsOf(part(0), 20)
	b.other().do(func(tx *table.Transaction) error {
		return tx.UpdateSpec(true).AddField("id", iceberg.BucketTransform{NumBuckets: 2}, "id_bucket").Commit()
	})
	b.reload()
	b.commit(c)
	b.commitRows(part(0), 20)
	require.Equal(t, int64(40), b.rows(tableName))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

// W7, W8: maps, and lists of structs with maps, move with their rows.
func TestTakingRowsKeepsNestedValuesWhole(t *testing.T) {
	attributes := arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String)
	item := arrow.StructOf(arrow.Field{Name: "sku", Type: arrow.BinaryTypes.String, Nullable: true}, arrow.Field{Name: "a", Type: attributes, Nullable: true})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "m", Type: attributes, Nullable: true},
		{Name: "l", Type: arrow.ListOf(item), Nullable: true},
		{Name: "o", Type: item, Nullable: true},
		{Name: "d", Type: &arrow.Decimal128Type{Precision: 20}, Nullable: true},
		{Name: "f", Type: &arrow.FixedSizeBinaryType{ByteWidth: 2}, Nullable: true},
	}, nil)
	lines := []string{
		`{"m":[{"key":"a","value":"1"},{"key":"b","value":null}],"l":[{"sku":"x","a":[]}],"o":null,"d":"5","f":"AAA="}`,
		`{"m":[],"l":[],"o":{"sku":"y","a":[{"key":"k","value":"v"}]},"d":null,"f":null}`,
		`{"m":null,"l":[{"sku":null,"a":[{"key":"q","value":"r"}]},{"sku":"z","a":null}],"o":{"sku":"w","a":[]},"d":"7","f":"AQI="}`,
		`{"m":[{"key":"c","value":"3"}],"l":null,"o":{"sku":null,"a":null},"d":"8","f":"AwQ="}`,
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader("["+strings.Join(lines, ",")+"]"))
	require.NoError(t, err)
	for _, rows := range [][]int64{{2, 0, 3}, {1}, {3, 2, 1, 0}, {0, 1, 2, 3}} {
		got, err := take(t.Context(), rec, rows)
		require.NoError(t, err)
		for i, row := range rows {
			want, err := rec.NewSlice(row, row+1).MarshalJSON()
			require.NoError(t, err)
			have, err := got.NewSlice(int64(i), int64(i)+1).MarshalJSON()
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(have))
		}
	}
}
