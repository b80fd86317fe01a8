package pull

import "sync"

// Budget bounds what all tables of a process hold in memory between the stream
// and the files. When it is full the streams wait, the buffer keeps the rows, and
// its credit makes Kafka wait (G7). It is safe for concurrent use.
type Budget struct {
	limit int64

	mu      sync.Mutex
	used    int64
	changed chan struct{} // closed and replaced whenever room was made
}

// NewBudget returns a budget of limit bytes; 0 or less means no bound.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, changed: make(chan struct{})}
}

// take takes n bytes, waiting for room until stop is closed, and reports whether
// it got them. What is alone (its table holds nothing) is always let in: an entry
// greater than the whole budget must pass too. alone is asked each time, not under the
// budget's lock: what comes behind others is alone when these are written.
func (b *Budget) take(stop <-chan struct{}, n int64, alone func() bool) bool {
	for {
		b.mu.Lock()
		changed := b.changed // before alone is asked: what is given behind its answer must be heard
		b.mu.Unlock()
		lone := alone()
		b.mu.Lock()
		if lone || b.limit <= 0 || b.used+n <= b.limit {
			b.used += n
			b.mu.Unlock()
			return true
		}
		b.mu.Unlock()
		select {
		case <-stop:
			return false
		case <-changed:
		}
	}
}

// give gives n bytes back.
func (b *Budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	close(b.changed)
	b.changed = make(chan struct{})
}

// Used is what is held at the moment.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
