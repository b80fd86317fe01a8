package lake

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"
)

// hollow has, under structs that may be null, one column of each stored form
// whose own values are never null: what the decoder writes for plain fields.
func hollow(t *testing.T, rows int, seed uint64) arrow.RecordBatch {
	t.Helper()
	dec := func(p int32) arrow.DataType { return &arrow.Decimal128Type{Precision: p} }
	inner := arrow.StructOf(arrow.Field{Name: "far", Type: dec(20), Nullable: true}, arrow.Field{Name: "fine", Type: dec(9), Nullable: true})
	outer := arrow.StructOf(
		arrow.Field{Name: "id", Type: dec(20), Nullable: true}, arrow.Field{Name: "short", Type: dec(18), Nullable: true},
		arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, arrow.Field{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true}, arrow.Field{Name: "f", Type: &arrow.FixedSizeBinaryType{ByteWidth: 4}, Nullable: true},
		arrow.Field{Name: "in", Type: inner, Nullable: true},
	)
	list := arrow.ListOfField(arrow.Field{Name: "element", Type: outer, Nullable: true})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "o", Type: outer, Nullable: true},
		{Name: "l", Type: list, Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, outer), Nullable: true},
	}, nil)
	r := rand.New(rand.NewPCG(seed, 0))
	element := func() string {
		if r.IntN(3) == 0 {
			return "null"
		}
		n := r.IntN(1000)
		in := "null"
		if r.IntN(2) == 0 {
			in = `{"far":"` + decimal128.FromI64(int64(n)).ToString(0) + `","fine":"7"}`
		}
		num := strconv.Itoa(n)
		return `{"id":"` + num + `","short":"` + num + `","n":` + num + `,"s":"` + num + `","b":true,"f":"AAAAAA==","in":` + in + `}`
	}
	var js strings.Builder
	js.WriteString("[")
	for i := range rows {
		if i > 0 {
			js.WriteString(",")
		}
		items := make([]string, r.IntN(4))
		entries := make([]string, len(items))
		for k := range items {
			items[k] = element()
			entries[k] = `{"key":"` + string(rune('a'+k)) + `","value":` + element() + `}`
		}
		js.WriteString(`{"o":` + element() + `,"l":[` + strings.Join(items, ",") + `],"m":[` + strings.Join(entries, ",") + `]}`)
	}
	js.WriteString("]")
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(js.String()))
	require.NoError(t, err)
	return fillHollows(rec)
}

// fillHollows makes every leaf below a null struct valid, as columns are that
// have no null of their own.
func fillHollows(rec arrow.RecordBatch) arrow.RecordBatch {
	var fill func(d arrow.ArrayData, below bool) arrow.ArrayData
	fill = func(d arrow.ArrayData, below bool) arrow.ArrayData {
		kids := make([]arrow.ArrayData, len(d.Children()))
		for i, k := range d.Children() {
			kids[i] = fill(k, below || d.DataType().ID() == arrow.STRUCT)
		}
		bufs := append([]*memory.Buffer(nil), d.Buffers()...)
		nulls := d.NullN()
		if below && len(kids) == 0 {
			bufs[0], nulls = nil, 0
		}
		return array.NewData(d.DataType(), d.Len(), bufs, kids, nulls, d.Offset())
	}
	cols := make([]arrow.Array, rec.NumCols())
	for i, c := range rec.Columns() {
		cols[i] = array.MakeFromData(fill(c.Data(), false))
	}
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows())
}

// W4: a value below a null struct must not push the values behind it down.
func TestValuesBelowNullStructsKeepTheirRows(t *testing.T) {
	batches := []arrow.RecordBatch{hollow(t, 200, 1), hollow(t, 300, 2).NewSlice(37, 250), hollow(t, 100, 3)}
	l, err := newLayout(batches[0].Schema())
	require.NoError(t, err)
	var buf bytes.Buffer
	f, err := l.open(&buf)
	require.NoError(t, err)
	var want []string
	for _, rec := range batches {
		require.NoError(t, f.write(rec))
		js, err := rec.MarshalJSON()
		require.NoError(t, err)
		want = append(want, strings.Split(strings.Trim(string(js), "[]\n"), "\n,")...)
	}
	_, err = f.close()
	require.NoError(t, err)
	rd, err := file.NewParquetReader(bytes.NewReader(buf.Bytes()))
	require.NoError(t, err)
	ar, err := pqarrow.NewFileReader(rd, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	require.NoError(t, err)
	tbl, err := ar.ReadTable(t.Context())
	require.NoError(t, err)
	var got []string
	tr := array.NewTableReader(tbl, 0)
	for tr.Next() {
		js, err := tr.RecordBatch().MarshalJSON()
		require.NoError(t, err)
		got = append(got, strings.Split(strings.Trim(string(js), "[]\n"), "\n,")...)
	}
	require.Equal(t, want, got)
}
