package column

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/arrowx"
)

func newColumn(t testing.TB, dt arrow.DataType) *Column {
	t.Helper()
	c, err := New(dt)
	require.NoError(t, err)
	return c
}

// valid finishes the column and has Arrow check every offset and length of it.
func valid(t testing.TB, c *Column, rows int) arrow.Array {
	t.Helper()
	a := c.Finish(rows)
	require.Equal(t, rows, a.Len())
	if v, can := a.(interface{ ValidateFull() error }); can {
		require.NoError(t, v.ValidateFull())
	}
	checkNulls(t, a.Data())
	return a
}

// checkNulls compares the null counts with the bitmaps, at every depth.
func checkNulls(t testing.TB, d arrow.ArrayData) {
	t.Helper()
	nulls := 0
	if bitmap := d.Buffers()[0]; bitmap != nil {
		nulls = d.Len() - bitutil.CountSetBits(bitmap.Bytes(), 0, d.Len())
	}
	require.Equal(t, nulls, d.NullN())
	for _, k := range d.Children() {
		checkNulls(t, k)
	}
}

func text(a arrow.Array) []string {
	out := make([]string, a.Len())
	for i := range out {
		out[i] = a.ValueStr(i)
	}
	return out
}

func TestGapsAreFilled(t *testing.T) {
	c := newColumn(t, arrow.PrimitiveTypes.Int64)
	c.Set8(2, 7)
	c.Set8(5, 8)
	require.Equal(t, []string{"(null)", "(null)", "7", "(null)", "(null)", "8", "(null)"}, text(valid(t, c, 7)))

	c = newColumn(t, arrow.PrimitiveTypes.Int64)
	c.AbsentIsZero()
	c.Set8(2, 7)
	a := valid(t, c, 4)
	require.Equal(t, []string{"0", "0", "7", "0"}, text(a))
	require.Zero(t, a.NullN())
	require.Nil(t, a.Data().Buffers()[0], "no validity bitmap where no null ever came")

	c = newColumn(t, arrow.BinaryTypes.String)
	c.AbsentIs([]byte("ZERO"))
	c.SetBytes(1, []byte("x"))
	require.Equal(t, []string{"ZERO", "x", "ZERO"}, text(valid(t, c, 3)))
}

func TestWritingARowAgainOverwritesIt(t *testing.T) {
	i, s, b, d := newColumn(t, arrow.PrimitiveTypes.Int32), newColumn(t, arrow.BinaryTypes.String), newColumn(t, arrow.FixedWidthTypes.Boolean),
		newColumn(t, &arrow.Decimal128Type{Precision: 20})
	f := newColumn(t, &arrow.FixedSizeBinaryType{ByteWidth: 2})
	for row := range 3 {
		i.Set4(row, 1)
		i.Set4(row, uint32(row))
		s.SetBytes(row, []byte("long text"))
		s.SetBytes(row, []byte(fmt.Sprint(row)))
		b.SetBool(row, true)
		b.SetBool(row, row == 1)
		d.Set16(row, 1, 1)
		d.Set16(row, math.MaxUint64, 0)
		f.SetFixed(row, []byte("xx"))
		f.SetFixed(row, []byte{'a', byte('0' + row)})
	}
	require.Equal(t, []string{"0", "1", "2"}, text(valid(t, i, 3)))
	require.Equal(t, []string{"0", "1", "2"}, text(valid(t, s, 3)))
	require.Equal(t, []string{"false", "true", "false"}, text(valid(t, b, 3)))
	require.Equal(t, "18446744073709551615", valid(t, d, 3).(*array.Decimal128).Value(2).BigInt().String())
	require.Equal(t, "a2", string(valid(t, f, 3).(*array.FixedSizeBinary).Value(2)))
	i.SetNull(2)
	require.False(t, i.Valid(2))
	i.Set4(2, 9)
	require.True(t, i.Valid(2))
	require.Zero(t, i.nulls)
}

func TestTypesWithoutAColumnAreRefused(t *testing.T) {
	_, err := New(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Uint8}))
	require.ErrorContains(t, err, "child x")
}

