package lake

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

func isNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || fault.ReasonOf(err) == fault.NotFound
}

// auditMemory is the default of AuditOptions.Memory.
const auditMemory = 256 << 20

// examples is how many offsets a finding shows.
const examples = 5

// deep reads where every row came from, in as many passes as the memory needs,
// and compares it with the state and, where it was asked to, with the log. It
// reports whether the rows told everything.
func (a *auditor) deep(ctx context.Context, o AuditOptions) (bool, error) {
	if a.head.Schema.Column(schema.KafkaColumn) == nil {
		a.r.find(Unknown, "deep scan", "the table has no column %s: offsets cannot be told", schema.KafkaColumn)
		return false, nil
	}
	d := newDeepScan(a, o)
	for more := true; more; {
		d.passes++
		if err := d.pass(ctx, a.q); err != nil {
			return false, err
		}
		if err := d.collect(ctx); err != nil {
			return false, err
		}
		d.from, more = d.until, d.until != nil
	}
	return d.judge(), nil
}

// deepScan is a deep audit under way.
type deepScan struct {
	a        *auditor
	log      *logAudit // nil: not compared
	progress func(Progress)
	limit    int // chunks that hold memory
	passes   int

	// One pass takes the cells of [from, until); nil is no bound. until comes down
	// when the memory is full.
	from, until  *cell
	held         int
	rows, poison passOffsets
	found        map[place]*foundAt
	known        map[place][]*PartitionReport
	strangers    int64 // rows that name no record
	said         time.Time
}

// passOffsets are those of one pass.
type passOffsets struct {
	sets    map[place]*offsetSet
	doubled map[place][]int64 // first examples
}

// foundAt is what the passes found out about a place.
type foundAt struct {
	rows, poison         int64       // distinct offsets
	total, records       int64       // rows, and quarantined records
	ends, poisonEnds     ident.Range // from the least to the greatest
	doubled, twice, both []int64     // examples
	holes                []int64
	alive                []int64 // examples of those that are remembered as lost
}

func newDeepScan(a *auditor, o AuditOptions) *deepScan {
	memory := o.Memory
	if memory <= 0 {
		memory = auditMemory
	}
	d := &deepScan{
		a: a, progress: o.Progress, limit: int(max(2, memory/chunkBytes)),
		found: map[place]*foundAt{}, known: map[place][]*PartitionReport{},
	}
	for i := range a.r.Partitions {
		p := &a.r.Partitions[i]
		at := place{p.Topic, p.Partition}
		d.known[at] = append(d.known[at], p)
		d.note(at)
	}
	for at, list := range d.known {
		// Where nothing was read yet, no row is of it.
		list = slices.DeleteFunc(slices.Clone(list), func(p *PartitionReport) bool { return p.Next == p.Start })
		if len(list) > 0 {
			d.known[at] = list
		}
	}
	if o.Log != nil {
		d.log = newLogAudit(a, o.Log)
	}
	return d
}

// note makes a place known.
func (d *deepScan) note(at place) {
	if d.found[at] == nil {
		d.found[at] = &foundAt{}
	}
}

// pass reads both tables once.
func (d *deepScan) pass(ctx context.Context, q *Table) error {
	d.until, d.held, d.strangers = nil, 0, 0
	for _, o := range []*passOffsets{&d.rows, &d.poison} {
		*o = passOffsets{sets: map[place]*offsetSet{}, doubled: map[place][]int64{}}
	}
	ctx = d.a.t.lake.storage(ctx)
	columns := []string{"topic", "partition", "offset"}
	if d.log != nil {
		columns = append(columns, "timestamp")
	}
	nested := make([]string, len(columns))
	for i, c := range columns {
		nested[i] = schema.KafkaColumn + "." + c
	}
	err := d.read(ctx, d.a.t, append(older(d.a.head.Schema, schema.KafkaColumn), nested...), d.a.r.Live, d.takeRows)
	if err != nil || q == nil {
		return err
	}
	columns = append(columns, replayedColumn)
	if err := d.read(ctx, q, columns, d.a.r.Quarantine, d.takePoison); err != nil {
		return err
	}
	return d.readPending(ctx, q, columns)
}

