package icefile

import (
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"
)

// T10: the specification spells formats in small letters. A deletion vector that
// the planner took for another delete, for its spelling, is put where it belongs.
func TestFormatsAreReadHoweverTheyAreSpelled(t *testing.T) {
	file := func(content iceberg.ManifestEntryContent, format iceberg.FileFormat, spelling string) iceberg.DataFile {
		b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, content, "file:///"+spelling, format, nil, nil, nil, 1, 1)
		require.NoError(t, err)
		return spelled{b.Build(), iceberg.FileFormat(spelling)}
	}
	data := file(iceberg.EntryContentData, iceberg.ParquetFile, "parquet")
	deletes := file(iceberg.EntryContentPosDeletes, iceberg.ParquetFile, "Parquet")
	vector := file(iceberg.EntryContentPosDeletes, iceberg.PuffinFile, "puffin")
	keys := file(iceberg.EntryContentEqDeletes, iceberg.ParquetFile, "parquet")
	known := file(iceberg.EntryContentData, iceberg.ParquetFile, "PARQUET")
	given := []table.FileScanTask{
		{File: data, DeleteFiles: []iceberg.DataFile{deletes, vector}, EqualityDeleteFiles: []iceberg.DataFile{keys}},
		{File: known},
	}
	got := Readable(given)
	require.Equal(t, iceberg.ParquetFile, got[0].File.FileFormat())
	require.Len(t, got[0].DeleteFiles, 1)
	require.Equal(t, deletes.FilePath(), got[0].DeleteFiles[0].FilePath())
	require.Equal(t, iceberg.ParquetFile, got[0].DeleteFiles[0].FileFormat())
	require.Len(t, got[0].DeletionVectorFiles, 1)
	require.Equal(t, iceberg.PuffinFile, got[0].DeletionVectorFiles[0].FileFormat())
	require.Equal(t, iceberg.ParquetFile, got[0].EqualityDeleteFiles[0].FileFormat())
	require.Equal(t, known, got[1].File)
	require.Equal(t, data, given[0].File)
	require.Len(t, given[0].DeleteFiles, 2)
}
