package lake

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// replayable is a table with rows, and quarantined records at the offsets 4 to 9
// of partition 0 and 0 to 3 of partition 1, in two files.
func replayable(t *testing.T) *bench {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 4)
	for n, count := range map[int32]int64{0: 6, 1: 4} {
		c := b.change(KindData)
		r := c.advance(part(n), Totals{Quarantined: count})
		b.poison(&c, quarantined(part(n), r))
		b.commit(c)
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	}
	b.commit(b.forgetApplied(KindProgress))
	return b
}

// forgetApplied is a change that leaves the entries of the outbox out.
func (b *bench) forgetApplied(kind string) Change {
	c := b.change(kind)
	for _, p := range c.State.Pipelines {
		p.Pending = nil
	}
	return c
}

// replay lands the offsets of partition 0 as rows; the mark stays pending.
func (b *bench) replay(offsets ...ident.Range) *Staged {
	b.Helper()
	c := b.forgetApplied(KindReplay)
	pl := c.State.Pipelines["p"]
	e := PendingQuarantine{CommitID: c.CommitID, Replayed: map[ident.Partition][]ident.Range{part(0): offsets}}
	pl.Pending = append(pl.Pending, e)
	pl.Delta = Totals{Rows: e.ReplayedRows(), Quarantined: -e.ReplayedRows()}
	pl.Totals[part(0)] = pl.Totals[part(0)].Add(pl.Delta)
	for _, r := range offsets {
		c.Files = append(c.Files, b.write(b.batch(part(0), r))...)
	}
	return b.commit(c)
}

func (b *bench) bad(f QuarantineFilter) []Quarantined {
	b.Helper()
	var out []Quarantined
	require.NoError(b, b.ReadQuarantine(b.Context(), f, false, func(q Quarantined) error {
		out = append(out, q)
		return nil
	}))
	slices.SortFunc(out, func(x, y Quarantined) int { return int(x.Offset-y.Offset) + 100*x.Partition.Compare(y.Partition) })
	return out
}

func offsets(list []Quarantined) []int64 {
	out := make([]int64, 0, len(list))
	for _, q := range list {
		out = append(out, q.Offset)
	}
	return out
}

