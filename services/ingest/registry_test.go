package ingest

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
)

// A schema that does not compile harms its own records: the neighbours in the same
// partition flow.
func TestSchemaThatDoesNotCompileHarmsOnlyItsRecords(t *testing.T) { // F5, G8
	w := newWorld(t, ordersTopic+", flood: {share: off}", topic(1))
	w.schemas[3] = "syntax = \"proto3\";\nmessage Order {\n  Missing m = 1;\n}"
	w.produce(0, slices.Concat(orders(1, 0, 2), orders(3, 2, 2), orders(1, 4, 2))...)
	i := w.start()
	w.appended(0, 6)
	require.Equal(t, map[int64]string{0: "o0", 1: "o1", 2: "bad schema_invalid", 3: "bad schema_invalid", 4: "o4", 5: "o5"}, w.outcome(0))
	w.ready(i)
}

// 401 and 403 stop the partition, red and with the reason; no record is taken for a bad
// one, and nothing is acknowledged. With new credentials work goes on where it stood.
func TestRegistryThatRefusesUsStopsThePartition(t *testing.T) { // G8
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		w := newWorld(t, ordersTopic, topic(1))
		w.registryErr = status
		w.produce(0, orders(1, 0, 5)...)
		i := w.start()
		w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
		require.Contains(t, w.progress[0].Reason, "check the credentials")
		require.False(t, i.health.Report("ingest").Ready)
		require.Empty(t, w.outcome(0), "nothing is acknowledged")
		i.stop(t)
		w.mu.Lock()
		w.registryErr = 0
		w.mu.Unlock()
		i = w.start()
		w.appended(0, 5)
		require.Equal(t, "o4", w.outcome(0)[4])
		i.stop(t)
	}
}

// 429 and 503 are waited for.
func TestRegistryThatIsBusyIsWaitedFor(t *testing.T) { // G8, G11
	w := newWorld(t, ordersTopic, topic(1))
	w.registryErr = http.StatusTooManyRequests
	w.produce(0, orders(1, 0, 5)...)
	w.start()
	w.await("waiting is told", func() bool { return w.progress[0].State == event.PartitionWaiting && w.requests > 1 })
	require.Empty(t, w.outcome(0))
	w.mu.Lock()
	w.registryErr = 0
	w.mu.Unlock()
	w.appended(0, 5)
	require.Equal(t, "o0", w.outcome(0)[0])
}
