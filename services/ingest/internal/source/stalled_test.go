package source

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
)

// live is what the process has in use.
func live() int64 {
	runtime.GC()
	runtime.GC() // what pools let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fill produces so many bytes of small records to each partition.
func fill(t *testing.T, c *kfake.Cluster, partitions, size int, codec kgo.CompressionCodec) {
	t.Helper()
	cl := client(t, c, kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(16<<10), kgo.MaxBufferedRecords(100_000))
	value := make([]byte, 100)
	for n := range partitions {
		for at := range size / len(value) {
			copy(value, fmt.Sprintf("%d of %d %x", at, n, at*at*7919))
			cl.Produce(t.Context(), &kgo.Record{Topic: "t", Partition: int32(n), Value: bytes.Clone(value)}, nil)
		}
	}
	require.NoError(t, cl.Flush(t.Context()))
	cl.Close()
}

// lies is the number of records that nobody has taken.
func (k *Cursor) lies() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.queue {
		n += f.Len()
	}
	return n
}

// However many partitions stand still: a buffer that is away stalls all workers.
func TestPartitionsThatStandStillStayWithinTheBudget(t *testing.T) { // G7
	for name, w := range map[string]struct {
		partitions, size int
		codec            kgo.CompressionCodec
		budget, bound    int64
	}{
		"a few":                       {8, 4 << 20, kgo.NoCompression(), 16 << 20, 16 << 20},
		"some":                        {100, 600 << 10, kgo.NoCompression(), 16 << 20, 16 << 20},
		"some, compressed":            {100, 600 << 10, kgo.ZstdCompression(), 16 << 20, 20 << 20}, // what it becomes is guessed at first
		"a batch of each is too much": {500, 100 << 10, kgo.NoCompression(), 16 << 20, 500 * 80 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, kfake.SeedTopics(int32(w.partitions), "t"))
			fill(t, c, w.partitions, w.size, w.codec)
			before := live()
			cfg := config(c, "t")
			cfg.Budget = w.budget
			m := join(t, cfg)
			var list []*Cursor
			for range w.partitions {
				k := m.cursor()
				require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
				list = append(list, k)
			}
			require.Eventually(t, func() bool {
				stand := 0
				for _, k := range list {
					if k.stands() || k.lies() == w.size/100 {
						stand++
					}
				}
				return stand == len(list)
			}, 60*time.Second, 10*time.Millisecond)
			held, heap := m.c.Buffered(), live()-before
			t.Logf("%d partitions: %d KiB held, %d KiB more in use, of %d", w.partitions, held>>10, heap>>10, w.budget>>10)
			require.LessOrEqual(t, held, w.bound)
			require.LessOrEqual(t, heap, w.bound+w.bound/8)
		})
	}
}

// Records that were not compressed lie in the memory of their response.
func TestAQuietPartitionThatStandsStillHoldsNoResponses(t *testing.T) { // G7
	c, err := New(config(cluster(t), "t"), probeGroup{})
	require.NoError(t, err)
	t.Cleanup(c.group.Close)
	t.Cleanup(c.fetch.Close)
	quiet := &Cursor{TopicPartition: TopicPartition{"t", 0}, c: c, ready: make(chan struct{}, 1), active: true}
	busy := &Cursor{TopicPartition: TopicPartition{"t", 1}, c: c, ready: make(chan struct{}, 1), active: true}
	c.cursors[quiet.TopicPartition], c.cursors[busy.TopicPartition] = quiet, busy
	const responses = 100
	var memory []weak.Pointer[byte]
	for n := range int64(responses) {
		whole := bytes.Repeat([]byte{byte(n)}, 64<<10)
		memory = append(memory, weak.Make(&whole[0]))
		c.unshare()
		c.deliver(kgo.Fetch{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{
			{Partition: 0, Records: []*kgo.Record{{
				Offset: n, Key: whole[:0:0], Value: whole[:8:8], Headers: []kgo.RecordHeader{{Key: "h", Value: whole[8:16:16]}, {Key: "none"}},
			}}},
			{Partition: 1, Records: []*kgo.Record{{Offset: n, Value: whole[16:]}}},
		}}}})
		f, err := busy.Take()
		require.NoError(t, err)
		f.Release()
	}
	live()
	held := 0
	for _, p := range memory {
		if p.Value() != nil {
			held++
		}
	}
	require.LessOrEqual(t, held, keepPolls+1)
	for n := range responses {
		f, err := quiet.Take()
		require.NoError(t, err)
		for r := range f.Records() {
			part := bytes.Repeat([]byte{byte(n)}, 8)
			require.Equal(t, part, r.Value)
			require.Equal(t, part, r.Headers[0].Value)
			require.True(t, r.Key != nil && len(r.Key) == 0 && r.Headers[1].Value == nil, "empty is not null")
		}
		f.Release()
	}
	require.Zero(t, c.room.held.Load())
}

// However many partitions there are, and whatever the others hold.
func TestAPartitionAloneWithABacklogHasALongQueue(t *testing.T) { // G11
	c, err := New(config(cluster(t), "t"), probeGroup{})
	require.NoError(t, err)
	t.Cleanup(c.group.Close)
	t.Cleanup(c.fetch.Close)
	for n := range int32(500) {
		c.cursors[TopicPartition{"t", n}] = &Cursor{}
	}
	own, free := c.queueLimits()
	require.GreaterOrEqual(t, min(own, free), int64(4<<20))
	for range 400 { // stand still with as much as they may have
		_, free := c.queueLimits()
		c.room.held.Add(min(own, free/2))
	}
	response, partition := c.room.fetches(c.sizes, len(c.cursors))
	require.GreaterOrEqual(t, response, c.cfg.Budget/16)
	require.GreaterOrEqual(t, partition, c.cfg.Budget/4/500)
}
