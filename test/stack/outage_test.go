package stack

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
)

// outage is how long the catalog is away.
func outage() time.Duration {
	if *soak {
		return 60 * time.Second
	}
	return 8 * time.Second
}

// outageRecords are more than the budgets hold, and few enough to be drained soon.
func outageRecords() uint64 {
	if *soak {
		return 1_000_000
	}
	return 120_000
}

// small budgets, so that an outage of seconds fills them.
var smallBudgets = []config.Override{
	{Path: "limits.hot.bytes", Value: "8MiB"},
	{Path: "limits.ingest.bytes", Value: "8MiB"},
	{Path: "limits.committer.bytes", Value: "16MiB"},
	{Path: "limits.batch.bytes", Value: "256KiB"},
	{Path: "limits.record.max", Value: "1MiB"},
}

// The catalog is away under full rate with small budgets: nothing is restarted, memory stays inside its budget, Kafka
// waits, the reason can be read, and afterwards everything drains by itself (G7, G11, O7, O11).
func TestACatalogOutageUnderFullRateEndsByItself(t *testing.T) {
	w := newWorld(t, ordersText, smallBudgets...)
	w.redAfter = 2 * time.Second
	w.start()
	l := w.produce("orders", 4, outageRecords(), 0)
	w.ready()
	watch, stop := context.WithCancel(t.Context())
	most := make(chan map[string]float64, 1)
	go func() { most <- w.watchBudgets(watch) }()
	w.eventually(func() error { // the table exists and has rows in it
		have, err := w.committed("shop.orders", "orders")
		for _, n := range have {
			if n > 0 {
				return nil
			}
		}
		return fmt.Errorf("nothing committed yet: %w", err)
	})
	w.stopCatalog()
	down := time.Now()
	w.red(discovery.Committer, local(w.ports.catalog))
	t.Logf("red after %v: %s", time.Since(down), w.reasons(discovery.Committer))
	w.pause(outage() - time.Since(down))
	visible, end := w.visible("shop.orders", "orders")
	require.Less(t, visible, end, "Kafka waits for nothing: the test proves nothing")
	w.startCatalog()
	up := time.Now()
	w.ready()
	t.Logf("ready %v after the catalog was back", time.Since(up))
	l.wait()
	w.settle("shop.orders", "orders")
	t.Logf("%d records, %d of %d visible in the outage, drained %v after it", l.ledger.Total(), visible, end, time.Since(up))
	stop()
	budgets := <-most
	t.Logf("most used: %v", budgets)
	require.Greater(t, budgets["hot"], float64(5<<20), "the outage did not fill anything: the test proves nothing")
	require.LessOrEqual(t, budgets["hot"], float64(8<<20))
	require.LessOrEqual(t, budgets["committer"], float64(16<<20))
	require.LessOrEqual(t, budgets["ingest"], float64(8<<20))
	w.verify("shop.orders", l.ledger)
}

// The catalog is away at the first commit of a new table, and the committer is restarted meanwhile: nothing is lost,
// though Kafka's group may know no position and the table no file yet (C13).
func TestACatalogThatIsAwayAtTheFirstCommitLosesNothing(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("committer restarted %v", restarted), func(t *testing.T) {
			w := newWorld(t, ordersText)
			w.redAfter = time.Second
			l := w.produce("orders", 4, 20_000, 0)
			l.wait()
			w.start()
			w.eventually(func() error {
				if seen, _ := w.visible("shop.orders", "orders"); seen <= 0 {
					return fmt.Errorf("nothing is visible yet: %s", w.reasons(discovery.Ingest))
				}
				return nil
			})
			w.stopCatalog()
			w.red(discovery.Committer, local(w.ports.catalog))
			have, err := w.committed("shop.orders", "orders")
			require.NoError(t, err)
			if restarted {
				w.restart(discovery.Committer)
				w.red(discovery.Committer, local(w.ports.catalog))
			}
			for p, at := range w.groupOffsets() {
				require.LessOrEqual(t, at, have[p], "Kafka's group is ahead of the table (G2)")
			}
			w.startCatalog()
			w.ready()
			w.settle("shop.orders", "orders")
			w.verify("shop.orders", l.ledger)
		})
	}
}

// watchBudgets returns the greatest values of the queues until ctx ends.
func (w *world) watchBudgets(ctx context.Context) map[string]float64 {
	most := map[string]float64{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	buffer, committer, ingest := w.nodes[discovery.Buffer].metrics, w.nodes[discovery.Committer].metrics, w.nodes[discovery.Ingest].metrics
	for {
		hot, _ := buffer.Value("icestream_buffer_hot_bytes", "shop.orders")
		held, _ := committer.Value("icestream_committer_held_bytes")
		fetched, _ := ingest.Value("icestream_ingest_fetch_buffer_bytes", "orders")
		flying, _ := ingest.Value("icestream_ingest_in_flight_bytes", "orders", "shop.orders")
		most["hot"], most["committer"] = max(most["hot"], hot), max(most["committer"], held)
		most["ingest"] = max(most["ingest"], fetched+flying)
		most["fetched"], most["flying"] = max(most["fetched"], fetched), max(most["flying"], flying)
		select {
		case <-ctx.Done():
			return most
		case <-tick.C:
		}
	}
}
