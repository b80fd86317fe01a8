package cold

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
)

// Keys of the snapshot summary (docs, state in the table).
const (
	keyCommitID = "icestream.commit-id" // on every snapshot of ours
	keyReplay   = "icestream.replay"    // on those that land replayed quarantine rows
)

// Scan implements readapi.Cold.
func (l *Lake) Scan(ctx context.Context, s readapi.ColdScan) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		err := l.each(ctx, s, func(rec arrow.RecordBatch, from *schema.Schema, keep *bounds) (bool, error) {
			rec, err := keep.filter(ctx, rec)
			if err != nil {
				return false, err
			}
			defer rec.Release()
			if rec.NumRows() == 0 {
				return true, nil
			}
			out, err := arrowx.Conform(rec, from, s.Target)
			if err != nil {
				return false, err
			}
			return yield(out, nil), nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// each calls fn with every batch of the scan and the shape it has, until fn says
// no. The batch belongs to each.
func (l *Lake) each(ctx context.Context, s readapi.ColdScan, fn func(arrow.RecordBatch, *schema.Schema, *bounds) (bool, error)) error {
	keep, err := newBounds(s)
	if err != nil {
		return err
	}
	t, err := l.load(ctx, s.Table, s.Location)
	if err != nil {
		return err
	}
	p, err := l.plan(ctx, t, s, keep)
	if err != nil {
		return err
	}
	defer func() { _ = p.scan.Close() }() // it holds nothing that could fail to be given back
	if len(p.tasks) == 0 {
		return nil
	}
	_, batches, err := p.scan.ReadTasks(ctx, icefile.Readable(p.tasks))
	if err != nil {
		return explain(err, "scanning snapshot %d of table %s", s.Snapshot, s.Table)
	}
	for rec, err := range batches {
		if err != nil {
			return explain(err, "scanning snapshot %d of table %s", s.Snapshot, s.Table)
		}
		more, err := fn(rec, p.shape, keep)
		rec.Release()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// plan is which files to read and the shape their rows will have.
type plan struct {
	scan  *table.Scan
	tasks []table.FileScanTask
	shape *schema.Schema
}

func (l *Lake) plan(ctx context.Context, t *table.Table, s readapi.ColdScan, keep *bounds) (plan, error) {
	if t.SnapshotByID(s.Snapshot) == nil {
		return plan{}, gone(s.Table, s.Snapshot)
	}
	full, err := t.Scan(table.WithSnapshotID(s.Snapshot)).Projection()
	if err != nil {
		return plan{}, explain(err, "reading the schema of snapshot %d of table %s", s.Snapshot, s.Table)
	}
	p := plan{}
	if s.Since == 0 {
		p.tasks, err = whole(ctx, t, s, keep)
	} else {
		p.tasks, err = added(ctx, t, s)
	}
	if err != nil {
		return plan{}, explain(err, "planning a scan of snapshot %d of table %s", s.Snapshot, s.Table)
	}
	files, err := t.FS(ctx)
	if err == nil {
		p.tasks, err = l.footers.prune(ctx, files, p.tasks, keep)
	}
	if err != nil {
		return plan{}, explain(err, "looking for the files of snapshot %d of table %s", s.Snapshot, s.Table)
	}
	names := selected(full, s.Target, keep)
	p.scan = t.Scan(table.WithSnapshotID(s.Snapshot), table.WithMaxConcurrency(l.cfg.Concurrency),
		table.WithSelectedFields(append(names, inOlderFiles(full, names, p.tasks)...)...))
	if p.shape, err = shapeOf(p.scan); err != nil {
		return plan{}, explain(err, "reading the schema of snapshot %d of table %s", s.Snapshot, s.Table)
	}
	return p, nil
}

// inOlderFiles names further columns, so that every file has at least one that is
// read: the library refuses a file that is older than all columns wanted, whose
// rows would all be null. Which columns a file has is told by its statistics.
func inOlderFiles(full *iceberg.Schema, names []string, tasks []table.FileScanTask) []string {
	ids := make(map[string][]int, full.NumFields())
	for _, f := range full.Fields() {
		ids[f.Name] = leaves(f)
	}
	var more []string
	has := func(counts map[int]int64, name string) bool {
		top, _, _ := strings.Cut(name, ".")
		of, ok := ids[name]
		if !ok {
			of = ids[top]
		}
		return slices.ContainsFunc(of, func(id int) bool { _, there := counts[id]; return there })
	}
	for _, task := range tasks {
		counts := task.File.ValueCounts()
		known := func(name string) bool { return has(counts, name) }
		if len(counts) == 0 { // no statistics: the first column is the best guess
			known = func(name string) bool { return name == full.Field(0).Name }
		}
		if slices.ContainsFunc(names, known) || slices.ContainsFunc(more, known) {
			continue
		}
		for _, f := range full.Fields() {
			if known(f.Name) {
				more = append(more, f.Name)
				break
			}
		}
	}
	return more
}

// leaves are the field ids of the values below a field, which are what a file has.
func leaves(f iceberg.NestedField) []int {
	nested, ok := f.Type.(iceberg.NestedType)
	if !ok {
		return []int{f.ID}
	}
	var out []int
	for _, k := range nested.Fields() {
		out = append(out, leaves(k)...)
	}
	return out
}

// whole lists the files of the snapshot, with the deletes that apply to them.
func whole(ctx context.Context, t *table.Table, s readapi.ColdScan, keep *bounds) ([]table.FileScanTask, error) {
	scan := t.Scan(table.WithSnapshotID(s.Snapshot), table.WithRowFilter(keep.expression()), table.WithMaxConcurrency(icefile.ManifestsAtOnce))
	defer func() { _ = scan.Close() }() // see each
	tasks, err := scan.PlanFiles(ctx)
	for i := range tasks {
		tasks[i].Residual = nil // rows are checked by bounds.filter
	}
	return tasks, err
}

// selected names the columns to be read: those of the target that the snapshot
// has, by field id, and what the bounds are checked with. At least one is named,
// since rows have to be counted even when none of their columns is wanted.
func selected(full *iceberg.Schema, target *schema.Schema, keep *bounds) []string {
	var names []string
	for _, c := range target.Columns {
		for _, f := range full.Fields() {
			if f.ID == int(c.FieldID) {
				names = append(names, f.Name)
			}
		}
	}
	if keep != nil && !slices.Contains(names, schema.KafkaColumn) {
		for _, field := range []string{topicField, partitionField, offsetField} {
			names = append(names, schema.KafkaColumn+"."+field)
		}
	}
	if len(names) == 0 {
		names = append(names, full.Field(0).Name)
	}
	return names
}

// shapeOf returns what a scan will yield, with field ids.
func shapeOf(scan *table.Scan) (*schema.Schema, error) {
	projection, err := scan.Projection()
	if err != nil {
		return nil, err
	}
	a, err := table.SchemaToArrowSchema(projection, nil, true, false)
	if err != nil {
		return nil, err
	}
	return schema.FromArrow(a)
}

// added lists the files that snapshots of ours after s.Since added, up to and
// including s.Snapshot. Each is listed by the very snapshot that added it, so a
// later compaction or a merged manifest hides none. Deletes by others do not
// count: the token is older than they are.
func added(ctx context.Context, t *table.Table, s readapi.ColdScan) ([]table.FileScanTask, error) {
	between, whole := table.AncestorsBetween(s.Snapshot, s.Since, t.SnapshotByID)
	if !whole {
		return nil, fault.New(fault.TooOld, "the history of table %s between snapshots %d and %d is gone: begin the read again",
			s.Table, s.Since, s.Snapshot)
	}
	files, err := t.FS(ctx)
	if err != nil {
		return nil, err
	}
	var tasks []table.FileScanTask
	for _, snap := range between {
		if !brought(snap.Summary) {
			continue
		}
		manifests, err := snap.Manifests(files)
		if err != nil {
			return nil, fmt.Errorf("reading the manifest list of snapshot %d: %w", snap.SnapshotID, err)
		}
		for _, m := range manifests {
			if m.SnapshotID() != snap.SnapshotID || m.ManifestContent() != iceberg.ManifestContentData {
				continue
			}
			for e, err := range m.Entries(files, true) {
				if err != nil {
					return nil, fmt.Errorf("reading a manifest of snapshot %d: %w", snap.SnapshotID, err)
				}
				if e.Status() == iceberg.EntryStatusADDED {
					file := e.DataFile()
					tasks = append(tasks, table.FileScanTask{File: file, Length: file.FileSizeBytes()})
				}
			}
		}
	}
	return tasks, nil
}

// brought reports whether a snapshot landed rows that were hot before: it is
// ours, no replay of quarantined records, and no compaction.
func brought(s *table.Summary) bool {
	return s != nil && s.Properties[keyCommitID] != "" && s.Properties[keyReplay] == "" && s.Operation != table.OpReplace
}
