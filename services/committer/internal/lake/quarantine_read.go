package lake

import (
	"context"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// QuarantineFilter selects quarantined records: every field that is set must
// match.
type QuarantineFilter struct {
	Pipeline  string
	Topic     string
	Partition *int32
	From, To  *int64 // offsets [From, To)
	Reason    string
	SchemaID  *int32
	// Waiting leaves out what was replayed.
	Waiting bool
	// Whole refuses a table that somebody rolled back: a replay would land records
	// again.
	Whole bool
}

// expression is the filter for planning: files whose statistics rule it out are
// not opened. Rows are checked by matches, since the library mixes up the columns
// of a filter with those that are read.
func (f QuarantineFilter) expression() iceberg.BooleanExpression {
	var out iceberg.BooleanExpression = iceberg.AlwaysTrue{}
	and := func(e iceberg.BooleanExpression) { out = iceberg.NewAnd(out, e) }
	if f.Pipeline != "" {
		and(iceberg.EqualTo(iceberg.Reference("pipeline"), f.Pipeline))
	}
	if f.Topic != "" {
		and(iceberg.EqualTo(iceberg.Reference("topic"), f.Topic))
	}
	if f.Partition != nil {
		and(iceberg.EqualTo(iceberg.Reference("partition"), *f.Partition))
	}
	if f.From != nil {
		and(iceberg.GreaterThanEqual(iceberg.Reference("offset"), *f.From))
	}
	if f.To != nil {
		and(iceberg.LessThan(iceberg.Reference("offset"), *f.To))
	}
	if f.Reason != "" {
		and(iceberg.EqualTo(iceberg.Reference("reason"), f.Reason))
	}
	if f.SchemaID != nil {
		and(iceberg.EqualTo(iceberg.Reference("schema_id"), *f.SchemaID))
	}
	if f.Waiting {
		and(iceberg.IsNull(iceberg.Reference(replayedColumn)))
	}
	return out
}

// matches checks one record.
func (f QuarantineFilter) matches(q *Quarantined) bool {
	switch {
	case f.Pipeline != "" && f.Pipeline != q.Partition.Pipeline,
		f.Topic != "" && f.Topic != q.Partition.Topic,
		f.Partition != nil && *f.Partition != q.Partition.Number,
		f.From != nil && q.Offset < *f.From,
		f.To != nil && q.Offset >= *f.To,
		f.Reason != "" && f.Reason != q.Reason,
		f.SchemaID != nil && (q.SchemaID == nil || *f.SchemaID != *q.SchemaID),
		f.Waiting && q.ReplayedIn != "":
		return false
	default:
		return true
	}
}

// Quarantined is a record of a quarantine table. Byte slices are its own.
type Quarantined struct {
	Partition  ident.Partition
	Offset     int64
	Time       time.Time // zero: null
	Key, Value []byte    // nil: null, or not asked for
	Headers    []QuarantinedHeader
	SchemaID   *int32
	Reason     string
	Error      string
	CommitID   string
	ReplayedIn string     // "" while it waits
	LSN        *ident.LSN // nil: quarantined by a release that did not keep it
}

// QuarantinedHeader is a header of a record.
type QuarantinedHeader struct {
	Key   string
	Value []byte
}

// Bytes is about what the record holds in memory.
func (q *Quarantined) Bytes() int64 {
	n := int64(len(q.Key)+len(q.Value)+len(q.Error)) + 256
	for _, h := range q.Headers {
		n += int64(len(h.Key) + len(h.Value))
	}
	return n
}

// heavy columns are those that a reader who only counts does without.
var heavy = []string{"key", "value", "headers", "error"}

// ReadQuarantine calls visit with the quarantined records of a main table that
// match, in no order; light leaves key, value, headers and error out. An error
// of visit ends it. A table without quarantined records has none to visit.
// Records that are still in the outbox are not visited: PendingRecords counts
// them.
func (t *Table) ReadQuarantine(ctx context.Context, f QuarantineFilter, light bool, visit func(Quarantined) error) error {
	q, err := t.quarantine(ctx, false)
	if fault.ReasonOf(err) == fault.UnknownTable {
		return nil
	}
	if err != nil {
		return err
	}
	if f.Whole {
		if err := q.whole(); err != nil {
			return err
		}
	}
	tbl := q.rehandle(q.handle().Metadata())
	if tbl.CurrentSnapshot() == nil {
		return nil
	}
	var names []string
	for _, n := range schema.QuarantineSchema().Columns {
		if q.Head().Schema.Column(n.Name) != nil && (!light || !slices.Contains(heavy, n.Name)) {
			names = append(names, n.Name)
		}
	}
	ctx = t.lake.storage(ctx)
	plan := tbl.Scan(table.WithRowFilter(f.expression()), table.WithMaxConcurrency(icefile.ManifestsAtOnce))
	defer func() { _ = plan.Close() }() // it holds nothing that could fail to be given back
	tasks, err := plan.PlanFiles(ctx)
	if err != nil {
		return classify(err, "planning a scan of table %s", q.name)
	}
	read := tbl.Scan(table.WithSelectedFields(names...))
	defer func() { _ = read.Close() }()
	for _, task := range tasks {
		task.Residual = nil
		err := eachBatch(ctx, read, task, func(rec arrow.RecordBatch) error { return visitQuarantined(rec, f, visit) })
		if err != nil {
			return err
		}
	}
	return nil
}

// PendingRecords is the number of quarantined records that a commit decided about
// and that are not in the quarantine table yet.
func (t *Table) PendingRecords(ctx context.Context) (int64, error) {
	pending := t.Head().State.Pending()
	if len(pending) == 0 {
		return 0, nil
	}
	q, err := t.quarantine(ctx, false)
	if err != nil && fault.ReasonOf(err) != fault.UnknownTable {
		return 0, err
	}
	var n, upTo int64
	if q != nil {
		if upTo, err = q.appliedSequence(ctx); err != nil {
			return 0, err
		}
	}
	for _, e := range pending {
		if q == nil || !q.applied(e, upTo) {
			n += e.Rows()
		}
	}
	return n, nil
}

func visitQuarantined(rec arrow.RecordBatch, f QuarantineFilter, visit func(Quarantined) error) error {
	c, err := quarantineColumns(rec)
	if err != nil {
		return err
	}
	r := quarantineRow{rec: rec, keys: c}
	for i := range int(rec.NumRows()) {
		p, ok := c.place(i)
		if !ok {
			continue // others wrote it: it names no record
		}
		q := r.read(i, p)
		if !f.matches(&q) {
			continue
		}
		if err := visit(q); err != nil {
			return err
		}
	}
	return nil
}

// quarantineRow reads rows of a batch of a quarantine table.
type quarantineRow struct {
	rec  arrow.RecordBatch
	keys quarantineKeys
}

func (r quarantineRow) column(name string) arrow.Array {
	if i := r.rec.Schema().FieldIndices(name); len(i) == 1 {
		return r.rec.Column(i[0])
	}
	return nil
}

func (r quarantineRow) text(name string, i int) string {
	if c, ok := r.column(name).(*array.String); ok && c.IsValid(i) {
		return c.Value(i)
	}
	return ""
}

func (r quarantineRow) bytes(name string, i int) []byte {
	return binaryAt(r.column(name), i)
}

// binaryAt is a copy of value i, nil where it is null.
func binaryAt(a arrow.Array, i int) []byte {
	c, ok := a.(*array.Binary)
	if !ok || c.IsNull(i) {
		return nil
	}
	return append([]byte{}, c.Value(i)...)
}

func (r quarantineRow) read(i int, p ident.Partition) Quarantined {
	q := Quarantined{
		Partition: p, Offset: r.keys.offset.Value(i), Key: r.bytes("key", i), Value: r.bytes("value", i), Headers: r.headers(i),
		Reason: r.text("reason", i), Error: r.text("error", i), CommitID: r.text("commit_id", i), ReplayedIn: r.text(replayedColumn, i),
	}
	if c, ok := r.column("timestamp").(*array.Timestamp); ok && c.IsValid(i) {
		q.Time = time.UnixMicro(int64(c.Value(i))).UTC()
	}
	if c, ok := r.column("schema_id").(*array.Int32); ok && c.IsValid(i) {
		id := c.Value(i)
		q.SchemaID = &id
	}
	if c, ok := r.column(schema.LSNName).(*array.Int64); ok && c.IsValid(i) {
		lsn := ident.LSN(c.Value(i))
		q.LSN = &lsn
	}
	return q
}

func (r quarantineRow) headers(i int) []QuarantinedHeader {
	list, ok := r.column("headers").(*array.List)
	if !ok || list.IsNull(i) {
		return nil
	}
	pairs, ok := list.ListValues().(*array.Struct)
	if !ok || pairs.NumField() != 2 {
		return nil
	}
	keys, ok := pairs.Field(0).(*array.String)
	if !ok {
		return nil
	}
	from, to := list.ValueOffsets(i)
	out := make([]QuarantinedHeader, 0, to-from)
	for k := int(from); k < int(to); k++ {
		h := QuarantinedHeader{Value: binaryAt(pairs.Field(1), k)}
		if keys.IsValid(k) {
			h.Key = keys.Value(k)
		}
		out = append(out, h)
	}
	return out
}
