package lake

import (
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// rollBack moves the head back to a snapshot, as another engine would.
func (b *bench) rollBack(to int64) Head {
	b.Helper()
	b.other().do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(to) })
	h := b.reload()
	require.Error(b, h.RolledBack)
	return h
}

// reset carries out the decision to go on where the history ends, with lost
// offsets of partition 0 given up.
func (b *bench) reset(lost int64) {
	b.Helper()
	h := b.Head()
	require.NoError(b, b.VoidQuarantine(b.Context()))
	c := b.change(KindReset)
	c.State.WriterEpoch, c.State.LogEpoch = h.High.WriterEpoch+1, h.High.LogEpoch+1
	c.State.LSN = ident.LSNState{Start: h.High.Reserved, Next: h.High.Reserved, Reserved: h.High.Reserved + ident.Reservation}
	c.Reset = &Reset{At: time.Now(), Base: "table", Reason: "ticket 7", Over: h.Copy.Snapshot}
	if lost > 0 {
		lsn := c.State.LSN
		c.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: lost}})
		c.State.LSN = lsn
	}
	for p, pos := range c.State.Positions() {
		r := ResetPartition{Pipeline: p.Pipeline, Topic: p.Topic, TopicID: p.TopicID, Partition: p.Number, Table: pos.Next, Copy: h.Copy.State.Positions()[p].Next, Next: pos.Next}
		c.Reset.Partitions = append(c.Reset.Partitions, r)
	}
	b.commit(c)
}

// G1, G5, G9: after a reset the audit is proven across it, tells the decision from
// a loss, and no record of a commit that was rolled back stays in quarantine.
func TestATableThatWasResetIsProven(t *testing.T) {
	b := newBench(t, Settings{})
	commit := func() *Staged {
		c := b.change(KindData)
		r := c.advance(part(0), Totals{Rows: 4, Quarantined: 2})
		c.Files = b.write(b.batch(part(0), ident.Range{First: r.First, Next: r.Next - 2}))
		b.poison(&c, quarantined(part(0), ident.Range{First: r.Next - 2, Next: r.Next}))
		st := b.commit(c)
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
		return st
	}
	first := commit()
	commit()
	last := commit()
	h := b.rollBack(first.SnapshotID)
	require.Equal(t, int64(18), h.Copy.State.Positions()[part(0)].Next)
	require.Equal(t, last.SnapshotID, h.Copy.Snapshot)
	require.Equal(t, h.Copy.State.LSN.Reserved, h.High.Reserved)
	requireViolation(t, b.audit(false), "somebody rolled it back")

	b.reset(0)
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		requireVerdict(t, Proven, r)
		require.Contains(t, r.Text(), "an operator reset positions at")
		require.Contains(t, r.Text(), "(ticket 7): 12 offsets to be read again, 0 given up")
		require.Equal(t, int64(2), r.Quarantine)
	}
	require.NoError(t, b.VoidQuarantine(t.Context()), "nothing is left to be done")
	commit()
	commit()
	r := b.audit(true)
	requireVerdict(t, Proven, r)
	require.Equal(t, int64(6), r.Quarantine)
	require.Equal(t, int64(12), r.Live)
}

func TestWhatAResetGivesUpIsCountedAsLost(t *testing.T) {
	b := newBench(t, Settings{})
	first := b.commitRows(part(0), 6)
	b.commitRows(part(0), 4)
	b.rollBack(first.SnapshotID)
	b.reset(4)
	b.commitRows(part(0), 3)
	r := b.audit(true)
	requireVerdict(t, Proven, r)
	require.Equal(t, map[string]int64{"lost": 4}, r.Partitions[0].Skipped)
}

// A reset may not take positions back: that is what the audit takes for a loss.
func TestAResetThatGoesBackIsRefused(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	c := b.change(KindReset)
	p := c.State.Pipelines["p"]
	p.Positions[part(0)] = ident.Position{Next: 2}
	p.Totals[part(0)] = Totals{Rows: 2}
	_, err := b.Stage(t.Context(), c)
	require.ErrorIs(t, err, fault.Of(fault.OutOfOrder))
}

// A replay that was rolled back is none: its records are quarantined again, and can
// be replayed again. Others keep their mark (G1, G9).
func TestAResetOverARolledBackReplayQuarantinesItsRecordsAgain(t *testing.T) {
	b := replayable(t)
	apply := func() {
		t.Helper()
		require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	}
	kept := b.replay(ident.Range{First: 4, Next: 5})
	apply()
	b.replay(ident.Range{First: 5, Next: 7})
	apply()
	b.replay(ident.Range{First: 8, Next: 9})
	apply()
	waiting := func() []int64 {
		number := int32(0)
		return offsets(b.bad(QuarantineFilter{Waiting: true, Partition: &number}))
	}
	require.Equal(t, []int64{7, 9}, waiting())
	b.rollBack(kept.SnapshotID)
	b.reset(0)
	require.Equal(t, []int64{5, 6, 7, 8, 9}, waiting())
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		requireVerdict(t, Proven, r)
		require.Equal(t, int64(1), r.Replayed)
	}
	b.replay(ident.Range{First: 5, Next: 9})
	apply()
	require.Equal(t, []int64{9}, waiting())
	requireVerdict(t, Proven, b.audit(true))
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	left, err := q.Intents(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
}

// The mark stays pending where the roll-back came before it.
func TestAResetOverAReplayWhoseMarkIsPendingForgetsIt(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 1, Quarantined: 1})
	c.Files = b.write(b.batch(part(0), ident.Range{First: 0, Next: 1}))
	b.poison(&c, quarantined(part(0), ident.Range{First: 1, Next: 2}))
	first := b.commit(c)
	require.Equal(t, int64(2), r.Next)
	c = b.change(KindReplay)
	p := c.State.Pipelines["p"]
	delta := Totals{Rows: 1, Quarantined: -1}
	p.Totals[part(0)], p.Delta = p.Totals[part(0)].Add(delta), delta
	p.Pending = append(p.Pending, PendingQuarantine{CommitID: c.CommitID, Replayed: map[ident.Partition][]ident.Range{part(0): {{First: 1, Next: 2}}}})
	c.Files = b.write(b.batch(part(0), ident.Range{First: 1, Next: 2}))
	b.commit(c)
	b.rollBack(first.SnapshotID)
	b.reset(0)
	requireVerdict(t, Proven, b.audit(true))
}

// The library would bring back what delete files of others remove.
func TestAResetLeavesAQuarantineTableWithDeleteFilesAlone(t *testing.T) {
	b := ledger(t)
	q, err := b.lake.Load(t.Context(), tableName+ident.QuarantineSuffix)
	require.NoError(t, err)
	qo := &other{TB: t, tbl: q.handle()}
	qo.do(func(tx *table.Transaction) error {
		return tx.SetProperties(iceberg.Properties{"write.delete.mode": "merge-on-read"})
	})
	qo.do(func(tx *table.Transaction) error {
		return tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("offset"), int64(5)), nil)
	})
	var first int64
	for s := range ancestors(b.handle().Metadata()) {
		if isOwn(s) && s.ParentSnapshotID != nil {
			first = s.SnapshotID
		}
	}
	b.rollBack(first)
	require.ErrorContains(t, b.VoidQuarantine(t.Context()), "delete files of another engine")
}
