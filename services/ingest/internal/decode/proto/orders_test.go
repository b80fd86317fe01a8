package proto_test

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// The order generator computes the checksum of a row from its own values; what
// the decoder makes of the bytes must have the same, in the first batch and in
// every batch after a Reset.
func TestBatchesAfterAResetHoldTheValuesThatWereProduced(t *testing.T) {
	file, err := registry.Compile(t.Context(), "orders.proto", orders.Schema(), nil)
	require.NoError(t, err)
	md := file.Messages().ByName(protoreflect.FullName(orders.MessageName).Name())
	candidate, err := proto.Candidate(md, proto.Options{})
	require.NoError(t, err)
	target := &schema.Schema{Columns: candidate.Columns}
	target.AssignIDs()
	plan, err := proto.Compile(md, target, proto.Options{})
	require.NoError(t, err)
	batch := plan.NewBatch()
	g := orders.NewGenerator(orders.Config{Seed: 1, SchemaID: 1})
	var rec orders.Record
	index := uint64(0)
	for round := range 6 {
		var want []uint64
		for range 500 + 300*round {
			g.Make(index, &rec)
			index++
			f, err := frame.Parse(rec.Value, nil, true)
			require.NoError(t, err)
			require.NoError(t, batch.Append(f.Payload))
			want = append(want, rec.Expect.Checksum)
		}
		got := array.NewRecordBatch(arrow.NewSchema(target.Arrow().Fields(), nil), batch.Finish(), int64(len(want)))
		sums, err := orders.HashRows(got)
		require.NoError(t, err)
		for i := range want {
			if sums[i] != want[i] {
				js, err := got.NewSlice(int64(i), int64(i)+1).MarshalJSON()
				require.NoError(t, err)
				require.Equal(t, want[i], sums[i], "round %d row %d: %s", round, i, js)
			}
		}
		batch.Reset()
	}
}
