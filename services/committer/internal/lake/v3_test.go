package lake

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
)

func version3(more map[string]string) Settings {
	s := Settings{Properties: map[string]string{"format-version": "3"}}
	maps.Copy(s.Properties, more)
	return s
}

// rowPlace is where a row came from.
type rowPlace struct {
	partition int32
	offset    int64
}

// rowIDs are the ids of our rows, each of which must be below the table's next one
// and belong to one row alone.
func (b *bench) rowIDs() map[rowPlace]int64 {
	b.Helper()
	tbl, err := b.cat.LoadTable(b.Context(), b.ident)
	require.NoError(b, err)
	_, recs, err := tbl.Scan(table.WithRowLineage()).ToArrowRecords(b.Context())
	require.NoError(b, err)
	out := map[rowPlace]int64{}
	seen := map[int64]bool{}
	for rec, err := range recs {
		require.NoError(b, err)
		ids := rec.Column(rec.Schema().FieldIndices("_row_id")[0]).(*array.Int64)
		k := rec.Column(rec.Schema().FieldIndices(schema.KafkaColumn)[0]).(*array.Struct)
		for i := range int(rec.NumRows()) {
			require.False(b, ids.IsNull(i))
			id := ids.Value(i)
			require.False(b, seen[id], "row id %d was given twice", id)
			require.Less(b, id, tbl.Metadata().NextRowID())
			seen[id] = true
			if k.IsValid(i) {
				out[rowPlace{k.Field(1).(*array.Int32).Value(i), k.Field(2).(*array.Int64).Value(i)}] = id
			}
		}
		rec.Release()
	}
	return out
}

// Rows of a table of format version 3 have ids. Each is given once and kept, whatever
// lies between: merged manifests, fences, lost requests, other engines, replays,
// expiry (G5's kin; T13: manifests stay few).
func TestRowIDsAreGivenOnceAndKept(t *testing.T) {
	b := newBench(t, version3(map[string]string{table.ManifestMinMergeCountKey: "4"}))
	require.Equal(t, 3, b.Head().FormatVersion)
	known := map[rowPlace]int64{}
	check := func() {
		t.Helper()
		now := b.rowIDs()
		for p, id := range known {
			require.Equal(t, id, now[p], "the row of offset %d got another id", p.offset)
		}
		known = now
	}
	for i := range 9 {
		c := b.change(KindData)
		for n := range int32(2) {
			r := c.advance(part(n), Totals{Rows: int64(2 + i)})
			c.Files = append(c.Files, b.write(b.batch(part(n), r))...)
		}
		require.Len(t, c.Files, 2)
		switch i {
		case 3: // the request never arrives, another engine comes first, the files are used again
			b.stage(c)
			b.other().insert(3, nil)
			b.reload()
		case 5:
			b.commit(b.change(KindWriter)) // on a head that has left the files' base
		case 7:
			c.Expire = &ExpirePolicy{Keep: 3}
		}
		before := b.handle().Metadata()
		st := b.commit(c)
		after := b.handle().Metadata()
		snap := after.CurrentSnapshot()
		require.NotNil(t, snap.FirstRowID)
		require.Equal(t, before.NextRowID(), *snap.FirstRowID)
		require.GreaterOrEqual(t, *snap.AddedRows, st.Rows)
		require.Equal(t, *snap.FirstRowID+*snap.AddedRows, after.NextRowID())
		check()
	}
	files, err := b.files(t.Context())
	require.NoError(t, err)
	manifests, err := b.handle().Metadata().CurrentSnapshot().Manifests(files)
	require.NoError(t, err)
	require.LessOrEqual(t, len(manifests), 5)
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// A replayed row gets an id as any other (design section 5, replay).
func TestAReplayedRowHasItsOwnID(t *testing.T) {
	b := newBench(t, version3(nil))
	b.commitRows(part(0), 4)
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Quarantined: 3})
	b.poison(&c, quarantined(part(0), r))
	b.commit(c)
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	before := b.rowIDs()
	b.replay(ident.Range{First: 5, Next: 6})
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	after := b.rowIDs()
	require.Len(t, after, 5)
	for p, id := range before {
		require.Equal(t, id, after[p])
	}
	report := b.audit(true)
	require.Equal(t, Proven, report.Verdict, report.Text())
}

