package lake

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/testkit/random"
)

// Batches as Arrow allows them are read as they were.
func TestBatchesOfEveryMakeAreReadAsTheyWere(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 77))
		var fields []arrow.Field
		for i := range 1 + r.IntN(3) {
			fields = append(fields, random.Field(r, fmt.Sprint("c", i), 3, random.Leaves...))
		}
		sch := arrow.NewSchema(fields, nil)
		about := fmt.Sprintf("seed %d: %s", seed, sch)
		l, err := newLayout(sch)
		require.NoError(t, err, about)
		var out, want bytes.Buffer
		f, err := l.open(&out)
		require.NoError(t, err, about)
		for i := range 1 + r.IntN(3) {
			rec := random.Batch(r, 1+r.IntN(700), fields...)
			require.NoError(t, array.RecordToJSON(rec, &want))
			require.NoError(t, f.write(rec), about)
			if r.IntN(3) == 0 && i > 0 {
				require.NoError(t, f.cut())
			}
		}
		_, err = f.close()
		require.NoError(t, err, about)
		var got bytes.Buffer
		require.NoError(t, array.RecordToJSON(recordOf(t, out.Bytes()), &got))
		w, g := bytes.Split(want.Bytes(), []byte("\n")), bytes.Split(got.Bytes(), []byte("\n"))
		require.Len(t, g, len(w), about)
		for i := range w {
			if !bytes.Equal(w[i], g[i]) {
				t.Fatalf("%s\nrow %d of %d:\n%.600s\n%.600s", about, i, len(w)-1, w[i], g[i])
			}
		}
	}
}

// Files are byte for byte those of the library's own writer, so values, statistics, pages and levels are as well:
// of every type at every place where nulls and lists can be, and of any nesting.
func TestFilesAreThoseOfTheLibrarysWriter(t *testing.T) {
	for _, leaf := range random.Leaves {
		fields := []arrow.Field{{Name: "o", Type: leaf, Nullable: true}, {Name: "r", Type: leaf}}
		both := arrow.StructOf(fields...)
		fields = append(fields, arrow.Field{Name: "os", Type: both, Nullable: true}, arrow.Field{Name: "rs", Type: both},
			arrow.Field{Name: "l", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: leaf, Nullable: true}), Nullable: true},
			arrow.Field{Name: "ls", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: both, Nullable: true}), Nullable: true},
			arrow.Field{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, leaf), Nullable: true})
		for seed := range uint64(3) {
			writesAsTheLibrary(t, rand.New(rand.NewPCG(seed, 79)), fields, fmt.Sprintf("%s, seed %d", leaf, seed))
		}
	}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 78))
		var fields []arrow.Field
		for i := range 1 + r.IntN(3) {
			fields = append(fields, random.Field(r, fmt.Sprint("c", i), 2, random.Leaves...))
		}
		writesAsTheLibrary(t, r, fields, fmt.Sprint("seed ", seed))
	}
}

func writesAsTheLibrary(t *testing.T, r *rand.Rand, fields []arrow.Field, about string) {
	t.Helper()
	sch := arrow.NewSchema(fields, nil)
	about = fmt.Sprintf("%s: %s", about, sch)
	p := newPair(t, sch)
	for range 1 + r.IntN(3) {
		rec := random.Batch(r, 1+r.IntN(2000), fields...)
		require.NoError(t, p.ours.write(rec), about)
		require.NoError(t, p.theirs.WriteBuffered(shown(t, rec)), about)
	}
	p.requireSame(t, about)
}

// pair is two files of one layout: ours, and one that the library writes in its own way.
type pair struct {
	ours      *parquetFile
	theirs    *pqarrow.FileWriter
	got, want bytes.Buffer
}

