package stack

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	ctx, cancel := context.WithCancel(t.Context())
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
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
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
	cancel()
	r := <-read
	require.NoError(t, r.err)
	require.Positive(t, r.exact, "no read was made")
	t.Logf("%d records, %d exact reads", l.ledger.Total(), r.exact)
	w.verify("shop.orders", l.ledger)
}