// readPending reads the files of the outbox: they are quarantined, though their
// table does not name them yet.
func (d *deepScan) readPending(ctx context.Context, q *Table, columns []string) error {
	scan := q.rehandle(q.handle().Metadata()).Scan(table.WithSelectedFields(columns...))
	defer func() { _ = scan.Close() }() // it holds nothing that could fail to be given back
	for _, f := range d.a.pending {
		data, err := q.describe(ctx, f)
		if err != nil {
			return err
		}
		if err := eachBatch(ctx, scan, table.FileScanTask{File: data, Length: f.Bytes}, d.takePoison); err != nil {
			return err
		}
	}
	return nil
}

// records reads the rows of a scan. The library plans it without the statistics of
// the files, which are much where files are many, but reads only formats that are
// spelled its way.
func (a *auditor) records(ctx context.Context, scan *table.Scan) (iter.Seq2[arrow.RecordBatch, error], error) {
	if !a.respelled {
		_, recs, err := scan.ToArrowRecords(ctx)
		return recs, err
	}
	return icefile.Records(ctx, scan)
}

func (d *deepScan) read(ctx context.Context, t *Table, columns []string, total int64, take func(arrow.RecordBatch) error) error {
	tbl := t.rehandle(t.handle().Metadata())
	if tbl.CurrentSnapshot() == nil {
		return nil
	}
	scan := tbl.Scan(table.WithSelectedFields(columns...))
	defer func() { _ = scan.Close() }() // it holds nothing that could fail to be given back
	recs, err := d.a.records(ctx, scan)
	if err != nil {
		return classify(err, "scanning table %s", t.name)
	}
	var done int64
	for rec, err := range recs {
		if err != nil {
			return d.unreadable(ctx, t, scan, err)
		}
		err = take(rec)
		done += rec.NumRows()
		rec.Release()
		if err != nil {
			return err
		}
		d.say(Progress{What: "table " + t.name, Pass: d.passes, Done: done, Total: total}, done >= total)
	}
	return nil
}

// unreadable names the file that a scan failed at, which the library does not.
func (d *deepScan) unreadable(ctx context.Context, t *Table, scan *table.Scan, failed error) error {
	tasks, err := scan.PlanFiles(ctx)
	if err != nil {
		return classify(failed, "scanning table %s", t.name)
	}
	for _, task := range tasks {
		if err := eachBatch(ctx, scan, task, func(arrow.RecordBatch) error { return ctx.Err() }); err != nil {
			return fmt.Errorf("scanning table %s: %w", t.name, err)
		}
	}
	return classify(failed, "scanning table %s", t.name)
}

// say tells the progress, a few times a second and at the end.
func (d *deepScan) say(p Progress, last bool) {
	if now := time.Now(); d.progress != nil && (last || now.Sub(d.said) >= 200*time.Millisecond) {
		d.said = now
		d.progress(p)
	}
}

// older names a column that is older than the one given, if there is any: files
// may be older as well, and the library cannot read one of which it wants no
// column.
func older(s *schema.Schema, column string) []string {
	oldest := s.Column(column)
	for _, c := range s.Columns {
		if c.FieldID < oldest.FieldID {
			oldest = c
		}
	}
	if oldest.Name == column {
		return nil
	}
	return []string{oldest.Name}
}

// add takes an offset in, if its cell belongs to this pass and fits.
func (d *deepScan) add(o *passOffsets, at place, offset int64, sum uint64) {
	c := cellOf(at, offset)
	if d.from != nil && c.compare(*d.from) < 0 || d.until != nil && c.compare(*d.until) >= 0 {
		return
	}
	set := o.sets[at]
	if set == nil {
		set = &offsetSet{}
		o.sets[at] = set
	}
	fresh, grown := set.add(offset, sum)
	if !fresh && len(o.doubled[at]) < examples {
		o.doubled[at] = append(o.doubled[at], offset)
	}
	if d.held += grown; d.held > d.limit {
		d.cut()
	}
}

