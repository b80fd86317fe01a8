package stack

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/table/compaction"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/services/committer"
)

// Another engine appends, deletes its rows, compacts, expires, adds a column and changes the partition spec between the
// commits of a table under load: every record still lands once, and the audit proves it against the log (G1, G9, T1, T2,
// T7, C16). Then it deletes rows of ours, and the audit names it.
func TestOthersWorkOnATableUnderLoad(t *testing.T) {
	w := newWorld(t, strings.Replace(ordersText, "interval: 1s", "interval: 2s", 1)) // others need time to win
	l := w.produce("orders", 3, 0, 1000)
	w.start()
	landed := func() {
		t.Helper()
		before := w.headOf("shop", "orders")
		w.eventually(func() error {
			if w.headOf("shop", "orders") == before {
				return fmt.Errorf("no commit after snapshot %d", before)
			}
			return nil
		})
	}
	w.eventually(func() error {
		if have, err := w.committed("shop.orders", "orders"); err != nil || have[0] <= 0 {
			return fmt.Errorf("nothing is committed yet (%w)", err)
		}
		return nil
	})
	for _, do := range []func(context.Context, *table.Table, *table.Transaction) error{
		appendNulls,
		func(_ context.Context, _ *table.Table, tx *table.Transaction) error {
			return tx.UpdateSchema(true, false).AddColumn([]string{"added_by_others"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit()
		},
		compact,
		func(ctx context.Context, _ *table.Table, tx *table.Transaction) error {
			return tx.Delete(ctx, iceberg.IsNull(iceberg.Reference("order_id")), nil)
		},
		func(_ context.Context, _ *table.Table, tx *table.Transaction) error {
			return tx.UpdateSpec(true).AddField("order_id", iceberg.BucketTransform{NumBuckets: 4}, "order_bucket").Commit()
		},
		appendNulls,
		func(_ context.Context, _ *table.Table, tx *table.Transaction) error {
			return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
		},
	} {
		w.foreign("shop", "orders", do)
		landed()
	}
	l.halt()
	w.settle("shop.orders", "orders")
	w.ready()
	w.against("shop.orders")
	rows := l.ledger.NewCheck(orders.OutcomeRow, nil)
	require.NoError(t, w.catalog.Scan(t.Context(), []string{"shop", "orders"}, func(rec arrow.RecordBatch) error {
		ours, err := ofTopic(rec, "orders")
		for _, part := range ours {
			if err == nil {
				err = rows.AddRows(part)
			}
		}
		return err
	}))
	report := rows.Finish()
	require.True(t, report.OK(), "%s", report)

	w.foreign("shop", "orders", func(ctx context.Context, tbl *table.Table, tx *table.Transaction) error {
		return tx.Delete(ctx, iceberg.NotNull(iceberg.Reference("order_id")), iceberg.Properties{"engine-name": "spark"})
	})
	violated := w.auditOf("shop.orders", false)
	require.Equal(t, committer.Violated, violated.Verdict, "%s", violated)
	require.Contains(t, violated.String(), "spark removed")
}

// appendNulls appends three rows without any value.
func appendNulls(ctx context.Context, tbl *table.Table, tx *table.Transaction) error {
	sch, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, sch)
	defer b.Release()
	for i := range sch.NumFields() {
		b.Field(i).AppendNulls(3)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	r, err := array.NewRecordReader(sch, []arrow.RecordBatch{rec})
	if err != nil {
		return err
	}
	defer r.Release()
	return tx.Append(ctx, r, nil)
}

// compact rewrites the small files of a table.
func compact(ctx context.Context, tbl *table.Table, tx *table.Transaction) error {
	cfg := compaction.DefaultConfig()
	cfg.MinInputFiles = 2
	plan, err := compaction.Analyze(ctx, tbl, cfg)
	if err != nil {
		return err
	}
	groups := make([]table.CompactionTaskGroup, len(plan.Groups))
	for i, g := range plan.Groups {
		groups[i] = table.CompactionTaskGroup{PartitionKey: g.PartitionKey, Tasks: g.Tasks, TotalSizeBytes: g.TotalSizeBytes}
	}
	_, err = tx.RewriteDataFiles(ctx, groups, table.RewriteDataFilesOptions{})
	return err
}