func newPair(t *testing.T, sch *arrow.Schema) *pair {
	t.Helper()
	l, err := newLayout(sch)
	require.NoError(t, err)
	p := &pair{}
	p.theirs, err = pqarrow.NewFileWriter(sch, &p.want, l.props, pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	p.ours, err = l.open(&p.got)
	require.NoError(t, err)
	return p
}

// requireSame closes both and compares them.
func (p *pair) requireSame(t *testing.T, about string) {
	t.Helper()
	_, err := p.ours.close()
	require.NoError(t, err)
	require.NoError(t, p.theirs.Close())
	sameFile(t, p.want.Bytes(), p.got.Bytes(), about)
}

// shown is a batch in which all that lies below a null struct is null: where it is not, the library's own
// way writes long decimals wrongly.
func shown(t *testing.T, rec arrow.RecordBatch) arrow.RecordBatch {
	t.Helper()
	var js bytes.Buffer
	require.NoError(t, array.RecordToJSON(rec, &js))
	rows, _, err := array.RecordFromJSON(memory.DefaultAllocator, rec.Schema(), &js, array.WithMultipleDocs())
	require.NoError(t, err)
	return rows
}

// sameFile compares the pages of two files and what the footers say of them.
func sameFile(t *testing.T, want, got []byte, about string) {
	t.Helper()
	read := func(b []byte) (pages []byte, chunks []string) {
		f, err := file.NewParquetReader(bytes.NewReader(b))
		require.NoError(t, err)
		for g := range f.NumRowGroups() {
			rg := f.MetaData().RowGroup(g)
			for i := range rg.NumColumns() {
				c, err := rg.ColumnChunk(i)
				require.NoError(t, err)
				s, err := c.Statistics()
				require.NoError(t, err)
				if s == nil { // below a list
					chunks = append(chunks, fmt.Sprint(c.NumValues(), c.Encodings(), c.DataPageOffset(), c.TotalCompressedSize()))
					continue
				}
				chunks = append(chunks, fmt.Sprintf("%d rows, %s: %d values, min %t %q, max %t %q, nulls %t %d, %v, at %d, %d bytes, %d packed", rg.NumRows(), c.PathInSchema(), c.NumValues(),
					s.HasMinMax(), s.EncodeMin(), s.HasMinMax(), s.EncodeMax(), s.HasNullCount(), s.NullCount(), c.Encodings(), c.DataPageOffset(), c.TotalUncompressedSize(), c.TotalCompressedSize()))
			}
		}
		return b[:len(b)-8-int(binary.LittleEndian.Uint32(b[len(b)-8:]))], chunks
	}
	wantPages, wantChunks := read(want)
	gotPages, gotChunks := read(got)
	require.Equal(t, wantChunks, gotChunks, about)
	require.True(t, bytes.Equal(wantPages, gotPages), "%s: other pages", about)
}

// What engines skip files by.
func TestStatisticsAreThoseOfTheLibrarysWriter(t *testing.T) {
	long := strings.Repeat("\xff", 70)
	values := []struct {
		t    arrow.DataType
		json string
	}{
		{arrow.PrimitiveTypes.Float64, `[1.5, -0.0, 0.0, "NaN"]`},
		{arrow.PrimitiveTypes.Float64, `["NaN"]`},
		{arrow.PrimitiveTypes.Float64, `["+Inf", "-Inf", null]`},
		{arrow.PrimitiveTypes.Float32, `["NaN", 0.0]`},
		{arrow.PrimitiveTypes.Float32, `[-0.0]`},
		{arrow.BinaryTypes.String, `["", "a"]`},
		{arrow.BinaryTypes.String, `[""]`},
		{arrow.BinaryTypes.String, `["` + strings.Repeat("x", 5000) + `", "é"]`},
		{arrow.BinaryTypes.Binary, `["` + base64.StdEncoding.EncodeToString([]byte(long)) + `", ""]`},
		{arrow.FixedWidthTypes.Boolean, `[true, false]`},
		{arrow.FixedWidthTypes.Boolean, `[false]`},
		{&arrow.Decimal128Type{Precision: 9, Scale: 2}, `["-9999999.99", "1.00"]`},
		{&arrow.Decimal128Type{Precision: 38, Scale: 2}, `["-1.00", "1.00"]`},
	}
	for _, v := range values {
		for _, nullable := range []bool{false, true} {
			if !nullable && strings.Contains(v.json, "null") {
				continue
			}
			f := arrow.Field{Name: "v", Type: v.t, Nullable: nullable}
			sch := arrow.NewSchema([]arrow.Field{f, {Name: "l", Type: arrow.ListOfField(f)}, {Name: "n", Type: v.t, Nullable: true}}, nil)
			a, _, err := array.FromJSON(memory.DefaultAllocator, v.t, strings.NewReader(v.json))
			require.NoError(t, err, v.json)
			n := a.Len()
			offsets := make([]int32, n+1)
			offsets[1] = int32(n)
			for i := range offsets[1:] {
				offsets[i+1] = int32(n)
			}
			list := array.NewData(sch.Field(1).Type, n, []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets))}, []arrow.ArrayData{a.Data()}, 0, 0)
			rec := array.NewRecordBatch(sch, []arrow.Array{a, array.MakeFromData(list), array.MakeArrayOfNull(memory.DefaultAllocator, v.t, n)}, int64(n))
			p := newPair(t, sch)
			require.NoError(t, p.theirs.WriteBuffered(rec))
			require.NoError(t, p.ours.write(rec))
			p.requireSame(t, v.t.String()+v.json)
		}
	}
}

