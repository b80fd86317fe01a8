package arrowx_test

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// table is id int, name string, tags list<string>, attrs map<string,float>,
// pos struct{x double}, and the metadata columns.
func table() *schema.Schema {
	s := &schema.Schema{Columns: append([]*schema.Node{
		{Name: "id", Type: schema.Of(schema.Int)},
		{Name: "name", Type: schema.Of(schema.String)},
		{Name: "tags", Type: schema.Of(schema.List), Kids: []*schema.Node{{Name: schema.ElementName, Type: schema.Of(schema.String)}}},
		{Name: "attrs", Type: schema.Of(schema.Map), Kids: []*schema.Node{
			{Name: schema.KeyName, Type: schema.Of(schema.String), Required: true}, {Name: schema.ValueName, Type: schema.Of(schema.Float)},
		}},
		{Name: "pos", Type: schema.Of(schema.Struct), Kids: []*schema.Node{{Name: "x", Type: schema.Of(schema.Double)}}},
	}, schema.MetadataColumns(true, true)...)}
	s.AssignIDs()
	return s
}

const rowsJSON = `[
{"id":1,"name":"a","tags":["p","q"],"attrs":[{"key":"k","value":1.5}],"pos":{"x":2},"offset":10,"timestamp":"2026-01-01T00:00:00Z","key":"a2V5","headers":[{"key":"h","value":"aGVhZA=="}],"schema_id":7},
{"id":null,"name":null,"tags":[],"attrs":[],"pos":null,"offset":12,"timestamp":null,"key":null,"headers":[],"schema_id":null},
{"id":3,"name":"","tags":["r"],"attrs":[{"key":"m","value":null}],"pos":{"x":null},"offset":13,"timestamp":"2026-01-01T00:00:01Z","key":"","headers":[],"schema_id":7}]`

func rowBatch(t testing.TB, s *schema.Schema) arrow.RecordBatch {
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrowx.RowSchema(s), strings.NewReader(rowsJSON))
	require.NoError(t, err)
	return rec
}

func entry(t testing.TB, s *schema.Schema) *event.Append {
	b, err := arrowx.EncodeBytes(rowBatch(t, s))
	require.NoError(t, err)
	return &event.Append{
		Header: event.Header{
			Partition: ident.Partition{Pipeline: "p", Topic: "orders", Number: 2}, Range: ident.Range{First: 10, Next: 14},
			Fingerprint: s.Fingerprint(), Rows: 3, Skips: []event.Skip{{Range: ident.Range{First: 11, Next: 12}, Reason: event.SkipTombstone}},
		},
		LSN: 100, RowBatch: b,
	}
}

func TestABatchSurvivesEncodingAndDecoding(t *testing.T) {
	s := table()
	rec := rowBatch(t, s)
	b, err := arrowx.EncodeBytes(rec)
	require.NoError(t, err)
	got, err := arrowx.Decode(arrowx.RowSchema(s), b)
	require.NoError(t, err)
	require.True(t, array.RecordEqual(rec, got), "want %v\ngot %v", rec, got)
	require.NoError(t, arrowx.CheckEntry(s, entry(t, s)))
}

func TestASliceOfABatchSurvivesEncoding(t *testing.T) {
	s := table()
	part := rowBatch(t, s).NewSlice(1, 3)
	b, err := arrowx.EncodeBytes(part)
	require.NoError(t, err)
	got, err := arrowx.Decode(arrowx.RowSchema(s), b)
	require.NoError(t, err)
	require.True(t, array.RecordEqual(part, got))
}

// Every single changed byte, and every cut, gives an error or a batch that can
// be walked: never a panic (the buffer's door).
func TestCorruptBytesAreRefusedOrHarmless(t *testing.T) {
	s := table()
	e := entry(t, s)
	good := e.RowBatch
	walk := func(b []byte) {
		rec, err := arrowx.Decode(arrowx.RowSchema(s), b)
		if err != nil {
			require.Equal(t, fault.Corrupt, fault.ReasonOf(err))
			return
		}
		_, err = rec.MarshalJSON()
		require.NoError(t, err)
	}
	for i := range good {
		for _, x := range []byte{0x01, 0x80, 0xff} {
			b := append([]byte(nil), good...)
			b[i] ^= x
			walk(b)
		}
	}
	for i := range good {
		walk(good[:i])
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := append([]byte(nil), good...)
		for range 1 + r.IntN(8) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		walk(b)
	}
}

func TestAnEntryWhoseBatchDisagreesWithItsHeaderIsRefused(t *testing.T) {
	s := table()
	for name, change := range map[string]func(*event.Append){
		"row count":              func(e *event.Append) { e.Rows = 2 },
		"offset above the range": func(e *event.Append) { e.Range.Next = 13 },
		"offset below the range": func(e *event.Append) { e.Range.First = 11 },
		"batch without rows":     func(e *event.Append) { e.Rows = 0 },
		"quarantine missing":     func(e *event.Append) { e.Quarantined = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			e := entry(t, s)
			change(e)
			require.Equal(t, fault.Corrupt, fault.ReasonOf(arrowx.CheckEntry(s, e)))
		})
	}
}