// G1: the audit is proven at each step of a replay, and each record is marked
// once, however often the outbox is applied.
func TestReplayedRecordsAreMarkedOnceAndTheAuditIsProvenAtEveryStep(t *testing.T) {
	b := replayable(t)
	st := b.replay(ident.Range{First: 5, Next: 7}, ident.Range{First: 8, Next: 9})
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Equal(t, int64(3), r.Replayed, "the outbox says so")
		require.Equal(t, int64(7), r.Rows)
	}
	for range 2 {
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	}
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Equal(t, int64(3), r.Replayed)
		require.Equal(t, int64(10), r.Quarantine, "the records stay")
	}
	require.Equal(t, []int64{4, 7, 9, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
	for _, q := range b.bad(QuarantineFilter{}) {
		if q.ReplayedIn != "" {
			require.Equal(t, st.CommitID.String(), q.ReplayedIn)
			require.Contains(t, []int64{5, 6, 8}, q.Offset)
		}
	}
	// The next commit drops the entry.
	b.commit(b.forgetApplied(KindProgress))
	require.Equal(t, Proven, b.audit(true).Verdict)

	// A second replay of others marks those alone.
	b.replay(ident.Range{First: 9, Next: 10})
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.Equal(t, []int64{4, 7, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

func TestQuarantinedRecordsAreReadAsTheyWere(t *testing.T) {
	b := replayable(t)
	one := int64(2)
	list := b.bad(QuarantineFilter{Topic: "orders", Partition: new(int32(1)), From: &one, Reason: "bad_magic"})
	require.Equal(t, []int64{2, 3}, offsets(list))
	q := list[0]
	require.Equal(t, part(1), q.Partition)
	require.Equal(t, "record 2", string(q.Value))
	require.Nil(t, q.Key)
	require.Equal(t, []QuarantinedHeader{{Key: "trace", Value: []byte{2}}}, q.Headers)
	require.Equal(t, ident.LSN(1002), *q.LSN)
	require.Nil(t, q.SchemaID)
	require.Empty(t, b.bad(QuarantineFilter{Reason: "other"}))
	require.Empty(t, b.bad(QuarantineFilter{SchemaID: new(int32(7))}))
	require.Empty(t, b.bad(QuarantineFilter{Pipeline: "q"}))
	var light []int64
	filter := QuarantineFilter{Pipeline: "p", Topic: "orders", Partition: new(int32(1)), From: &one, Reason: "bad_magic", Waiting: true}
	require.NoError(t, b.ReadQuarantine(t.Context(), filter, true, func(q Quarantined) error {
		require.Nil(t, q.Value)
		light = append(light, q.Offset)
		return nil
	}))
	require.Equal(t, []int64{2, 3}, light)
}

// A crash, or an answer that got lost, while the mark is set: it is set once, and
// the files of the lost try go once no request of it can land any more (G6).
func TestAnAmbiguousMarkIsSettledAndLeavesNoFiles(t *testing.T) {
	for _, landed := range []bool{true, false} {
		b := replayable(t)
		b.replay(ident.Range{First: 5, Next: 7})
		before := b.quarantineFiles()
		real := b.lake.cat
		b.outbox = nil
		b.lake.cat = &failing{Catalog: real, apply: landed, err: errors.New("connection reset")}
		err := b.ApplyQuarantine(t.Context(), b.Head().State.Pending())
		if landed {
			require.NoError(t, err, "the table itself says that it landed")
		} else {
			require.ErrorIs(t, err, fault.Of(fault.Unavailable))
			require.Greater(t, len(b.quarantineFiles()), len(before), "a request may still arrive")
		}
		b.lake.cat, b.outbox = real, nil
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		require.Len(t, b.quarantineFiles(), len(before)+1, "the file written again, and nothing of lost tries")
		require.Equal(t, Proven, b.audit(true).Verdict)
		require.Equal(t, int64(10), b.rows(quarantineName))
	}
}

// sparse is a table with quarantined records in five files, of two each, all of
// which a replay landed: the mark is pending.
func sparse(t *testing.T) *bench {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 4)
	for range 5 {
		c := b.change(KindData)
		b.poison(&c, quarantined(part(0), c.advance(part(0), Totals{Quarantined: 2})))
		b.commit(c)
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	}
	b.commit(b.forgetApplied(KindProgress))
	var list []ident.Range
	for o := int64(4); o < 14; o += 2 {
		list = append(list, ident.Range{First: o, Next: o + 1})
	}
	b.replay(list...)
	b.marks.limit = 2
	return b
}

// A replay of records in many files is marked in several snapshots, one a call, so
// that commits come in between; a crash, or an answer that got lost, between two
// of them marks nothing twice, and the audit is proven at every step.
func TestAMarkOfManyFilesTakesSeveralCallsAndGoesOnWhereItWas(t *testing.T) {
	for _, crash := range []bool{false, true} {
		b := sparse(t)
		before := len(b.quarantineFiles())
		require.ErrorIs(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()), ErrMarking)
		require.Len(t, b.bad(QuarantineFilter{Waiting: true}), 8)
		for _, deep := range []bool{false, true} {
			r := b.audit(deep)
			require.Equal(t, Proven, r.Verdict, r.Text())
			require.Equal(t, int64(5), r.Replayed)
		}
		if crash {
			b.marks = &marking{limit: 2}
		}
		real := b.lake.cat
		b.outbox = nil
		b.lake.cat = &failing{Catalog: real, apply: true, err: errors.New("connection reset")}
		require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		b.lake.cat, b.outbox = real, nil
		require.Len(t, b.bad(QuarantineFilter{Waiting: true}), 6, "it had landed")
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		require.Equal(t, []int64{5, 7, 9, 11, 13}, offsets(b.bad(QuarantineFilter{Waiting: true})))
		require.Equal(t, Proven, b.audit(true).Verdict)
		require.Len(t, b.quarantineFiles(), before+3, "nothing of lost tries")
	}
}

// G7: an outage of the catalog does not fill the disk with copies of the files that
// are to be marked.
func TestAnOutageLeavesOneCopyOfTheFilesToBeMarked(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	before := len(b.quarantineFiles())
	real := b.lake.cat
	b.lake.cat = &failing{Catalog: real, err: errors.New("connection reset")}
	for range 4 {
		b.outbox = nil
		require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		require.Len(t, b.quarantineFiles(), before+1)
	}
	b.lake.cat, b.outbox = real, nil
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.Len(t, b.quarantineFiles(), before+1)
	require.Equal(t, Proven, b.audit(true).Verdict)
}

// tardy is a catalog that looks at the first request when it is told to, and never
// at another.
type tardy struct {
	catalog.Catalog
	arrive func() error
}

func (c *tardy) CommitTable(ctx context.Context, id table.Identifier, r []table.Requirement, u []table.Update) (table.Metadata, string, error) {
	if c.arrive == nil {
		c.arrive = func() error {
			_, _, err := c.Catalog.CommitTable(context.WithoutCancel(ctx), id, r, u)
			return err
		}
	}
	return nil, "", errors.New("connection reset")
}

// amnesiac is a catalog that commits without an answer, and shows an old copy of the
// table from then on.
type amnesiac struct {
	catalog.Catalog
	old *table.Table
	now bool
}

func (c *amnesiac) CommitTable(ctx context.Context, id table.Identifier, r []table.Requirement, u []table.Update) (table.Metadata, string, error) {
	c.now = true
	if _, _, err := c.Catalog.CommitTable(ctx, id, r, u); err != nil {
		return nil, "", err
	}
	return nil, "", errors.New("connection reset")
}

func (c *amnesiac) LoadTable(ctx context.Context, id table.Identifier) (*table.Table, error) {
	if c.now {
		return c.old, nil
	}
	return c.Catalog.LoadTable(ctx, id)
}

// G6, C5: a copy of the quarantine table from before a request was built proves nothing
// of it, though the committer has a new handle of the table since.
func TestAnOldCopyOfTheQuarantineTableDoesNotSettleARequest(t *testing.T) {
	for name, plant := range map[string]func(*bench){
		"records": func(b *bench) {
			c := b.change(KindData)
			b.poison(&c, quarantined(part(1), c.advance(part(1), Totals{Quarantined: 2})))
			b.commit(c)
		},
		"marks": func(b *bench) { b.replay(ident.Range{First: 5, Next: 7}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 4)
			apply := func() error { return b.ApplyQuarantine(t.Context(), b.Head().State.Pending()) }
			var old *table.Table
			for range 2 {
				c := b.change(KindData)
				b.poison(&c, quarantined(part(0), c.advance(part(0), Totals{Quarantined: 4})))
				b.commit(c)
				require.NoError(t, apply())
				b.commit(b.forgetApplied(KindProgress))
				if old == nil {
					q, err := b.lake.Load(t.Context(), quarantineName)
					require.NoError(t, err)
					old = q.handle()
				}
			}
			plant(b)
			real := b.lake.cat
			b.lake.cat, b.outbox = &amnesiac{Catalog: real, old: old}, nil
			for range 3 {
				require.Error(t, apply())
			}
			b.lake.cat, b.outbox = real, nil
			require.NoError(t, apply())
			requireVerdict(t, Proven, b.audit(true))
		})
	}
}

// G6: while the head stands, the first request to mark may still arrive, however
// many tries follow it: the files that it names stay.
func TestARequestToMarkThatArrivesLateNamesFilesThatAreThere(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	real := b.lake.cat
	slow := &tardy{Catalog: real}
	b.lake.cat = slow
	for range 3 {
		b.outbox = nil
		require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	}
	require.NoError(t, slow.arrive())
	b.lake.cat, b.outbox = real, nil
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
	require.Equal(t, []int64{4, 7, 8, 9, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
}

// G6, G9: the same where the quarantine table is rolled back meanwhile, and forward
// again, as we ask for.
func TestARequestToMarkThatArrivesAfterARollForwardNamesFilesThatAreThere(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	real := b.lake.cat
	slow := &tardy{Catalog: real}
	b.lake.cat, b.outbox = slow, nil
	require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	base := q.handle().CurrentSnapshot()
	qb := &bench{TB: t, lake: b.lake, Table: q, dir: b.dir}
	qb.rollTo(real, *base.ParentSnapshotID)
	b.outbox = nil
	require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	qb.rollTo(real, base.SnapshotID)
	require.NoError(t, slow.arrive())
	b.lake.cat, b.outbox = real, nil
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	requireVerdict(t, Proven, b.audit(true))
	require.Equal(t, []int64{4, 7, 8, 9, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
}

// Others replace the head while the outcome of a mark is open: what was written for
// the old head goes, and the mark is set on the new one.
func TestAMarkThatSomebodyForestalledIsWrittenAnew(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	before := len(b.quarantineFiles())
	real := b.lake.cat
	b.outbox = nil
	b.lake.cat = &failing{Catalog: real, err: errors.New("connection reset")}
	require.Error(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	b.lake.cat, b.outbox = real, nil
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	o := &other{TB: t, tbl: q.handle()}
	o.insert(1, nil)
	theirs := 1
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.Len(t, b.quarantineFiles(), before+1+theirs)
	require.Equal(t, []int64{4, 7, 8, 9, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
}

// G6: a committer that was fenced and does not know it yet finds its entry applied
// by its successor, which is about to mark the next one.
func TestAFencedCommitterRemovesNoFilesOfAMarkUnderWay(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	zombie := b.Head().State.Pending()
	old, err := newLake(t, b.dir).Load(t.Context(), tableName)
	require.NoError(t, err)
	require.NoError(t, b.ApplyQuarantine(t.Context(), zombie))
	b.replay(ident.Range{First: 8, Next: 9})
	real := b.lake.cat
	b.outbox = nil
	var files []string
	b.lake.cat = &failing{Catalog: real, refuse: func([]table.Update) bool {
		files = b.quarantineFiles()
		require.NoError(t, old.ApplyQuarantine(t.Context(), zombie))
		require.Equal(t, files, b.quarantineFiles())
		return false
	}}
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.NotEmpty(t, files)
	b.lake.cat, b.outbox = real, nil
	require.Equal(t, []int64{4, 7, 9, 0, 1, 2, 3}, offsets(b.bad(QuarantineFilter{Waiting: true})))
	require.Equal(t, Proven, b.audit(true).Verdict)
}

func (b *bench) quarantineFiles() []string {
	b.Helper()
	q, err := b.quarantine(b.Context(), false)
	require.NoError(b, err)
	path, err := q.dataLocation("x")
	require.NoError(b, err)
	list, err := os.ReadDir(strings.TrimSuffix(localPath(path), "/x"))
	require.NoError(b, err)
	var out []string
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".parquet") && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out
}

// G9: somebody removed quarantined records, or rewrote their files, between the
// replay and its mark.
func TestAMarkSurvivesWhatOthersDoToTheQuarantineTable(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	o := &other{TB: t, tbl: q.handle()}
	o.do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("offset"), int64(5)), nil)
	})
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.NotContains(t, offsets(b.bad(QuarantineFilter{})), int64(5))
	require.NotContains(t, offsets(b.bad(QuarantineFilter{Waiting: true})), int64(6))

	o.do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.AlwaysTrue{}, nil)
	})
	b.commit(b.forgetApplied(KindProgress))
	b.replay(ident.Range{First: 8, Next: 9})
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.Empty(t, b.bad(QuarantineFilter{}))
	q, err = b.quarantine(t.Context(), false)
	require.NoError(t, err)
	require.True(t, b.applied(q, b.Head().State.Pending()[0]), "it is done, and not tried for ever")
}

