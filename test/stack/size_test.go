package stack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
)

const blobsText = `deployment: test
defaults: { commit: { interval: 1h } }
pipelines: [{ name: blobs, topics: [blobs], table: big.blobs }]
`

const blobSchema = `syntax = "proto3"; package big.v1; message Blob { int64 id = 1; bytes data = 2; string text = 3; }`

// blob is a framed record value of exactly size bytes; a poisoned one ends inside its field.
func blob(schemaID uint32, id uint64, size int, poison bool) []byte {
	b := []byte{0, byte(schemaID >> 24), byte(schemaID >> 16), byte(schemaID >> 8), byte(schemaID), 0}
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, id)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	data := size - len(b)
	for protowire.SizeBytes(data) > size-len(b) {
		data--
	}
	claim := data
	if poison {
		claim++
	}
	b = protowire.AppendVarint(b, uint64(claim))
	for i := range data {
		b = append(b, byte(i*31))
	}
	if len(b) != size {
		panic(fmt.Sprintf("made %d bytes, want %d", len(b), size))
	}
	return b
}

// Records one byte below, at and one above record.max, good and poison: a row, or quarantine with the reason; and the
// message limits hold on every hop up to readers of hot and of cold rows (O5, G8).
func TestRecordsUpToRecordMaxPassEveryHopAndLargerOnesAreQuarantined(t *testing.T) {
	for _, limit := range []int{1 << 20, 32 << 20} {
		t.Run(config.Size(limit).String(), func(t *testing.T) {
			recordMax(t, limit)
		})
	}
}

func recordMax(t *testing.T, limit int) {
	w := newWorld(t, blobsText, config.Override{Path: "limits.record.max", Value: config.Size(limit).String()})
	require.NoError(t, w.kafka.EnsureTopic("blobs", 1))
	id := w.register("blobs-value", blobSchema)
	cl := w.client()
	type want struct {
		offset int64
		size   int
		reason string
	}
	var rows []want
	bad := map[int64]want{}
	for i, c := range []struct {
		size   int
		poison bool
		reason string
	}{
		{size: 100},
		{size: limit - 1},
		{size: limit},
		{limit + 1, false, "oversized"},
		{limit - 1, true, "?"},
		{limit, true, "?"},
		{limit + 1, true, "oversized"},
		{size: 100},
	} {
		key := []byte("key")
		r := &kgo.Record{Topic: "blobs", Key: key, Value: blob(id, uint64(i), c.size-len(key), c.poison)}
		if c.size > 1000 { // headers count, too
			r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("12345")}}
			r.Value = blob(id, uint64(i), c.size-len(key)-6, c.poison)
		}
		require.NoError(t, cl.ProduceSync(t.Context(), r).FirstErr())
		if c.reason == "" {
			rows = append(rows, want{offset: r.Offset, size: len(r.Value)})
		} else {
			bad[r.Offset] = want{r.Offset, len(r.Value), c.reason}
		}
	}
	w.start()
	w.ready()
	w.eventually(func() error {
		if seen, end := w.visible("big.blobs", "blobs"); seen != end {
			return fmt.Errorf("%d of %d offsets are visible: %s", seen, end, w.reasons(discovery.Ingest))
		}
		return nil
	})
	check := func(how string, read func(fn func(arrow.RecordBatch) error) error) {
		got := map[int64]int{}
		require.NoError(t, read(func(rec arrow.RecordBatch) error {
			data := rec.Column(rec.Schema().FieldIndices("data")[0]).(*array.Binary)
			k := rec.Column(rec.Schema().FieldIndices("_kafka")[0]).(*array.Struct)
			offsets := k.Field(2).(*array.Int64)
			for i := range int(rec.NumRows()) {
				got[offsets.Value(i)] = len(data.Value(i))
			}
			return nil
		}), how)
		require.Len(t, got, len(rows), how)
		for _, r := range rows {
			require.Greater(t, got[r.offset], r.size-30, "%s: offset %d", how, r.offset)
		}
	}
	readstate, buffer := w.dial(discovery.Readstate), w.dial(discovery.Buffer)
	scan := func(fn func(arrow.RecordBatch) error) error {
		return union(t.Context(), readstate, "big.blobs", nil, fn)
	}
	w.ready()
	w.replicated("big.blobs")
	check("a scan of hot rows", scan)
	check("ReadHot at the buffer", func(fn func(arrow.RecordBatch) error) error { return readHot(t.Context(), buffer, "big.blobs", fn) })
	check("ReadHot at readstate", func(fn func(arrow.RecordBatch) error) error { return readHot(t.Context(), readstate, "big.blobs", fn) })
	check("a tail of hot rows", func(fn func(arrow.RecordBatch) error) error {
		return tailRows(t.Context(), buffer, "big.blobs", len(rows), fn)
	})
	w.settle("big.blobs", "blobs")
	check("a scan of cold rows", scan)
	check("a tail of cold rows", func(fn func(arrow.RecordBatch) error) error {
		return tailRows(t.Context(), readstate, "big.blobs", len(rows), fn)
	})
	found := map[int64]string{}
	require.NoError(t, w.catalog.Scan(t.Context(), []string{"big", "blobs__quarantine"}, func(rec arrow.RecordBatch) error {
		col := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		for i := range int(rec.NumRows()) {
			o := col("offset").(*array.Int64).Value(i)
			found[o] = col("reason").(array.StringLike).Value(i)
			if !strings.Contains(found[o], "oversized") {
				require.Len(t, col("value").(*array.Binary).Value(i), bad[o].size, "a poison record is kept whole")
			}
		}
		return nil
	}))
	require.Len(t, found, len(bad))
	for o, b := range bad {
		if b.reason == "oversized" {
			require.Equal(t, "oversized", found[o], "offset %d", o)
		} else {
			require.NotEqual(t, "oversized", found[o], "offset %d", o)
		}
	}
	w.audit("big.blobs")
}