// cut ends the pass at the median of the cells that hold memory, and forgets what
// is behind it.
func (d *deepScan) cut() {
	var cells []cell
	for _, o := range []*passOffsets{&d.rows, &d.poison} {
		for at, set := range o.sets {
			for key, c := range set.chunks {
				if c.bits != nil {
					cells = append(cells, cell{at, key})
				}
			}
		}
	}
	slices.SortFunc(cells, cell.compare)
	cells = slices.Compact(cells)
	if len(cells) < 2 {
		return // rows and quarantine of one cell: no less can be read
	}
	until := cells[len(cells)/2]
	d.until = &until
	for _, o := range []*passOffsets{&d.rows, &d.poison} {
		for at, set := range o.sets {
			for key := range set.chunks {
				if (cell{at, key}).compare(until) >= 0 {
					d.held -= set.drop(key)
				}
			}
			o.doubled[at] = slices.DeleteFunc(o.doubled[at], func(offset int64) bool { return cellOf(at, offset).compare(until) >= 0 })
		}
	}
}

// window is the part of a range of a place that belongs to this pass.
func (d *deepScan) window(at place, r ident.Range) ident.Range {
	if d.from != nil {
		switch c := *d.from; {
		case cellOf(at, 0).compare(cell{c.place, 0}) < 0:
			return ident.Range{}
		case at == c.place:
			r.First = max(r.First, c.key<<cellBits)
		}
	}
	if d.until != nil {
		switch c := *d.until; {
		case cellOf(at, 0).compare(cell{c.place, 0}) > 0:
			return ident.Range{}
		case at == c.place:
			r.Next = min(r.Next, c.key<<cellBits)
		}
	}
	return r
}

// collect adds what a pass found to the rest, and compares it with the log.
func (d *deepScan) collect(ctx context.Context) error {
	for at := range d.rows.sets {
		d.note(at)
	}
	for at := range d.poison.sets {
		d.note(at)
	}
	places := make([]place, 0, len(d.found))
	for at := range d.found {
		places = append(places, at)
	}
	slices.SortFunc(places, func(x, y place) int { return cell{x, 0}.compare(cell{y, 0}) })
	for _, at := range places {
		rows, poison := d.rows.sets[at], d.poison.sets[at]
		if rows == nil {
			rows = &offsetSet{}
		}
		if poison == nil {
			poison = &offsetSet{}
		}
		f := d.found[at]
		f.rows += rows.count
		f.poison += poison.count
		f.total += rows.total()
		f.records += poison.total()
		f.ends, f.poisonEnds = spanned(f.ends, rows), spanned(f.poisonEnds, poison)
		f.doubled = some(f.doubled, d.rows.doubled[at])
		f.twice = some(f.twice, d.poison.doubled[at])
		f.both = some(f.both, rows.both(poison))
		if len(d.known[at]) != 1 {
			continue
		}
		p := d.known[at][0]
		window := d.window(at, ident.Range{First: p.Start, Next: p.Next})
		if window.Empty() {
			continue
		}
		gone := make([]ident.Range, 0, len(p.Lost))
		for _, l := range p.Lost {
			if !l.Why.counted() {
				continue // the rows of what was there are in the table
			}
			gone = append(gone, ident.Range{First: l.First, Next: l.Next})
		}
		f.alive = some(f.alive, rows.in(gone))
		f.alive = some(f.alive, poison.in(gone))
		if len(f.holes) < examples {
			f.holes = some(f.holes, rows.holes(poison, window))
		}
		if d.log != nil {
			if err := d.log.compare(ctx, d, p, window, rows, poison); err != nil {
				return err
			}
		}
	}
	return nil
}

