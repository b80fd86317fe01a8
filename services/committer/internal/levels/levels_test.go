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

	"github.com/icestream/icestream/services/committer/internal/levels"
)

// Columns of any nesting, with nulls and empty lists at any depth, whole or cut out of
// larger ones, get the levels that the library writes.
func TestLevelsAreThoseOfTheLibrary(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		f := field(r, "c", 3)
		rec := batch(r, f, 1+r.IntN(200))
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
						require.Equal(t, full, l.Values.IsValid(slots), "%s, entry %d", about, i)
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
	err := w.Column(batch(r, f, 3).Column(0), false, func(levels.Leaf) error { calls++; return fmt.Errorf("full") })
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
		c := column{most: d.MaxDefinitionLevel()}
		if c.most > 0 {
			c.def = make([]int16, 1<<16)
		}
		if d.MaxRepetitionLevel() > 0 {
			c.rep = make([]int16, 1<<16)
		}
		n, _, err := r.(*file.Int32ColumnChunkReader).ReadBatch(1<<16, make([]int32, 1<<16), c.def, c.rep)
		require.NoError(t, err)
		if c.def != nil {
			c.def = c.def[:n]
		}
		if c.rep != nil {
			c.rep = c.rep[:n]
		}
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

func field(r *rand.Rand, name string, depth int) arrow.Field {
	f := arrow.Field{Name: name, Nullable: r.IntN(3) > 0}
	kind := r.IntN(5)
	if depth == 0 {
		kind = 0
	}
	switch kind {
	case 1, 2:
		var fields []arrow.Field
		for i := range 1 + r.IntN(3) {
			fields = append(fields, field(r, fmt.Sprint("f", i), depth-1))
		}
		f.Type = arrow.StructOf(fields...)
	case 3:
		f.Type = arrow.ListOfField(field(r, "element", depth-1))
	case 4:
		f.Type = arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.PrimitiveTypes.Int32}, field(r, "value", depth-1))
	default:
		f.Type = arrow.PrimitiveTypes.Int32
	}
	return f
}

func batch(r *rand.Rand, f arrow.Field, rows int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{f}, nil))
	defer b.Release()
	few := r.IntN(3) // nulls: none, some, many
	for range rows {
		add(r, b.Field(0), f, few)
	}
	return b.NewRecordBatch()
}

func add(r *rand.Rand, b array.Builder, f arrow.Field, few int) {
	if f.Nullable && r.IntN(5) < few*2 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.Int32Builder:
		b.Append(r.Int32())
	case *array.StructBuilder:
		b.Append(true)
		for i, kid := range f.Type.(*arrow.StructType).Fields() {
			add(r, b.FieldBuilder(i), kid, few)
		}
	case *array.MapBuilder:
		b.Append(true)
		for range r.IntN(4) {
			b.KeyBuilder().(*array.Int32Builder).Append(r.Int32())
			add(r, b.ItemBuilder(), f.Type.(*arrow.MapType).ItemField(), few)
		}
	case *array.ListBuilder:
		b.Append(true)
		for range r.IntN(4) {
			add(r, b.ValueBuilder(), f.Type.(*arrow.ListType).ElemField(), few)
		}
	}
}
