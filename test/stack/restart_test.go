package stack

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/discovery"
)

const ordersText = `deployment: test
defaults: { commit: { interval: 1s } }
pipelines:
  - name: orders
    topics: [orders]
    table: shop.orders
    message: ` + orders.MessageName + `
`

// Each service ends and comes back at random moments under load, the buffer with and without its journal. Every
// union read in between is exact, and the table is proven at the end (G1, G3, G4, G11).
func TestServicesComeAndGoUnderLoadAndEveryReadIsExact(t *testing.T) {
	w := newWorld(t, ordersText, config.Override{Path: "limits.hot.bytes", Value: "64MiB"})
	l := w.produce("orders", 4, 0, 4000)
	w.start()
	w.ready()
	stopReading := w.readAlong(l)
	rng := seeded(t)
	victims := []string{"ingest", "buffer", "committer", "readstate", "buffer without journal"}
	rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for _, v := range victims {
		w.pause(time.Duration(200+rng.IntN(1000)) * time.Millisecond)
		began := time.Now()
		if v == "buffer without journal" {
			w.stop(discovery.Buffer)
			require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "data", "journal")))
			w.start(discovery.Buffer)
		} else {
			w.restart(discovery.Role(v))
		}
		w.ready()
		t.Logf("%s restarted and all ready after %v", v, time.Since(began).Round(time.Millisecond))
	}
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	w.verify("shop.orders", l.ledger)
}

// Pairs of services end at once without a drain and come back in any order (G1, G3, G4, G5, G11).
func TestPairsOfServicesDieTogetherUnderLoad(t *testing.T) {
	w := newWorld(t, ordersText)
	w.abrupt = true
	l := w.produce("orders", 4, 0, 3000)
	w.start()
	w.ready()
	stopReading := w.readAlong(l)
	rng := seeded(t)
	rounds := 5
	if *soak {
		rounds = 60
	}
	for range rounds {
		w.pause(time.Duration(rng.IntN(1500)) * time.Millisecond)
		order := slices.Clone(roles)
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		pair := order[:2]
		for _, r := range pair {
			w.nodes[r].cancel()
		}
		w.stop(pair...)
		lost := slices.Contains(pair, discovery.Buffer) && rng.IntN(2) == 0
		if lost {
			require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "data", "journal")))
		}
		rng.Shuffle(2, func(i, j int) { pair[i], pair[j] = pair[j], pair[i] })
		w.start(pair[0])
		w.pause(time.Duration(rng.IntN(500)) * time.Millisecond)
		w.start(pair[1])
		w.ready()
		t.Logf("%v came back, journal lost: %v", pair, lost)
	}
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	w.verify("shop.orders", l.ledger)
}

// readAlong reads the union of the orders all the time; what it returns ends that and fails unless every read was
// exact.
func (w *world) readAlong(l *load) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	type outcome struct {
		exact int
		err   error
	}
	read := make(chan outcome, 1)
	conn := w.dial(discovery.Readstate)
	go func() {
		n, err := readAlong(ctx, conn, "shop.orders", l.ledger)
		read <- outcome{n, err}
	}()
	return func() {
		w.t.Helper()
		cancel()
		r := <-read
		require.NoError(w.t, r.err)
		require.Positive(w.t, r.exact, "no read was made")
		w.t.Logf("%d records, %d exact reads", l.ledger.Total(), r.exact)
	}
}

func seeded(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
