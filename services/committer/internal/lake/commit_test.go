package lake

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

func TestRowsOfACommitAreReadBackWithItsState(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 25})
	c.advance(part(1), Totals{Skipped: map[event.SkipReason]int64{event.SkipControl: 2}})
	c.Files = b.write(b.batch(part(0), r))
	st := b.commit(c)

	h := b.Head()
	require.Equal(t, int64(25), b.rows(tableName))
	require.Equal(t, st.SnapshotID, h.SnapshotID)
	require.Equal(t, st.SnapshotID, h.StateSnapshot)
	require.Equal(t, st.Sequence, h.Sequence)
	require.False(t, h.Foreign())
	require.Equal(t, ident.Vector{part(0): 25, part(1): 2}, h.State.Vector())
	require.Equal(t, c.CommitID, h.State.CommitID)
	require.Equal(t, map[ident.Partition]int64{part(0): 0, part(1): 0}, h.State.Pipelines["p"].First)
	require.Equal(t, int64(2), h.State.Pipelines["p"].Totals[part(1)].Skipped[event.SkipControl])
	require.Equal(t, schema.NumberMap{"1": h.Schema.Columns[0].FieldID}, h.Numbers["p"])
	require.Equal(t, h.State.Vector(), h.Event().Positions.Vector())
}

// C1, C20: the second of two commits from one base loses, whoever it is.
func TestACommitFromAnOldHeadNeverLands(t *testing.T) {
	b := newBench(t, Settings{})
	zombie, err := b.lake.Load(t.Context(), tableName)
	require.NoError(t, err)
	z := &bench{TB: t, lake: b.lake, Table: zombie, dir: b.dir}
	zc := z.change(KindData)
	r := zc.advance(part(0), Totals{Rows: 5})
	zc.Files = z.write(z.batch(part(0), r))
	zst := z.stage(zc)

	b.commitRows(part(0), 7)

	require.Error(t, z.Send(t.Context(), zst))
	z.reload()
	require.False(t, z.Find(zc.CommitID))
	require.Equal(t, int64(7), b.rows(tableName))
	// The head has left the base without it: absence is proven, everything may go.
	z.Discard(t.Context(), zst)
	z.DeleteFiles(t.Context(), zc.Files)
	requireGone(t, zc.Files[0].Path)
	requireGone(t, zst.snapshot.ManifestList)
	require.Equal(t, int64(7), b.rows(tableName))
}

func TestAWriterOfAnOlderEpochIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	fence := b.change(KindWriter)
	fence.State.WriterEpoch++
	old := b.change(KindProgress)
	old.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipAbsent: 1}})
	b.commit(fence)
	_, err := b.Stage(t.Context(), old)
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
	require.Equal(t, ident.WriterEpoch(2), b.Head().State.WriterEpoch)
}

// G1: what the committer checks before, the lake checks again against the very
// snapshot that it asserts.
func TestARangeThatDoesNotBeginWhereTheTableEndsIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 10)
	for name, spoil := range map[string]func(*Change){
		"hole": func(c *Change) { c.State.Pipelines["p"].First[part(0)]++; c.State.Pipelines["p"].Delta.Rows-- },
		"overlap": func(c *Change) {
			c.State.Pipelines["p"].First[part(0)]--
			c.State.Pipelines["p"].Delta.Rows++
		},
		"counts": func(c *Change) { c.State.Pipelines["p"].Delta.Rows++ },
		"back": func(c *Change) {
			p := c.State.Pipelines["p"]
			p.Positions[part(0)], p.Totals[part(0)] = ident.Position{Next: 4}, Totals{Rows: 4}
			p.First, p.Delta = nil, Totals{}
		},
	} {
		c := b.change(KindProgress)
		c.advance(part(0), Totals{Rows: 3})
		spoil(&c)
		_, err := b.Stage(t.Context(), c)
		require.Error(t, err, name)
	}
}

// failing answers a commit with an error after, or instead of, doing it.
type failing struct {
	catalog.Catalog
	apply   bool
	err     error
	refuse  func([]table.Update) bool
	commits int
}