func TestBytesBeyond32BitOffsetsAreRefused(t *testing.T) {
	c := newColumn(t, arrow.BinaryTypes.Binary)
	require.True(t, c.SetBytes(0, []byte("ok")))
	c.data = c.data[:cap(c.data)]
	huge := make([]byte, math.MaxInt32) // never touched, so it costs no memory
	require.False(t, c.SetBytes(1, huge))
	require.Equal(t, 1, c.Len())
}

// nested is a type with every kind of nesting.
func nested() arrow.DataType {
	leaf := arrow.StructOf(
		arrow.Field{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		arrow.Field{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		arrow.Field{Name: "d", Type: &arrow.Decimal128Type{Precision: 20}, Nullable: true},
		arrow.Field{Name: "f", Type: &arrow.FixedSizeBinaryType{ByteWidth: 3}, Nullable: true},
		arrow.Field{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	)
	return arrow.StructOf(
		arrow.Field{Name: "one", Type: leaf, Nullable: true},
		arrow.Field{Name: "many", Type: arrow.ListOf(leaf), Nullable: true},
		arrow.Field{Name: "by", Type: arrow.MapOf(arrow.BinaryTypes.String, leaf), Nullable: true},
		arrow.Field{Name: "num", Type: arrow.MapOf(arrow.PrimitiveTypes.Int32, arrow.MapOf(arrow.FixedWidthTypes.Boolean, leaf)), Nullable: true},
	)
}

// write writes a random value. It is a function of the random source alone.
func write(r *rand.Rand, c *Column, row int) {
	if r.IntN(4) == 0 {
		return
	}
	switch c.kind {
	case kind4:
		c.Set4(row, uint32(r.IntN(100)))
	case kind8:
		c.Set8(row, uint64(r.IntN(100)))
	case kind16:
		c.Set16(row, uint64(r.IntN(100)), 0)
	case kindBool:
		c.SetBool(row, r.IntN(2) == 0)
	case kindBytes:
		c.SetBytes(row, []byte("abcdefgh")[:r.IntN(9)])
	case kindFixed:
		c.SetFixed(row, []byte{1, byte(r.IntN(9)), 3})
	case kindStruct:
		c.Open(row)
		for i := range c.Kids() {
			write(r, c.Kid(i), row)
		}
	case kindList:
		c.Open(row)
		for range r.IntN(4) {
			at := c.Kid(0).Len()
			write(r, c.Kid(0), at)
			c.Kid(0).Fill(at + 1)
			c.CloseList(row)
		}
	case kindMap:
		c.Open(row)
		for range r.IntN(5) {
			at := c.Kid(0).Len()
			c.Kid(1).Fill(at)
			writeKey(r, c.Kid(0), at)
			write(r, c.Kid(1), at)
			c.Kid(1).Fill(at + 1)
			c.CloseList(row)
		}
	}
}

func writeKey(r *rand.Rand, k *Column, at int) {
	switch k.kind {
	case kindBytes:
		k.SetBytes(at, []byte("abc")[:r.IntN(4)])
	case kind4:
		k.Set4(at, uint32(r.IntN(3)))
	default:
		k.SetBool(at, r.IntN(2) == 0)
	}
}

// A row that is taken back, at every depth, leaves no trace: the column equals one
// that never saw it. The same columns are used again after Reset.
func TestTruncateLeavesNoTrace(t *testing.T) {
	dirty, clean := newColumn(t, nested()), newColumn(t, nested())
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		dirty.Reset()
		clean.Reset()
		for row := range 60 {
			for range r.IntN(3) {
				write(r, dirty, row)
				dirty.Truncate(row)
			}
			seed := r.Uint64()
			write(rand.New(rand.NewPCG(seed, 0)), dirty, row)
			write(rand.New(rand.NewPCG(seed, 0)), clean, row)
		}
		got, want := valid(t, dirty, 61), valid(t, clean, 61)
		require.Equal(t, text(want), text(got), "round %d", round)
		require.True(t, array.Equal(want, got))
		require.Equal(t, clean.Size(61), dirty.Size(61))
	}
}

// Size knows before Finish how long the message will be, absent values included. It
// may say a little more: what the head holds is rounded up, and nulls that were
// overwritten keep their bitmap.
func TestSizeIsThatOfTheMessage(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 20 {
		c := newColumn(t, nested())
		written := r.IntN(200)
		for row := range written {
			if r.IntN(3) > 0 {
				write(r, c, row)
			}
		}
		rows := written + r.IntN(5000)
		size := c.Size(rows)
		a := c.Finish(rows)
		rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "a", Type: a.DataType(), Nullable: true}}, nil), []arrow.Array{a}, int64(rows))
		_, message, err := arrowx.Encode(rec)
		require.NoError(t, err)
		require.LessOrEqual(t, message, size+512, "round %d", round)
		require.Greater(t, message, size*9/10-2048, "round %d", round)
	}
}

