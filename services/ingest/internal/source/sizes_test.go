package source

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
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
	require.EqualValues(t, 2<<20, s.queue(8<<20))
	for range 4 * convinced {
		s.waited(1<<20 - 1)
	}
	require.Equal(t, [2]int32{4 << 20, 1 << 20}, got, "a partition that has no more records is no reason")
	for range convinced {
		s.waited(1 << 20)
	}
	require.Equal(t, [2]int32{8 << 20, 2 << 20}, got)
	for range 4 * convinced {
		s.waited(4 << 20)
		s.filled()
	}
	require.Equal(t, [2]int32{4 << 20, 1 << 20}, got, "where some wait and as many are full, the queue decides")
	for range 4 * convinced {
		s.waited(4 << 20)
	}
	require.Equal(t, [2]int32{16 << 20, 4 << 20}, got)
	require.EqualValues(t, 8<<20, s.queue(8<<20))
}