func (f *failing) CommitTable(ctx context.Context, id table.Identifier, r []table.Requirement, u []table.Update) (table.Metadata, string, error) {
	f.commits++
	if f.refuse != nil {
		if f.refuse(u) {
			return nil, "", f.err
		}
		return f.Catalog.CommitTable(ctx, id, r, u)
	}
	if f.apply {
		if _, _, err := f.Catalog.CommitTable(ctx, id, r, u); err != nil {
			return nil, "", err
		}
	}
	return nil, "", f.err
}

// C1, C2, C4: an answer that got lost says nothing; the table does.
func TestAnAmbiguousCommitIsSettledByTheTable(t *testing.T) {
	for _, landed := range []bool{true, false} {
		t.Run(fmt.Sprint("landed ", landed), func(t *testing.T) {
			b := newBench(t, Settings{})
			c := b.rowsOf(part(0), 5)
			st := b.stage(c)
			real := b.cat
			b.cat = &failing{Catalog: real, apply: landed, err: errors.New("connection reset")}
			err := b.Send(t.Context(), st)
			require.Equal(t, fault.Unavailable, fault.ReasonOf(err))
			b.cat = real
			b.reload()
			require.Equal(t, landed, b.Find(c.CommitID))

			// While the head is the base the same snapshot may be sent again; when it
			// landed before, that changes nothing.
			err = b.Send(t.Context(), st)
			require.Equal(t, landed, err != nil)
			b.reload()
			require.True(t, b.Find(c.CommitID))
			require.Equal(t, int64(5), b.rows(tableName))
			report, err := Audit(t.Context(), b.lake, tableName, AuditOptions{Deep: true})
			require.NoError(t, err)
			require.Equal(t, Proven, report.Verdict, report.Text())
		})
	}
}

// T11: a catalog that forbids our property still takes our commits.
func TestACatalogThatRefusesPropertiesStillGetsExactCommits(t *testing.T) {
	b := newBench(t, Settings{})
	real := b.cat
	b.cat = &failing{Catalog: real, err: rest.ErrBadRequest, refuse: func(u []table.Update) bool {
		for _, one := range u {
			if one.Action() == table.UpdateSetProperties {
				return true
			}
		}
		return false
	}}
	b.commitRows(part(0), 4)
	b.commitRows(part(0), 3)
	require.Equal(t, int64(7), b.rows(tableName))
	h := b.reload()
	require.NoError(t, h.RolledBack)
	require.Equal(t, ident.Vector{part(0): 7}, h.State.Vector())
}

// T2: foreign snapshots lie on top and in between.
func TestTheStateIsFoundBelowForeignSnapshots(t *testing.T) {
	b := newBench(t, Settings{})
	st := b.commitRows(part(0), 5)
	o := b.other()
	o.insert(1, nil)
	o.insert(1, nil)
	h := b.reload()
	require.True(t, h.Foreign())
	require.Equal(t, st.SnapshotID, h.StateSnapshot)
	require.Equal(t, ident.Vector{part(0): 5}, h.State.Vector())

	b.commitRows(part(0), 5)
	require.False(t, b.Head().Foreign())
	require.Equal(t, int64(12), b.rows(tableName))
}

func TestARollBackByOthersIsNoticedAndNothingIsCommittedOnIt(t *testing.T) {
	b := newBench(t, Settings{})
	first := b.commitRows(part(0), 5)
	b.commitRows(part(0), 4)
	b.other().do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(first.SnapshotID) })
	h := b.reload()
	require.ErrorIs(t, h.RolledBack, fault.Of(fault.Stopped))
	require.ErrorContains(t, h.RolledBack, "It stands at p/orders[0] 5, was 9. Roll it forward")
	_, err := b.Stage(t.Context(), b.change(KindProgress))
	require.ErrorIs(t, err, fault.Of(fault.Stopped))

	// A foreign insert on top hides nothing.
	b.other().insert(1, nil)
	require.Error(t, b.reload().RolledBack)

	reset := b.change(KindReset)
	b.commit(reset)
	require.NoError(t, b.Head().RolledBack)
	b.commitRows(part(0), 4)
	require.Equal(t, int64(10), b.rows(tableName))
}