// The library's bounds of values below lists leave some out: there must be none.
func TestNoBoundsLeaveValuesOut(t *testing.T) {
	f := arrow.Field{Name: "v", Type: arrow.PrimitiveTypes.Int64, Nullable: true}
	both := arrow.StructOf(f, arrow.Field{Name: "l", Type: arrow.ListOfField(f), Nullable: true})
	sch := arrow.NewSchema([]arrow.Field{f, {Name: "l", Type: arrow.ListOfField(f)}, {Name: "s", Type: both, Nullable: true}}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, sch, strings.NewReader(
		`[{"v": 5, "l": [5, null], "s": {"v": 5, "l": [5, null]}}, {"v": null, "l": [], "s": {"v": null, "l": []}}, {"v": 7, "l": [], "s": null}, {"v": null, "l": [7, null], "s": {"v": 7, "l": [7, null]}}]`))
	require.NoError(t, err)
	l, err := newLayout(sch)
	require.NoError(t, err)
	var out bytes.Buffer
	pq, err := l.open(&out)
	require.NoError(t, err)
	first, _, err := array.RecordFromJSON(memory.DefaultAllocator, sch, strings.NewReader(`[{"v": 6, "l": [6], "s": {"v": 6, "l": [6]}}]`))
	require.NoError(t, err)
	require.NoError(t, pq.write(first))
	require.NoError(t, pq.write(rec))
	meta, err := pq.close()
	require.NoError(t, err)
	for i, bounds := range []bool{true, false, true, false} {
		c, err := meta.RowGroup(0).ColumnChunk(i)
		require.NoError(t, err)
		s, err := c.Statistics()
		require.NoError(t, err)
		require.Equal(t, bounds, s != nil && s.HasMinMax(), i)
		if bounds {
			require.Equal(t, []byte{5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0}, append(s.EncodeMin(), s.EncodeMax()...))
		}
	}
}

