package catalog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
)

// Fault is what Plant does to a table.
type Fault string

// The faults that can be planted.
const (
	FaultLose   Fault = "lose"   // one committed row disappears
	FaultDouble Fault = "double" // one committed row is there twice
	FaultAlter  Fault = "alter"  // one value of a committed row is another
)

// Faults lists them.
func Faults() []Fault { return []Fault{FaultLose, FaultDouble, FaultAlter} }

// Scan reads the current snapshot of a table straight from its files, with the
// Iceberg library and none of the product's own reading. fn must not keep the batches.
func (s *Server) Scan(ctx context.Context, name []string, fn func(arrow.RecordBatch) error) error {
	t, err := s.cat.LoadTable(ctx, name)
	if errors.Is(err, catalog.ErrNoSuchTable) {
		return fault.New(fault.UnknownTable, "%s holds no table %s", s.dbPath, strings.Join(name, "."))
	}
	if err != nil {
		return fmt.Errorf("loading table %s: %w", strings.Join(name, "."), err)
	}
	batches, err := icefile.Records(ctx, t.Scan())
	if err != nil {
		return fmt.Errorf("scanning table %s: %w", strings.Join(name, "."), err)
	}
	for rec, err := range batches {
		if err != nil {
			return fmt.Errorf("scanning table %s: %w", strings.Join(name, "."), err)
		}
		err = fn(rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// Plant damages a table as a faulty foreign engine would: it rewrites one data
// file. Whoever verifies the table afterwards must notice.
func (s *Server) Plant(ctx context.Context, name []string, f Fault) error {
	s.commits.Lock()
	defer s.commits.Unlock()
	t, err := s.cat.LoadTable(ctx, name)
	if err != nil {
		return fmt.Errorf("planting %q in table %v: %w", f, name, err)
	}
	tasks, err := t.Scan().PlanFiles(ctx)
	if err != nil || len(tasks) == 0 {
		return errors.Join(fmt.Errorf("planting %q in table %v: it has no data files", f, name), err)
	}
	shape, batches, err := t.Scan().ReadTasks(ctx, tasks[:1])
	if err != nil {
		return fmt.Errorf("planting %q in table %v: %w", f, name, err)
	}
	var files []iceberg.DataFile
	for file, err := range table.WriteRecords(ctx, t, shape, damaged(batches, f)) {
		if err != nil {
			return fmt.Errorf("planting %q in table %v: %w", f, name, err)
		}
		files = append(files, file)
	}
	tx := t.NewTransaction()
	rewrite := tx.NewRewrite(nil).DeleteFile(tasks[0].File)
	for _, f := range files {
		rewrite = rewrite.AddDataFile(f)
	}
	if err := rewrite.Commit(ctx); err != nil {
		return fmt.Errorf("planting %q in table %v: %w", f, name, err)
	}
	if _, err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("planting %q in table %v: %w", f, name, err)
	}
	return nil
}

// damaged passes batches on with the fault in the first one.
func damaged(in iter.Seq2[arrow.RecordBatch, error], f Fault) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		planted := false
		for rec, err := range in {
			if err != nil {
				yield(nil, err)
				return
			}
			out := []arrow.RecordBatch{rec}
			if !planted && rec.NumRows() > 0 {
				planted = true
				switch f {
				case FaultLose:
					out = []arrow.RecordBatch{rec.NewSlice(1, rec.NumRows())}
				case FaultDouble:
					out = []arrow.RecordBatch{rec, rec.NewSlice(0, 1)}
				case FaultAlter:
					out = []arrow.RecordBatch{altered(rec)}
				}
			}
			for _, r := range out {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// altered returns rec with another text in the first row of its first text column.
func altered(rec arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, rec.NumCols())
	copy(cols, rec.Columns())
	for i, c := range cols {
		text, ok := c.(*array.String)
		if !ok {
			continue
		}
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.Append("altered on purpose")
		for row := 1; row < text.Len(); row++ {
			if text.IsNull(row) {
				b.AppendNull()
			} else {
				b.Append(text.Value(row))
			}
		}
		cols[i] = b.NewArray()
		break
	}
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows())
}
