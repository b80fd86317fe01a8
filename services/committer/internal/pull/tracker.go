package pull

import (
	"maps"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// tracker is the pure part of following: it knows, per partition, where the next
// entry has to begin, and so sees to it that what is held is one contiguous range
// per partition, whatever the stream repeats.
type tracker struct {
	epoch ident.LogEpoch
	next  ident.Vector
	held  map[ident.Partition]bool // wait because they bring poison
}

// verdict on an entry.
type verdict uint8

const (
	take verdict = iota + 1 // the offsets in the returned range are new
	drop                    // nothing new, or not wanted now
	gap                     // something between is missing: follow anew
)

// admit decides about an entry, and moves on when it is taken. hold makes
// partitions wait from their next entry with quarantined records on.
func (t *tracker) admit(e *event.Append, hold bool) (ident.Range, verdict) {
	next, known := t.next[e.Partition]
	switch {
	case !known, e.Range.First > next:
		if t.held[e.Partition] {
			return ident.Range{}, drop
		}
		return ident.Range{}, gap
	case e.Range.Next <= next:
		return ident.Range{}, drop
	case t.held[e.Partition]:
		return ident.Range{}, drop
	case hold && e.Quarantined > 0:
		if t.held == nil {
			t.held = make(map[ident.Partition]bool)
		}
		t.held[e.Partition] = true
		return ident.Range{}, drop
	default:
		t.next[e.Partition] = e.Range.Next
		return ident.Range{First: next, Next: e.Range.Next}, take
	}
}

// release lets waiting partitions go on, and reports whether there were any:
// their entries have to come again.
func (t *tracker) release() bool {
	had := len(t.held) > 0
	t.held = nil
	return had
}

// merge takes a committed state in: partitions that are new begin there. It
// reports false when somebody else committed more than is held here, so that
// what is held no longer continues the table.
func (t *tracker) merge(ps ident.Positions) bool {
	for p, pos := range ps {
		next, known := t.next[p]
		if known && next < pos.Next {
			return false
		}
		if !known {
			t.next[p] = pos.Next
		}
	}
	return true
}

// restart forgets everything and begins at the given positions of an epoch.
func (t *tracker) restart(epoch ident.LogEpoch, at ...ident.Positions) {
	*t = tracker{epoch: epoch, next: ident.Vector{}}
	for _, ps := range at {
		for p, pos := range ps {
			t.next.Raise(p, pos.Next)
		}
	}
}

// vector is where the tracker stands.
func (t *tracker) vector() ident.Vector { return maps.Clone(t.next) }