// T1: another engine expired every snapshot of ours.
func TestTheStateSurvivesAnExpiryOfAllOwnSnapshots(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 5)
	o := b.other()
	o.insert(1, nil)
	o.insert(1, nil)
	o.do(func(tx *table.Transaction) error {
		// With the tag gone the engine may take everything but its newest.
		return errors.Join(tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0)))
	})
	h := b.reload()
	require.NoError(t, h.StateLost)
	require.NoError(t, h.RolledBack)
	require.Equal(t, ident.Vector{part(0): 5}, h.State.Vector())

	real := b.cat
	tbl, err := real.LoadTable(t.Context(), b.ident)
	require.NoError(t, err)
	_, _, err = real.CommitTable(t.Context(), b.ident, nil, []table.Update{table.NewRemoveSnapshotRefUpdate(tag)})
	require.NoError(t, err)
	o.insert(1, nil)
	o.do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
	require.NotNil(t, tbl)
	h = b.reload()
	require.Zero(t, h.Own)
	require.NoError(t, h.StateLost, "older metadata files prove the descent")
	require.Equal(t, ident.Vector{part(0): 5}, h.State.Vector())
	b.commitRows(part(0), 2)
	require.Equal(t, int64(10), b.rows(tableName))
}

func TestAStateThatNothingProvesIsNotTrusted(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 5)
	_, _, err := b.cat.CommitTable(t.Context(), b.ident, nil, []table.Update{
		table.NewRemoveSnapshotRefUpdate(tag),
		table.NewSetPropertiesUpdate(iceberg.Properties{table.MetadataPreviousVersionsMaxKey: "1"}),
	})
	require.NoError(t, err)
	o := b.other()
	o.insert(1, nil)
	o.insert(1, nil)
	o.do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
	o.insert(1, nil)
	o.do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
	h := b.reload()
	require.ErrorIs(t, h.StateLost, fault.Of(fault.Stopped))
	_, err = b.Stage(t.Context(), b.change(KindProgress))
	require.Error(t, err)
}

// T4: dropped and made again under the same name.
func TestAReCreatedTableIsNotTheOldOne(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindProgress)
	st := b.stage(c)
	require.NoError(t, b.cat.DropTable(t.Context(), b.ident))
	_, err := b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
	_, err = b.lake.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test"})
	require.NoError(t, err)
	require.Error(t, b.Send(t.Context(), st))
	_, err = b.Reload(t.Context())
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
}

func TestATableOfAnotherSinkIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	b.other().insert(1, iceberg.Properties{"kafka.connect.offsets.control.x": "{}"})
	_, err := b.lake.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
	require.ErrorContains(t, err, "Kafka Connect")
}

func TestAStateOfANewerFormatIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	b.other().insert(1, iceberg.Properties{keyFormat: "2", keyCommitID: newID().String()})
	_, err := b.lake.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
	require.ErrorContains(t, err, "format 2")
}

func TestOwnedListsTheTablesOfADeployment(t *testing.T) {
	b := newBench(t, Settings{})
	_, err := b.lake.Create(t.Context(), "other.deep.table", Settings{LSN: true, Owner: "else"})
	require.NoError(t, err)
	_, err = b.quarantine(t.Context(), true)
	require.NoError(t, err)
	owned, err := b.lake.Owned(t.Context(), "test")
	require.NoError(t, err)
	require.Equal(t, []string{tableName}, owned)
	_, err = b.lake.Load(t.Context(), "shop.none")
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
}

// T13, T14, G6: old snapshots and metadata go, what is needed stays.
func TestExpiryKeepsTheStateAndTheRows(t *testing.T) {
	b := newBench(t, Settings{})
	for range 8 {
		b.commitRows(part(0), 3)
	}
	// Nine snapshots of ours: sequence numbers 1 (schema) to 9.
	require.Equal(t, 6, b.Expirable(ExpirePolicy{Keep: 3}))
	require.Equal(t, 3, b.Expirable(ExpirePolicy{Keep: 3, NotBelow: 4}))
	require.Equal(t, 0, b.Expirable(ExpirePolicy{}))
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 3}
	before := len(b.handle().Metadata().Snapshots())
	b.cleanAt = 1
	st := b.commit(c)
	require.NoError(t, b.Clean(t.Context(), st))
	after := b.handle().Metadata().Snapshots()
	require.Equal(t, 9, before)
	require.Len(t, after, 4)
	require.Equal(t, int64(24), b.rows(tableName))
	require.Equal(t, ident.Vector{part(0): 24}, b.Head().State.Vector())
	lists, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "orders", "metadata", "snap-*"))
	require.NoError(t, err)
	require.Len(t, lists, 4)
}