// G1, G9: somebody rolls the quarantine table back below a mark, which makes replayed
// records look as if they waited. Nothing is replayed from it, also not after
// further records came, until somebody mended it.
func TestAQuarantineTableThatWasRolledBackIsNotReplayedFrom(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	replayFrom := func() error {
		return b.ReadQuarantine(t.Context(), QuarantineFilter{Waiting: true, Whole: true}, true, func(Quarantined) error { return nil })
	}
	require.NoError(t, replayFrom(), "nothing was taken away yet")
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	require.NoError(t, replayFrom())
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	o := &other{TB: t, tbl: q.handle()}
	o.insert(1, nil)
	require.NoError(t, replayFrom(), "a snapshot of somebody else")
	marked := q.handle().CurrentSnapshot()
	o.do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(*marked.ParentSnapshotID) })
	err = replayFrom()
	require.ErrorIs(t, err, fault.Of(fault.Stopped))
	require.ErrorContains(t, err, "roll it forward")
	require.Len(t, b.bad(QuarantineFilter{Waiting: true}), 10, "people may look")

	b.outbox = nil
	c := b.forgetApplied(KindData)
	b.poison(&c, quarantined(part(1), c.advance(part(1), Totals{Quarantined: 1})))
	b.commit(c)
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	err = replayFrom()
	require.ErrorIs(t, err, fault.Of(fault.Stopped))
	require.ErrorContains(t, err, keyGap)
	o.do(func(tx *table.Transaction) error { return tx.RemoveProperties([]string{keyGap}) })
	require.NoError(t, replayFrom())
}

