package lake

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

const tableName = "shop.orders"

func newLake(t testing.TB, dir string) *Lake {
	t.Helper()
	l, err := Open(t.Context(), Config{
		Type: "sql", URI: "sqlite://" + dir + "/catalog.db", Warehouse: "file://" + dir + "/warehouse",
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// bench is a table with one pipeline whose partitions the tests advance.
type bench struct {
	testing.TB
	lake *Lake
	*Table
	dir string
}

func newBench(t testing.TB, s Settings) *bench {
	t.Helper()
	dir := t.TempDir()
	l := newLake(t, dir)
	s.LSN, s.Kafka, s.Owner = true, true, "test"
	tbl, err := l.Create(t.Context(), tableName, s)
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl, dir: dir}
	b.setSchema()
	return b
}

// columns are id long, amount double, created_at timestamptz, tags list<string>,
// address struct{zip string}.
func columns() []*schema.Node {
	return []*schema.Node{
		{Name: "id", Type: schema.Of(schema.Long)},
		{Name: "amount", Type: schema.Of(schema.Double)},
		{Name: "created_at", Type: schema.Of(schema.TimestampTZ)},
		{Name: "tags", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: "element", Type: schema.Of(schema.String)}}},
		{Name: "address", Type: schema.Of(schema.Struct), Kids: []*schema.Node{{Name: "zip", Type: schema.Of(schema.String)}}},
	}
}

// setSchema gives the table its mapped columns.
func (b *bench) setSchema() {
	b.Helper()
	sch := b.Head().Schema.Clone()
	sch.Columns = append(columns(), sch.Columns...)
	sch.AssignIDs()
	c := b.change(KindSchema)
	c.Schema = sch
	c.Numbers = map[string]schema.NumberMap{"p": {"1": sch.Columns[0].FieldID}}
	b.commit(c)
}

func part(n int32) ident.Partition {
	return ident.Partition{Pipeline: "p", Topic: "orders", TopicID: ident.UUID{1}, Number: n}
}

func newID() ident.UUID { return ident.UUID(uuid.New()) }

// change is a change that advances nothing.
func (b *bench) change(kind string) Change {
	s := b.Head().State.Carry()
	if s.Pipelines["p"] == nil {
		s.Pipelines["p"] = &Pipeline{Owner: "test/kafka", Positions: ident.Positions{}, Totals: map[ident.Partition]Totals{}}
	}
	if s.WriterEpoch == 0 {
		s.WriterEpoch, s.LogEpoch = 1, 1
		s.LSN = ident.LSNState{Reserved: ident.Reservation}
	}
	return Change{CommitID: newID(), Kind: kind, State: s}
}

// advance moves a partition by rows rows and skipped counted elsewhere.
func (c *Change) advance(p ident.Partition, t Totals) ident.Range {
	pl := c.State.Pipelines["p"]
	pos := pl.Positions[p]
	if _, known := pl.Positions[p]; !known {
		pos.LeaderEpoch = 3
	}
	r := ident.Range{First: pos.Next, Next: pos.Next + t.Len()}
	if pl.First == nil {
		pl.First = map[ident.Partition]int64{}
	}
	pl.First[p] = r.First
	pos.Next = r.Next
	pl.Positions[p] = pos
	pl.Totals[p] = pl.Totals[p].Add(t)
	pl.Delta = pl.Delta.Add(t)
	c.State.LSN.Next += ident.LSN(r.Len())
	c.State.LSN.Reserved = c.State.LSN.Next + ident.Reservation
	return r
}

func (b *bench) stage(c Change) *Staged {
	b.Helper()
	st, err := b.Stage(b.Context(), c)
	require.NoError(b, err)
	return st
}

func (b *bench) commit(c Change) *Staged {
	b.Helper()
	st := b.stage(c)
	require.NoError(b, b.Send(b.Context(), st))
	b.reload()
	require.True(b, b.Find(c.CommitID))
	return st
}

func (b *bench) reload() Head {
	b.Helper()
	h, err := b.Reload(b.Context())
	require.NoError(b, err)
	return h
}

// commitRows commits n rows of a partition.
func (b *bench) commitRows(p ident.Partition, n int64) *Staged {
	b.Helper()
	return b.commit(b.rowsOf(p, n))
}

// rowsOf is a change by n rows of a partition, whose files are written.
func (b *bench) rowsOf(p ident.Partition, n int64) Change {
	b.Helper()
	c := b.change(KindData)
	r := c.advance(p, Totals{Rows: n})
	c.Files = b.write(b.batch(p, r))
	return c
}

func (b *bench) options() WriterOptions { return WriterOptions{Attempt: newID(), Epoch: 1} }

func (b *bench) write(recs ...arrow.RecordBatch) []File {
	b.Helper()
	w, err := b.NewWriter(b.Context(), b.Head().Schema, b.options())
	require.NoError(b, err)
	for _, r := range recs {
		require.NoError(b, w.Write(r))
	}
	files, err := w.Close(b.Context())
	require.NoError(b, err)
	return files
}