// An expiry rides on a data commit, and the files of several go together: those that nothing names any more, and no
// other (G6).
func TestExpiryRidesOnDataAndIsCleanedUpAfterTogether(t *testing.T) {
	b := newBench(t, Settings{})
	b.cleanAt = 6
	lists := func() int {
		found, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "orders", "metadata", "snap-*"))
		require.NoError(t, err)
		return len(found)
	}
	for range 5 {
		b.commitRows(part(0), 3)
	}
	for round := range 2 {
		for range 3 {
			b.commitRows(part(0), 3)
		}
		had := lists()
		c := b.rowsOf(part(0), 3)
		c.Expire = &ExpirePolicy{Keep: len(b.handle().Metadata().Snapshots()) - 3}
		st := b.commit(c)
		require.Len(t, st.expired, 3)
		require.NoError(t, b.Clean(t.Context(), st))
		if round == 0 {
			require.Equal(t, had+1, lists(), "three are too few to look for")
		} else {
			require.Equal(t, had+1-6, lists())
		}
	}
	require.Equal(t, int64(39), b.rows(tableName))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

// keeper is a catalog that keeps snapshots that it is asked to remove, and counts
// how often it is.
type keeper struct {
	catalog.Catalog
	asked int
}

func (k *keeper) CommitTable(ctx context.Context, id table.Identifier, r []table.Requirement, u []table.Update) (table.Metadata, string, error) {
	u = slices.DeleteFunc(slices.Clone(u), func(one table.Update) bool {
		removal := one.Action() == table.UpdateRemoveSnapshots
		if removal {
			k.asked++
		}
		return removal
	})
	return k.Catalog.CommitTable(ctx, id, r, u)
}

// G6: what the table says counts, not what was asked for.
func TestSnapshotsThatTheCatalogKeepsKeepTheirFiles(t *testing.T) {
	b := newBench(t, Settings{})
	for range 8 {
		b.commitRows(part(0), 3)
	}
	b.cat, b.cleanAt = &keeper{Catalog: b.cat}, 1
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 3}
	st := b.commit(c)
	require.Len(t, st.expired, 6)
	require.NoError(t, b.Clean(t.Context(), st))
	require.Len(t, b.handle().Metadata().Snapshots(), 10)
	lists, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "orders", "metadata", "snap-*"))
	require.NoError(t, err)
	require.Len(t, lists, 10)
	require.Equal(t, Proven, b.audit(true).Verdict)
}

// A list of snapshots to be removed is right when it is made: a request that is sent
// again, maybe after an outage, leaves it out.
func TestARequestThatIsSentAgainRemovesNoSnapshots(t *testing.T) {
	b := newBench(t, Settings{})
	for range 8 {
		b.commitRows(part(0), 3)
	}
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 3}
	st := b.stage(c)
	real := b.cat
	b.cat = &failing{Catalog: real, err: errors.New("connection reset")}
	require.Error(t, b.Send(t.Context(), st))
	k := &keeper{Catalog: real}
	b.cat = k
	require.NoError(t, b.Send(t.Context(), st))
	require.Zero(t, k.asked)
	b.reload()
	require.True(t, b.Find(c.CommitID))
	require.Equal(t, 7, b.Expirable(*c.Expire), "the next commit that expires takes them along")
}

func TestOldMetadataFilesAreRemoved(t *testing.T) {
	b := newBench(t, Settings{Properties: map[string]string{table.MetadataPreviousVersionsMaxKey: "2"}})
	for range 6 {
		b.commit(b.change(KindProgress))
	}
	left, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "orders", "metadata", "*.metadata.json"))
	require.NoError(t, err)
	require.Len(t, left, 3)
}