// The audit can fail: rows out of quarantine without a mark, and marks without rows.
func TestAuditFindsAReplayThatIsNone(t *testing.T) {
	b := replayable(t)
	c := b.forgetApplied(KindData)
	pl := c.State.Pipelines["p"]
	pl.Delta = Totals{Rows: 1, Quarantined: -1}
	pl.Totals[part(0)] = pl.Totals[part(0)].Add(pl.Delta)
	c.Files = b.write(b.batch(part(0), ident.Range{First: 5, Next: 6}))
	b.commit(c)
	requireViolation(t, b.audit(false), "the commit is no replay")

	b = replayable(t)
	b.replay(ident.Range{First: 5, Next: 7})
	wrong := slices.Clone(b.Head().State.Pending())
	wrong[0].Replayed = map[ident.Partition][]ident.Range{part(0): {{First: 5, Next: 8}}}
	require.NoError(t, b.ApplyQuarantine(t.Context(), wrong))
	requireViolation(t, b.audit(false), "commits replayed 2 records, the table says so of 3")
	requireViolation(t, b.audit(true), "are in the quarantine table")
}

// A replayed offset that is in the table twice is found.
func TestDeepAuditFindsARecordThatWasReplayedTwice(t *testing.T) {
	b := replayable(t)
	b.replay(ident.Range{First: 5, Next: 6})
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	c := b.forgetApplied(KindReplay)
	pl := c.State.Pipelines["p"]
	pl.Delta = Totals{Rows: 1, Quarantined: -1}
	pl.Totals[part(0)] = pl.Totals[part(0)].Add(pl.Delta)
	c.Files = b.write(b.batch(part(0), ident.Range{First: 5, Next: 6}))
	b.commit(c)
	requireViolation(t, b.audit(true), "offsets that are more than one row: [5]")
}

