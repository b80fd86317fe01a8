package ingest

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// What a plan says about records is what becomes of them.
func TestSamplesAreReadAsTheServiceReadsThem(t *testing.T) { // F1
	w := newWorld(t, ordersTopic+", key: decode, flood: {share: off}", topic(1))
	w.cfg.Limits.RecordMax = 500
	id := []byte{0, 0, 0, 0, 1, 0} // of schema 1
	value, key := framed(1, "a", 1, ""), framed(1, "k", 1, "")
	large := []kgo.RecordHeader{{Key: "trace", Value: bytes.Repeat([]byte("x"), 500)}}
	w.send(
		&kgo.Record{Value: value, Key: key},
		&kgo.Record{Value: value[6:], Key: key, Headers: []kgo.RecordHeader{{Key: frame.HeaderName, Value: []byte{9}}, {Key: frame.HeaderName, Value: id}}},
		&kgo.Record{Value: value, Key: key[6:], Headers: []kgo.RecordHeader{{Key: frame.KeyHeaderName, Value: []byte{9}}, {Key: frame.KeyHeaderName, Value: id}}},
		&kgo.Record{Value: value, Key: []byte("junk")},
		&kgo.Record{Value: value, Key: framed(99, "k", 1, "")},
		&kgo.Record{Value: value, Key: append(slices.Clone(key), 0xff)},
		&kgo.Record{Value: value, Key: key, Headers: large},
		&kgo.Record{Key: key, Headers: large},
		&kgo.Record{Value: value},
	)
	r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Sample: 100})
	require.NoError(t, err)
	require.Empty(t, r.Unknown)
	planned := map[string]int64{}
	for reason, b := range r.Samples[0].Quarantine {
		planned[reason] = b.Count
	}
	w.start()
	w.appended(0, 9)
	met := map[string]int64{}
	for _, outcome := range w.outcome(0) {
		if reason, bad := strings.CutPrefix(outcome, "bad "); bad {
			met[reason]++
		}
	}
	require.Equal(t, met, planned)
	require.EqualValues(t, 4, r.Samples[0].Rows)
	require.EqualValues(t, 2, met["oversized"], "%v", slices.Sorted(maps.Keys(met)))
}
