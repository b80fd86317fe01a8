package levels_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/testkit/random"
	"github.com/icestream/icestream/services/committer/internal/levels"
)

// Columns of any nesting, with nulls and empty lists at any depth, whole or cut out of
// larger ones, get the levels that the library writes.
func TestLevelsAreThoseOfTheLibrary(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		f := random.Field(r, "c", 3, arrow.PrimitiveTypes.Int32)
		rec := random.Batch(r, 1+r.IntN(100), f)
		if from := r.Int64N(rec.NumRows()); r.IntN(2) == 0 {
			rec = rec.NewSlice(from, from+1+r.Int64N(rec.NumRows()-from))
		}
		want := written(t, rec)
		var w levels.Walker
		for range 2 { // the second time in the memory of the first
			leaf := 0
			err := w.Column(rec.Column(0), f.Nullable, func(l levels.Leaf) error {
				about := fmt.Sprintf("seed %d, leaf %d of %s", seed, leaf, f)
				require.Equal(t, want[leaf].def, l.Def, about)
				require.Equal(t, want[leaf].rep, l.Rep, about)
				slots := 0
				for i, d := range want[leaf].def {
					if d >= want[leaf].slot {
						full := d == want[leaf].most
						if own := l.Nullable && d == want[leaf].most-1; full || own { // else what is there does not matter
							require.Equal(t, full, l.Values.IsValid(slots), "%s, entry %d", about, i)
						}
						require.False(t, l.Dense && !full, "%s, entry %d", about, i)
						slots++
					}
				}
				if want[leaf].def != nil {
					require.Equal(t, slots, l.Values.Len(), about)
				}
				leaf++
				return nil
			})
			require.NoError(t, err)
			require.Len(t, want, leaf)
		}
	}
}

func TestANullListWithElementsIsRefused(t *testing.T) {
	b := array.NewListBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int32)
	b.Append(true)
	b.ValueBuilder().(*array.Int32Builder).AppendValues([]int32{1, 2}, nil)
	b.Append(true)
	a := b.NewListArray()
	d := a.Data()
	null := array.NewData(d.DataType(), 2, []*memory.Buffer{memory.NewBufferBytes([]byte{0b10}), d.Buffers()[1]}, d.Children(), 1, 0)
	var w levels.Walker
	err := w.Column(array.MakeFromData(null), true, func(levels.Leaf) error { return nil })
	require.ErrorContains(t, err, "has 2 elements")
}

func TestTypesThatParquetHasNotAreRefused(t *testing.T) {
	number := arrow.PrimitiveTypes.Int32
	for _, dt := range []arrow.DataType{
		&arrow.DictionaryType{IndexType: number, ValueType: arrow.BinaryTypes.String}, arrow.DenseUnionOf([]arrow.Field{{Name: "a", Type: number}}, []arrow.UnionTypeCode{0}),
		arrow.SparseUnionOf([]arrow.Field{{Name: "a", Type: number}}, []arrow.UnionTypeCode{0}), arrow.FixedSizeListOf(2, number), arrow.LargeListOf(number), arrow.ListViewOf(number),
		arrow.RunEndEncodedOf(number, number),
	} {
		a := array.MakeArrayOfNull(memory.DefaultAllocator, dt, 3)
		var w levels.Walker
		err := w.Column(a, true, func(levels.Leaf) error { return nil })
		require.ErrorContains(t, err, "cannot be written to Parquet", dt)
	}
}

func TestALeafThatFailsEndsTheWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	f := arrow.Field{Name: "c", Type: arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int32}, arrow.Field{Name: "b", Type: arrow.PrimitiveTypes.Int32})}
	var w levels.Walker
	calls := 0
	err := w.Column(random.Batch(r, 3, f).Column(0), false, func(levels.Leaf) error { calls++; return fmt.Errorf("full") })
	require.EqualError(t, err, "full")
	require.Equal(t, 1, calls)
}

// column is what a file holds of a leaf.
type column struct {
	def, rep   []int16
	most, slot int16
}

// written is what the library writes of a batch.
func written(t *testing.T, rec arrow.RecordBatch) []column {
	t.Helper()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(rec.Schema(), &out, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	require.NoError(t, w.WriteBuffered(rec))
	require.NoError(t, w.Close())
	f, err := file.NewParquetReader(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	var columns []column
	for i := range f.MetaData().Schema.NumColumns() {
		r, err := f.RowGroup(0).Column(i)
		require.NoError(t, err)
		d := r.Descriptor()
		chunk, err := f.MetaData().RowGroup(0).ColumnChunk(i)
		require.NoError(t, err)
		n := chunk.NumValues()
		c := column{most: d.MaxDefinitionLevel()}
		if c.most > 0 {
			c.def = make([]int16, n)
		}
		if d.MaxRepetitionLevel() > 0 {
			c.rep = make([]int16, n)
		}
		read, _, err := r.(*file.Int32ColumnChunkReader).ReadBatch(n, make([]int32, n), c.def, c.rep)
		require.NoError(t, err)
		require.Equal(t, n, read)
		for node := d.SchemaNode(); node.Parent() != nil; node = node.Parent() { // the level below which the last list has no slot
			if node.RepetitionType() == parquet.Repetitions.Repeated {
				break
			}
			if node.RepetitionType() == parquet.Repetitions.Optional {
				c.slot++
			}
		}
		c.slot = c.most - c.slot
		columns = append(columns, c)
	}
	return columns
}