// A quarantine table of a release that kept no LSNs takes records and marks.
func TestAQuarantineTableWithoutLSNsGrowsTheColumn(t *testing.T) {
	b := replayable(t)
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	o := &other{TB: t, tbl: q.handle()}
	o.do(func(tx *table.Transaction) error {
		return tx.UpdateSchema(true, true).DeleteColumn([]string{"lsn"}).Commit()
	})
	for _, r := range b.bad(QuarantineFilter{}) {
		require.Nil(t, r.LSN)
	}
	b.outbox = nil // another process
	c := b.change(KindData)
	r := c.advance(part(1), Totals{Quarantined: 1})
	b.poison(&c, quarantined(part(1), r))
	b.commit(c)
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	list := b.bad(QuarantineFilter{Partition: new(int32(1)), From: &r.First})
	require.Len(t, list, 1)
	require.Equal(t, ident.LSN(1000+r.First), *list[0].LSN)
}

func TestPendingReplaysSurviveEncoding(t *testing.T) {
	e := PendingQuarantine{CommitID: newID(), Sequence: 7, Replayed: map[ident.Partition][]ident.Range{
		part(0): {{First: 5, Next: 7}, {First: 9, Next: 10}}, part(1): {{First: 1, Next: 2}},
	}}
	s := State{CommitID: newID(), Pipelines: map[string]*Pipeline{"p": {
		Owner: "test/kafka", Positions: ident.Positions{part(0): {Next: 20}, part(1): {Next: 3}}, Pending: []PendingQuarantine{e},
		Totals: map[ident.Partition]Totals{part(0): {Rows: 20}, part(1): {Quarantined: 3}},
	}}}
	keys, err := encodeState(s)
	require.NoError(t, err)
	back, ok, err := decodeState(keys)
	require.NoError(t, err)
	require.True(t, ok)
	got := back.Pipelines["p"].Pending[0]
	require.Equal(t, e.Replayed, got.Replayed)
	require.Equal(t, int64(4), got.ReplayedRows())
	clone := back.Clone()
	clone.Pipelines["p"].Pending[0].Replayed[part(0)][0].Next = 100
	require.Equal(t, int64(7), got.Replayed[part(0)][0].Next)
}
