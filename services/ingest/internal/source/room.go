package source

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// room says how a budget is shared by records that were fetched and that no worker is done with:
//
//   - Queues have up to a half, of which each may take as much as is free: so any number of queues that stand still has
//     a place for the next one, and one alone takes what a queue takes at the most.
//   - Each partition has a part of a quarter, or of what queues do not use: it is read whatever the others have, as long
//     as it has nothing itself. An incremental fetch keeps what was asked for a partition until it has got something, so
//     this part does not depend on the moment.
//   - Responses under way have the rest, and what is free of the queues.
type room struct {
	size int64
	held atomic.Int64 // in queues and in the hands of workers
}

// free is what a queue may take. s narrows the half, as it does the bound of each queue.
func (r *room) free(s *sizes) int64 { return max(s.queue(r.size/2)-r.held.Load(), 0) }

// fetches is what a response and each of n partitions in it may become in memory.
func (r *room) fetches(s *sizes, n int) (response, partition int64) {
	rest := r.size / 4
	return (rest + r.free(s)) / concurrentFetches, (r.size - rest - s.queue(r.size/2)) / int64(max(n, 1))
}

// Records that were not compressed share the memory of their whole response. A small part of a response that nobody has
// taken after so many polls is copied out of it: a quiet partition that stands still beside a busy one would hold a
// response for each of its records.
const (
	keepPolls = 16
	smallPart = 2 // of a response: one half
)

// shared is a part of a response that may have to be copied out of it.
type shared struct {
	k    *Cursor
	f    *Fetch
	poll int64 // that brought it
}

// unshare copies what has lain in queues for long. Only the polling goroutine may call it, as share.
func (c *Consumer) unshare() {
	c.polls++
	n := 0
	for n < len(c.shared) && c.shared[n].poll+keepPolls <= c.polls {
		c.shared[n].k.unshare(c.shared[n].f)
		n++
	}
	c.shared = append(c.shared[:0], c.shared[n:]...)
}

// share notes the small ones among the parts of one response that are in c.shared from first on.
func (c *Consumer) share(first int) {
	var whole int64
	for _, s := range c.shared[first:] {
		whole += s.f.Bytes
	}
	small := c.shared[:first]
	for _, s := range c.shared[first:] {
		if s.f.Bytes*smallPart <= whole {
			small = append(small, s)
		}
	}
	clear(c.shared[len(small):])
	c.shared = small
}

func (k *Cursor) unshare(f *Fetch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.queued {
		own(f.raw)
	}
}

// compressed reports whether records have memory of their batch, and not of their response.
func compressed(records []*kgo.Record) bool {
	return records[0].Attrs.CompressionType() != 0 && records[len(records)-1].Attrs.CompressionType() != 0
}

// own gives records memory of their own.
func own(records []*kgo.Record) {
	n := 0
	for _, r := range records {
		n += len(r.Key) + len(r.Value)
		for i := range r.Headers {
			n += len(r.Headers[i].Value)
		}
	}
	b := make([]byte, 0, n)
	keep := func(p []byte) []byte {
		if p == nil {
			return nil // another value than an empty one
		}
		at := len(b)
		b = append(b, p...)
		return b[at:len(b):len(b)]
	}
	for _, r := range records {
		r.Key, r.Value = keep(r.Key), keep(r.Value)
		for i := range r.Headers {
			r.Headers[i].Value = keep(r.Headers[i].Value)
		}
	}
}