// Batches that break Arrow's rules are refused as such, and name the column.
func TestBatchesThatAreBrokenAreRefused(t *testing.T) {
	buf := func(b ...byte) *memory.Buffer { return memory.NewBufferBytes(b) }
	off := func(o ...int32) *memory.Buffer { return memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(o)) }
	long := func(n int) arrow.ArrayData {
		return array.NewData(arrow.PrimitiveTypes.Int64, n, []*memory.Buffer{nil, memory.NewBufferBytes(make([]byte, 8*n))}, nil, 0, 0)
	}
	list := arrow.ListOfNonNullable(arrow.PrimitiveTypes.Int64)
	required := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64})
	int64s := memory.NewBufferBytes(make([]byte, 24))
	for name, c := range map[string]struct {
		d        arrow.ArrayData
		required bool
	}{
		"a list that ends before it begins":    {d: array.NewData(list, 3, []*memory.Buffer{nil, off(0, 5, 3, 8)}, []arrow.ArrayData{array.NewSliceData(long(20), 0, 8)}, 0, 0)},
		"a list that ends beyond the elements": {d: array.NewData(list, 3, []*memory.Buffer{nil, off(0, 5, 6, 9)}, []arrow.ArrayData{long(8)}, 0, 0)},
		"a list that begins before the first":  {d: array.NewData(list, 3, []*memory.Buffer{nil, off(-2, 5, 6, 8)}, []arrow.ArrayData{array.NewSliceData(long(20), 4, 12)}, 0, 0)},
		"too few offsets of lists":             {d: array.NewData(list, 3, []*memory.Buffer{nil, off(0, 5)}, []arrow.ArrayData{long(8)}, 0, 0)},
		"a null list with elements":            {d: array.NewData(list, 3, []*memory.Buffer{buf(0b101), off(0, 2, 4, 8)}, []arrow.ArrayData{long(8)}, 1, 0)},
		"strings that end before they begin":   {d: array.NewData(arrow.BinaryTypes.String, 3, []*memory.Buffer{nil, off(0, 5, 2, 6), buf(1, 2, 3, 4, 5, 6)}, nil, 0, 0)},
		"strings, some null, that end before":  {d: array.NewData(arrow.BinaryTypes.String, 4, []*memory.Buffer{buf(0b0111), off(0, 5, 2, 6, 6), buf(1, 2, 3, 4, 5, 6)}, nil, 1, 0)},
		"strings beyond their memory":          {d: array.NewData(arrow.BinaryTypes.String, 3, []*memory.Buffer{nil, off(0, 99, 99, 6), buf(1, 2, 3, 4, 5, 6)}, nil, 0, 0)},
		"a null where there may be none":       {required: true, d: array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{buf(0b101), int64s}, nil, 1, 0)},
		"one in a struct":                      {d: array.NewData(required, 3, []*memory.Buffer{nil}, []arrow.ArrayData{array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{buf(0b101), int64s}, nil, 1, 0)}, 0, 0)},
		"one beside a struct that is null":     {d: array.NewData(required, 3, []*memory.Buffer{buf(0b011)}, []arrow.ArrayData{array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{buf(0b101), int64s}, nil, 1, 0)}, 1, 0)},
		"an element that is null":              {d: array.NewData(list, 3, []*memory.Buffer{nil, off(0, 1, 2, 3)}, []arrow.ArrayData{array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{buf(0b101), int64s}, nil, 1, 0)}, 0, 0)},
		"fewer bits of nulls than values":      {d: array.NewData(arrow.PrimitiveTypes.Int64, 30, []*memory.Buffer{buf(0b101), memory.NewBufferBytes(make([]byte, 240))}, nil, 1, 0)},
		"no values":                            {d: array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{nil, nil}, nil, 0, 0)},
		"no values where there may be no null": {required: true, d: array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{nil, nil}, nil, 0, 0)},
		"no values beside nulls":               {d: array.NewData(arrow.PrimitiveTypes.Int64, 3, []*memory.Buffer{buf(0b101), nil}, nil, 1, 0)},
		"no values of 16 bytes":                {d: array.NewData(&arrow.FixedSizeBinaryType{ByteWidth: 16}, 3, []*memory.Buffer{nil, nil}, nil, 0, 0)},
		"no bits":                              {d: array.NewData(arrow.FixedWidthTypes.Boolean, 3, []*memory.Buffer{nil, nil}, nil, 0, 0)},
		"fewer bits than values":               {d: array.NewData(arrow.FixedWidthTypes.Boolean, 30, []*memory.Buffer{nil, buf(1)}, nil, 0, 0)},
		"a decimal that is too large":          {d: array.NewData(&arrow.Decimal128Type{Precision: 9, Scale: 2}, 1, []*memory.Buffer{nil, memory.NewBufferBytes(bytes.Repeat([]byte{3}, 16))}, nil, 0, 0)},
		"a decimal that is too large, 18":      {d: array.NewData(&arrow.Decimal128Type{Precision: 18, Scale: 2}, 1, []*memory.Buffer{nil, memory.NewBufferBytes(bytes.Repeat([]byte{3}, 16))}, nil, 0, 0)},
		"a decimal that is too large, 20":      {d: array.NewData(&arrow.Decimal128Type{Precision: 20, Scale: 2}, 1, []*memory.Buffer{nil, memory.NewBufferBytes(bytes.Repeat([]byte{3}, 16))}, nil, 0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			f := arrow.Field{Name: "broken", Type: c.d.DataType(), Nullable: !c.required}
			sch := arrow.NewSchema([]arrow.Field{{Name: "fine", Type: arrow.PrimitiveTypes.Int64}, f}, nil)
			l, err := newLayout(sch)
			require.NoError(t, err)
			for _, warm := range []bool{false, true} { // with a dictionary and after it was given up
				pq, err := l.open(io.Discard)
				require.NoError(t, err)
				if warm {
					r := rand.New(rand.NewPCG(1, 1))
					require.NoError(t, pq.write(random.Batch(r, 3000, sch.Field(0), arrow.Field{Name: f.Name, Type: f.Type})))
				}
				rec := array.NewRecordBatch(sch, []arrow.Array{array.MakeFromData(long(c.d.Len())), array.MakeFromData(c.d)}, int64(c.d.Len()))
				err = pq.write(rec)
				t.Log(err)
				require.Equal(t, fault.Corrupt, fault.ReasonOf(err))
				require.ErrorContains(t, err, "broken")
			}
		})
	}
}

