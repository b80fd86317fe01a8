// Package maintain decides about the upkeep of a table that belongs into the
// commit slot: which old snapshots of ours may go, and when.
package maintain

import (
	"sync"
	"time"

	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Defaults of a Policy.
const (
	DefaultEvery = 10
	DefaultKeep  = 50
)

// Policy of expiry. Zero values get the defaults.
type Policy struct {
	// Every is how many snapshots must be ready to go before a commit removes
	// them.
	Every int
	// Keep is how many of the newest snapshots stay in any case.
	Keep int
	// MaxLease is the longest lease of a reader. A snapshot that was the head
	// within it stays, since somebody may read it who has not said so yet.
	MaxLease time.Duration
}

// Pins tells the lowest sequence number that a reader is known to need, 0 when
// none is needed; false when nobody can say, and then nothing may be expired.
type Pins func() (sequence int64, known bool)

// Counter counts the snapshots of a table that a policy would remove; lake.Table
// is one.
type Counter interface {
	Expirable(p lake.ExpirePolicy) int
}

// Keeper decides for one table. It is safe for concurrent use.
type Keeper struct {
	policy Policy
	table  Counter
	pins   Pins

	mu    sync.Mutex
	heads []seen // oldest first
}

// seen is a head and when it was first seen.
type seen struct {
	sequence int64
	at       time.Time
}

// New makes the keeper of a table.
func New(p Policy, table Counter, pins Pins) *Keeper {
	if p.Every <= 0 {
		p.Every = DefaultEvery
	}
	if p.Keep <= 0 {
		p.Keep = DefaultKeep
	}
	return &Keeper{policy: p, table: table, pins: pins}
}

// Upkeep returns the expiry that is due with the commit that follows the given
// head, or false.
func (k *Keeper) Upkeep(head lake.Head) (lake.ExpirePolicy, bool) {
	free, known := k.observe(head.Sequence, time.Now())
	if !known {
		return lake.ExpirePolicy{}, false
	}
	pinned, known := k.pins()
	if !known {
		return lake.ExpirePolicy{}, false
	}
	if pinned > 0 && pinned < free {
		free = pinned
	}
	p := lake.ExpirePolicy{Keep: k.policy.Keep, NotBelow: free}
	if k.table.Expirable(p) < k.policy.Every {
		return lake.ExpirePolicy{}, false
	}
	return p, true
}

// observe notes a head and returns the sequence number of the one that was the
// head a lease ago: what is older can have no reader that was not heard of. It
// is not known before a whole lease has passed under this process.
func (k *Keeper) observe(sequence int64, now time.Time) (int64, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.heads); n == 0 || k.heads[n-1].sequence < sequence {
		k.heads = append(k.heads, seen{sequence, now})
	}
	for len(k.heads) > 1 && now.Sub(k.heads[1].at) >= k.policy.MaxLease {
		k.heads = k.heads[1:]
	}
	oldest := k.heads[0]
	return oldest.sequence, now.Sub(oldest.at) >= k.policy.MaxLease
}
