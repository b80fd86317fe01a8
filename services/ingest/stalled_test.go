package ingest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// inUse is what the process has in use.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // what pools let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// However many partitions wait for a log that does not answer.
func TestAnIngestWhoseLogDoesNotAnswerStaysWithinItsBudget(t *testing.T) { // G7
	const partitions, each, budget = 200, 512 << 10, 32 << 20
	w := newWorld(t, "topics: [orders]", kfake.SeedTopics(partitions, "orders"))
	w.cfg.Limits.IngestBytes = budget
	producer, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(16<<10), kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, err)
	t.Cleanup(producer.Close)
	id := strings.Repeat("i", 100)
	for n := range int32(partitions) {
		for at := range each / 120 {
			producer.Produce(t.Context(), &kgo.Record{Topic: "orders", Partition: n, Value: framed(1, fmt.Sprint(id, at), 1, "")}, nil)
		}
		require.NoError(t, producer.Flush(t.Context()))
	}
	producer.Close()
	w.silent = true
	before := inUse()
	i := w.start()
	last, same := 0.0, 0
	require.Eventually(t, func() bool { // until nothing more comes
		fetched, _ := i.metrics.Value("icestream_ingest_fetch_buffer_bytes", "p")
		if fetched == 0 || fetched != last {
			last, same = fetched, 0
			return false
		}
		same++
		return same == 20
	}, 60*time.Second, 50*time.Millisecond)
	used := inUse() - before
	t.Logf("%d partitions: %d KiB fetched, %d KiB in use, of %d", partitions, int64(last)>>10, used>>10, budget>>10)
	require.LessOrEqual(t, last, float64(budget/2))
	require.LessOrEqual(t, used, int64(2*budget), "with what broker and log of the test have")
}
