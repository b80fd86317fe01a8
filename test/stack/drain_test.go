package stack

import (
	"context"
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/stack"
)

// wholeStack runs all services as one process does, until stop is called.
func (w *world) wholeStack() (stop func()) {
	w.t.Helper()
	settings := *w.settings
	settings.Node.Metrics = ""
	p, err := boot.Open(w.t.Context(), &settings, io.Discard)
	require.NoError(w.t, err)
	s, err := stack.New(w.t.Context(), p)
	require.NoError(w.t, err)
	for role, addr := range s.Addresses() {
		require.Equal(w.t, w.at[discovery.Role(role)], addr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Group.Run(ctx) }()
	w.t.Cleanup(cancel)
	return func() {
		w.t.Helper()
		cancel()
		select {
		case err := <-ended:
			require.NoError(w.t, err)
		case <-time.After(patience):
			require.Fail(w.t, "the stack does not end")
		}
	}
}

// groupOffsets are the positions that the pipeline orders has committed to Kafka for its topic orders.
func (w *world) groupOffsets() map[int32]int64 {
	w.t.Helper()
	resp, err := kadm.NewClient(w.client()).FetchOffsets(w.t.Context(), "icestream.orders")
	require.NoError(w.t, err)
	out := map[int32]int64{}
	resp.Each(func(o kadm.OffsetResponse) {
		if o.Topic == "orders" {
			out[o.Partition] = o.At
		}
	})
	return out
}

// SIGTERM: everything visible is committed, the group is not ahead of the table, and the next start repairs
// it and adds no row
// (G1, G2, K4, K14).
func TestAStackThatIsStoppedLeavesNothingOpenAndStartsWithoutARepeat(t *testing.T) {
	w := newWorld(t, ordersText+"    commit: { interval: 1h }\n")
	l := w.produce("orders", 4, 20_000, 0)
	stop := w.wholeStack()
	l.wait()
	w.eventually(func() error {
		if seen, end := w.visible("shop.orders", "orders"); seen != end {
			return fmt.Errorf("%d of %d offsets are visible", seen, end)
		}
		return nil
	})
	stop()
	ends := map[int32]int64{}
	for n, end := range w.kafka.EndOffsets("orders") {
		ends[int32(n)] = end
	}
	// Ingest ends first, so the group may lag behind the last commit; it is never ahead.
	for p, at := range w.groupOffsets() {
		require.LessOrEqual(t, at, ends[p])
	}
	w.verify("shop.orders", l.ledger)

	stop = w.wholeStack()
	w.eventually(func() error {
		seen, end := w.visible("shop.orders", "orders")
		if seen != end {
			return fmt.Errorf("%d of %d offsets are visible", seen, end)
		}
		return nil
	})
	w.eventually(func() error { // repaired from the table
		if at := w.groupOffsets(); !maps.Equal(ends, at) {
			return fmt.Errorf("the group stands at %v, the table at %v", at, ends)
		}
		return nil
	})
	stop()
	w.verify("shop.orders", l.ledger)
	require.Equal(t, ends, w.groupOffsets())
}
