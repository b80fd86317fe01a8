package icefile

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// Readable returns the tasks of a scan so that the library reads their files
// whatever spelling a manifest has of their format. The specification says
// "parquet" and "puffin", and DuckDB writes so; the library writes "PARQUET", as
// Java does, and takes every other spelling for a format that it does not have.
// The tasks are for reading alone: what is written to a manifest is the file that
// came from one. The tasks given stay as they are.
func Readable(tasks []table.FileScanTask) []table.FileScanTask {
	out := slices.Clone(tasks)
	for i := range out {
		t := &out[i]
		t.File = readable(t.File)
		t.EqualityDeleteFiles = allReadable(t.EqualityDeleteFiles)
		t.DeletionVectorFiles = allReadable(t.DeletionVectorFiles)
		t.DeleteFiles = allReadable(t.DeleteFiles)
		if !slices.ContainsFunc(t.DeleteFiles, table.IsDeletionVector) {
			continue
		}
		// The planner told deletion vectors from other deletes by the spelling.
		var positions []iceberg.DataFile
		for _, f := range t.DeleteFiles {
			if table.IsDeletionVector(f) {
				t.DeletionVectorFiles = append(t.DeletionVectorFiles, f)
			} else {
				positions = append(positions, f)
			}
		}
		t.DeleteFiles = positions
	}
	return out
}

// Records plans a scan and reads its rows, whatever spelling manifests have of formats.
func Records(ctx context.Context, scan *table.Scan) (iter.Seq2[arrow.RecordBatch, error], error) {
	tasks, err := scan.PlanFiles(ctx)
	if err != nil {
		return nil, err
	}
	_, records, err := scan.ReadTasks(ctx, Readable(tasks))
	return records, err
}

// Known reports whether the format of a file is spelled as the library does.
func Known(f iceberg.DataFile) bool { return f.FileFormat() == upper(f) }

func upper(f iceberg.DataFile) iceberg.FileFormat {
	return iceberg.FileFormat(strings.ToUpper(string(f.FileFormat())))
}

func allReadable(files []iceberg.DataFile) []iceberg.DataFile {
	if len(files) == 0 {
		return nil
	}
	out := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		out[i] = readable(f)
	}
	return out
}

func readable(f iceberg.DataFile) iceberg.DataFile {
	if Known(f) {
		return f
	}
	return spelled{f, upper(f)}
}

// spelled is a file whose format is spelled as the library does.
type spelled struct {
	iceberg.DataFile
	format iceberg.FileFormat
}

func (s spelled) FileFormat() iceberg.FileFormat { return s.format }
