package stack

import (
	"testing"
	"time"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

// The tests here start services beside those that serve. Nothing holds a lease and nobody asks for one: what keeps the
// table exact are its own epochs and ranges.

// kinds counts the snapshots of shop.orders by what made them.
func (w *world) kinds() map[string]int {
	w.t.Helper()
	cat, err := rest.NewCatalog(w.t.Context(), "check", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	tbl, err := cat.LoadTable(w.t.Context(), []string{"shop", "orders"})
	require.NoError(w.t, err)
	out := map[string]int{}
	for _, s := range tbl.Metadata().Snapshots() {
		out[s.Summary.Properties["icestream.kind"]]++
	}
	return out
}

// Two committers of one table: the second takes it over with one empty snapshot and the first stops, says who did it,
// and writes nothing more; and so on, back and forth, under load (G1, G3, G4, G6).
func TestCommittersThatTakeATableFromEachOtherCostOneSnapshotEachTime(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 4, 0, 3000)
	w.start()
	w.ready()
	stopReading := w.readAlong(l)
	second := w.twin()
	for r, address := range w.at {
		if r != discovery.Committer {
			second.at[r] = address
		}
	}
	fences := w.kinds()
	old, other := w, second
	for range 4 {
		w.pause(500 * time.Millisecond)
		if other.nodes[discovery.Committer] != nil {
			other.restart(discovery.Committer) // what was fenced comes back by a restart alone
		} else {
			other.start(discovery.Committer)
		}
		old.red(discovery.Committer, "another committer has taken the table over")
		other.ready(discovery.Committer)
		old, other = other, old
	}
	now := w.kinds()
	require.Equal(t, fences["writer"]+4, now["writer"], "%v", now)
	require.Equal(t, fences["fence"], now["fence"], "no log epoch ends because of it: %v", now)
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	w.verify("shop.orders", l.ledger)
}

// A committer is frozen in the middle of a commit, another one takes the table over and commits the same rows, and then
// the first goes on where it was: its request comes too late, its files go, and it stops (C4, G1, G6).
func TestACommitterThatFreezesInTheMiddleOfACommitLosesWithItAndNothingElse(t *testing.T) {
	w := newWorld(t, ordersText)
	real := w.settings.Catalog.URI
	proxy := w.proxied()
	l := w.produce("orders", 4, 2000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	thaw, frozen := make(chan struct{}), make(chan struct{})
	held := faulty.Script(faulty.Held(thaw))
	first := true
	proxy.Commits(faulty.For("orders", func(table string) faulty.Fault {
		if first {
			first = false
			close(frozen)
		}
		return held(table)
	}))
	proxy.Loads(func(string) faulty.Fault { // all that it does waits, as a frozen process does
		select {
		case <-frozen:
			return faulty.Held(thaw)
		default:
			return faulty.Fault{}
		}
	})
	l.begin("orders", 4, 3000, 0)
	l.wait()
	<-frozen
	second := w.twin()
	for r, address := range w.at {
		if r != discovery.Committer {
			second.at[r] = address
		}
	}
	second.settings.Catalog.URI = real
	second.start(discovery.Committer)
	w.at[discovery.Committer] = second.at[discovery.Committer] // for us, who ask it to commit
	w.settle("shop.orders", "orders")
	close(thaw)
	proxy.Settle()
	w.red(discovery.Committer, "another committer has taken the table over")
	l.more(1000)
	second.ready(discovery.Committer)
	w.verify("shop.orders", l.ledger)
}

// Two ingests in different groups, each of which believes to own every partition and goes on sending: a zombie that
// never hears of its loss. Each range is stored once (G1, G2).
func TestIngestsThatAllSendEveryPartitionDoubleNothing(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 4, 0, 3000)
	w.start()
	w.ready()
	stopReading := w.readAlong(l)
	zombie := w.twin(config.Override{Path: "kafka.group.id", Value: "zombies"})
	for r, address := range w.at {
		if r != discovery.Ingest {
			zombie.at[r] = address
		}
	}
	zombie.start(discovery.Ingest)
	zombie.ready(discovery.Ingest)
	for range 3 {
		w.pause(time.Second)
		w.restart(discovery.Buffer)
		w.ready()
	}
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	w.verify("shop.orders", l.ledger)
	require.Equal(t, zombie.reasons(discovery.Ingest), w.reasons(discovery.Ingest), "both are well")
}

// A whole second suite with a buffer of its own starts beside the first, in the same groups. The table belongs to the
// second from then on; the first stops, loses nothing, and what it still sends to its own buffer is nobody's (G1-G5).
func TestASecondSuiteWithItsOwnBufferTakesEverythingOver(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 4, 0, 3000)
	w.start()
	w.ready()
	w.pause(time.Second)
	before := w.kinds()
	second := w.twin()
	second.start()
	w.red(discovery.Committer, "another committer has taken the table over")
	w.pause(2 * time.Second) // the first ingest still has half of the partitions and sends them to the first buffer
	w.stop()
	second.ready()
	now := second.kinds()
	require.Equal(t, before["writer"]+1, now["writer"], "%v", now)
	require.Equal(t, before["fence"]+1, now["fence"], "a buffer without a journal of the table starts one log epoch: %v", now)
	stopReading := second.readAlong(l)
	w.pause(time.Second)
	l.halt()
	second.settle("shop.orders", "orders")
	stopReading()
	second.verify("shop.orders", l.ledger)
}