// KeepLast keeps exactly the last entry of each key, of every kind of key and with
// every kind of value, and touches no other row. Judged by a plain Go map.
func TestKeepLastRemovesDoubledKeysOnly(t *testing.T) {
	d := NewDedupe()
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		for _, key := range []arrow.DataType{arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32, arrow.FixedWidthTypes.Boolean} {
			c := newColumn(t, arrow.MapOf(key, nested()))
			for row := range 5 {
				write(r, c, row)
			}
			before := valid(t, c, 5)
			var want []map[string]string
			for row := range 5 {
				want = append(want, entries(before.(*array.Map), row))
			}
			d.KeepLast(c, []int{0, 1, 2, 3, 4}[r.IntN(2):])
			after := valid(t, c, 5).(*array.Map)
			for row := 1; row < 5; row++ {
				require.Equal(t, want[row], entries(after, row))
				from, to := after.ValueOffsets(row)
				require.Len(t, want[row], int(to-from), "no key twice")
			}
		}
	}
}

// entries copies one row of a map; a later entry of a key replaces an earlier one.
func entries(m *array.Map, row int) map[string]string {
	out := map[string]string{}
	if m.IsNull(row) {
		return out
	}
	from, to := m.ValueOffsets(row)
	for i := from; i < to; i++ {
		out[strings.Clone(m.Keys().ValueStr(int(i)))] = strings.Clone(m.Items().ValueStr(int(i)))
	}
	return out
}

func TestAppendRawAndWords(t *testing.T) {
	c := newColumn(t, arrow.PrimitiveTypes.Int64)
	c.Fill(1)
	c.AppendRaw([]byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	c.Append8([]uint64{3, 4})
	require.Equal(t, []string{"(null)", "1", "2", "3", "4"}, text(valid(t, c, 5)))
	c = newColumn(t, arrow.PrimitiveTypes.Int32)
	c.AppendRaw([]byte{1, 0, 0, 0})
	c.Append4([]uint32{5})
	require.Equal(t, []string{"1", "5"}, text(valid(t, c, 2)))
}

func TestReuseDoesNotAllocate(t *testing.T) {
	c := newColumn(t, nested())
	fill := func() {
		c.Reset()
		r := rand.New(rand.NewPCG(9, 9))
		for row := range 200 {
			write(r, c, row)
		}
	}
	fill()
	require.LessOrEqual(t, testing.AllocsPerRun(5, fill), 2.0, "the random source allocates, the column does not")
}

// A value whose meaning is null is told apart from one that never came.
func TestWrittenNullIsNotAbsent(t *testing.T) {
	c := newColumn(t, arrow.FixedWidthTypes.Date32)
	c.WriteNull(1)
	c.Set4(3, 0)
	c.WriteNull(3)
	c.Set4(4, 0)
	c.Fill(6)
	var got []bool
	for row := range 7 {
		got = append(got, c.Written(row))
	}
	require.Equal(t, []bool{false, true, false, true, true, false, false}, got)
	require.Equal(t, 5, valid(t, c, 6).NullN())
}
