package arrowx_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// G5: a record keeps its LSN through quarantine, and the row that it becomes has it.
func TestAReplayedRowHasTheLSNOfItsQuarantinedRecord(t *testing.T) {
	bad, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrowx.QuarantineSchema(), strings.NewReader(
		`[{"offset":12,"value":"eA==","headers":[],"reason":"r","error":"e"},{"offset":13,"value":"eQ==","headers":[],"reason":"r","error":"e"}]`))
	require.NoError(t, err)
	b, err := arrowx.EncodeBytes(bad)
	require.NoError(t, err)
	e := &event.Append{
		Header: event.Header{Partition: ident.Partition{Pipeline: "p", Topic: "orders", Number: 2}, Range: ident.Range{First: 10, Next: 14}, Quarantined: 2},
		LSN:    100, Quarantine: b,
	}
	rec, err := arrowx.MaterialiseQuarantine(e, ident.Range{First: 13, Next: 20}, ident.UUID{1})
	require.NoError(t, err)
	at := rec.Schema().FieldIndices(schema.LSNName)[0]
	require.Equal(t, []int64{103}, rec.Column(at).(*array.Int64).Int64Values())

	s := table()
	rows := entry(t, s).RowBatch // offsets 10, 12, 13
	out, err := arrowx.MaterialiseReplay(s, e.Partition, rows, map[int64]ident.LSN{10: 100, 13: 103})
	require.NoError(t, err)
	lsns := out.Column(out.Schema().FieldIndices(schema.LSNColumn)[0]).(*array.Int64)
	require.Equal(t, int64(100), lsns.Value(0))
	require.True(t, lsns.IsNull(1), "quarantined before its LSN was kept")
	require.Equal(t, int64(103), lsns.Value(2))
	kafka := out.Column(out.Schema().FieldIndices(schema.KafkaColumn)[0]).(*array.Struct)
	require.Equal(t, []int64{10, 12, 13}, kafka.Field(2).(*array.Int64).Int64Values())
}
