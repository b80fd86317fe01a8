package source

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// sizes says how much is fetched at once and queued ahead. Two things move it.
//
// When batches are compressed, brokers count compressed bytes and the budget counts what they become: fetches are
// smaller by the ratio that was seen lately.
//
// What lies fetched and not taken costs: the collector looks through its records again and again, and it has left the
// processor's caches before it is decoded. So little lies there while workers never wait for records, and more where
// they do, because brokers are far away or workers fast.
type sizes struct {
	perFetch, perPartition int64 // at the most

	mu         sync.Mutex
	compressed float64 // decaying sums
	plain      float64
	records    float64
	ratio      float64                            // that is applied
	response   int64                              // in memory, at the most
	partition  int64                              // of it
	score      int                                // of workers that waited, less full queues
	set        func(maxBytes, maxPartition int32) // nil before the client is made
	last       [2]int32                           // what set was given

	halvings atomic.Int32 // of the most
}

const (
	// leastFetch is never undercut: a broker returns whole batches anyway.
	leastFetch = 64 << 10
	// leastPart is a batch of most producers, and leastMemory what it becomes where it is not compressed much. A broker
	// returns a larger one where it is the first of its response, and the client has another partition first each time.
	leastPart   = 16 << 10
	leastMemory = 64 << 10
	// startWeight is what a byte of a response becomes in memory, before one has come.
	startWeight = 16
	// mostHalvings is where sizes begin: a quarter.
	mostHalvings = 2
	// convinced is the score from which on sizes change: some seconds of a broker that is far away, more than the start
	// of a catch-up takes to fill what comes behind. A full queue says more than a worker that waited once.
	convinced = 256
	fullQueue = 32
)

func newSizes(perFetch, perPartition int64) *sizes {
	s := &sizes{perFetch: perFetch, perPartition: perPartition, ratio: 1, response: math.MaxInt64, partition: math.MaxInt64}
	s.halvings.Store(mostHalvings)
	return s
}

// now is what is asked of brokers; s.mu is held once there is a client.
func (s *sizes) now() (maxBytes, maxPartition int32) {
	weight := float64(startWeight)
	if s.compressed > 0 {
		weight = max((s.plain+s.records*recordOverhead)/s.compressed, 1)
	}
	within := func(memory, least int64) int32 {
		return clampInt32(max(int64(float64(max(memory, least*leastMemory/leastPart))/weight), leastPart/16))
	}
	return min(s.scaled(s.perFetch), within(s.response, leastFetch)), min(s.scaled(s.perPartition), within(s.partition, leastPart))
}

// fit bounds what a response and each partition in it may become in memory, until the next call.
func (s *sizes) fit(response, partition int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.response, s.partition = response, partition
	s.apply()
}

func (s *sizes) scaled(n int64) int32 {
	return clampInt32(max(int64(float64(n>>s.halvings.Load())/s.ratio), leastFetch))
}

// queue is the share of a queue's bound that is used: half of it at the least, since it is all that a partition passes
// until a fetch that began without it is answered (maxWait).
func (s *sizes) queue(bound int64) int64 { return max(bound>>min(s.halvings.Load(), 1), leastFetch) }

// waited notes that a worker had nothing left when so many bytes of its partition came. Where its queue was full before,
// that was no sign of plenty: it was too short for the time until more came.
func (s *sizes) waited(bytes int64, wasFull bool) {
	if bytes < s.perPartition>>s.halvings.Load() { // there was no more
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if wasFull {
		s.score += fullQueue
	}
	if s.score++; s.score >= convinced {
		s.change(-1)
	}
}

// filled notes that a queue is full.
func (s *sizes) filled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.score -= fullQueue; s.score <= -convinced {
		s.change(1)
	}
}

// change halves or doubles; s.mu is held, as in apply.
func (s *sizes) change(by int32) {
	s.score = 0
	if next := min(max(s.halvings.Load()+by, 0), mostHalvings); next != s.halvings.Load() {
		s.halvings.Store(next)
		s.apply()
	}
}

func (s *sizes) apply() {
	if s.set == nil {
		return
	}
	response, partition := s.now()
	if now := [2]int32{response, partition}; now != s.last {
		s.last = now
		s.set(response, partition)
	}
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (s *sizes) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, m kgo.FetchBatchMetrics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const decay = 0.95
	s.compressed = s.compressed*decay + float64(m.CompressedBytes)
	s.plain = s.plain*decay + float64(m.UncompressedBytes)
	s.records = s.records*decay + float64(m.NumRecords)
	if s.compressed <= 0 {
		return
	}
	if ratio := max(s.plain/s.compressed, 1); ratio < s.ratio*0.7 || ratio > s.ratio*1.3 {
		s.ratio = ratio
		s.apply()
	}
}

var _ kgo.HookFetchBatchRead = (*sizes)(nil)
