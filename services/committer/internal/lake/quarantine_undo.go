package lake

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
)

// undoneReplays are the commits of replays that a roll-back may have taken away,
// as text: those that the main table still knows beside its history, and those
// that the quarantine table says it has applied. Of the latter some are no replays;
// no record is marked with those.
func (t *Table) undoneReplays(q *Table, head Head) []string {
	meta := t.handle().Metadata()
	base := sequenceOf(meta, head.StateSnapshot)
	chain := standing(meta)
	var out []string
	for _, s := range meta.Snapshots() {
		if !chain[s.SnapshotID] && isOwn(&s) && s.Summary.Properties[keyReplay] != "" && s.SequenceNumber > base {
			out = append(out, s.Summary.Properties[keyCommitID])
		}
	}
	for s := range ancestors(q.handle().Metadata()) {
		if s.Summary != nil && q.sequenceIn(s.Summary.Properties) > base && s.Summary.Properties[keyCommitID] != "" {
			out = append(out, s.Summary.Properties[keyCommitID])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// undoMarks takes the marks of commits off the records of a quarantine table: they
// were rows, and are quarantined again. It may be called again after any error.
func (t *Table) undoMarks(ctx context.Context, commits []string, sequence int64) error {
	if len(commits) == 0 {
		return nil
	}
	var last error
	for range attemptsPerEntry {
		if _, err := t.Reload(ctx); err != nil {
			return err
		}
		tasks, err := t.markedWith(ctx, commits)
		if len(tasks) == 0 || err != nil {
			return err
		}
		if err := t.refuseDeleteFiles(ctx); err != nil {
			return err
		}
		t.log.Warn("records that were replayed by commits that were rolled back are quarantined again", "commits", commits, "files", len(tasks))
		if last = t.unmark(ctx, tasks, commits, sequence); ctx.Err() != nil {
			return last
		}
	}
	if last == nil {
		return fault.New(fault.Conflict, "taking marks of replays that were rolled back off table %s: somebody else changed it; try again", t.name)
	}
	return last
}

// markedWith lists the files that hold records with marks of the commits.
func (t *Table) markedWith(ctx context.Context, commits []string) ([]table.FileScanTask, error) {
	tbl := t.rehandle(t.handle().Metadata())
	if tbl.CurrentSnapshot() == nil {
		return nil, nil
	}
	ctx = t.lake.storage(ctx)
	var which iceberg.BooleanExpression = iceberg.AlwaysFalse{}
	for _, id := range commits {
		which = iceberg.NewOr(which, iceberg.EqualTo(iceberg.Reference(replayedColumn), id))
	}
	plan := tbl.Scan(table.WithRowFilter(which), table.WithMaxConcurrency(icefile.ManifestsAtOnce))
	defer func() { _ = plan.Close() }() // it holds nothing that could fail to be given back
	tasks, err := plan.PlanFiles(ctx)
	if err != nil {
		return nil, classify(err, "planning a scan of table %s", t.name)
	}
	read := tbl.Scan(table.WithSelectedFields("pipeline", "topic", "topic_id", "partition", "offset", replayedColumn))
	defer func() { _ = read.Close() }()
	found := errors.New("found")
	var out []table.FileScanTask
	for _, task := range tasks {
		task.Residual = nil // rows are compared below
		err := eachBatch(ctx, read, task, func(rec arrow.RecordBatch) error {
			c, err := quarantineColumns(rec)
			if err != nil {
				return err
			}
			for i := range int(rec.NumRows()) {
				if slices.Contains(commits, c.mark(i)) {
					return found
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, found):
			out = append(out, task)
		case err != nil:
			return nil, err
		}
	}
	return out, nil
}

// unmark writes the files again without the marks, and puts them in the place of
// the old ones. What a lost try leaves has an intent record, which the mark of the
// next replay settles.
func (t *Table) unmark(ctx context.Context, tasks []table.FileScanTask, commits []string, sequence int64) error {
	bytes := int64(0)
	var olds, news []iceberg.DataFile
	for _, task := range tasks {
		bytes += task.File.FileSizeBytes()
		olds = append(olds, task.File)
	}
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), time.Minute+t.lake.cfg.Timeouts.Commit+time.Duration(2*bytes/markBytes)*time.Second)
	defer cancel()
	of, err := ident.ParseUUID(commits[0])
	if err != nil {
		return fault.New(fault.Corrupt, "taking marks off table %s: commit %q: %w", t.name, commits[0], err)
	}
	w, err := t.NewWriter(ctx, t.Head().Schema, WriterOptions{Attempt: ident.UUID(uuid.New()), marks: of})
	if err != nil {
		return err
	}
	files, err := t.rewrite(ctx, w, t.rehandle(t.handle().Metadata()), tasks, func(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
		return remarked(rec, func(c quarantineKeys, i int) string {
			if m := c.mark(i); !slices.Contains(commits, m) {
				return m
			}
			return ""
		})
	})
	if err != nil {
		w.Abort(context.WithoutCancel(ctx))
		return err
	}
	for _, f := range files {
		news = append(news, f.data)
	}
	err = t.void(ctx, sequence, func(tx *table.Transaction, summary iceberg.Properties) error {
		return tx.ReplaceDataFilesWithDataFiles(ctx, olds, news, summary, table.WithoutAutoNameMapping())
	})
	if err != nil {
		return classify(err, "taking marks of replays that were rolled back off table %s", t.name)
	}
	t.RemoveIntent(ctx, w.intent.Attempt)
	return nil
}
