package server

import (
	"context"
	"sync"
)

// budget bounds the bytes of hot rows over all tables (G7). What is used are the
// rows held and the appends under way; what is granted is credit in the hands of
// senders. Both together stay below the limit, except that a sender with nothing
// outstanding may always send one message: that one waits in admit.
type budget struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	granted int64
	freed   chan struct{} // closed and replaced when room appears
	lines   map[*credit]struct{}
}

// credit is the account of one append stream.
type credit struct {
	window  int64
	room    func() int64 // bytes that its table may still take; must not block
	balance int64        // bytes the sender may still send; negative after a message without credit
	give    func(bytes int64)
}

// smallGrant is the least credit worth a message, unless it fills the window.
const smallGrant = 64 << 10

func newBudget(limit int64) *budget {
	return &budget{limit: limit, freed: make(chan struct{}), lines: map[*credit]struct{}{}}
}

// read returns used and granted bytes.
func (b *budget) read() (used, granted int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.granted
}

// open adds a stream and returns its first credit, which like all later credit stays
// within the room of its table. give is called later with more, under the budget's
// lock: it must only queue.
func (b *budget) open(window int64, room func() int64, give func(int64)) (*credit, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &credit{window: window, room: room, give: give}
	b.lines[c] = struct{}{}
	first := max(0, min(b.share(c), b.limit-b.used-b.granted, room()))
	c.balance = first
	b.granted += first
	return c, first
}

// share is the credit a stream may hold: its window, but all together no more
// than about a quarter of the budget. Idle streams would leave no room for rows,
// and the committer, which commits early when half of the budget is rows, would
// never see that half.
func (b *budget) share(c *credit) int64 {
	return min(c.window, max(smallGrant, b.limit/4/int64(len(b.lines))))
}

// close removes a stream with its credit.
func (b *budget) close(c *credit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lines, c)
	b.granted -= max(0, c.balance)
	c.balance = 0 // of what still arrives nothing is given back again
	b.spread()
}

// spend notes that the sender has used n bytes of its credit.
func (b *budget) spend(c *credit, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := max(0, c.balance)
	c.balance -= n
	b.granted += max(0, c.balance) - before
}

// admit waits until n more bytes may be used and uses them. A message larger
// than the whole budget is admitted when nothing else is held.
func (b *budget) admit(ctx context.Context, n int64) error {
	for {
		b.mu.Lock()
		if b.used == 0 || b.used+n <= b.limit {
			b.used += n
			b.spread()
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change adds delta to the used bytes.
func (b *budget) change(delta int64) {
	if delta == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += delta
	if delta < 0 {
		close(b.freed)
		b.freed = make(chan struct{})
		b.spread()
	}
}

// spread gives senders what has become free. The map's order is random, so none
// is preferred for long.
func (b *budget) spread() {
	for c := range b.lines {
		free := b.limit - b.used - b.granted
		if free <= 0 {
			return
		}
		share := b.share(c)
		// A debt is forgiven with the next grant: what made it is accounted for.
		n := min(share, max(0, c.balance)+free, c.room()) - c.balance
		if n <= 0 || n < min(smallGrant, share/4) {
			continue
		}
		before := max(0, c.balance)
		c.balance += n
		b.granted += max(0, c.balance) - before
		c.give(n)
	}
}
