package server

import "github.com/icestream/icestream/internal/event"

// feed is the chain of events that followers walk along. A node keeps all later
// ones alive, so what a slow follower holds is bounded by cutting it off; the
// feed itself keeps the newest bytes for followers that resume.
type feed struct {
	oldest *node // the event after this one is the oldest that can be resumed at
	last   *node
	keep   int64
}

// node is one event; total counts the bytes of it and all before it.
type node struct {
	ev    event.Event
	total int64
	next  *node
}

// overhead is what an event without rows counts.
const overhead = 256

func newFeed(keep int64) *feed {
	n := &node{}
	return &feed{oldest: n, last: n, keep: keep}
}

func (f *feed) push(ev event.Event) {
	size := int64(overhead)
	if ev.Append != nil {
		size = ev.Append.Bytes()
	}
	n := &node{ev: ev, total: f.last.total + size}
	f.last.next = n
	f.last = n
	for f.oldest != f.last && f.last.total-f.oldest.total > f.keep {
		f.oldest = f.oldest.next
	}
}

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