// spanned is a range made wider by the offsets of a set.
func spanned(r ident.Range, s *offsetSet) ident.Range {
	low, high, ok := s.ends()
	switch {
	case !ok:
		return r
	case r.Empty():
		return ident.Range{First: low, Next: high + 1}
	default:
		return ident.Range{First: min(r.First, low), Next: max(r.Next, high+1)}
	}
}

// some adds examples, up to as many as a finding shows.
func some(have, more []int64) []int64 {
	return append(have, more[:min(len(more), examples-len(have))]...)
}

// judge compares what was read with the state, and reports whether that told
// everything.
func (d *deepScan) judge() bool {
	a, whole := d.a, true
	if d.strangers > 0 {
		a.r.note("%d rows name no Kafka record: others wrote them", d.strangers)
	}
	if d.passes > 1 {
		a.r.note("the offsets did not fit the memory at once: the table was read %d times", d.passes)
	}
	for at, f := range d.found {
		list := d.known[at]
		switch {
		case len(list) == 0 && f.rows+f.poison > 0:
			a.r.find(Violated, at.String(), "%d rows and %d quarantined records name a partition that the state does not know%s", f.total, f.poison, a.bringers())
		case len(list) == 1:
			d.comparePartition(at, list[0], f)
		case len(list) > 1:
			d.compareShared(at, list, f)
			whole = false
		}
	}
	if n := len(a.pending); n > 0 && a.q == nil {
		a.r.find(Unknown, a.t.name+ident.QuarantineSuffix, "the quarantine table is missing, so that %d files of records which are to go there cannot be read: put it back", n)
	}
	if d.log != nil {
		d.log.finish()
	}
	return whole
}

// compareShared judges a place that several pipelines, or lives of a topic, feed.
func (d *deepScan) compareShared(at place, list []*PartitionReport, f *foundAt) {
	var counted, poison int64
	for _, p := range list {
		counted += p.Rows
		poison += p.Quarantined
	}
	if f.total != counted {
		suspects := d.a.takers
		if f.total > counted {
			suspects = d.a.bringers
		}
		d.a.r.find(Violated, at.String(), "%d rows were counted by the %d pipelines or lives of the topic that feed it, the table holds %d%s", counted, len(list), f.total, suspects())
		return
	}
	if f.records != poison {
		d.a.r.find(Violated, at.String(), "%d quarantined records were counted by the %d pipelines or lives of the topic that feed it, there are %d", poison, len(list), f.records)
		return
	}
	d.a.r.find(Unknown, at.String(), "several pipelines or lives of the topic feed it: all %d rows are there, but a row does not say which one it is of", f.total)
}

func (d *deepScan) comparePartition(at place, p *PartitionReport, f *foundAt) {
	r, where := d.a.r, at.String()
	p.Scanned = &f.rows
	within := func(what string, ends ident.Range) {
		if !ends.Empty() && (ends.First < p.Start || ends.Next > p.Next) {
			r.find(Violated, where, "%s of offsets %d to %d, but only [%d,%d) is committed", what, ends.First, ends.Next-1, p.Start, p.Next)
		}
	}
	within("rows", f.ends)
	within("quarantined records", f.poisonEnds)
	if len(f.both) > 0 {
		r.find(Violated, where, "offsets that are a row and quarantined: %v", f.both)
	}
	if len(f.alive) > 0 {
		r.find(Violated, where, "offsets that are a row or quarantined, but remembered as lost: %v", f.alive)
	}
	switch {
	case f.rows > p.Rows:
		r.find(Violated, where, "%d offsets are rows, %d were counted%s", f.rows, p.Rows, d.a.bringers())
	case f.rows < p.Rows:
		r.find(Violated, where, "%d offsets are rows, %d were counted; offsets without a row begin with %v%s", f.rows, p.Rows, f.holes, d.a.takers())
	}
	if f.poison != p.Quarantined && (d.a.q != nil || len(d.a.pending) == 0) {
		r.find(Violated, where, "%d offsets are in the quarantine table or pending, %d were counted", f.poison, p.Quarantined)
	}
	if len(f.doubled) > 0 {
		r.find(Violated, where, "offsets that are more than one row: %v%s", f.doubled, d.a.bringers())
	}
	if len(f.twice) > 0 {
		r.find(Violated, where, "offsets that are quarantined more than once: %v", f.twice)
	}
}