var day0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// batch makes the rows of a range; the row of offset o has id o, created a day
// later for every ten offsets.
func (b *bench) batch(p ident.Partition, r ident.Range) arrow.RecordBatch {
	b.Helper()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, b.Head().Schema.Arrow())
	defer rb.Release()
	field := func(name string) array.Builder { return rb.Field(rb.Schema().FieldIndices(name)[0]) }
	for o := r.First; o < r.Next; o++ {
		field("id").(*array.Int64Builder).Append(o)
		field("amount").(*array.Float64Builder).Append(float64(o) / 4)
		field("created_at").(*array.TimestampBuilder).Append(arrow.Timestamp(day0.AddDate(0, 0, int(o/10)).UnixMicro()))
		tags := field("tags").(*array.ListBuilder)
		tags.Append(true)
		for i := range o % 3 {
			tags.ValueBuilder().(*array.StringBuilder).Append(fmt.Sprint("t", i))
		}
		address := field("address").(*array.StructBuilder)
		address.Append(true)
		address.FieldBuilder(0).(*array.StringBuilder).Append(fmt.Sprint("zip", o%7))
		field("_lsn").(*array.Int64Builder).Append(o)
		appendKafka(field("_kafka").(*array.StructBuilder), p, o)
		for i := range rb.Fields() {
			if f := rb.Field(i); f.Len() < rb.Field(0).Len() {
				f.AppendNull() // a column that others added
			}
		}
	}
	return rb.NewRecordBatch()
}

func appendKafka(k *array.StructBuilder, p ident.Partition, offset int64) {
	k.Append(true)
	k.FieldBuilder(0).(*array.StringBuilder).Append(p.Topic)
	k.FieldBuilder(1).(*array.Int32Builder).Append(p.Number)
	k.FieldBuilder(2).(*array.Int64Builder).Append(offset)
	k.FieldBuilder(3).(*array.TimestampBuilder).Append(arrow.Timestamp(day0.UnixMicro()))
	k.FieldBuilder(4).(*array.BinaryBuilder).AppendNull()
	k.FieldBuilder(5).(*array.ListBuilder).Append(true)
	k.FieldBuilder(6).(*array.Int32Builder).Append(7)
}

// quarantined makes rows of the quarantine table.
func quarantined(p ident.Partition, r ident.Range) arrow.RecordBatch {
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema.QuarantineSchema().Arrow())
	defer rb.Release()
	for o := r.First; o < r.Next; o++ {
		for i, f := range rb.Schema().Fields() {
			switch f.Name {
			case "pipeline":
				rb.Field(i).(*array.StringBuilder).Append(p.Pipeline)
			case "topic":
				rb.Field(i).(*array.StringBuilder).Append(p.Topic)
			case "topic_id":
				rb.Field(i).(*array.StringBuilder).Append(p.TopicID.OrEmpty())
			case "partition":
				rb.Field(i).(*array.Int32Builder).Append(p.Number)
			case "offset":
				rb.Field(i).(*array.Int64Builder).Append(o)
			case "value":
				rb.Field(i).(*array.BinaryBuilder).Append(fmt.Appendf(nil, "record %d", o))
			case "headers":
				list := rb.Field(i).(*array.ListBuilder)
				list.Append(true)
				pair := list.ValueBuilder().(*array.StructBuilder)
				pair.Append(true)
				pair.FieldBuilder(0).(*array.StringBuilder).Append("trace")
				pair.FieldBuilder(1).(*array.BinaryBuilder).Append([]byte{byte(o)})
			case "reason":
				rb.Field(i).(*array.StringBuilder).Append("bad_magic")
			case schema.LSNName:
				rb.Field(i).(*array.Int64Builder).Append(1000 + o)
			default:
				rb.Field(i).AppendNull()
			}
		}
	}
	return rb.NewRecordBatch()
}

// other is what another engine does with the table: its own handle and commits
// without our keys.
type other struct {
	testing.TB
	tbl *table.Table
}

func (b *bench) other() *other {
	b.Helper()
	tbl, err := b.cat.LoadTable(b.Context(), b.ident)
	require.NoError(b, err)
	return &other{TB: b.TB, tbl: tbl}
}

func (o *other) reload() {
	o.Helper()
	require.NoError(o, o.tbl.Refresh(o.Context()))
}

// insert appends n rows as another engine would.
func (o *other) insert(n int, summary iceberg.Properties) {
	o.Helper()
	o.reload()
	sch, err := table.SchemaToArrowSchema(o.tbl.Schema(), nil, true, false)
	require.NoError(o, err)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, sch)
	defer rb.Release()
	for range n {
		for i := range sch.NumFields() {
			rb.Field(i).AppendNull()
		}
	}
	rec := rb.NewRecordBatch()
	r, err := array.NewRecordReader(sch, []arrow.RecordBatch{rec})
	require.NoError(o, err)
	o.tbl, err = o.tbl.Append(o.Context(), r, summary)
	require.NoError(o, err)
}

// keepNoStatistics has columns of what is written from now on say nothing of their values.
func (o *other) keepNoStatistics() {
	o.Helper()
	o.do(func(tx *table.Transaction) error {
		return tx.SetProperties(iceberg.Properties{"write.metadata.metrics.default": "none"})
	})
}

func (o *other) do(f func(tx *table.Transaction) error) {
	o.Helper()
	o.reload()
	tx := o.tbl.NewTransaction()
	require.NoError(o, f(tx))
	var err error
	o.tbl, err = tx.Commit(context.WithoutCancel(o.Context()))
	require.NoError(o, err)
}

// rows counts the rows that a reader sees.
func (b *bench) rows(name string) int64 {
	b.Helper()
	tbl, err := b.cat.LoadTable(b.Context(), strings.Split(name, "."))
	require.NoError(b, err)
	_, recs, err := tbl.Scan().ToArrowRecords(b.Context())
	require.NoError(b, err)
	var n int64
	for r, err := range recs {
		require.NoError(b, err)
		n += r.NumRows()
		r.Release()
	}
	return n
}

func localPath(location string) string { return strings.TrimPrefix(location, "file://") }

func requireGone(t testing.TB, location string) {
	t.Helper()
	_, err := os.Stat(localPath(location))
	require.ErrorIs(t, err, os.ErrNotExist)
}
