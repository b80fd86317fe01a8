package source

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
)

// wholeSizes are at their most, and note what is asked of brokers.
func wholeSizes(got *[2]int32) *sizes {
	s := newSizes(16<<20, 4<<20)
	s.halvings.Store(0)
	s.set = func(a, b int32) { *got = [2]int32{a, b} }
	return s
}

func TestFetchSizeFollowsCompression(t *testing.T) { // G7
	var got [2]int32
	s := wholeSizes(&got)
	read := func(compressed, plain int) {
		s.OnFetchBatchRead(kgo.BrokerMetadata{}, "t", 0, kgo.FetchBatchMetrics{CompressedBytes: compressed, UncompressedBytes: plain})
	}
	read(1000, 1000)
	require.Zero(t, got, "nothing to change")
	for range 200 {
		read(1000, 8000)
	}
	require.InDelta(t, 2<<20, got[0], 1<<20)
	for range 200 {
		read(1, 1<<30)
	}
	require.EqualValues(t, leastFetch, got[0])
	for range 500 {
		read(1<<30, 1<<30)
	}
	require.Greater(t, got[0], int32(10<<20))
}

func TestMoreIsFetchedAheadWhereWorkersWaitAndLessWhereQueuesAreFull(t *testing.T) {
	var got [2]int32
	s := wholeSizes(&got)
	require.EqualValues(t, 8<<20, s.queue(8<<20))
	for range 4 * convinced / fullQueue {
		s.filled()
	}
	require.Equal(t, [2]int32{4 << 20, 1 << 20}, got, "a quarter, no less")
	require.EqualValues(t, 4<<20, s.queue(8<<20), "half: what a partition alone with a backlog passes in one wait")
	for range 4 * convinced {
		s.waited(1<<20-1, false)
	}
	require.Equal(t, [2]int32{4 << 20, 1 << 20}, got, "a partition that has no more records is no reason")
	for range convinced {
		s.waited(1<<20, false)
	}
	require.Equal(t, [2]int32{8 << 20, 2 << 20}, got)
	for range 4 * convinced {
		s.waited(4<<20, false)
		s.filled()
	}
	require.Equal(t, [2]int32{4 << 20, 1 << 20}, got, "where some wait and as many are full, the queue decides")
	for range 4 * convinced {
		s.waited(4<<20, false)
	}
	require.Equal(t, [2]int32{16 << 20, 4 << 20}, got)
	require.EqualValues(t, 8<<20, s.queue(8<<20))
}

// A partition that alone has a backlog beside quiet ones: its queue is full, it is emptied while a fetch without it waits.
func TestAQueueThatIsEmptiedBeforeMoreComesGrowsHoweverOftenItIsFull(t *testing.T) {
	s := newSizes(16<<20, 4<<20)
	before := s.queue(8 << 20)
	for range mostHalvings * convinced {
		s.filled()
		s.waited(4<<20, true)
	}
	require.Equal(t, 2*before, s.queue(8<<20))
	for range mostHalvings * convinced / fullQueue {
		s.filled() // and is not emptied
	}
	require.Equal(t, before, s.queue(8<<20))
}

// However little is asked for at once.
func TestARecordOfAnySizeIsReadAndSoIsWhatFollowsIt(t *testing.T) { // G7, G11
	const huge = 32 << 20
	c := cluster(t, kfake.SeedTopics(1, "t"), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "67108864"}))
	cl := client(t, c, kgo.ProducerBatchMaxBytes(48<<20), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for _, size := range []int{1, huge, 2, 300 << 10, huge, 3} {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: make([]byte, size)}).FirstErr())
	}
	cfg := config(c, "t")
	cfg.Budget, cfg.RecordMax = 1<<20, huge
	k := join(t, cfg).cursor()
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	var sizes []int
	for _, r := range read(t, k, 6) {
		sizes = append(sizes, len(r.Value))
	}
	require.Equal(t, []int{1, huge, 2, 300 << 10, huge, 3}, sizes)
}

// G11: whoever does not take what was fetched has it wait alone.
func TestAPartitionWhoseWorkerStallsHoldsNoOther(t *testing.T) {
	const each = 200
	c := cluster(t, kfake.SeedTopics(3, "t"))
	cl := client(t, c, kgo.ProducerBatchCompression(kgo.NoCompression()))
	for range each {
		for n := range int32(3) {
			require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Partition: n, Value: make([]byte, 32<<10)}).FirstErr())
		}
	}
	cfg := config(c, "t")
	cfg.Budget = 1 << 20
	m := join(t, cfg)
	stalled, one, two := m.cursor(), m.cursor(), m.cursor()
	for _, k := range []*Cursor{stalled, one, two} {
		require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	}
	require.Eventually(t, stalled.stands, 20*time.Second, time.Millisecond)
	require.Len(t, read(t, one, each), each)
	require.Len(t, read(t, two, each), each)
	require.Less(t, m.c.Buffered(), cfg.Budget)
	require.Len(t, read(t, stalled, each), each)
}

// A partition that alone has a backlog is taken up again behind a fetch that waits for the quiet ones, however many there are.
func TestAPartitionAloneWithABacklogPassesAtLeast32MiBPerSecond(t *testing.T) {
	for _, partitions := range []int32{1, 20, 100, 1000} {
		list := queues(256<<20, partitions)
		require.Greater(t, float64(pour(list[:1]))/maxWait.Seconds(), float64(32<<20), "of %d", partitions)
	}
}

// What one holds is not missing elsewhere (G7).
func TestQueuesHoldTheirPartOfTheBudgetTogether(t *testing.T) {
	for _, budget := range []int64{8 << 20, 256 << 20} {
		list := queues(budget, 100)
		alone := pour(list[:1])
		require.LessOrEqual(t, pour(list), budget/2+100*entry)
		for _, k := range list {
			require.Positive(t, k.queued)
			k.c.room.held.Add(-k.queued)
			k.queued = 0
		}
		require.Equal(t, alone, pour(list[:1]), "as before, once they are empty")
	}
}

// entry is what pour adds at once.
const entry = 16 << 10

// queues are those of a consumer with so many partitions.
func queues(budget int64, partitions int32) []*Cursor {
	cfg := Config{Budget: budget}
	c := &Consumer{cfg: cfg, sizes: cfg.sizes(), cursors: map[TopicPartition]*Cursor{}}
	c.room.size = budget
	var list []*Cursor
	for n := range partitions {
		k := &Cursor{TopicPartition: TopicPartition{"t", n}, c: c}
		c.cursors[k.TopicPartition] = k
		list = append(list, k)
	}
	return list
}

// pour adds to the queues in turns until each is full, and returns what all of them hold.
func pour(list []*Cursor) int64 {
	for more := true; more; {
		more = false
		for _, k := range list {
			if !k.full() {
				k.queued += entry
				k.c.room.held.Add(entry)
				more = true
			}
		}
	}
	return list[0].c.room.held.Load()
}