// takeRows takes in a batch of the table.
func (d *deepScan) takeRows(rec arrow.RecordBatch) error {
	at := rec.Schema().FieldIndices(schema.KafkaColumn)
	if len(at) != 1 {
		return fault.New(fault.Internal, "scanning %s: it is not there", schema.KafkaColumn)
	}
	k, ok := rec.Column(at[0]).(*array.Struct)
	if !ok {
		return fault.New(fault.Internal, "scanning %s: it is no struct", schema.KafkaColumn)
	}
	column := func(name string) arrow.Array {
		i, found := k.DataType().(*arrow.StructType).FieldIdx(name)
		if !found {
			return nil
		}
		return k.Field(i)
	}
	return walkPlaces(k, column, func(_ int, at place, offset int64, sum uint64) { d.add(&d.rows, at, offset, sum) },
		func() { d.strangers++ })
}

// takePoison takes in a batch of the quarantine table. It leaves out what was
// replayed: those offsets are rows.
func (d *deepScan) takePoison(rec arrow.RecordBatch) error {
	column := func(name string) arrow.Array {
		if i := rec.Schema().FieldIndices(name); len(i) == 1 {
			return rec.Column(i[0])
		}
		return nil
	}
	replayed := column(replayedColumn)
	return walkPlaces(nil, column, func(i int, at place, offset int64, sum uint64) {
		if (replayed == nil || replayed.IsNull(i)) && !within(d.a.waiting[at], offset) {
			d.add(&d.poison, at, offset, sum)
		}
	}, func() { d.strangers++ })
}

func walkPlaces(parent arrow.Array, column func(string) arrow.Array, add func(int, place, int64, uint64), stranger func()) error {
	topic, partition, offset := column("topic"), column("partition"), column("offset")
	texts, okT := topic.(array.StringLike)
	number, okP := numbersOf(partition)
	offsets, okO := offset.(*array.Int64)
	if !okT || !okP || !okO {
		return fault.New(fault.Unsupported, "scanning offsets: topic, partition and offset do not have the types that Icestream gives them")
	}
	times, _ := column("timestamp").(*array.Timestamp)
	for i := range offsets.Len() {
		if (parent != nil && parent.IsNull(i)) || texts.IsNull(i) || partition.IsNull(i) || offsets.IsNull(i) {
			stranger()
			continue
		}
		sum := uint64(0)
		if times != nil && !times.IsNull(i) {
			sum = recordSum(offsets.Value(i), int64(times.Value(i))/1000)
		}
		add(i, place{texts.Value(i), number(i)}, offsets.Value(i), sum)
	}
	return nil
}

// numbersOf reads partition numbers. Others may have widened the column.
func numbersOf(a arrow.Array) (func(int) int32, bool) {
	switch a := a.(type) {
	case *array.Int32:
		return a.Value, true
	case *array.Int64:
		return func(i int) int32 {
			if v := a.Value(i); v >= 0 && v <= math.MaxInt32 {
				return int32(v)
			}
			return -1 // no partition of Kafka's
		}, true
	default:
		return nil, false
	}
}

// sumSeed makes the sums of one process comparable with each other.
var sumSeed = maphash.MakeSeed()

// recordSum stands for what a row says of its record: offset and timestamp in
// milliseconds. It is never 0, which means that a row says nothing.
func recordSum(offset, millis int64) uint64 {
	return maphash.Comparable(sumSeed, [2]int64{offset, millis}) | 1
}
