package cold

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

const (
	// keepFooters bounds how many files' footers are remembered.
	keepFooters = 16 << 10
	// openFooters is how many footers are read at once.
	openFooters = 8
)

// footers remembers which positions each data file holds. The manifests of
// Iceberg libraries often have no bounds for fields inside a struct; the footers
// of the files do. A file never changes, so what was read once stays true.
type footers struct {
	mu   sync.Mutex
	kept map[string][]span
}

// span is what one row group holds: partition numbers lowN to highN, and offsets.
// known is false where the file does not say.
type span struct {
	known       bool
	lowN, highN int32
	offsets     ident.Range
}

// prune leaves out files that hold no row within the bounds.
func (f *footers) prune(ctx context.Context, files iceio.IO, tasks []table.FileScanTask, keep *bounds) ([]table.FileScanTask, error) {
	if keep == nil {
		return tasks, nil
	}
	wanted := make([]bool, len(tasks))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(openFooters)
	for i, t := range tasks {
		g.Go(func() error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			spans, err := f.spans(files, t.File)
			wanted[i] = keep.overlap(spans)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := tasks[:0]
	for i, t := range tasks {
		if wanted[i] {
			out = append(out, t)
		}
	}
	return out, nil
}

// overlap reports whether one of the spans may hold a row that is kept.
func (b *bounds) overlap(spans []span) bool {
	for _, s := range spans {
		if !s.known {
			return true
		}
		for at, k := range b.ranges {
			if s.lowN <= at.number && at.number <= s.highN && k.Overlaps(s.offsets) {
				return true
			}
		}
	}
	return false
}

// spans returns what a file holds, from memory or from its footer.
func (f *footers) spans(files iceio.IO, df iceberg.DataFile) ([]span, error) {
	if df.FileFormat() != iceberg.ParquetFile {
		return []span{{}}, nil
	}
	path := df.FilePath()
	f.mu.Lock()
	spans, ok := f.kept[path]
	f.mu.Unlock()
	if ok {
		return spans, nil
	}
	spans, err := readFooter(files, path)
	if err != nil {
		return nil, fmt.Errorf("reading the footer of %s: %w", path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for other := range f.kept {
		if len(f.kept) < keepFooters {
			break
		}
		delete(f.kept, other) // any: it is only read again
	}
	f.kept[path] = spans
	return spans, nil
}

func readFooter(files iceio.IO, path string) (spans []span, err error) {
	in, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := file.NewParquetReader(in)
	if err != nil {
		_ = in.Close() // the first error counts
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read from
	md := r.MetaData()
	number := md.Schema.ColumnIndexByName(schema.KafkaColumn + "." + partitionField)
	offset := md.Schema.ColumnIndexByName(schema.KafkaColumn + "." + offsetField)
	for i := range md.NumRowGroups() {
		s := span{}
		if number >= 0 && offset >= 0 {
			s = spanOf(md.RowGroup(i), number, offset)
		}
		spans = append(spans, s)
	}
	return spans, nil
}

func spanOf(rg *metadata.RowGroupMetaData, number, offset int) span {
	n, okN := statistics(rg, number).(*metadata.Int32Statistics)
	o, okO := statistics(rg, offset).(*metadata.Int64Statistics)
	if !okN || !okO || !n.HasMinMax() || !o.HasMinMax() {
		return span{}
	}
	return span{known: true, lowN: n.Min(), highN: n.Max(), offsets: ident.Range{First: o.Min(), Next: o.Max() + 1}}
}

// statistics returns the statistics of a column chunk, nil where there are none.
func statistics(rg *metadata.RowGroupMetaData, column int) metadata.TypedStatistics {
	chunk, err := rg.ColumnChunk(column)
	if err != nil {
		return nil
	}
	if set, err := chunk.StatsSet(); err != nil || !set {
		return nil
	}
	s, err := chunk.Statistics()
	if err != nil {
		return nil
	}
	return s
}
