package source

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// inflation keeps the memory of a fetch inside its budget when batches are compressed: brokers count compressed bytes,
// the budget counts what they become. It lowers the fetch size by the ratio that was seen lately.
type inflation struct {
	perFetch, perPartition int64

	mu         sync.Mutex
	compressed float64 // decaying sums
	plain      float64
	applied    float64
	set        func(maxBytes, maxPartition int32) // nil before the client is made
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (f *inflation) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const decay = 0.95
	f.compressed = f.compressed*decay + float64(m.CompressedBytes)
	f.plain = f.plain*decay + float64(m.UncompressedBytes)
	if f.compressed <= 0 || f.set == nil {
		return
	}
	ratio := max(f.plain/f.compressed, 1)
	if f.applied == 0 {
		f.applied = 1
	}
	if ratio < f.applied*0.7 || ratio > f.applied*1.3 {
		f.applied = ratio
		f.set(f.scaled(f.perFetch, ratio), f.scaled(f.perPartition, ratio))
	}
}

// leastFetch is never undercut: a broker returns whole batches anyway.
const leastFetch = 64 << 10

func (f *inflation) scaled(n int64, ratio float64) int32 {
	return clampInt32(max(int64(float64(n)/ratio), leastFetch))
}

var _ kgo.HookFetchBatchRead = (*inflation)(nil)