func TestEndedEpochsAreRemembered(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 5)
	for range 2 {
		c := b.change(KindFence)
		c.State.LogEpoch++
		c.State.LSN = ident.LSNState{Start: c.State.LSN.Reserved, Next: c.State.LSN.Reserved, Reserved: c.State.LSN.Reserved + ident.Reservation}
		b.commit(c)
		b.commitRows(part(0), 1)
	}
	require.Equal(t, []event.EndedEpoch{
		{Epoch: 1, Base: ident.Vector{part(0): 5}}, {Epoch: 2, Base: ident.Vector{part(0): 6}},
	}, b.Head().Ended)
}

// A table that others made is looked after from our first commit on.
func TestATableMadeByOthersIsOwnedAfterTheFirstCommit(t *testing.T) {
	l := newLake(t, t.TempDir())
	columns := &schema.Schema{Columns: columns()}
	columns.AssignIDs()
	require.NoError(t, l.create(t.Context(), tableName, columns, nil))
	tbl, err := l.Load(t.Context(), tableName)
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl}
	b.other().insert(3, nil)
	b.reload()
	require.Zero(t, b.Head().State.Format)
	b.commit(b.change(KindWriter))
	owned, err := l.Owned(t.Context(), "test")
	require.NoError(t, err)
	require.Equal(t, []string{tableName}, owned)
	r := b.audit(false)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// T13, T14: many small commits leave few manifests and one line of metadata each.
func TestManySmallCommitsKeepManifestsFew(t *testing.T) {
	b := newBench(t, Settings{Properties: map[string]string{table.ManifestMinMergeCountKey: "5"}})
	for range 12 {
		b.commitRows(part(0), 1)
	}
	files, err := b.files(t.Context())
	require.NoError(t, err)
	manifests, err := b.handle().Metadata().CurrentSnapshot().Manifests(files)
	require.NoError(t, err)
	require.LessOrEqual(t, len(manifests), 5)
	require.Equal(t, int64(12), b.rows(tableName))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// C13: a crash before the first snapshot of ours leaves an intent and its files,
// and a table that the next committer starts from.
func TestACrashBeforeTheFirstCommitIsUndone(t *testing.T) {
	l := newLake(t, t.TempDir())
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test"})
	require.NoError(t, err)
	require.Zero(t, tbl.Head().State.Format)
	b := &bench{TB: t, lake: l, Table: tbl}
	b.setSchema()
	files := b.write(b.batch(part(0), ident.Range{Next: 3}))

	again, err := l.Load(t.Context(), tableName)
	require.NoError(t, err)
	intents, err := again.Intents(t.Context())
	require.NoError(t, err)
	require.Len(t, intents, 1)
	next := &bench{TB: t, lake: l, Table: again}
	fence := next.change(KindWriter)
	fence.State.WriterEpoch++
	next.commit(fence)
	require.NoError(t, again.Undo(t.Context(), intents[0]))
	requireGone(t, files[0].Path)
	next.commitRows(part(0), 3)
	require.Equal(t, int64(3), next.rows(tableName))
}

// C16: a foreign append between our look and our commit costs us a try, and
// neither side a row.
func TestAForeignAppendInBetweenLosesNothing(t *testing.T) {
	b := newBench(t, Settings{})
	for range 5 {
		c := b.rowsOf(part(0), 4)
		st := b.stage(c)
		b.other().insert(1, nil)
		require.Error(t, b.Send(t.Context(), st))
		b.reload()
		require.False(t, b.Find(c.CommitID))
		b.commit(c) // same files on the new head
	}
	require.Equal(t, int64(25), b.rows(tableName))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// A clock that was set back, or that of another writer which ran ahead, is named with what to do (O10); commits go on by
// themselves when it is right again (G11).
func TestAClockBehindTheTableIsNamed(t *testing.T) {
	b := newBench(t, Settings{})
	at := time.UnixMilli(b.handle().Metadata().LastUpdatedMillis())
	require.NoError(t, clock(tableName, b.handle().Metadata(), at.Add(-clockSlack)), "as catalogs do")
	err := clock(tableName, b.handle().Metadata(), at.Add(-time.Hour))
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))
	require.ErrorContains(t, err, "1h0m0s behind")
}
