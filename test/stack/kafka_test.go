package stack

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/services/committer"
)

// Retention takes offsets that nobody has read: their partition alone stops, red, with the range; where an operator
// accepts the loss, the table records it, and the audit accounts for every offset (K1, G1).
func TestOffsetsThatRetentionTookAreAccountedFor(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 2, 3000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	before := w.kafka.EndOffsets("orders")
	w.stop(discovery.Ingest)
	l.begin("orders", 2, 3000, 0)
	l.wait()
	ends := w.kafka.EndOffsets("orders")
	first := ends[0] - 100
	lost := first - before[0]
	require.Positive(t, lost)
	var offs kadm.Offsets
	offs.AddOffset("orders", 0, first, -1)
	_, err := kadm.NewClient(w.client()).DeleteRecords(t.Context(), offs)
	require.NoError(t, err)

	w.start(discovery.Ingest)
	w.red(discovery.Ingest, "orders[0]", fmt.Sprintf("offsets %d to %d were not read", before[0], first-1), "on_data_loss: continue")
	w.eventually(func() error {
		have, err := w.committed("shop.orders", "orders")
		if err == nil && (have[0] != before[0] || have[1] != ends[1]) {
			err = fmt.Errorf("committed to %v, the ends are %v", have, ends)
		}
		return err
	})

	w.stop(discovery.Ingest)
	w.configure(strings.Replace(ordersText, "defaults: {", "defaults: { on_data_loss: continue,", 1))
	w.start(discovery.Ingest)
	w.settle("shop.orders", "orders")
	w.ready()
	report := w.auditOf("shop.orders", true)
	require.Equal(t, committer.Proven, report.Verdict, "%s", report)
	for _, p := range report.Partitions {
		want := int64(0)
		if p.Partition == 0 {
			want = lost
		}
		require.Equal(t, want, p.Skipped["lost"], "partition %d", p.Partition)
		told := int64(0)
		for _, l := range p.Lost {
			require.EqualValues(t, "gone", l.Why)
			told += l.Next - l.First
		}
		require.Equal(t, want, told, "the table says which offsets are lost, partition %d", p.Partition)
	}
}

// The position of the consumer group is only told to Kafka. Wherever somebody puts it while ingest is away, forward,
// back, or nowhere, the table decides where reading goes on, and the group is repaired from the table, never ahead of
// it (G1, G2, K4; issue 5 point 5).
func TestTheGroupPositionIsRepairedFromTheTable(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 2, 2000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	admin := kadm.NewClient(w.client())
	repaired := func() {
		t.Helper()
		w.eventually(func() error {
			have, err := w.committed("shop.orders", "orders")
			if at := w.groupOffsets(); err == nil && !maps.Equal(have, at) {
				err = fmt.Errorf("the group stands at %v, the table at %v", at, have)
			}
			return err
		})
	}
	repaired()
	for _, how := range []string{"forward", "back", "gone"} {
		w.stop(discovery.Ingest)
		l.begin("orders", 2, 500, 0)
		l.wait()
		var offs kadm.Offsets
		for n, end := range w.kafka.EndOffsets("orders") {
			if how == "back" {
				end = 3
			}
			offs.AddOffset("orders", int32(n), end, -1)
		}
		if how == "gone" { // as when the broker let them expire
			_, err := admin.DeleteGroups(t.Context(), "icestream.orders")
			require.NoError(t, err)
		} else {
			_, err := admin.CommitOffsets(t.Context(), "icestream.orders", offs)
			require.NoError(t, err)
		}
		w.start(discovery.Ingest)
		w.settle("shop.orders", "orders")
		repaired()
	}
	w.verify("shop.orders", l.ledger)
}

const textPipeline = `deployment: test
defaults: { commit: { interval: 1s } }
pipelines:
  - { name: notes, topics: [notes], table: shop.notes, format: string }
`

// notes are the values of the table, sorted.
func (w *world) notes() []string {
	w.t.Helper()
	var rows []string
	require.NoError(w.t, w.catalog.Scan(w.t.Context(), []string{"shop", "notes"}, lines(&rows)))
	slices.Sort(rows)
	return rows
}

