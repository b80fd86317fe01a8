package server

import "github.com/icestream/icestream/internal/event"

// feed is the chain of events that followers walk along. A node keeps all later
// ones alive, so what a slow follower holds is bounded by cutting it off; the
// feed itself keeps the newest bytes for followers that resume.
type feed struct {
	oldest *node // the event after this one is the oldest that can be resumed at
	last   *node
}

// node is one event; total counts the bytes of it and all before it.
type node struct {
	ev    event.Event
	total int64
	next  *node
}

// What an event counts beside its rows, and for each position that it carries.
const (
	overhead = 256
	position = 128
)

func sizeOf(ev event.Event) int64 {
	switch {
	case ev.Append != nil:
		return ev.Append.Bytes()
	case ev.Commit != nil:
		return overhead + position*int64(len(ev.Commit.Positions))
	case ev.Schema != nil:
		return overhead + int64(len(ev.Schema.Columns))
	default:
		return overhead + position*int64(len(ev.Epoch.Commit.Positions))
	}
}

func newFeed() *feed {
	n := &node{}
	return &feed{oldest: n, last: n}
}

func (f *feed) push(ev event.Event) {
	n := &node{ev: ev, total: f.last.total + sizeOf(ev)}
	f.last.next = n
	f.last = n
}

// trim forgets what is older than the newest keep bytes.
func (f *feed) trim(keep int64) {
	for f.oldest != f.last && f.kept() > keep {
		f.oldest = f.oldest.next
	}
}

// kept is the number of bytes that a follower could resume behind.
func (f *feed) kept() int64 { return f.last.total - f.oldest.total }

// leastKept is what a feed keeps however many tables there are.
const leastKept = 256 << 10

// feedKeep is what the feed of one table may keep: most of it are rows that are committed, which no budget counts, so
// that all tables share what one would have (G7).
func (h *Host) feedKeep() int64 { return max(leastKept, h.opt.MaxLag/max(1, h.used.Load())) }

// after returns the node of event seq, from which a follower goes on, or nil
// when that is no longer (or never was) in the feed.
func (f *feed) after(seq event.Seq) *node {
	for n := f.oldest; n != nil; n = n.next {
		if n.ev.Seq == seq {
			return n
		}
	}
	return nil
}

// lag is the number of bytes a follower at n has not taken yet.
func (f *feed) lag(n *node) int64 { return f.last.total - n.total }
