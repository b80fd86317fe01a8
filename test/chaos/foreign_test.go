//go:build synctests

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

// foreignTime bounds one act of another engine.
const foreignTime = time.Minute

// other opens the table as another engine does.
func (w *world) other(ctx context.Context) (*table.Table, error) {
	cat, err := rest.NewCatalog(ctx, "other", "http://catalog:1", rest.WithCustomTransport(w.plainHTTP()))
	if err != nil {
		return nil, err
	}
	return cat.LoadTable(ctx, []string{namespace, tableName})
}

// foreign lets another engine change the table; it is no fault of ours when it loses the race.
func (w *world) foreign(what string, act func(context.Context, *table.Table) error) error {
	ctx, cancel := context.WithTimeout(w.ctx, foreignTime)
	defer cancel()
	t, err := w.other(ctx)
	if errors.Is(err, catalog.ErrNoSuchTable) || err == nil && t.CurrentSnapshot() == nil {
		return nil
	}
	if err == nil {
		err = act(ctx, t)
	}
	if err != nil && !errors.Is(err, table.ErrCommitFailed) {
		return fmt.Errorf("oracle: %s by another engine: %w", what, err)
	}
	w.say("foreign %s: %v", what, err)
	return nil
}

// foreignAppend adds one row that is not ours.
func foreignAppend(ctx context.Context, t *table.Table) error {
	sch, err := table.SchemaToArrowSchema(t.Schema(), nil, true, false)
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, sch)
	defer b.Release()
	for _, f := range b.Fields() {
		f.AppendNull()
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	rdr, err := array.NewRecordReader(sch, []arrow.RecordBatch{rec})
	if err != nil {
		return err
	}
	defer rdr.Release()
	tx := t.NewTransaction()
	if err := tx.Append(ctx, rdr, nil); err != nil {
		return err
	}
	_, err = tx.Commit(ctx)
	return err
}

// foreignCompaction writes all rows anew.
func foreignCompaction(ctx context.Context, t *table.Table) error {
	tasks, err := t.Scan().PlanFiles(ctx)
	if err != nil || len(tasks) < 2 {
		return err
	}
	shape, batches, err := t.Scan().ReadTasks(ctx, tasks)
	if err != nil {
		return err
	}
	tx := t.NewTransaction()
	rewrite := tx.NewRewrite(nil)
	for f, err := range table.WriteRecords(ctx, t, shape, batches) {
		if err != nil {
			return err
		}
		rewrite = rewrite.AddDataFile(f)
	}
	for _, task := range tasks {
		rewrite = rewrite.DeleteFile(task.File)
	}
	if err := rewrite.Commit(ctx); err != nil {
		return err
	}
	_, err = tx.Commit(ctx)
	return err
}

// foreignExpiry removes all snapshots but the newest, and what a tag holds.
func foreignExpiry(ctx context.Context, t *table.Table) error {
	tx := t.NewTransaction()
	if err := tx.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1), table.WithPostCommit(true)); err != nil {
		return err
	}
	_, err := tx.Commit(ctx)
	if errors.Is(err, fs.ErrNotExist) { // that engine wants to remove a file again which an earlier expiry removed
		return nil
	}
	return err
}

// foreignColumn adds a column.
func foreignColumn(name string) func(ctx context.Context, t *table.Table) error {
	return func(ctx context.Context, t *table.Table) error {
		if _, there := t.Schema().FindFieldByName(name); there {
			return nil
		}
		tx := t.NewTransaction()
		if err := tx.UpdateSchema(true, false).AddColumn([]string{name}, iceberg.PrimitiveTypes.String, "", false, nil).Commit(); err != nil {
			return err
		}
		_, err := tx.Commit(ctx)
		return err
	}
}
