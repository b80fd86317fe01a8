package stack

import (
	"context"
	"fmt"
	"testing"

	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/services/committer"
)

// A table that another engine rolls back under the running committer stops red, with both positions and the way out. The
// operator's reset reads again what was lost: every record is a row or quarantined once, LSNs go on above all that were
// given, Kafka's group follows, and the audit tells the decision from a loss (G1, G2, G5, G9).
func TestARolledBackTableIsReadAgainAfterAReset(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("everything restarted %v", restarted), func(t *testing.T) {
			w := newWorld(t, ordersText)
			l := w.produce("orders", 3, 6000, 0)
			w.start()
			l.wait()
			w.settle("shop.orders", "orders")
			first := w.headOf("shop", "orders")
			l.begin("orders", 3, 6000, 0)
			l.wait()
			w.settle("shop.orders", "orders")
			w.verify("shop.orders", l.ledger)

			w.foreign("shop", "orders", func(tx *table.Transaction) error { return tx.RollbackToSnapshot(first) })
			if restarted {
				w.stop()
				w.start()
			}
			w.red(discovery.Committer, "shop.orders", "somebody rolled it back", "icestream offsets reset shop.orders --to table")
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

			l.begin("orders", 3, 3000, 0)
			l.wait()
			w.settle("shop.orders", "orders")
			w.verify("shop.orders", l.ledger)
		})
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
func (w *world) foreign(namespace, name string, change func(tx *table.Transaction) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cat, err := rest.NewCatalog(ctx, "foreign", "http://"+local(w.ports.catalog))
	require.NoError(w.t, err)
	w.eventually(func() error {
		tbl, err := cat.LoadTable(ctx, []string{namespace, name})
		if err != nil {
			return err
		}
		tx := tbl.NewTransaction()
		if err := change(tx); err != nil {
			return err
		}
		_, err = tx.Commit(ctx)
		return err
	})
}
