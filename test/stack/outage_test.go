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
	return 10 * time.Second
}

// drain bounds how long it may take to commit what gathered in the outage, and then what came meanwhile: its length again, and at least 20 s, since in
// a short one noticing that the catalog is back weighs as much as draining, and other tests share the machine.
func drain() time.Duration { return max(outage(), 20*time.Second) }

// standing is a backlog that shows how fast the stack commits here and now: a dozen commits of the budgets below. Of two
// or three the rate is chance, since the first and the last are not whole: from 5,000 to 90,000 records a second.
const standing = 240_000

// small budgets, so that an outage of seconds fills them. One of 8 MiB holds about 12,000 orders: a tenth of a second
// of what the stack can take in.
var smallBudgets = []config.Override{
	{Path: "limits.hot.bytes", Value: "8MiB"},
	{Path: "limits.ingest.bytes", Value: "8MiB"},
	{Path: "limits.committer.bytes", Value: "16MiB"},
	{Path: "limits.batch.bytes", Value: "256KiB"},
	{Path: "limits.record.max", Value: "1MiB"},
}

// The catalog is away under full rate with small budgets: nothing is restarted, memory stays inside its budget, Kafka
// waits, the reason can be read, and afterwards all that has gathered is committed by itself in at most the length of
// the outage, while records go on arriving (G7, G11, O7, O11).
//
// Full rate is a quarter of what the stack commits of a standing backlog on this machine, which is measured first. While
// records arrive, their producer, the broker and the ledger take half of the same processors, so that is half of what the
// stack commits then: with less headroom no deployment makes up for anything.
func TestACatalogOutageUnderFullRateEndsByItself(t *testing.T) {
	w := newWorld(t, ordersText, smallBudgets...)
	w.redAfter = 2 * time.Second
	l := w.produce("orders", 4, standing, 0)
	l.wait()
	w.start()
	w.ready()
	rate := w.commitRate("shop.orders", "orders")
	watch, stop := context.WithCancel(t.Context())
	most := make(chan map[string]float64, 1)
	go func() { most <- w.watchBudgets(watch) }()
	l.begin("orders", 4, 0, rate/4)
	w.pause(time.Second)

	w.stopCatalog()
	down := time.Now()
	w.red(discovery.Committer, local(w.ports.catalog))
	t.Logf("red after %v: %s", time.Since(down), w.reasons(discovery.Committer))
	w.pause(outage() - time.Since(down))
	visible, end := w.visible("shop.orders", "orders")
	require.Less(t, visible, end, "Kafka waits for nothing: the test proves nothing")
	w.startCatalog()
	up := time.Now()
	gathered := w.kafka.EndOffsets("orders")
	backlog := w.uncommitted("shop.orders", "orders", gathered)
	w.catchUp("shop.orders", "orders", gathered)
	took := time.Since(up)
	t.Logf("a standing backlog: %.0f records/s; in the outage %.0f/s arrived, %d gathered, %d of them in no memory; committed %v after it, %.0f/s",
		rate, rate/4, backlog, end-visible, took, float64(backlog)/took.Seconds())
	l.halt()
	w.catchUp("shop.orders", "orders", w.kafka.EndOffsets("orders")) // what arrived meanwhile is a backlog of its own
	w.ready()
	w.settle("shop.orders", "orders")
	stop()
	budgets := <-most
	t.Logf("most used: %v", budgets)
	require.Greater(t, budgets["hot"], float64(5<<20), "the outage did not fill anything: the test proves nothing")
	require.LessOrEqual(t, budgets["hot"], float64(8<<20))
	require.LessOrEqual(t, budgets["committer"], float64(16<<20))
	require.LessOrEqual(t, budgets["ingest"], float64(8<<20))
	w.verify("shop.orders", l.ledger)
}

// commitRate waits until a standing backlog is committed and returns the records per second from the first commit to
// the last but one tenth, which waits for the interval.
func (w *world) commitRate(table, topic string) float64 {
	w.t.Helper()
	ends := w.kafka.EndOffsets(topic)
	var all, first int64
	for _, end := range ends {
		all += end
	}
	var began time.Time
	var rate float64
	w.eventually(func() error {
		left := w.uncommitted(table, topic, ends)
		switch {
		case left == all:
			return fmt.Errorf("nothing is committed yet: %s", w.reasons(discovery.Committer))
		case began.IsZero():
			began, first = time.Now(), left
		case left <= all/10 && rate == 0:
			rate = float64(first-left) / time.Since(began).Seconds()
		}
		if left > 0 {
			return fmt.Errorf("%d records are not committed", left)
		}
		return nil
	})
	return rate
}

// catchUp waits until a topic is committed up to ends, which may take as long as drain says.
func (w *world) catchUp(table, topic string, ends []int64) {
	w.t.Helper()
	began, all := time.Now(), w.uncommitted(table, topic, ends)
	for left := all; left > 0; left = w.uncommitted(table, topic, ends) {
		require.LessOrEqual(w.t, time.Since(began), drain(), "%d of %d records that gathered are not committed yet; %s", left, all, w.reasons(discovery.Committer))
		w.pause(50 * time.Millisecond)
	}
}

// uncommitted is how much of a topic below the given ends is not in the table.
func (w *world) uncommitted(table, topic string, ends []int64) (n int64) {
	have, _ := w.committed(table, topic) // without an answer nothing is
	for p, end := range ends {
		n += max(0, end-have[int32(p)])
	}
	return n
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
	tick := time.NewTicker(50 * time.Millisecond)
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
