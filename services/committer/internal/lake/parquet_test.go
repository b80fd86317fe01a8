package lake

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"
)

// leafTypes are all that a table can have, but for a variant's.
var leafTypes = []arrow.DataType{
	arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Timestamp_us, &arrow.TimestampType{Unit: arrow.Nanosecond},
	arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, &arrow.FixedSizeBinaryType{ByteWidth: 16},
	&arrow.Decimal128Type{Precision: 9, Scale: 2}, &arrow.Decimal128Type{Precision: 18, Scale: 2}, &arrow.Decimal128Type{Precision: 38, Scale: 2},
}

// Rows of every type, at every place where nulls and lists can be, are read as the
// library's own writer would have written them: the fast ways past it lose nothing.
func TestFilesHoldWhatTheLibrarysWriterWrites(t *testing.T) {
	for _, leaf := range leafTypes {
		t.Run(leaf.String(), func(t *testing.T) {
			optional := arrow.Field{Name: "o", Type: leaf, Nullable: true}
			fields := []arrow.Field{optional, {Name: "r", Type: leaf}}
			both := arrow.StructOf(fields...)
			sch := arrow.NewSchema([]arrow.Field{
				optional,
				{Name: "r", Type: leaf},
				{Name: "os", Type: both, Nullable: true},
				{Name: "rs", Type: both},
				{Name: "l", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: leaf, Nullable: true}), Nullable: true},
				{Name: "ls", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: both, Nullable: true}), Nullable: true},
				{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, leaf), Nullable: true},
			}, nil)
			for _, nulls := range []int{0, 1, 9} { // in ten
				r := rand.New(rand.NewPCG(uint64(nulls), 5))
				b := array.NewRecordBuilder(memory.DefaultAllocator, sch)
				for range 1200 {
					for i, f := range sch.Fields() {
						anyValue(r, b.Field(i), f.Nullable, nulls)
					}
				}
				rec := b.NewRecordBatch()
				parts := []arrow.RecordBatch{rec.NewSlice(0, 1), rec.NewSlice(1, 600), rec.NewSlice(600, 1200)} // the dictionary is given up in one of them
				if want, got := theirs(t, sch, parts), ours(t, sch, parts); want != got {                       // megabytes of it
					i := 0
					for i < min(len(want), len(got)) && want[i] == got[i] {
						i++
					}
					t.Errorf("%d nulls in ten: from byte %d on %.200q, wanted %.200q", nulls, i, got[i:], want[i:])
				}
			}
		})
	}
}

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

// theirs are those of a file that the library wrote.
func theirs(t *testing.T, sch *arrow.Schema, parts []arrow.RecordBatch) string {
	t.Helper()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(sch, &out, parquet.NewWriterProperties(parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	for _, p := range parts {
		require.NoError(t, w.WriteBuffered(p))
	}
	require.NoError(t, w.Close())
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

// anyValue appends a value, or a null where it may, nulls times in ten.
func anyValue(r *rand.Rand, b array.Builder, nullable bool, nulls int) {
	if nullable && r.IntN(10) < nulls {
		b.AppendNull()
		return
	}
	n := r.Int64N(50)
	if r.IntN(2) == 0 {
		n = r.Int64N(1e8)
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(n%3 == 0)
	case *array.Int32Builder:
		b.Append(int32(n))
	case *array.Int64Builder:
		b.Append(n)
	case *array.Float32Builder:
		b.Append(float32(n) / 7)
	case *array.Float64Builder:
		b.Append(float64(n) / 7)
	case *array.Date32Builder:
		b.Append(arrow.Date32(n % 40000))
	case *array.Time64Builder:
		b.Append(arrow.Time64(n))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(n))
	case *array.StringBuilder:
		b.Append(fmt.Sprint(n))
	case *array.BinaryBuilder:
		b.Append(fmt.Append(nil, n))
	case *array.FixedSizeBinaryBuilder:
		b.Append(fmt.Appendf(nil, "%016d", n))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(n))
	case *array.StructBuilder:
		b.Append(true)
		for i, f := range b.Type().(*arrow.StructType).Fields() {
			anyValue(r, b.FieldBuilder(i), f.Nullable, nulls)
		}
	case *array.MapBuilder:
		b.Append(true)
		for i := range n % 3 {
			b.KeyBuilder().(*array.StringBuilder).Append(fmt.Sprint(i))
			anyValue(r, b.ItemBuilder(), true, nulls)
		}
	case *array.ListBuilder:
		b.Append(true)
		for range n % 4 {
			anyValue(r, b.ValueBuilder(), true, nulls)
		}
	default:
		panic(fmt.Sprintf("no value for %s", b.Type()))
	}
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
