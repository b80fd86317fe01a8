package lake

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// Nothing but empty strings may come without memory for them.
func TestEmptyStringsWithoutMemoryAreWritten(t *testing.T) {
	sch := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "b", Type: arrow.BinaryTypes.Binary, Nullable: true}}, nil)
	offsets := memory.NewBufferBytes(make([]byte, 4*(1200+1)))
	columns := make([]arrow.Array, sch.NumFields())
	for i, f := range sch.Fields() {
		columns[i] = array.MakeFromData(array.NewData(f.Type, 1200, []*memory.Buffer{nil, offsets, nil}, nil, 0, 0))
	}
	rec := array.NewRecordBatch(sch, columns, 1200)
	require.Equal(t, 1200, strings.Count(ours(t, sch, []arrow.RecordBatch{rec}), `{"b":"","s":""}`))
}

// ours are the rows of a file that a layout wrote, as JSON.
func ours(t *testing.T, sch *arrow.Schema, parts []arrow.RecordBatch) string {
	t.Helper()
	l, err := newLayout(sch)
	require.NoError(t, err)
	var out bytes.Buffer
	f, err := l.open(&out)
	require.NoError(t, err)
	for _, p := range parts {
		require.NoError(t, f.write(p))
	}
	meta, err := f.close()
	require.NoError(t, err)
	require.Equal(t, int64(1200), meta.NumRows)
	return jsonOf(t, out.Bytes())
}

func jsonOf(t *testing.T, parquetFile []byte) string {
	t.Helper()
	js, err := recordOf(t, parquetFile).MarshalJSON()
	require.NoError(t, err)
	return string(js)
}

// recordOf are the rows of a file in one batch.
func recordOf(t *testing.T, parquetFile []byte) arrow.RecordBatch {
	t.Helper()
	f, err := file.NewParquetReader(bytes.NewReader(parquetFile))
	require.NoError(t, err)
	r, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	require.NoError(t, err)
	tbl, err := r.ReadTable(t.Context())
	require.NoError(t, err)
	rows := array.NewTableReader(tbl, tbl.NumRows())
	require.True(t, rows.Next())
	return rows.RecordBatch()
}

// Pages that are compressed at once by many files are read by the library's codec, and
// more encoders than there are processors are not kept.
func TestPagesAreCompressedByEncodersThatAreKept(t *testing.T) {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	require.NoError(t, err)
	ours, ok := codec.(*zstdCodec)
	require.True(t, ok, "this release of the library has a codec that is no %T any more", ours.library)
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for _, n := range []int{0, 1, 100, 120 << 10, 128 << 10, 3 << 20} { // below, at and far above a block
				page := make([]byte, n)
				for i := range page {
					page[i] = byte(r.IntN(1 + n%7))
				}
				packed := codec.EncodeLevel(make([]byte, 0, 10), page, zstdLevel)
				var head zstd.Header
				if err := head.Decode(packed); err != nil || n > 0 && head.FirstBlock.Last != (n <= 128<<10) {
					t.Errorf("page of %d bytes: %v, its first block is its last: %t", n, err, head.FirstBlock.Last)
				}
				got, err := compress.Decode(ours.library, make([]byte, n), packed)
				if err != nil || !bytes.Equal(page, got) || n > 1000 && len(packed) >= n {
					t.Errorf("page of %d bytes, packed %d, read %d: %v", n, len(packed), len(got), err)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, len(ours.idle), runtime.GOMAXPROCS(0))
	other := codec.EncodeLevel(nil, slices.Repeat([]byte("x"), 1000), 3)
	require.Less(t, len(other), 100, "other levels are the library's")
}
