package pipeline

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
)

const rawTypes = `syntax = "proto3"; package p; message A { int32 a = 1; In in = 2; string s = 3; } message In { int32 i = 1; }`

// keeping is the source of rawTypes with the column of the raw record.
func keeping(t *testing.T) Source {
	t.Helper()
	c := answers{"/schemas/ids/7": rawTypes}.codec(t)
	c.Options = proto.Options{NoteUnknown: true}
	src, err := sourceOf(t, c, prefixed(7, 0), nil)
	require.NoError(t, err)
	return src
}

// design section 5: unknown fields, option: keep the raw record.
func TestRecordsWithUnknownFieldsAreKeptRaw(t *testing.T) {
	rows, target := rowsOf(t, keeping(t))
	require.Equal(t, []string{"a", "in", "s", "_raw"}, []string{target.Columns[0].Name, target.Columns[1].Name, target.Columns[2].Name, target.Columns[3].Name})
	known := []byte{8, 1, 0x12, 2, 8, 2}
	top := []byte{8, 3, 0x50, 4}                   // field 10
	nested := []byte{0x12, 4, 8, 5, 0x10, 6, 8, 7} // field 2 of in
	wire := []byte{0x0d, 1, 0, 0, 0}               // a in 4 bytes
	bad := []byte{0x50, 4, 0x1a, 1, 0xff}          // field 10, then text that is none
	var first []string
	for turn := range 2 { // the same on a second filling
		rows.Reset()
		require.NoError(t, rows.Append(known))
		require.NoError(t, rows.Append(top))
		require.Error(t, rows.Append(bad))
		require.NoError(t, rows.Append(known), "nothing is left of the refused record")
		require.NoError(t, rows.AppendNull())
		require.NoError(t, rows.Append(nested))
		require.NoError(t, rows.Append(top))
		rows.Undo()
		require.NoError(t, rows.Append(known), "nor of what was taken back")
		require.NoError(t, rows.Append(wire))
		require.NoError(t, rows.Append(nil))
		require.Equal(t, 8, rows.Rows())
		require.GreaterOrEqual(t, rows.Size(), len(top)+len(nested)+len(wire))
		out := rows.Finish()
		raw := out[3].(*array.Binary)
		require.NoError(t, raw.ValidateFull())
		for i, want := range [][]byte{nil, top, nil, nil, nested, nil, wire, nil} {
			require.Equal(t, want == nil, raw.IsNull(i), i)
			if want != nil {
				require.Equal(t, want, raw.Value(i))
			}
		}
		var all []string
		for _, a := range out {
			require.Equal(t, 8, a.Len())
			all = append(all, a.String())
		}
		if turn == 0 {
			first = all
		}
		require.Equal(t, first, all)
	}
}

func TestRawRecordBesideKeyAndFieldsOfItsName(t *testing.T) {
	c := answers{"/schemas/ids/7": `syntax = "proto3"; message A { int32 _raw = 1; int32 _KEY = 2; }`}.codec(t)
	c.Options = proto.Options{NoteUnknown: true}
	src, err := sourceOf(t, c, prefixed(7, 0), nil)
	require.NoError(t, err)
	src = WithKey(src, plainSource(t, Text{}))
	rows, target := rowsOf(t, src)
	var names []string
	for _, n := range target.Columns {
		names = append(names, n.Name)
	}
	require.Equal(t, []string{"_raw", "_KEY", "_raw_record", "_key_kafka"}, names)
	keyed := rows.(batch.Keyed)
	keyed.NextKey([]byte("k"))
	require.NoError(t, rows.Append([]byte{8, 1, 0x50, 4}))
	keyed.NextKey([]byte("\xff"))
	require.Error(t, rows.Append([]byte{8, 1, 0x50, 4}), "the key is bad")
	keyed.NextKey([]byte("l"))
	require.NoError(t, rows.AppendNull())
	out := rows.Finish()
	require.Equal(t, "\x08\x01\x50\x04", string(out[2].(*array.Binary).Value(0)))
	require.True(t, out[2].IsNull(1))
	require.Equal(t, `["k" "l"]`, out[3].String())

	// The option is off again: the column stays and is null.
	c.Options.NoteUnknown = false
	off, err := sourceOf(t, c, prefixed(7, 0), nil)
	require.NoError(t, err)
	off = WithKey(off, plainSource(t, Text{}))
	numbers := schema.Reconcile(&schema.Schema{}, src.Candidate(), nil).Numbers
	make, err := Compile(off, schema.Reconcile(target, off.Candidate(), numbers).Schema)
	require.NoError(t, err)
	rows = make()
	rows.(batch.Keyed).NextKey([]byte("k"))
	require.NoError(t, rows.Append([]byte{8, 1, 0x50, 4}))
	out = rows.Finish()
	require.Equal(t, "[1]", out[0].String())
	require.True(t, out[2].IsNull(0))
}

func TestKeepingRawRecordsDoesNotAllocate(t *testing.T) {
	rows, _ := rowsOf(t, keeping(t))
	record := []byte{8, 3, 0x50, 4}
	fill := func() {
		rows.Reset()
		for range 1000 {
			if err := rows.Append(record); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	require.LessOrEqual(t, testing.AllocsPerRun(3, fill), 1.0)
}