// Arrays without values need no memory.
func TestArraysWithoutValuesNeedNoMemory(t *testing.T) {
	for _, leaf := range random.Leaves {
		f := arrow.Field{Name: "v", Type: leaf, Nullable: true}
		list := arrow.ListOfField(f)
		sch := arrow.NewSchema([]arrow.Field{{Name: "l", Type: list, Nullable: true}, {Name: "ll", Type: arrow.ListOf(list), Nullable: true}}, nil)
		buffers := 2
		if _, ok := leaf.(arrow.BinaryDataType); ok {
			buffers = 3
		}
		none := array.NewData(leaf, 0, make([]*memory.Buffer, buffers), nil, 0, 0)
		empty := memory.NewBufferBytes(make([]byte, 4*4))
		noLists := array.NewData(list, 0, []*memory.Buffer{nil, nil}, []arrow.ArrayData{none}, 0, 0)
		rec := array.NewRecordBatch(sch, []arrow.Array{
			array.MakeFromData(array.NewData(list, 3, []*memory.Buffer{nil, empty}, []arrow.ArrayData{none}, 0, 0)),
			array.MakeFromData(array.NewData(sch.Field(1).Type, 3, []*memory.Buffer{nil, empty}, []arrow.ArrayData{noLists}, 0, 0)),
		}, 3)
		l, err := newLayout(sch)
		require.NoError(t, err)
		var out bytes.Buffer
		pq, err := l.open(&out)
		require.NoError(t, err)
		require.NoError(t, pq.write(rec), leaf)
		_, err = pq.close()
		require.NoError(t, err)
		require.Equal(t, 3, strings.Count(jsonOf(t, out.Bytes()), `{"l":[],"ll":[]}`), leaf)
	}
}