// note sends values to a partition of the topic notes.
func (w *world) note(cl *kgo.Client, partition int32, prefix string, n int) (want []string) {
	w.t.Helper()
	for i := range n {
		value := fmt.Sprintf("%s-%02d", prefix, i)
		want = append(want, `{"value":"`+value+`"}`)
		r := &kgo.Record{Topic: "notes", Partition: partition, Key: []byte(value), Value: []byte(value)}
		require.NoError(w.t, cl.ProduceSync(w.t.Context(), r).FirstErr())
	}
	return want
}

// Records of aborted transactions are no rows and no holes, those of an open one wait, with all behind them in their
// partition and nobody elsewhere, and markers are accounted for: the audit adds up to the end of the log (K2, K14, G1).
func TestTransactionsLandWhenTheyAreCommittedAndOnlyThen(t *testing.T) {
	w := newWorld(t, textPipeline)
	require.NoError(t, w.kafka.EnsureTopic("notes", 2))
	transactional := func(id string) *kgo.Client {
		cl, err := kgo.NewClient(kgo.SeedBrokers(local(w.ports.kafka)), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(id))
		require.NoError(t, err)
		t.Cleanup(cl.Close)
		require.NoError(t, cl.BeginTransaction())
		return cl
	}
	plain := w.client()
	aborted, landed, open := transactional("a"), transactional("b"), transactional("c")
	want := w.note(plain, 0, "first", 3)
	w.note(aborted, 0, "aborted", 20)
	want = append(want, w.note(landed, 0, "landed", 20)...)
	w.note(aborted, 1, "aborted-too", 5)
	require.NoError(t, aborted.EndTransaction(t.Context(), kgo.TryAbort))
	require.NoError(t, landed.EndTransaction(t.Context(), kgo.TryCommit))
	waiting := w.note(open, 0, "open", 10)
	waiting = append(waiting, w.note(plain, 0, "behind", 5)...)
	want = append(want, w.note(plain, 1, "beside", 5)...)
	w.start()
	stable := map[int32]int64{0: 3 + 20 + 20 + 2, 1: 5 + 1 + 5}
	w.eventually(func() error {
		have, err := w.committed("shop.notes", "notes")
		if err == nil && !maps.Equal(have, stable) {
			err = fmt.Errorf("committed to %v of %v", have, stable)
		}
		return err
	})
	w.ready() // an open transaction is no fault
	slices.Sort(want)
	require.Equal(t, want, w.notes())
	require.NoError(t, open.EndTransaction(t.Context(), kgo.TryCommit))
	w.settle("shop.notes", "notes")
	want = append(want, waiting...)
	slices.Sort(want)
	require.Equal(t, want, w.notes())
	report := w.auditOf("shop.notes", true)
	require.Equal(t, committer.Proven, report.Verdict, "%s", report)
	for _, p := range report.Partitions {
		if p.Partition == 0 {
			require.EqualValues(t, 20, p.Skipped["absent"], "what was aborted")
			require.EqualValues(t, 3, p.Skipped["control"])
		}
	}
}

// Tombstones are rows, and nothing but tombstones comes after a restart: no record brings a schema, and they land by the
// one that the table has (K11, G11).
func TestTombstonesThatComeAloneAfterARestartLand(t *testing.T) {
	w := newWorld(t, strings.Replace(textPipeline, "format: string", "format: string, tombstones: row", 1))
	require.NoError(t, w.kafka.EnsureTopic("notes", 2))
	want := w.note(w.client(), 0, "first", 3)
	w.start()
	w.settle("shop.notes", "notes")
	w.restart(discovery.Ingest)
	tombstone := &kgo.Record{Topic: "notes", Partition: 1, Key: []byte("first-00")}
	require.NoError(t, w.client().ProduceSync(t.Context(), tombstone).FirstErr())
	w.settle("shop.notes", "notes")
	require.Equal(t, append(want, `{}`), w.notes(), "a column that is null is left out here")
}

// The brokers restart under load, again and again: everything goes on by itself, and nothing is lost or doubled (G1, G11).
func TestBrokersThatRestartUnderLoadLoseNothing(t *testing.T) {
	w := newWorld(t, ordersText)
	w.start()
	var ledger *orders.Ledger
	var l *load
	for range 3 {
		if l == nil {
			l = w.produce("orders", 3, 1500, 0)
		} else {
			l.begin("orders", 3, 1500, 0)
		}
		ledger = l.ledger
		l.wait()
		w.stopKafka()
		w.startKafka()
	}
	w.settle("shop.orders", "orders")
	w.ready()
	w.verify("shop.orders", ledger)
}
