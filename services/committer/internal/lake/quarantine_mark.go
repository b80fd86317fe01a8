package lake

import (
	"context"
	"errors"
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
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
)

// replayedColumn of a quarantine table is the commit id of the replay that landed
// the record, null before.
const replayedColumn = "replayed_in"

// What one snapshot of a mark takes at most, so that the caller gets to other work
// in between; one file is always taken.
const (
	markFiles = 64
	markSize  = 64 << 20
	markLook  = 10 * time.Second // for finding them
)

// markBytes is what is taken for granted of an object store, in bytes a second,
// when the deadline of a mark is set.
const markBytes = 2 << 20

// ErrMarking says that a replay is being marked, in several snapshots, and that
// another call goes on with it.
var ErrMarking = errors.New("marking replayed records goes on")

// keyTry of a snapshot that marks records is the attempt that wrote its files.
const keyTry = prefix + "mark"

// marking is what is known about the mark of one entry between calls. It is
// forgotten with the process: a mark may be set again.
type marking struct {
	limit int // of files that one snapshot replaces
	entry ident.UUID
	// clean are files in which nothing of the entry is to be marked, with the
	// number of its records there.
	clean map[string]int64

	// A try whose outcome is open, on the snapshot base. It is sent again while the
	// head stays, so that an outage does not fill the disk with copies.
	base   int64
	intent Intent
	olds   []iceberg.DataFile
	news   []File
	whole  bool // nothing is left to mark after it
}

func (m *marking) open() bool { return m.olds != nil }

// mark writes the files again that hold records that commit e landed as rows, as
// many as one snapshot takes, with the mark. They are going to be replaced: delete
// files would be less work, but some engines read them badly.
//
// The files that it writes have an intent record in the quarantine table's own
// folder. settleMarks removes what a lost try left.
func (t *Table) mark(ctx context.Context, tbl *table.Table, e PendingQuarantine) (*marking, error) {
	m := t.marks
	if m.entry != e.CommitID {
		*m = marking{limit: m.limit, entry: e.CommitID, clean: map[string]int64{}}
	}
	if m.open() {
		return m, nil // settleTry has looked: the head is its base
	}
	plan, cancel := context.WithTimeout(ctx, t.lake.cfg.Timeouts.Stage)
	defer cancel()
	tasks, err := t.within(plan, tbl, e.Replayed)
	if err != nil {
		return nil, err
	}
	bytes := int64(2 * markSize)
	for _, task := range tasks {
		bytes = max(bytes, 2*markSize+task.File.FileSizeBytes())
	}
	call, cancel := context.WithTimeout(ctx, time.Minute+markLook+time.Duration(bytes/markBytes)*time.Second)
	defer cancel()
	chosen, found, whole, err := t.holding(call, tbl, tasks, e)
	if err != nil {
		return nil, err
	}
	if want := e.ReplayedRows(); whole && found != want {
		t.log.Warn("quarantine table lacks records that were replayed: somebody removed them", "commit", e.CommitID, "found", found, "replayed", want)
	}
	m.whole = whole
	if len(chosen) == 0 {
		return m, nil // the commit id alone says that it is done
	}
	w, err := t.NewWriter(call, t.Head().Schema, WriterOptions{Attempt: ident.UUID(uuid.New()), marks: e.CommitID})
	if err != nil {
		return nil, err
	}
	files, err := t.rewrite(call, w, tbl, chosen, func(rec arrow.RecordBatch) (arrow.RecordBatch, error) { return withMark(rec, e) })
	if err != nil {
		w.Abort(context.WithoutCancel(ctx))
		return nil, err
	}
	m.base, m.intent, m.news = snapshotID(tbl.Metadata()), w.intent, files
	for i := range chosen {
		m.olds = append(m.olds, chosen[i].File)
	}
	return m, nil
}

// replace puts the files of the try in the place of those that they were made of.
func (m *marking) replace(ctx context.Context, tx *table.Transaction, summary iceberg.Properties) error {
	news := make([]iceberg.DataFile, len(m.news))
	for i, f := range m.news {
		news[i] = f.data
	}
	return tx.ReplaceDataFilesWithDataFiles(ctx, m.olds, news, summary, table.WithoutAutoNameMapping())
}

func snapshotID(meta table.Metadata) int64 {
	if s := meta.CurrentSnapshot(); s != nil {
		return s.SnapshotID
	}
	return 0
}

