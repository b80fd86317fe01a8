package stack

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

// unreliable spoils half of the commits while on is set: the answer gets lost after the commit, or comes as an error
// though it was applied, or the request is applied long after its sender has given up.
func unreliable(seed uint64, on *atomic.Bool) faulty.Choice {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	return func(string) faulty.Fault {
		mu.Lock()
		defer mu.Unlock()
		if !on.Load() {
			return faulty.Fault{}
		}
		kinds := []faulty.Fault{
			faulty.Unanswered(), faulty.Applied(500, "InternalServerError"), faulty.Applied(504, "CommitStateUnknownException"),
			faulty.Refused(503, "ServiceUnavailableException"), faulty.Refused(409, "CommitFailedException"),
			faulty.Delayed(time.Duration(50+rng.IntN(1500)) * time.Millisecond),
		}
		if i := rng.IntN(2 * len(kinds)); i < len(kinds) {
			return kinds[i]
		}
		return faulty.Fault{}
	}
}

// The catalog's answers cannot be trusted while rows flow and the committer is restarted: every row lands once, every
// read is exact, nothing is restarted for it (C1, C2, C4, C5, C10, C20, G1, G6, G11).
func TestACatalogWhoseAnswersCannotBeTrustedDoublesAndLosesNothing(t *testing.T) {
	w := newWorld(t, ordersText)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	real := w.settings.Catalog.URI
	proxy := w.proxied()
	var on atomic.Bool
	on.Store(true)
	proxy.Commits(unreliable(seed, &on))
	l := w.produce("orders", 4, 0, 2500)
	w.start()
	stopReading := w.readAlong(l)
	length := 6 * time.Second
	if *soak {
		length = 2 * time.Minute
	}
	for began := time.Now(); time.Since(began) < length; {
		w.pause(2 * time.Second)
		w.restart(discovery.Committer)
	}
	on.Store(false)
	proxy.Settle()
	w.ready()
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	t.Logf("%d records; the catalog did %v", l.ledger.Total(), proxy.Did())
	w.settings.Catalog.URI = real
	w.verify("shop.orders", l.ledger)
}
