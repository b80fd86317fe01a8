package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/lru"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// G3: whatever came before a record, its row is made by the schema and the message that it names, in prefix or header;
// and what has none is a record of its own.
func TestEachRecordIsMadeARowByTheSchemaItNames(t *testing.T) {
	codec := answers{"/schemas/ids/7": twoTypes, "/schemas/ids/8": twoTypes}.codec(t)
	s := eventSession(t)
	s.w.p.c.Codec, s.last, s.lastValue = codec, nil, met{}
	s.policy.name = policySkip
	s.w.flood, s.w.m = newFlood(config.Flood{}), newPartitionMetrics(obs.NewMetrics(nil), "p", source.TopicPartition{Topic: "t"})
	s.t = &table{p: s.w.p, plans: lru.New[planKey, *plan](64)}
	reference := func(b ...byte) []batch.Header { return []batch.Header{{Key: frame.HeaderName, Value: b}} }
	kinds := []batch.Record{
		{Value: prefixed(7, 0, 8, 1)},
		{Value: prefixed(7, 0)},
		{Value: prefixed(7, 2, 2, 8, 1)},
		{Value: prefixed(7, 4, 0, 0, 8, 1)},
		{Value: prefixed(8, 0, 8, 1)},
		{Value: prefixed(8, 2, 2, 8, 1)},
		{Value: prefixed(7, 2, 0, 8, 1)},
		{Value: prefixed(7, 0, 8, 1), Headers: reference(0, 0, 0, 0, 8, 2, 2)},
		{Value: []byte{8, 1}, Headers: reference(0, 0, 0, 0, 7)},
		{Value: prefixed(7, 0, 8, 1), Headers: []batch.Header{{Key: frame.HeaderName}}},
		{Value: prefixed(7, 0, 8, 1), Headers: []batch.Header{{Key: "other", Value: []byte("x")}}},
		{Value: []byte{}},
		{Value: []byte{0, 0, 0}},
		{Value: prefixed(7)},
		{Value: prefixed(7, 2)},
		{Value: []byte{1, 2, 3, 4, 5, 6, 7}},
		{Value: prefixed(7, 0, 9, 1)},
		{},
		{Control: true, Value: prefixed(8, 0)},
		{Value: prefixed(8, 0, 8, 1), Headers: reference()},
	}
	want := make([]*plan, len(kinds))
	for i := range kinds {
		f, err := SplitValue(codec, &kinds[i])
		if err != nil || kinds[i].Value == nil || kinds[i].Control {
			continue
		}
		key := f.Key()
		pl, known := s.t.plans.Get(planKey{value: key, noKey: true})
		if !known {
			src, err := codec.Source(t.Context(), &f)
			require.NoError(t, err)
			target := schema.Evolve(&schema.Schema{Columns: schema.MetadataColumns(true, true)}, src.Candidate(), schema.NumberMap{}, schema.Options{}).Schema
			rows, err := Compile(src, target)
			require.NoError(t, err)
			pl = &plan{id: planKey{value: key, noKey: true}, target: newTarget(target, target.Fingerprint()), make: rows}
			s.t.plans.Put(pl.id, pl)
		}
		want[i] = pl
	}
	r := rand.New(rand.NewPCG(1, 1))
	var offset int64
	one := batch.Record{}
	for range 20_000 {
		i := r.IntN(len(kinds))
		for range 1 + r.IntN(3) {
			one.Offset, one.Control, one.Headers = offset, kinds[i].Control, kinds[i].Headers
			one.Value = append(one.Value[:0:0], kinds[i].Value...)
			if kinds[i].Value == nil {
				one.Value = nil
			} else if one.Value == nil {
				one.Value = []byte{}
			}
			require.NoError(t, s.record(t.Context(), &one), "kind %d", i)
			if want[i] != nil {
				require.Same(t, want[i], s.bound, "kind %d", i)
			} else {
				require.Nil(t, s.bound, "kind %d", i)
			}
			clear(one.Value) // a fetch's memory is used again
			offset++
			s.b.Drop(offset)
			s.bound = nil
		}
	}
}