// settleTry looks, after a reload, what became of the last try to mark. Where the
// head has left its base without it, no request of it can land any more, unless it
// went back to before the base: somebody can roll it forward.
func (t *Table) settleTry(ctx context.Context) {
	m := t.marks
	meta := t.handle().Metadata()
	if !m.open() || m.base == snapshotID(meta) {
		return
	}
	if meta.SnapshotByID(m.base) != nil && !standing(meta)[m.base] {
		t.log.Warn("files of a try to mark replayed records stay: the table does not stand on the snapshot that they were made for, but may again", "snapshot", m.base)
	} else if err := t.Undo(ctx, m.intent); err != nil {
		t.log.Warn("files of a lost try to mark replayed records stay until all are marked", "error", err)
	}
	m.base, m.intent, m.olds, m.news = 0, Intent{}, nil, nil
}

// within lists the files that may hold records that have no mark.
func (t *Table) within(ctx context.Context, tbl *table.Table, offsets map[ident.Partition][]ident.Range) ([]table.FileScanTask, error) {
	if tbl.CurrentSnapshot() == nil {
		return nil, nil
	}
	low, high := span(offsets)
	filter := iceberg.NewAnd(iceberg.GreaterThanEqual(iceberg.Reference("offset"), low), iceberg.LessThan(iceberg.Reference("offset"), high))
	plan := tbl.Scan(table.WithRowFilter(filter), table.WithMaxConcurrency(icefile.ManifestsAtOnce))
	defer func() { _ = plan.Close() }() // it holds nothing that could fail to be given back
	tasks, err := plan.PlanFiles(ctx)
	if err != nil {
		return nil, classify(err, "planning a scan of table %s", t.name)
	}
	return tasks, nil
}

// holding chooses the files that hold records to be marked, as many as one
// snapshot takes, and reports whether those are all. found is the number of
// records of the entry, marked or not, in the files that it knows.
func (t *Table) holding(ctx context.Context, tbl *table.Table, tasks []table.FileScanTask, e PendingQuarantine) (chosen []table.FileScanTask, found int64, whole bool, err error) {
	read := tbl.Scan(table.WithSelectedFields("pipeline", "topic", "topic_id", "partition", "offset", replayedColumn))
	defer func() { _ = read.Close() }()
	began, bytes, id := time.Now(), int64(0), e.CommitID.String()
	for _, task := range tasks {
		path := task.File.FilePath()
		if n, known := t.marks.clean[path]; known {
			found += n
			continue
		}
		full := len(chosen) >= t.marks.limit || bytes >= markSize
		if late := time.Since(began) > markLook; full || late && len(chosen) > 0 {
			return chosen, found, false, nil
		} else if late {
			return nil, 0, false, ErrMarking
		}
		task.Residual = nil // rows are compared below
		marks, marked := int64(0), int64(0)
		err := eachBatch(ctx, read, task, func(rec arrow.RecordBatch) error {
			c, err := quarantineColumns(rec)
			if err != nil {
				return err
			}
			for i := range int(rec.NumRows()) {
				if c.marks(i, e.Replayed) {
					marks++
				} else if c.mark(i) == id {
					marked++
				}
			}
			return nil
		})
		if err != nil {
			return nil, 0, false, classify(err, "looking for replayed records in %s", path)
		}
		if found += marks + marked; marks == 0 {
			t.marks.clean[path] = marked
			continue
		}
		chosen, bytes = append(chosen, task), bytes+task.File.FileSizeBytes()
	}
	return chosen, found, true, nil
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
	_, batches, err := scan.ReadTasks(ctx, icefile.Readable([]table.FileScanTask{task}))
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

// rewrite writes the records of the files again, with other marks.
func (t *Table) rewrite(ctx context.Context, w *Writer, tbl *table.Table, tasks []table.FileScanTask, mark func(arrow.RecordBatch) (arrow.RecordBatch, error)) ([]File, error) {
	scan := tbl.Scan()
	defer func() { _ = scan.Close() }()
	for _, task := range tasks {
		err := eachBatch(ctx, scan, task, func(rec arrow.RecordBatch) error {
			marked, err := mark(rec)
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
	id := e.CommitID.String()
	return remarked(rec, func(c quarantineKeys, i int) string {
		if c.marks(i, e.Replayed) {
			return id
		}
		return c.mark(i)
	})
}

// remarked is rec with the marks that mark gives, "" for none.
func remarked(rec arrow.RecordBatch, mark func(quarantineKeys, int) string) (arrow.RecordBatch, error) {
	c, err := quarantineColumns(rec)
	if err != nil {
		return nil, err
	}
	at := rec.Schema().FieldIndices(replayedColumn)[0]
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	for i := range int(rec.NumRows()) {
		if m := mark(c, i); m != "" {
			b.Append(m)
		} else {
			b.AppendNull()
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

// mark is that of record i, "" for none.
func (c quarantineKeys) mark(i int) string {
	if c.replayed.IsNull(i) {
		return ""
	}
	return c.replayed.Value(i)
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