// Another engine may upgrade a table of ours at any time (G9): files that were written
// before land all the same, old rows get ids too, and no id is given twice.
func TestATableThatIsUpgradedMeanwhileIsCommittedTo(t *testing.T) {
	b := newBench(t, Settings{})
	require.Equal(t, 2, b.Head().FormatVersion, "version 2 is the default")
	b.commitRows(part(0), 6)
	c := b.rowsOf(part(0), 5)
	b.other().do(func(tx *table.Transaction) error { return tx.UpgradeFormatVersion(3) })
	b.reload()
	require.Equal(t, 3, b.Head().FormatVersion)
	b.commit(c)
	b.commitRows(part(0), 4)
	b.commitRows(part(1), 4)
	ids := b.rowIDs()
	require.Len(t, ids, 19)
	report := b.audit(true)
	require.Equal(t, Proven, report.Verdict, report.Text())
}

// nanoBench is a table of format version 3 with nanoseconds, partitioned by them.
func nanoBench(t *testing.T) *bench {
	b := newBench(t, version3(nil))
	partition, sort := "day(at)", "local desc"
	b.addColumns(&partition, &sort,
		&schema.Node{Name: "at", Type: schema.Of(schema.TimestampTZNano)}, &schema.Node{Name: "local", Type: schema.Of(schema.TimestampNano)})
	return b
}

func (b *bench) addColumns(partition, sort *string, columns ...*schema.Node) {
	b.Helper()
	sch := b.Head().Schema.Clone()
	sch.Columns = append(columns, sch.Columns...)
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema, c.Partition, c.Sort = sch, partition, sort
	b.commit(c)
}

// nanos are instants that only nanoseconds tell apart, and the ends of their reach.
var nanos = []int64{
	0, 1, -1, 999, 1_700_000_000_123_456_789, 1_700_000_000_123_456_788, -1_000_000_001, math.MinInt64, math.MaxInt64, math.MaxInt64 - 1,
}

func (b *bench) commitNanos() {
	b.Helper()
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: int64(len(nanos))})
	rec := b.withNanos(r)
	c.Files = b.write(rec)
	b.commit(c)
}

func (b *bench) withNanos(r ident.Range) arrow.RecordBatch {
	b.Helper()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, b.Head().Schema.Arrow())
	defer rb.Release()
	for o := r.First; o < r.Next; o++ {
		for i, f := range rb.Schema().Fields() {
			switch f.Name {
			case "at":
				rb.Field(i).(*array.TimestampBuilder).Append(arrow.Timestamp(nanos[o]))
			case "local":
				rb.Field(i).(*array.TimestampBuilder).Append(arrow.Timestamp(nanos[len(nanos)-1-int(o)]))
			case "id", "_lsn":
				rb.Field(i).(*array.Int64Builder).Append(o)
			case "_kafka":
				appendKafka(rb.Field(i).(*array.StructBuilder), part(0), o)
			default:
				rb.Field(i).AppendNull()
			}
		}
	}
	return rb.NewRecordBatch()
}

