package boot

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
)

// The collector is paced by headroom instead of a percentage. Live memory is
// large buffers without pointers, bounded by budgets in bytes: a percentage of it
// is too little while the process is young (a collection every few MiB) and far
// too much when budgets are full (several times the budget in garbage). Headroom is
// counted from the greatest live heap of late: that memory the process has had, and
// giving it back to take it again costs a fault for each page.
const (
	Headroom   = 24 << 20 // bytes of garbage between two collections, for a service that hands batches on
	leastPace  = 30       // percent of the live heap, when it is very large
	mostPace   = 1000
	firstPace  = mostPace // until the first collection has measured the live heap
	recent     = 16       // collections whose greatest live heap counts
	liveMetric = "/gc/heap/live:bytes"
)

// profileEvery is the sampling rate of heap profiles in bytes. Most of what is allocated are
// buffers of half a MiB and more: at the runtime's own rate each is sampled with its stack,
// which was 3 % of a replica.
const profileEvery = 4 << 20

// Tune paces the garbage collector of a process, which may gather so many bytes of
// garbage between two collections, unless the environment says how (GOGC, GOMEMLIMIT).
// A process calls it once, at its start.
func Tune(headroom uint64) {
	runtime.MemProfileRate = profileEvery
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(firstPace)
	watchCollections(&collection{sample: []metrics.Sample{{Name: liveMetric}}, headroom: headroom})
}

// collection is unreachable from the start, so its finalizer runs after each
// collection, sets the pace of the next, and arms itself again.
type collection struct {
	sample   []metrics.Sample
	headroom uint64
	pace     int
	lives    [recent]uint64 // live bytes of the last collections
	at       int
}

func watchCollections(c *collection) {
	runtime.SetFinalizer(c, func(c *collection) {
		metrics.Read(c.sample)
		if c.sample[0].Value.Kind() == metrics.KindUint64 {
			live := c.sample[0].Value.Uint64()
			c.lives[c.at] = live
			c.at = (c.at + 1) % recent
			if next := paceFor(live, slices.Max(c.lives[:])+c.headroom); next != c.pace {
				c.pace = next
				debug.SetGCPercent(next)
			}
		}
		watchCollections(c)
	})
}

// paceFor is the percentage of live bytes after which the heap has so many.
func paceFor(live, heap uint64) int {
	if live == 0 {
		return mostPace
	}
	return int(min(max((heap-live)*100/live, leastPace), mostPace))
}