// G5: the row with offset o has the LSN L + (o - first).
func TestRowsCarryTheirLSNAndKafkaPosition(t *testing.T) {
	s := table()
	rec, err := arrowx.Materialise(s, entry(t, s), ident.Range{First: 11, Next: 14})
	require.NoError(t, err)
	require.True(t, rec.Schema().Equal(s.Arrow()))
	require.EqualValues(t, 2, rec.NumRows())
	require.Equal(t, []int64{102, 103}, rec.Column(5).(*array.Int64).Int64Values())
	js, err := rec.NewSlice(1, 2).MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `[{"id":3,"name":"","tags":["r"],"attrs":[{"key":"m","value":null}],"pos":{"x":null},"_lsn":103,
		"_kafka":{"topic":"orders","partition":2,"offset":13,"timestamp":"2026-01-01T00:00:01Z","key":"","headers":[],"schema_id":7}}]`, string(js))
}

func TestConformFillsWidensAndDropsByFieldID(t *testing.T) {
	from := table()
	to := from.Clone()
	to.Column("id").Type = schema.Of(schema.Long)
	to.Column("id").Name = "ident"
	to.Column("attrs").Kids[1].Type = schema.Of(schema.Double)
	to.Column("pos").Kids = append(to.Column("pos").Kids, &schema.Node{Name: "y", Type: schema.Of(schema.Double)})
	to.Columns = append(to.Columns[:1], to.Columns[2:]...) // drop name
	to.Columns = append(to.Columns, &schema.Node{Name: "extra", Type: schema.Of(schema.String)})
	to.AssignIDs()
	rec, err := arrowx.Materialise(from, entry(t, from), ident.Range{First: 0, Next: 100})
	require.NoError(t, err)
	got, err := arrowx.Conform(rec.NewSlice(2, 3), from, to)
	require.NoError(t, err)
	js, err := got.MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `[{"ident":3,"tags":["r"],"attrs":[{"key":"m","value":null}],"pos":{"x":null,"y":null},"_lsn":103,"extra":null,
		"_kafka":{"topic":"orders","partition":2,"offset":13,"timestamp":"2026-01-01T00:00:01Z","key":"","headers":[],"schema_id":7}}]`, string(js))

	bad := from.Clone()
	bad.Column("name").Type = schema.Of(schema.Long)
	_, err = arrowx.Conform(rec, from, bad)
	require.Equal(t, fault.SchemaChanged, fault.ReasonOf(err))
}

func TestConcatAndProject(t *testing.T) {
	s := table()
	rec, err := arrowx.Materialise(s, entry(t, s), ident.Range{First: 0, Next: 100})
	require.NoError(t, err)
	both, err := arrowx.Concat(s.Arrow(), []arrow.RecordBatch{rec, rec.NewSlice(1, 2)})
	require.NoError(t, err)
	require.EqualValues(t, 4, both.NumRows())
	p, err := arrowx.Project(both, []string{"_lsn", "id"})
	require.NoError(t, err)
	require.Equal(t, []int64{100, 102, 103, 102}, p.Column(0).(*array.Int64).Int64Values())
	_, err = arrowx.Project(both, []string{"nope"})
	require.ErrorContains(t, err, `no column "nope"`)
}

func FuzzDecode(f *testing.F) {
	s := table()
	f.Add(entry(f, s).RowBatch)
	shape := arrowx.RowSchema(s)
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := arrowx.Decode(shape, b)
		if err == nil {
			_, err = rec.MarshalJSON()
			require.NoError(t, err)
		}
	})
}

func TestAStreamInPiecesGivesItsBatches(t *testing.T) {
	s := table()
	rec := rowBatch(t, s)
	b, err := arrowx.StreamBytes(rec.Schema(), rec, rec.NewSlice(1, 3))
	require.NoError(t, err)
	pieces := [][]byte{b[:5], nil, b[5:100], b[100:]}
	next := func() ([]byte, error) {
		if len(pieces) == 0 {
			return nil, io.EOF
		}
		p := pieces[0]
		pieces = pieces[1:]
		return p, nil
	}
	var rows []int64
	require.NoError(t, arrowx.EachBatch(&arrowx.Chunks{Next: next}, func(rec arrow.RecordBatch) error {
		rows = append(rows, rec.NumRows())
		return nil
	}))
	require.Equal(t, []int64{3, 2}, rows)
	require.NoError(t, arrowx.EachBatch(&arrowx.Chunks{Next: next}, func(arrow.RecordBatch) error { return io.ErrNoProgress }))
}