// Nanoseconds are stored whole, found by filters, and may partition and sort a table.
func TestNanosecondsAreWrittenAndFound(t *testing.T) {
	b := nanoBench(t)
	b.commitNanos()
	tbl, err := b.cat.LoadTable(t.Context(), b.ident)
	require.NoError(t, err)
	_, recs, err := tbl.Scan().ToArrowRecords(t.Context())
	require.NoError(t, err)
	got := map[int64][2]int64{}
	for rec, err := range recs {
		require.NoError(t, err)
		column := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		at, local := column("at").(*array.Timestamp), column("local").(*array.Timestamp)
		require.Equal(t, &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, at.DataType())
		require.Equal(t, &arrow.TimestampType{Unit: arrow.Nanosecond}, local.DataType())
		for i := range int(rec.NumRows()) {
			got[column("id").(*array.Int64).Value(i)] = [2]int64{int64(at.Value(i)), int64(local.Value(i))}
		}
		rec.Release()
	}
	require.Len(t, got, len(nanos))
	for o, want := range nanos {
		require.Equal(t, [2]int64{want, nanos[len(nanos)-1-o]}, got[int64(o)])
	}
	at := iceberg.Reference("at")
	second := time.Unix(1_700_000_000, 123_456_789)
	for filter, want := range map[iceberg.BooleanExpression]int64{
		iceberg.EqualTo(at, iceberg.TimestampNano(second.UnixNano())):      1,
		iceberg.LessThan(at, iceberg.TimestampNano(0)):                     3,
		iceberg.GreaterThanEqual(at, iceberg.TimestampNano(math.MaxInt64)): 1,
	} {
		require.Equal(t, want, b.count(filter), filter)
	}
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// variants are texts that a column of variants holds; "" is null.
var variants = []string{
	`{"a":[1,2.5,"x",null,true],"b":{"c":1e+100}}`, ``, `null`, `"text"`, `-7`, ``, `[]`, `{}`, `12345678901234567890.125`, `{"long":"` + strings.Repeat("y", 300) + `"}`,
	manyKeys(), `{"dead":"end"}`,
}

// manyKeys is an object whose dictionary needs two bytes for each offset.
func manyKeys() string {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, `,"key%03d":%d`, i, i)
	}
	return "{" + b.String()[1:] + "}"
}

func appendVariant(t testing.TB, b array.Builder, text string) {
	t.Helper()
	if text == "" {
		b.AppendNull()
		return
	}
	var e variant.Encoder
	metadata, value, err := e.JSON([]byte(text))
	require.NoError(t, err)
	s := b.(*array.StructBuilder)
	s.Append(true)
	s.FieldBuilder(0).(*array.BinaryBuilder).Append(metadata)
	s.FieldBuilder(1).(*array.BinaryBuilder).Append(value)
}

// variantTexts are the values of a column of variants as a reader has them, "" for null.
func variantTexts(t testing.TB, a arrow.Array) []string {
	t.Helper()
	v, ok := a.(*extensions.VariantArray)
	require.True(t, ok, "the file says what it holds: %s", a.DataType())
	out := make([]string, v.Len())
	parts := v.Storage().(*array.Struct) // Arrow's own reader panics beyond 125 keys
	part := func(name string, i int) []byte {
		at, ok := parts.DataType().(*arrow.StructType).FieldIdx(name)
		require.True(t, ok)
		return parts.Field(at).(*array.Binary).Value(i)
	}
	for i := range out {
		if parts.IsNull(i) { // v.IsNull also says so of the variant null
			continue
		}
		text, err := variant.JSON(nil, part("metadata", i), part("value", i))
		require.NoError(t, err)
		out[i] = string(text)
	}
	return out
}

// Variants can be added to a table that exists, at any depth, and come back as they were; the manifest of a table
// with them is as any other.
func TestVariantsAreAddedWrittenAndRead(t *testing.T) {
	b := newBench(t, version3(map[string]string{table.ManifestMinMergeCountKey: "2"}))
	b.commitRows(part(0), 3)
	b.addVariants()
	require.Equal(t, "variant", b.Head().Schema.Column("v").Type.String())
	for range 2 {
		b.commitVariants()
	}
	tbl, err := b.cat.LoadTable(t.Context(), b.ident)
	require.NoError(t, err)
	_, recs, err := tbl.Scan().ToArrowRecords(t.Context())
	require.NoError(t, err)
	rows := 0
	for rec, err := range recs {
		require.NoError(t, err)
		column := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		if column("v").NullN() == int(rec.NumRows()) { // from before
			require.EqualValues(t, 3, rec.NumRows())
			continue
		}
		rows += int(rec.NumRows())
		require.Equal(t, variants, variantTexts(t, column("v")))
		s := column("s").(*array.Struct)
		var inner []string
		for i, text := range variantTexts(t, s.Field(0)) {
			if s.IsValid(i) {
				inner = append(inner, text)
			}
		}
		require.Equal(t, everyOther(variants), inner)
		require.Equal(t, variants, variantTexts(t, column("l").(*array.List).ListValues().(*array.Struct).Field(0)))
		require.Equal(t, variants, variantTexts(t, column("m").(*array.Map).Items().(*array.Struct).Field(0)))
		rec.Release()
	}
	require.Equal(t, 2*len(variants), rows)
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
	order := b.change(KindSchema)
	by := "v"
	order.Sort = &by
	_, err = b.Stage(t.Context(), order)
	require.ErrorContains(t, err, "has no order")
	order = b.change(KindSchema)
	order.Partition = &by
	_, err = b.Stage(t.Context(), order)
	require.ErrorContains(t, err, "has type variant")
}

