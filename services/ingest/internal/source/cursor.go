package source

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/batch"
)

// Fetch is a run of records of one partition in offset order. It is borrowed: Release gives its memory back, and no
// record may be used afterwards.
type Fetch struct {
	Bytes int64

	raw    []*kgo.Record
	one    batch.Record // what Records shows
	of     *Cursor
	queued bool // not taken yet, guarded by Cursor.mu

	compressed bool // records have the memory of their batches, not of the whole response
}

// Len is the number of records.
func (f *Fetch) Len() int { return len(f.raw) }

// Records yields the records, each in the place of the one before it. A copy of all of them would be most of what the
// collector has to look through.
func (f *Fetch) Records() iter.Seq[*batch.Record] {
	return func(yield func(*batch.Record) bool) {
		for _, r := range f.raw {
			show(r, &f.one)
			if !yield(&f.one) {
				return
			}
		}
	}
}

// LastTime is the time of the last record in milliseconds since the epoch.
func (f *Fetch) LastTime() int64 { return f.raw[len(f.raw)-1].Timestamp.UnixMilli() }

// Release gives the memory of the records back to the client.
func (f *Fetch) Release() {
	f.drop()
	f.of.gaveBack(f.Bytes)
}

func (f *Fetch) drop() {
	recycle(f.raw)
	f.raw, f.one = nil, batch.Record{}
}

// recycle gives records that nobody will read, or read any more, back to the client.
func recycle(records []*kgo.Record) {
	for _, r := range records {
		r.Recycle()
	}
}

// Cursor reads one partition from wherever it was last sought to. Seek, Take and Close are for one goroutine.
type Cursor struct {
	TopicPartition

	c *Consumer

	mu     sync.Mutex
	queue  []*Fetch
	queued int64
	taken  int64 // and not released
	paused bool
	hold   bool // paused by an operator
	hungry bool // the worker has nothing left
	filled bool // the queue was full since the worker had nothing
	err    error
	ready  chan struct{} // has a token when there is something to take
	limits Limits
	active bool       // added to the fetch client
	id     ident.UUID // of the topic that was sought, zero where the brokers have none
}

// Limits is what is known of the partition's offsets, from fetches and from the regular look-up.
func (k *Cursor) Limits() Limits {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits
}

// Ready has a token when Take may have something.
func (k *Cursor) Ready() <-chan struct{} { return k.ready }

// full reports whether nothing more shall be fetched; k.mu is held, as in mayResume.
func (k *Cursor) full() bool {
	own, free := k.c.queueLimits()
	return k.queued > own || k.queued+k.taken > free
}

func (k *Cursor) mayResume() {
	if own, free := k.c.queueLimits(); k.paused && !k.hold && k.queued <= own/2 && k.queued+k.taken <= free/2 {
		k.resume()
	}
}

// gaveBack notes that the worker is done with so many bytes.
func (k *Cursor) gaveBack(n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken -= n
	k.c.room.held.Add(-n)
	k.mayResume()
}

// Take returns the next run of records; both results are nil when there is none yet. After an error nothing more
// comes before the next Seek.
func (k *Cursor) Take() (*Fetch, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		k.hungry = true
		return nil, k.err
	}
	f := k.queue[0]
	k.queue[0] = nil
	k.queue = k.queue[1:]
	k.queued, k.taken, f.queued = k.queued-f.Bytes, k.taken+f.Bytes, false
	k.mayResume()
	return f, nil
}

// Seek makes offset the next one to be read; epoch is the leader epoch of the record before it, -1 to look for no
// truncation. id is that of the topic whose offset it is: of another one of the same name nothing is read. What was
// fetched before is thrown away.
func (k *Cursor) Seek(ctx context.Context, id ident.UUID, offset int64, epoch int32) error {
	return k.c.command(ctx, func() {
		k.remove()
		k.mu.Lock()
		k.active, k.id = true, id
		if k.hold {
			k.pause()
		}
		k.mu.Unlock()
		at := kgo.NewOffset().At(offset)
		if epoch >= 0 {
			at = at.WithEpoch(epoch)
		}
		k.c.fetch.AddConsumePartitions(map[string]map[int32]kgo.Offset{k.Topic: {k.Number: at}})
	})
}

// Halt stops reading until the next Seek and throws away what was fetched.
func (k *Cursor) Halt(ctx context.Context) error { return k.c.command(ctx, k.remove) }

