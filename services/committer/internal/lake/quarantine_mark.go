package lake

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// replayedColumn of a quarantine table is the commit id of the replay that landed
// the record, null before.
const replayedColumn = "replayed_in"

// markBytes is what is taken for granted of an object store, in bytes a second,
// when the deadline of a mark is set.
const markBytes = 2 << 20

// mark stages the snapshot that says which records of the quarantine table commit
// e landed as rows: the files that hold them are written again and replaced.
// Delete files would be less work, but some engines read them badly.
//
// The files that it writes have an intent record in the quarantine table's own
// folder. settleMarks removes what a lost try left.
func (t *Table) mark(ctx context.Context, tx *table.Transaction, tbl *table.Table, e PendingQuarantine, summary iceberg.Properties) error {
	tasks, found, err := t.holding(ctx, tbl, e.Replayed)
	if err != nil {
		return err
	}
	if want := e.ReplayedRows(); found != want {
		t.log.Warn("quarantine table lacks records that were replayed: somebody removed them", "commit", e.CommitID, "found", found, "replayed", want)
	}
	if len(tasks) == 0 {
		return addFiles(ctx, tx, tbl, nil, summary) // the commit id alone says that it is done
	}
	w, err := t.NewWriter(ctx, t.Head().Schema, WriterOptions{Attempt: ident.UUID(uuid.New()), marks: e.CommitID})
	if err != nil {
		return err
	}
	files, err := t.rewrite(ctx, w, tbl, tasks, e)
	if err != nil {
		w.Abort(context.WithoutCancel(ctx))
		return err
	}
	olds := make([]iceberg.DataFile, len(tasks))
	for i := range tasks {
		olds[i] = tasks[i].File
	}
	news := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		news[i] = f.data
	}
	return tx.ReplaceDataFilesWithDataFiles(ctx, olds, news, summary, table.WithoutAutoNameMapping())
}

// holding lists the files that hold records to be marked, and their number.
func (t *Table) holding(ctx context.Context, tbl *table.Table, offsets map[ident.Partition][]ident.Range) ([]table.FileScanTask, int64, error) {
	if tbl.CurrentSnapshot() == nil {
		return nil, 0, nil
	}
	low, high := span(offsets)
	within := iceberg.NewAnd(iceberg.GreaterThanEqual(iceberg.Reference("offset"), low), iceberg.LessThan(iceberg.Reference("offset"), high))
	plan := tbl.Scan(table.WithRowFilter(within))
	defer func() { _ = plan.Close() }() // it holds nothing that could fail to be given back
	tasks, err := plan.PlanFiles(ctx)
	if err != nil {
		return nil, 0, classify(err, "planning a scan of table %s", t.name)
	}
	read := tbl.Scan(table.WithSelectedFields("pipeline", "topic", "topic_id", "partition", "offset", replayedColumn))
	defer func() { _ = read.Close() }()
	var out []table.FileScanTask
	var found int64
	for _, task := range tasks {
		task.Residual = nil // rows are compared below
		n := int64(0)
		err := eachBatch(ctx, read, task, func(rec arrow.RecordBatch) error {
			c, err := quarantineColumns(rec)
			if err != nil {
				return err
			}
			for i := range int(rec.NumRows()) {
				if c.marks(i, offsets) {
					n++
				}
			}
			return nil
		})
		if err != nil {
			return nil, 0, classify(err, "looking for replayed records in %s", task.File.FilePath())
		}
		if found += n; n > 0 {
			out = append(out, task)
		}
	}
	return out, found, nil
}

// span is the range of offsets over all partitions.
func span(offsets map[ident.Partition][]ident.Range) (low, high int64) {
	first := true
	for _, ranges := range offsets {
		for _, r := range ranges {
			if first {
				low, high, first = r.First, r.Next, false
			}
			low, high = min(low, r.First), max(high, r.Next)
		}
	}
	return low, high
}