// addVariants adds columns of variants to the table, at any depth.
func (b *bench) addVariants() {
	b.Helper()
	v := func() *schema.Node { return &schema.Node{Name: "v", Type: schema.Of(schema.Variant)} }
	b.addColumns(nil, nil,
		v(), &schema.Node{Name: "s", Type: schema.Of(schema.Struct), Kids: []*schema.Node{v(), {Name: "n", Type: schema.Of(schema.Long)}}},
		&schema.Node{Name: "l", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: "element", Type: schema.Of(schema.Struct), Kids: []*schema.Node{v()}}}},
		&schema.Node{Name: "m", Type: schema.Of(schema.Map), Kids: []*schema.Node{{Name: "key", Type: schema.Of(schema.String), Required: true}, {Name: "value", Type: schema.Of(schema.Struct), Kids: []*schema.Node{v()}}}},
	)
}

// commitVariants commits a row of each text.
func (b *bench) commitVariants() {
	b.Helper()
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: int64(len(variants))})
	c.Files = b.write(b.withVariants(r))
	b.commit(c)
}

func everyOther(list []string) (out []string) {
	for i := 0; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// withVariants has every text in each kind of place: row i holds text i, every other struct is null, and the first row
// has all of them in its list and its map.
func (b *bench) withVariants(r ident.Range) arrow.RecordBatch {
	b.Helper()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, b.Head().Schema.Arrow())
	defer rb.Release()
	for o := r.First; o < r.Next; o++ {
		i := int(o - r.First)
		for at, f := range rb.Schema().Fields() {
			switch f.Name {
			case "v":
				appendVariant(b.TB, rb.Field(at), variants[i])
			case "s":
				s := rb.Field(at).(*array.StructBuilder)
				if i%2 == 1 {
					s.AppendNull()
					continue
				}
				s.Append(true)
				appendVariant(b.TB, s.FieldBuilder(0), variants[i])
				s.FieldBuilder(1).(*array.Int64Builder).Append(o)
			case "l":
				l := rb.Field(at).(*array.ListBuilder)
				l.Append(true)
				for _, text := range variants {
					if i == 0 {
						inner := l.ValueBuilder().(*array.StructBuilder)
						inner.Append(true)
						appendVariant(b.TB, inner.FieldBuilder(0), text)
					}
				}
			case "m":
				m := rb.Field(at).(*array.MapBuilder)
				m.Append(true)
				for k, text := range variants {
					if i == 0 {
						m.KeyBuilder().(*array.StringBuilder).Append(fmt.Sprint(k))
						inner := m.ItemBuilder().(*array.StructBuilder)
						inner.Append(true)
						appendVariant(b.TB, inner.FieldBuilder(0), text)
					}
				}
			case "id", "_lsn":
				rb.Field(at).(*array.Int64Builder).Append(o)
			case "_kafka":
				appendKafka(rb.Field(at).(*array.StructBuilder), part(0), o)
			default:
				rb.Field(at).AppendNull()
			}
		}
	}
	return rb.NewRecordBatch()
}
