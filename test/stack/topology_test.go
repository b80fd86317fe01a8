package stack

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/services/committer"
)

// Two pipelines feed one table side by side, a third makes a table of each topic that its pattern finds, some of them
// later; the state of each keeps apart (G1).
func TestPipelinesShareATableAndAPatternFindsItsTopics(t *testing.T) {
	w := newWorld(t, `deployment: test
defaults: { commit: { interval: 1s } }
pipelines:
  - { name: eu, topics: [orders.eu], table: shop.orders, message: shop.v1.Order }
  - { name: us, topics: [orders.us], table: shop.orders, message: shop.v1.Order }
  - { name: each, pattern: 'audit\..*', table: 'audit.{topic}', message: shop.v1.Order }
`)
	eu, us := w.produce("orders.eu", 2, 4000, 0), w.produce("orders.us", 3, 4000, 0)
	first := w.produce("audit.One", 1, 2000, 0)
	w.start()
	later := w.produce("audit.two-b", 2, 2000, 0)
	for _, l := range []*load{eu, us, first, later} {
		l.wait()
	}
	w.settle("shop.orders", "orders.eu")
	w.settle("shop.orders", "orders.us")
	w.settle("audit.audit_one", "audit.One")
	w.settle("audit.audit_two_b", "audit.two-b")
	w.ready()
	w.verify("audit.audit_one", first.ledger)
	w.verify("audit.audit_two_b", later.ledger)
	for topic, l := range map[string]*load{"orders.eu": eu, "orders.us": us} {
		check := l.ledger.NewCheck(orders.OutcomeRow, nil)
		require.NoError(t, w.catalog.Scan(t.Context(), []string{"shop", "orders"}, func(rec arrow.RecordBatch) error {
			part, err := ofTopic(rec, topic)
			if err != nil {
				return err
			}
			for _, p := range part {
				if err := check.AddRows(p); err != nil {
					return err
				}
			}
			return nil
		}))
		report := check.Finish()
		require.True(t, report.OK(), "%s: %s", topic, report)
	}
	w.audit("shop.orders")
}

// ofTopic cuts a batch to the runs of rows of one topic.
func ofTopic(rec arrow.RecordBatch, topic string) ([]arrow.RecordBatch, error) {
	k, ok := rec.Column(rec.Schema().FieldIndices("_kafka")[0]).(*array.Struct)
	if !ok {
		return nil, fmt.Errorf("_kafka is %s", rec.Schema())
	}
	names, ok := k.Field(0).(array.StringLike)
	if !ok {
		return nil, fmt.Errorf("the topic is %s", k.Field(0).DataType())
	}
	var out []arrow.RecordBatch
	n := int(rec.NumRows())
	for i := 0; i < n; {
		j := i
		for j < n && names.Value(j) == names.Value(i) {
			j++
		}
		if names.Value(i) == topic {
			out = append(out, rec.NewSlice(int64(i), int64(j)))
		}
		i = j
	}
	return out, nil
}

// A partitioned, sorted table is exact, and its files say so to the Iceberg library.
func TestAPartitionedTableIsExact(t *testing.T) {
	w := newWorld(t, ordersText+"    partition: \"day(placed_at), bucket(16, order_id)\"\n    sort: \"order_id\"\n")
	l := w.produce("orders", 4, 20_000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
	spec, files := w.specOf("shop", "orders")
	require.Contains(t, spec, "day")
	require.Contains(t, spec, "bucket[16]")
	require.Greater(t, files, 16, "files of several partitions")
}

// Partitions that are added under load are read from their first record (K7).
func TestPartitionsAddedUnderLoadAreReadFromTheirFirstRecord(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 2, 3000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	_, err := kadm.NewClient(w.client()).UpdatePartitions(t.Context(), 5, "orders")
	require.NoError(t, err)
	l.begin("orders", 5, 6000, 0)
	l.wait()
	require.Len(t, w.kafka.EndOffsets("orders"), 5)
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
	w.ready()
}

// A topic that was deleted and created again stops its partitions, says so with its name, and loses nothing that is
// in the table; an operator who accepts the loss goes on with the new topic (K5, G9).
func TestATopicThatIsCreatedAgainStopsItsPartitionsUntilToldToGoOn(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 2, 3000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	admin := kadm.NewClient(w.client())
	_, err := admin.DeleteTopic(t.Context(), "orders")
	require.NoError(t, err)
	again := w.produce("orders", 2, 2000, 0)
	again.wait()
	w.otherLog = true
	w.red(discovery.Ingest, "orders", "created again")
	w.pause(500 * time.Millisecond)
	have, err := w.committed("shop.orders", "orders")
	require.NoError(t, err)
	for n, next := range have { // its start may be fixed in the table already
		require.Zero(t, next, "rows of the new topic in partition %d", n)
	}
	w.verify("shop.orders", l.ledger)

	w.stop(discovery.Ingest)
	w.configure(strings.Replace(ordersText, "defaults: {", "defaults: { on_data_loss: continue,", 1))
	w.start(discovery.Ingest)
	w.ready(discovery.Ingest)
	w.settle("shop.orders", "orders")
	// The ranges prove the table; a row alone does not say which life of the topic it is of, and the deep audit says so.
	require.Equal(t, committer.Proven, w.auditOf("shop.orders", false).Verdict)
	require.Equal(t, committer.Unknown, w.auditOf("shop.orders", true).Verdict)
	rows := int64(0)
	require.NoError(t, w.catalog.Scan(t.Context(), []string{"shop", "orders"}, func(rec arrow.RecordBatch) error {
		rows += rec.NumRows()
		return nil
	}))
	require.Equal(t, l.ledger.Count(orders.OutcomeRow)+again.ledger.Count(orders.OutcomeRow), rows)
}
