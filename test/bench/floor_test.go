//go:build bench

package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"
)

// The floor: the same rows, metadata columns included, already in memory as
// batches of the size that travels through the pipeline, written by one goroutine
// to one file that is synced at the end, by the library's own writer of Arrow
// batches. The settings are those of the committer's writer
// (services/committer/internal/lake/parquet.go); sameSettings notices when they part.
const (
	floorBatchRows = 4096
	floorMemory    = 384 << 20 // Arrow bytes; a floor of part of the rows is as good
	rowGroupBytes  = 32 << 20
)

// runFloor reads the pipeline's files and writes their rows once more.
func runFloor(t *testing.T, files []string, path string, want int64, profile string) measure {
	t.Helper()
	batches, total := readRows(t, files)
	require.Equal(t, want, total, "rows in the table's files")
	defer func() {
		for _, b := range batches {
			b.Release()
		}
	}()
	rows := int64(0)
	for _, b := range batches {
		rows += b.NumRows()
	}
	m := newMeter(t, profile)
	writeFloor(t, path, batches)
	out := m.end(rows)
	info, err := os.Stat(path)
	require.NoError(t, err)
	out.bytes = info.Size()
	sameSettings(t, files[0], path)
	require.NoError(t, os.Remove(path))
	return out
}

// readRows returns batches of up to floorMemory, and the number of rows in all files.
func readRows(t *testing.T, files []string) (batches []arrow.RecordBatch, total int64) {
	t.Helper()
	held := int64(0)
	for _, name := range files {
		f, err := file.OpenParquetFile(name, false)
		require.NoError(t, err)
		total += f.NumRows()
		r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{BatchSize: floorBatchRows}, memory.DefaultAllocator)
		require.NoError(t, err)
		rows, err := r.GetRecordReader(context.Background(), nil, nil) //nolint:usetesting // reads from memory and disk only
		require.NoError(t, err)
		for held < floorMemory && rows.Next() {
			b := rows.RecordBatch()
			b.Retain()
			batches = append(batches, b)
			for _, c := range b.Columns() {
				held += int64(c.Data().SizeInBytes())
			}
		}
		if err := rows.Err(); !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}
		rows.Release()
		require.NoError(t, f.Close())
	}
	return batches, total
}

func writeFloor(t *testing.T, path string, batches []arrow.RecordBatch) {
	t.Helper()
	schema := batches[0].Schema()
	f, err := os.Create(path)
	require.NoError(t, err)
	options := []parquet.WriterProperty{
		parquet.WithCompression(compress.Codecs.Zstd), parquet.WithCompressionLevel(1), parquet.WithDataPageSize(96 << 10),
		parquet.WithStats(true), parquet.WithStoreDecimalAsInteger(true), parquet.WithVersion(parquet.V2_LATEST),
	}
	leaves, err := pqarrow.ToParquet(schema, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	for i := range leaves.NumColumns() {
		options = append(options, parquet.WithDictionaryCostFallbackFor(leaves.Column(i).Path(), true))
	}
	for _, name := range []string{"topic", "partition", "timestamp", "schema_id"} {
		options = append(options, parquet.WithDictionaryFor("_kafka."+name, false))
	}
	// The library closes what it writes to, if it can; the file is to be synced first.
	out := struct{ io.Writer }{f}
	w, err := pqarrow.NewFileWriter(schema, out, parquet.NewWriterProperties(options...), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	full := false
	for _, b := range batches {
		if full {
			require.NoError(t, w.NewBufferedRowGroupChecked())
		}
		require.NoError(t, w.WriteBuffered(b))
		full = w.RowGroupTotalBytesWritten() >= rowGroupBytes
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// sameSettings compares codec, physical type and encodings of every column, so that the floor cannot quietly write something else than the lake does.
func sameSettings(t *testing.T, table, floor string) {
	t.Helper()
	a, err := file.OpenParquetFile(table, false)
	require.NoError(t, err)
	defer func() { _ = a.Close() }()
	b, err := file.OpenParquetFile(floor, false)
	require.NoError(t, err)
	defer func() { _ = b.Close() }()
	require.Equal(t, a.MetaData().Schema.NumColumns(), b.MetaData().Schema.NumColumns())
	for i := range a.MetaData().Schema.NumColumns() {
		path := a.MetaData().Schema.Column(i).Path()
		x, err := a.MetaData().RowGroup(0).ColumnChunk(i)
		require.NoError(t, err)
		y, err := b.MetaData().RowGroup(0).ColumnChunk(i)
		require.NoError(t, err)
		require.Equal(t, path, b.MetaData().Schema.Column(i).Path())
		require.Equal(t, x.Compression(), y.Compression(), "codec of %s", path)
		require.Equal(t, x.Type(), y.Type(), "physical type of %s", path)
		require.ElementsMatch(t, x.Encodings(), y.Encodings(), "encodings of %s", path)
	}
	perRow := func(r *file.Reader) float64 {
		size := int64(0)
		for i := range r.NumRowGroups() {
			size += r.MetaData().RowGroup(i).TotalCompressedSize()
		}
		return float64(size) / float64(r.NumRows())
	}
	require.InEpsilon(t, perRow(a), perRow(b), 0.1, "bytes per row: does the floor write as the table's writer does?")
}
