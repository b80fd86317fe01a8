package forward

import "sync"

// Budget bounds the bytes that several streams have sent and not yet heard about. It is safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	free    int64
	changed chan struct{} // closed and replaced when bytes come back
}

// NewBudget returns a budget of size bytes.
func NewBudget(size int64) *Budget { return &Budget{free: size, changed: make(chan struct{})} }

// take takes n bytes if they are there; with force it takes them in any case, and what is short is missing later.
func (b *Budget) take(n int64, force bool) (ok bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if force || b.free >= n {
		b.free -= n
		return true, nil
	}
	return false, b.changed
}

func (b *Budget) give(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	close(b.changed)
	b.changed = make(chan struct{})
}