// eachBatch calls visit with the batches of one file. Errors of visit come back
// as they are.
func eachBatch(ctx context.Context, scan *table.Scan, task table.FileScanTask, visit func(arrow.RecordBatch) error) error {
	_, batches, err := scan.ReadTasks(ctx, []table.FileScanTask{task})
	if err != nil {
		return classify(err, "reading %s", task.File.FilePath())
	}
	for rec, err := range batches {
		if err != nil {
			return classify(err, "reading %s", task.File.FilePath())
		}
		err = visit(rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// rewrite writes the records of the files again, with the mark.
func (t *Table) rewrite(ctx context.Context, w *Writer, tbl *table.Table, tasks []table.FileScanTask, e PendingQuarantine) ([]File, error) {
	scan := tbl.Scan()
	defer func() { _ = scan.Close() }()
	for _, task := range tasks {
		err := eachBatch(ctx, scan, task, func(rec arrow.RecordBatch) error {
			marked, err := withMark(rec, e)
			if err != nil {
				return err
			}
			defer marked.Release()
			return w.Write(marked)
		})
		if err != nil {
			return nil, classify(err, "writing %s again", task.File.FilePath())
		}
	}
	return w.Close(ctx)
}

// withMark is rec with replayed_in set where the entry says so.
func withMark(rec arrow.RecordBatch, e PendingQuarantine) (arrow.RecordBatch, error) {
	c, err := quarantineColumns(rec)
	if err != nil {
		return nil, err
	}
	at := rec.Schema().FieldIndices(replayedColumn)[0]
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	id := e.CommitID.String()
	for i := range int(rec.NumRows()) {
		switch {
		case c.marks(i, e.Replayed):
			b.Append(id)
		case c.replayed.IsNull(i):
			b.AppendNull()
		default:
			b.Append(c.replayed.Value(i))
		}
	}
	marked := b.NewArray()
	defer marked.Release()
	columns := slices.Clone(rec.Columns())
	columns[at] = marked
	return array.NewRecordBatch(rec.Schema(), columns, rec.NumRows()), nil
}

// quarantineKeys are the columns of a quarantine table that say which record a
// row is.
type quarantineKeys struct {
	pipeline, topic, topicID, replayed *array.String
	partition                          *array.Int32
	offset                             *array.Int64
}

func quarantineColumns(rec arrow.RecordBatch) (quarantineKeys, error) {
	column := func(name string) arrow.Array {
		if i := rec.Schema().FieldIndices(name); len(i) == 1 {
			return rec.Column(i[0])
		}
		return nil
	}
	var c quarantineKeys
	var ok [6]bool
	c.pipeline, ok[0] = column("pipeline").(*array.String)
	c.topic, ok[1] = column("topic").(*array.String)
	c.topicID, ok[2] = column("topic_id").(*array.String)
	c.partition, ok[3] = column("partition").(*array.Int32)
	c.offset, ok[4] = column("offset").(*array.Int64)
	c.replayed, ok[5] = column(replayedColumn).(*array.String)
	if slices.Contains(ok[:], false) {
		return c, fault.New(fault.Unsupported, "reading quarantined records: columns are missing or do not have the types that Icestream gives them")
	}
	return c, nil
}

// place is where record i came from; ok is false for a row of somebody else.
func (c quarantineKeys) place(i int) (ident.Partition, bool) {
	if c.pipeline.IsNull(i) || c.topic.IsNull(i) || c.partition.IsNull(i) || c.offset.IsNull(i) {
		return ident.Partition{}, false
	}
	p := ident.Partition{Pipeline: c.pipeline.Value(i), Topic: c.topic.Value(i), Number: c.partition.Value(i)}
	if c.topicID.IsValid(i) && c.topicID.Value(i) != "" {
		id, err := ident.ParseUUID(c.topicID.Value(i))
		if err != nil {
			return p, false
		}
		p.TopicID = id
	}
	return p, true
}

// marks reports whether record i is one of the offsets and has no mark yet.
func (c quarantineKeys) marks(i int, offsets map[ident.Partition][]ident.Range) bool {
	p, ok := c.place(i)
	return ok && c.replayed.IsNull(i) && within(offsets[p], c.offset.Value(i))
}

// within looks for an offset in ascending ranges.
func within(ranges []ident.Range, offset int64) bool {
	i, found := slices.BinarySearchFunc(ranges, offset, func(r ident.Range, o int64) int {
		switch {
		case o < r.First:
			return 1
		case o >= r.Next:
			return -1
		default:
			return 0
		}
	})
	return found && ranges[i].Contains(offset)
}

// settleMarks removes the files of lost tries to mark what an applied entry, or
// one before it, replayed. No try of theirs can land any more: each was staged on
// a head at which the entry was not applied, and the head has left that. Tries of
// other entries may be under way: of a newer committer, while this one does not
// know yet that it was fenced (G6).
func (t *Table) settleMarks(ctx context.Context, e PendingQuarantine) {
	if len(e.Replayed) == 0 {
		return
	}
	intents, err := t.Intents(ctx)
	for _, i := range intents {
		if i.Marks != e.CommitID && !t.Find(i.Marks) {
			continue
		}
		if uerr := t.Undo(ctx, i); uerr != nil {
			err = fmt.Errorf("removing what attempt %s left: %w", i.Attempt, uerr)
		}
	}
	if err != nil {
		t.log.Warn("files of a lost try to mark replayed records stay until the next replay", "error", err)
	}
}

// markTime is how long the marks of pending entries may take, beyond what an
// append does: the files that hold the records are read and written again.
func (t *Table) markTime(e PendingQuarantine) time.Duration {
	if len(e.Replayed) == 0 {
		return 0
	}
	var bytes int64
	if s := t.handle().Metadata().CurrentSnapshot(); s != nil && s.Summary != nil {
		_, _ = fmt.Sscan(s.Summary.Properties["total-files-size"], &bytes) // 0 where others do not say
	}
	return time.Minute + time.Duration(bytes/markBytes)*time.Second
}
