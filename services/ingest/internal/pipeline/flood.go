package pipeline

import (
	"fmt"

	"github.com/icestream/icestream/internal/config"
)

// coldStart is how many bad records a partition may begin with when none of its
// records was fine yet: then the pipeline is more likely wrong than the topic.
const coldStart = 100

// flood guards one topic partition against a configuration or a producer that
// makes most records bad: it says when too many of the last records were. It is
// pure and belongs to the goroutine of the worker; it outlives sessions, so a
// record that is read again is counted once.
type flood struct {
	share  int // percent; 0: off
	window int

	next   int64   // offsets below were counted
	ring   []uint8 // of the last records: 0 fine, else 1 + index in names; nil before the first bad one
	at     int     // place of the oldest in ring
	n      int     // records in the window
	bad    int
	counts []int // bad records in the window by index in names
	names  []string
	fine   bool // some record was fine

	tripped string // why the partition stands still
	allowed bool   // an operator lets it go on
	since   int    // records since then
}

func newFlood(o config.Flood) *flood {
	return &flood{share: int(o.Share), window: max(o.Window, 1)}
}

// good counts a record that could be a row.
func (f *flood) good(offset int64) {
	if f.share == 0 {
		return
	}
	if f.tripped != "" && offset >= f.next-1 { // what stopped the partition was mended; records before it say nothing about that
		*f = flood{share: f.share, window: f.window, next: f.next}
	}
	f.fine = true
	if offset < f.next {
		return
	}
	f.next = offset + 1
	if f.ring == nil { // the usual case costs next to nothing
		f.n = min(f.n+1, f.window)
		return
	}
	f.push(0)
}

// hit counts a record that cannot be a row. A text says that the partition must
// stop before this record, and why: records before the one that tripped the guard
// pass when they are read again, for that is what became of them.
func (f *flood) hit(offset int64, reason string) string {
	if f.share == 0 {
		return ""
	}
	switch {
	case offset < f.next-1:
		return ""
	case offset < f.next:
		return f.tripped
	}
	f.next = offset + 1
	if f.ring == nil {
		f.ring = make([]uint8, f.window)
	}
	f.push(f.index(reason))
	switch {
	case f.allowed:
	case f.n >= f.window && f.above():
		f.tripped = fmt.Sprintf("%d of the last %d records could not be rows, most often for %s; flood.share allows %d%%", f.bad, f.n, f.commonest(), f.share)
	case !f.fine && f.bad >= min(coldStart, f.window):
		f.tripped = fmt.Sprintf("none of the first %d records could be a row, most often for %s: are format, message and schema of the pipeline right?", f.bad, f.commonest())
	}
	return f.tripped
}

// allow lets the partition go on. The guard is armed again once a whole window
// below the share has passed.
func (f *flood) allow() {
	f.tripped, f.allowed, f.since = "", true, 0
}

func (f *flood) above() bool { return f.bad*100 > f.share*f.window }

// push takes a record into the window, in place of the oldest.
func (f *flood) push(what uint8) {
	if old := f.ring[f.at]; old > 0 {
		f.bad--
		f.counts[old-1]--
	}
	f.ring[f.at] = what
	if f.at++; f.at == f.window {
		f.at = 0
	}
	if what > 0 {
		f.bad++
		f.counts[what-1]++
	}
	f.n = min(f.n+1, f.window)
	if f.since++; f.allowed && f.since >= f.window && !f.above() {
		f.allowed, f.fine = false, true
	}
}

// index numbers reasons, of which there are few; beyond 255 the last one stands
// for all.
func (f *flood) index(reason string) uint8 {
	for i, name := range f.names {
		if name == reason {
			return uint8(i + 1) //nolint:gosec // at most 255
		}
	}
	if len(f.names) < 255 {
		f.names, f.counts = append(f.names, reason), append(f.counts, 0)
	}
	return uint8(len(f.names)) //nolint:gosec // at most 255
}

func (f *flood) commonest() string {
	most := 0
	for i, n := range f.counts {
		if n > f.counts[most] {
			most = i
		}
	}
	return fmt.Sprintf("%s (%d)", f.names[most], f.counts[most])
}
