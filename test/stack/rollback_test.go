package stack

import (
	"context"
	"testing"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/ident"
	suite "github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer"
)

// A table that another engine rolls back under the running committer stops red, with both positions and the way out. The
// operator's reset reads again what was lost: every record is a row or quarantined once, LSNs go on above all that were
// given, Kafka's group follows, and the audit tells the decision from a loss (G1, G2, G5, G9).
func TestARolledBackTableIsReadAgainAfterAReset(t *testing.T) {
	w := newWorld(t, ordersText)
	l := w.produce("orders", 3, 3000, 0)
	w.start()
	l.wait()
	w.settle("shop.orders", "orders")
	first := w.headOf("shop", "orders")
	l.begin("orders", 3, 3000, 0)
	l.wait()
	w.settle("shop.orders", "orders")
	w.against("shop.orders")

	w.foreign("shop", "orders", func(_ context.Context, _ *table.Table, tx *table.Transaction) error {
		return tx.RollbackToSnapshot(first)
	})
	l.begin("orders", 3, 1000, 0) // the next commit finds it
	l.wait()
	says := []string{"shop.orders", "somebody rolled it back", "orders/orders[0] ", "; orders/orders[1] ", "; orders/orders[2] ", "icestream offsets reset shop.orders --to table", "--to copy"}
	w.red(discovery.Committer, says...)
	w.restart(discovery.Committer)
	w.red(discovery.Committer, says...)
	require.Equal(t, committer.Violated, w.auditOf("shop.orders", false).Verdict)
	shown, err := committer.ShowOffsets(t.Context(), w.settings, "shop.orders")
	require.NoError(t, err)
	require.Contains(t, shown.Problem, "rolled it back")
	for _, p := range shown.Partitions {
		require.Less(t, p.Table, p.Copy)
	}

	admin := committerv1.NewAdminServiceClient(w.dial(discovery.Committer))
	req := &committerv1.ResetOffsetsRequest{Table: "shop.orders", Base: committerv1.ResetBase_RESET_BASE_TABLE, Reason: "by mistake", DryRun: true}
	plan, err := admin.ResetOffsets(t.Context(), req)
	require.NoError(t, err)
	require.Zero(t, plan.GetSnapshotId())
	req.DryRun = false
	done, err := admin.ResetOffsets(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, done.GetPartitions(), 3)
	for i, p := range done.GetPartitions() {
		require.Equal(t, shown.Partitions[i].Table, p.GetNext())
		require.Zero(t, p.GetLost())
	}
	w.ready()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
	require.Contains(t, w.auditOf("shop.orders", true).String(), "an operator reset positions")
	_, err = admin.ResetOffsets(t.Context(), req)
	require.ErrorContains(t, err, "it is in order")

	l.begin("orders", 3, 1000, 0)
	l.wait()
	w.settle("shop.orders", "orders")
	w.verify("shop.orders", l.ledger)
}

// An operator gives offsets of a healthy table up, under load: what is skipped counts as lost, everything else is exact,
// and Kafka's group follows.
func TestPartitionsAreMovedForwardByAnOperator(t *testing.T) {
	w := newWorld(t, ordersText)
	w.start()
	l := w.produce("orders", 1, 2000, 0)
	l.wait()
	w.settle("shop.orders", "orders")
	w.stop(discovery.Ingest) // what comes now is in Kafka alone
	l.begin("orders", 1, 1000, 0)
	l.wait()
	end := w.kafka.EndOffsets("orders")[0]
	admin := committerv1.NewAdminServiceClient(w.dial(discovery.Committer))
	req := &committerv1.ResetOffsetsRequest{Table: "shop.orders", Reason: "poisonous", Forward: []*committerv1.ResetForward{{Offset: end + 1}}}
	_, err := admin.ResetOffsets(t.Context(), req)
	require.ErrorContains(t, err, "it is not known whether Kafka has that offset")
	log, err := suite.OpenKafkaLog(w.settings)
	require.NoError(t, err)
	defer log.Close()
	topic, err := log.Topic(t.Context(), "orders")
	require.NoError(t, err)
	req.Log = []*committerv1.LogExtent{{
		Partition: wire.PartitionToProto(ident.Partition{Topic: "orders", TopicID: topic.ID}), Cluster: topic.Cluster, Range: wire.RangeToProto(topic.Partitions[0]),
	}}
	_, err = admin.ResetOffsets(t.Context(), req)
	require.ErrorContains(t, err, "do not exist yet")
	req.Forward[0].Offset = end - 300
	done, err := admin.ResetOffsets(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, end-300, done.GetPartitions()[0].GetNext())
	require.Equal(t, end-300-2000, done.GetPartitions()[0].GetLost())
	w.start(discovery.Ingest)
	w.ready()
	w.settle("shop.orders", "orders")
	report := w.auditOf("shop.orders", true)
	require.Equal(t, committer.Proven, report.Verdict, "%s", report)
	require.Equal(t, end-300-2000, report.Partitions[0].Skipped["lost"])
	w.against("shop.orders")
	for p, at := range w.groupOffsets() {
		require.LessOrEqual(t, at, w.kafka.EndOffsets("orders")[p], "Kafka's group is not ahead of the table (G2)")
	}
}

// headOf is the current snapshot of a table.
func (w *world) headOf(namespace, name string) int64 {
	w.t.Helper()
	cat, err := rest.NewCatalog(w.t.Context(), "foreign", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	tbl, err := cat.LoadTable(w.t.Context(), []string{namespace, name})
	require.NoError(w.t, err)
	return tbl.CurrentSnapshot().SnapshotID
}

// foreign commits to a table as another engine would, and tries until it wins.
func (w *world) foreign(namespace, name string, change func(context.Context, *table.Table, *table.Transaction) error) {
	w.t.Helper()
	ctx := w.t.Context()
	cat, err := rest.NewCatalog(ctx, "foreign", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	w.eventually(func() error {
		tbl, err := cat.LoadTable(ctx, []string{namespace, name})
		if err != nil {
			return err
		}
		tx := tbl.NewTransaction()
		if err := change(ctx, tbl, tx); err != nil {
			return err
		}
		_, err = tx.Commit(ctx)
		return err
	})
}