// remove takes the partition off the fetch client; only the polling goroutine may call it. The client would remember
// for ever that the partition is paused, and the cursor that is handed out next for it knows nothing of that.
func (k *Cursor) remove() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.active {
		k.c.fetch.RemoveConsumePartitions(k.tps())
		k.active = false
	}
	k.resume()
	for _, f := range k.queue {
		f.queued = false
		f.drop()
	}
	k.c.room.held.Add(-k.queued)
	k.queue, k.queued, k.err = nil, 0, nil
}

// Hold stops (or resumes) fetching by an operator's will; the position is kept.
func (k *Cursor) Hold(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hold == on {
		return
	}
	k.hold = on
	if on {
		k.pause()
	} else {
		k.resume()
	}
}

// pause stops fetching; k.mu is held, as in resume.
func (k *Cursor) pause() {
	if !k.paused {
		k.paused = true
		k.c.fetch.PauseFetchPartitions(k.tps())
	}
}

func (k *Cursor) resume() {
	if k.paused {
		k.paused = false
		k.c.fetch.ResumeFetchPartitions(k.tps())
	}
}

func (k *Cursor) tps() map[string][]int32 { return map[string][]int32{k.Topic: {k.Number}} }

// deliver queues what a poll returned of the topic with that id, zero where the brokers do not say. The result is nil
// where nothing was queued.
func (k *Cursor) deliver(id ident.UUID, p *kgo.FetchPartition) (f *Fetch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Sought away or revoked meanwhile, or behind an error: after it found that the log was replaced, the client goes on
	// by itself at another offset, and its records may look as if they continued those in the queue.
	if !k.active || k.err != nil {
		recycle(p.Records)
		return nil
	}
	switch {
	case !id.IsZero() && !k.id.IsZero() && id != k.id:
		// The topic was created again since it was looked up: these offsets are not those that were sought.
		recycle(p.Records)
		p.Records = nil
		k.broken(&RecreatedError{Topic: k.Topic, Was: k.id, Now: id})
	case p.Err != nil:
		k.broken(fmt.Errorf("reading %s: %w", k.TopicPartition, p.Err))
	default:
		k.limits.LogStart, k.limits.StableEnd = max(k.limits.LogStart, p.LogStartOffset), max(k.limits.StableEnd, p.LastStableOffset)
	}
	if len(p.Records) > 0 {
		f = &Fetch{raw: p.Records, Bytes: memoryOf(p.Records), of: k, queued: true, compressed: compressed(p.Records)}
		if k.hungry {
			k.c.sizes.waited(f.Bytes, k.filled)
			k.hungry, k.filled = false, false
		}
		k.queue = append(k.queue, f)
		k.queued += f.Bytes
		k.c.room.held.Add(f.Bytes)
		k.limits.LeaderEpoch = p.Records[len(p.Records)-1].LeaderEpoch
	}
	if !k.paused && k.full() {
		k.c.sizes.filled()
		k.filled = true
		k.pause()
	}
	if len(k.queue) > 0 || k.err != nil {
		k.signal()
	}
	return f
}

// broken ends reading behind what is queued; what the client would fetch now is thrown away. k.mu is held.
func (k *Cursor) broken(err error) {
	k.err = err
	k.c.fetch.RemoveConsumePartitions(k.tps())
	k.active = false
}

// fail ends reading with an error that did not come from a fetch.
func (k *Cursor) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
	k.signal()
}

func (k *Cursor) signal() {
	select {
	case k.ready <- struct{}{}:
	default:
	}
}

// recordOverhead is what a record costs in memory beside its bytes, headerOverhead what a header does.
const (
	recordOverhead = 256
	headerOverhead = 80
)

// memoryOf is about what records take in memory.
func memoryOf(records []*kgo.Record) int64 {
	var n int64
	for _, r := range records {
		n += int64(len(r.Key)+len(r.Value)) + recordOverhead
		for i := range r.Headers {
			n += int64(len(r.Headers[i].Key)+len(r.Headers[i].Value)) + headerOverhead
		}
	}
	return n
}

// show makes out a record of the client without a copy of its bytes; the memory of out's headers is used again.
func show(r *kgo.Record, out *batch.Record) {
	out.Offset, out.Time, out.LeaderEpoch, out.Control = r.Offset, r.Timestamp.UnixMilli(), r.LeaderEpoch, r.Attrs.IsControl()
	out.Key, out.Value, out.KeyPayload = r.Key, r.Value, nil
	if len(out.Headers)+len(r.Headers) == 0 { // as most are
		return
	}
	out.Headers = out.Headers[:0]
	for i := range r.Headers {
		out.Headers = append(out.Headers, batch.Header{Key: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
}
