package lake

import (
	"fmt"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/testkit/spelling"
)

// deeds of other engines that a table goes on after, and what the audit says of
// them (plain, deep).
var othersDo = []struct {
	name        string
	do          func(b *bench, o *other)
	rows        int64 // that it changes the number of rows by
	plain, deep Verdict
}{
	{name: "append", do: func(_ *bench, o *other) { o.insert(3, nil) }, rows: 3},
	{name: "delete of rows of others", do: func(b *bench, o *other) {
		o.insert(2, nil)
		o.do(func(tx *table.Transaction) error {
			return tx.Delete(b.Context(), iceberg.IsNull(iceberg.Reference("id")), nil)
		})
	}},
	{name: "delete of rows of ours", rows: -2, plain: Violated, deep: Violated, do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error {
			return tx.Delete(b.Context(), iceberg.EqualTo(iceberg.Reference("id"), int64(1)), nil)
		})
	}},
	{name: "delete files", rows: -2, plain: Unknown, deep: Violated, do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error {
			return tx.SetProperties(iceberg.Properties{"write.delete.mode": "merge-on-read"})
		})
		o.do(func(tx *table.Transaction) error {
			return tx.Delete(b.Context(), iceberg.EqualTo(iceberg.Reference("id"), int64(1)), nil)
		})
	}},
	{name: "overwrite of everything", rows: -5, plain: Violated, deep: Violated, do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error { return tx.Delete(b.Context(), iceberg.AlwaysTrue{}, nil) })
	}},
	{name: "compaction", do: func(b *bench, o *other) { o.compact() }},
	{name: "rewriting of manifests", do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error {
			_, err := tx.RewriteManifests(b.Context())
			return err
		})
	}},
	{name: "expiry of all but the newest, which is foreign", rows: 1, do: func(_ *bench, o *other) {
		o.insert(1, nil)
		o.do(func(tx *table.Transaction) error {
			return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
		})
	}},
	{name: "a column", do: func(_ *bench, o *other) {
		o.do(func(tx *table.Transaction) error {
			return tx.UpdateSchema(true, false).AddColumn([]string{"note"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit()
		})
	}},
	{name: "a partition field", do: func(_ *bench, o *other) { // T7
		o.do(func(tx *table.Transaction) error {
			return tx.UpdateSpec(true).AddField("id", iceberg.BucketTransform{NumBuckets: 4}, "id_bucket").Commit()
		})
	}},
	{name: "a sort order", do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error {
			fields, err := parseSort("id")
			if err != nil {
				return err
			}
			order, err := sortOrder(fields, b.Head().Schema)
			if err != nil {
				return err
			}
			return tx.ReplaceSortOrder(order)
		})
	}},
	{name: "a branch with rows of its own, and a tag", do: func(b *bench, o *other) {
		now := o.tbl.CurrentSnapshot().SnapshotID
		_, _, err := b.cat.CommitTable(b.Context(), b.ident, nil, []table.Update{
			table.NewSetSnapshotRefUpdate("staging", now, table.BranchRef, 0, 0, 0),
			table.NewSetSnapshotRefUpdate("keep", now, table.TagRef, 0, 0, 0),
		})
		require.NoError(b, err)
	}},
	{name: "our tag taken away", do: func(b *bench, _ *other) {
		_, _, err := b.cat.CommitTable(b.Context(), b.ident, nil, []table.Update{table.NewRemoveSnapshotRefUpdate(tag)})
		require.NoError(b, err)
	}},
	{name: "our copy taken away", do: func(b *bench, o *other) {
		o.do(func(tx *table.Transaction) error { return tx.RemoveProperties([]string{propertyMark}) })
	}},
}

// G1, G9, T1, T2, T7, C16: whatever others do between two commits of ours, the
// positions are found, the next commit goes on there, and the audit says whether
// rows of ours are left.
func TestCommitsGoOnWhateverOthersDoInBetween(t *testing.T) {
	for _, d := range othersDo {
		t.Run(d.name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 3)
			b.commitRows(part(1), 2)
			d.do(b, b.other())
			h := b.reload()
			require.NoError(t, h.RolledBack)
			require.NoError(t, h.StateLost)
			want := ident.Vector{part(0): 3, part(1): 2}
			require.Equal(t, want, h.State.Vector())
			b.commitRows(part(0), 4)
			want[part(0)] = 7
			require.Equal(t, want, b.Head().State.Vector())
			require.Equal(t, 9+d.rows, b.rows(tableName))
			requireVerdict(t, d.plain, b.audit(false))
			requireVerdict(t, d.deep, b.audit(true))

			// What a fresh process makes of it.
			again, err := b.lake.Load(t.Context(), tableName)
			require.NoError(t, err)
			require.Equal(t, want, again.Head().State.Vector())
		})
	}
}

// T5: a table that is renamed is gone for us, under the new name it is whole, and
// when it is named back the next commit goes on.
func TestARenamedTableIsGoneUntilItIsNamedBack(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 3)
	st := b.stage(b.change(KindProgress))
	elsewhere := []string{"shop", "orders_old"}
	rename := func(from, to []string) {
		t.Helper()
		_, err := b.cat.RenameTable(t.Context(), from, to)
		require.NoError(t, err)
	}
	rename(b.ident, elsewhere)
	_, err := b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
	require.Error(t, b.Send(t.Context(), st))
	r, err := Audit(t.Context(), b.lake, "shop.orders_old", AuditOptions{Deep: true})
	require.NoError(t, err)
	requireVerdict(t, Proven, r)
	rename(elsewhere, b.ident)
	b.reload()
	b.commitRows(part(0), 2)
	require.Equal(t, int64(5), b.rows(tableName))
	requireVerdict(t, Proven, b.audit(true))
}

// Pipelines of one table keep their own state across everything that others do.
func TestPipelinesOfOneTableKeepTheirStateAmongOthers(t *testing.T) {
	second := ident.Partition{Pipeline: "r", Topic: "returns", TopicID: ident.UUID{2}}
	b := newBench(t, Settings{})
	for i := range int64(3) {
		b.commitRows(part(0), 3)
		b.commitFor(second, 2)
		b.other().insert(1, nil)
		b.reload()
		require.Equal(t, ident.Vector{part(0): 3 * (i + 1), second: 2 * (i + 1)}, b.Head().State.Vector())
	}
	b.other().compact()
	b.reload()
	b.commitFor(second, 2)
	r := b.audit(true)
	requireVerdict(t, Proven, r)
	require.Equal(t, fmt.Sprint(9+8), fmt.Sprint(r.Rows))
}

// T10: a manifest may spell the format of a file as the specification does, and as
// DuckDB does. Rows are read from such files, our own ones are counted, and the
// quarantined ones are found.
func TestFilesAreReadHoweverTheirFormatIsSpelled(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 3)
	b.other().insert(2, nil)
	spelling.Lower(t, b.other().tbl)
	b.reload()
	b.commitRows(part(0), 4)
	requireVerdict(t, Proven, b.audit(true))

	c := b.change("data")
	b.poison(&c, quarantined(part(1), c.advance(part(1), Totals{Quarantined: 2})))
	b.commit(c)
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	q, err := b.lake.Load(t.Context(), quarantineName)
	require.NoError(t, err)
	spelling.Lower(t, q.handle())
	requireVerdict(t, Proven, b.audit(true))
	var found int
	require.NoError(t, b.ReadQuarantine(t.Context(), QuarantineFilter{}, false, func(Quarantined) error { found++; return nil }))
	require.Equal(t, 2, found)
}
