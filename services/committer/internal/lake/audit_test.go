package lake

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// ledger commits rows, poison and skips over two partitions, with other writers
// in between, and applies the outbox but for its last entry.
func ledger(t testing.TB) *bench {
	b := newBench(t, Settings{})
	for range 3 {
		c := b.change(KindData)
		r0 := c.advance(part(0), Totals{Rows: 12, Skipped: map[event.SkipReason]int64{event.SkipControl: 1}})
		r1 := c.advance(part(1), Totals{Rows: 5, Quarantined: 2})
		c.Files = b.write(b.batch(part(0), ident.Range{First: r0.First, Next: r0.Next - 1}),
			b.batch(part(1), ident.Range{First: r1.First, Next: r1.Next - 2}))
		b.poison(&c, quarantined(part(1), ident.Range{First: r1.Next - 2, Next: r1.Next}))
		b.commit(c)
	}
	pending := b.Head().State.Pending()
	require.Len(t, pending, 3)
	require.NoError(t, b.ApplyQuarantine(t.Context(), pending[:1]))
	require.NoError(t, b.ApplyQuarantine(t.Context(), pending[1:2]))
	b.other().insert(2, nil)
	b.reload()
	b.commit(b.change(KindAnchor))
	return b
}

// poison writes quarantined records and puts them into the outbox of c.
func (b *bench) poison(c *Change, recs ...recordBatch) {
	b.Helper()
	files, err := b.WriteQuarantine(b.Context(), WriterOptions{Attempt: newID(), Epoch: 1}, recs...)
	require.NoError(b, err)
	p := c.State.Pipelines["p"]
	p.Pending = append(p.Pending, PendingQuarantine{CommitID: c.CommitID, Files: files})
}

func (b *bench) audit(deep bool) Report {
	b.Helper()
	r, err := Audit(b.Context(), b.lake, tableName, AuditOptions{Deep: deep})
	require.NoError(b, err)
	return r
}

func requireViolation(t testing.TB, r Report, what string) {
	t.Helper()
	require.Equal(t, Violated, r.Verdict, r.Text())
	require.Contains(t, r.Text(), what)
}

// G1, C8.
func TestAuditProvesATableWithPoisonSkipsAndOtherWriters(t *testing.T) {
	b := ledger(t)
	for _, deep := range []bool{false, true} {
		r := b.audit(deep)
		require.Equal(t, Proven, r.Verdict, r.Text())
		require.Empty(t, r.Findings)
		require.Equal(t, int64(51), r.Rows)
		require.Equal(t, int64(53), r.Live)
		require.Equal(t, int64(4), r.Quarantine)
		require.Equal(t, int64(2), r.Pending)
		require.Contains(t, r.Text(), "PROVEN")
		require.Contains(t, r.Text(), "append of another writer, +2 rows")
		text, err := r.JSON()
		require.NoError(t, err)
		var back map[string]any
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, "proven", back["verdict"])
	}
}

func TestAuditProvesWhatIsLeftAfterExpiry(t *testing.T) {
	b := ledger(t)
	b.cleanAt = 1
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 2}
	st := b.commit(c)
	require.NoError(t, b.Clean(t.Context(), st))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
	require.False(t, r.Complete)
}

func TestAuditFindsARemovedFile(t *testing.T) {
	b := ledger(t)
	var path string
	files, err := b.files(t.Context())
	require.NoError(t, err)
	require.NoError(t, walkEntries(t.Context(), files, b.handle().Metadata(), func(e entry) { path = e.file.FilePath() }))
	require.NoError(t, os.Remove(localPath(path)))
	requireViolation(t, b.audit(false), path+": file is gone")
}

// C1, C7, C8: the same file in two snapshots.
func TestAuditFindsADoubledFile(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.rowsOf(part(0), 6)
	b.commit(c)
	again := b.change(KindData)
	again.advance(part(0), Totals{Rows: 6})
	again.Files = c.Files
	b.commit(again)
	requireViolation(t, b.audit(false), "added by snapshot")
}

// A copy of the rows under another name passes every count: only the offsets
// themselves show it.
func TestDeepAuditFindsRowsThatStandForOthers(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 6)
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 6})
	c.Files = b.write(b.batch(part(0), ident.Range{First: r.First - 6, Next: r.Next - 6}))
	b.commit(c)
	require.Equal(t, Proven, b.audit(false).Verdict)
	report := b.audit(true)
	requireViolation(t, report, "offsets that are more than one row: [0 1 2 3 4]")
	require.Contains(t, report.Text(), "offsets without a row begin with [6 7 8 9 10]")
}

func TestDeepAuditFindsARowBeyondTheCommittedPosition(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	c.advance(part(0), Totals{Rows: 2})
	c.Files = b.write(b.batch(part(0), ident.Range{First: 40, Next: 42}))
	b.commit(c)
	requireViolation(t, b.audit(true), "rows of offsets 40 to 41, but only [0,2) is committed")
}

// edit plants a summary in a snapshot on top, as a bug of ours would write it.
func (b *bench) plant(edit func(*State), rows int) {
	b.Helper()
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: int64(rows)})
	state := c.State
	state.CommitID, state.Format = c.CommitID, Format
	edit(&state)
	keys, err := encodeState(state)
	require.NoError(b, err)
	files := b.write(b.batch(part(0), r))
	b.other().do(func(tx *table.Transaction) error {
		return tx.AddDataFiles(b.Context(), []iceberg.DataFile{files[0].data}, keys, table.WithoutAutoNameMapping())
	})
}

func TestAuditFindsPlantedStates(t *testing.T) {
	p := part(0)
	for name, c := range map[string]struct {
		edit func(*State)
		want string
	}{
		"hole": {func(s *State) {
			pl := s.Pipelines["p"]
			pl.First[p], pl.Positions[p] = 8, ident.Position{Next: 12}
			pl.Totals[p] = Totals{Rows: 12}
		}, "offsets [6,8) are in no commit"},
		"overlap": {func(s *State) {
			pl := s.Pipelines["p"]
			pl.First[p], pl.Positions[p] = 4, ident.Position{Next: 8}
			pl.Totals[p] = Totals{Rows: 8}
		}, "offsets [4,6) were committed twice"},
		"forgotten partition": {func(s *State) {
			pl := s.Pipelines["p"]
			delete(pl.Positions, part(1))
			delete(pl.Totals, part(1))
		}, "p/orders[1] is forgotten"},
		"count": {func(s *State) {
			pl := s.Pipelines["p"]
			pl.Delta.Rows = 3
			pl.Delta.Skipped = map[event.SkipReason]int64{event.SkipAbsent: 1}
			pl.Totals[p] = Totals{Rows: 9, Skipped: map[event.SkipReason]int64{event.SkipAbsent: 1}}
		}, "the commit counts 3 rows, its summary 4"},
		"sums": {func(s *State) { s.Pipelines["p"].Totals[p] = Totals{Rows: 7} }, "add up to 7, but [0,10) holds 10 offsets"},
		"LSN":  {func(s *State) { s.LSN.Next = 1 }, "an LSN may name two rows"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 6)
			b.commitRows(part(1), 2)
			b.plant(c.edit, 4)
			requireViolation(t, b.audit(false), c.want)
		})
	}
}

func TestAuditFindsALostQuarantineRow(t *testing.T) {
	b := ledger(t)
	q, err := b.lake.Load(t.Context(), tableName+ident.QuarantineSuffix)
	require.NoError(t, err)
	qo := &other{TB: t, tbl: q.handle()}
	before := q.handle().CurrentSnapshot()
	qo.do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(*before.ParentSnapshotID) })
	requireViolation(t, b.audit(false), "6 records are counted as quarantined; the table holds 2, of which 0 were replayed, and 2 are pending")
}

func TestAuditFindsALostPendingFile(t *testing.T) {
	b := ledger(t)
	pending := b.Head().State.Pending()
	require.NoError(t, os.Remove(localPath(pending[2].Files[0].Path)))
	requireViolation(t, b.audit(false), "pending quarantine file is gone")
}

func TestAuditOfARolledBackTableIsAViolation(t *testing.T) {
	b := newBench(t, Settings{})
	first := b.commitRows(part(0), 5)
	b.commitRows(part(0), 4)
	b.other().do(func(tx *table.Transaction) error { return tx.RollbackToSnapshot(first.SnapshotID) })
	requireViolation(t, b.audit(false), "somebody rolled it back")
}

func TestOffsetSetsAreExactAndDenseOnesAreSmall(t *testing.T) {
	var s offsetSet
	add := func(offset int64) bool {
		fresh, _ := s.add(offset, 1)
		return fresh
	}
	held := 0
	for o := int64(1 << cellBits); o < 3<<cellBits; o++ {
		fresh, grown := s.add(o, 1)
		require.True(t, fresh)
		held += grown
	}
	require.Zero(t, held, "full chunks hold nothing")
	require.False(t, add(2<<cellBits))
	require.True(t, add(5))
	require.Equal(t, int64(2<<cellBits+1), s.count)
	require.Equal(t, s.count+1, s.total())
	require.True(t, s.has(5))
	require.False(t, s.has(6))
	low, high, ok := s.ends()
	require.True(t, ok)
	require.Equal(t, [2]int64{5, 3<<cellBits - 1}, [2]int64{low, high})
	require.Equal(t, []int64{0, 1, 2, 3, 4}, s.holes(&offsetSet{}, ident.Range{Next: 3 << cellBits}))
	require.Equal(t, []int64{6, 7, 8, 9, 10}, s.holes(&offsetSet{}, ident.Range{First: 5, Next: 3 << cellBits}))
	require.Equal(t, []int64{2 << cellBits, 2<<cellBits + 1, 5, 1 << cellBits, 1<<cellBits + 1}, s.in([]ident.Range{
		{First: 2 << cellBits, Next: 2<<cellBits + 2}, {First: 6, Next: 1 << cellBits}, {First: 3 << cellBits, Next: 1 << 40}, {Next: 1 << 40},
	}), "those of each range in turn, up to five")
	var o offsetSet
	o.add(5, 1)
	require.Equal(t, []int64{5}, s.both(&o))
	require.Equal(t, 1, s.drop(0))
	require.Zero(t, s.drop(1))
	require.Equal(t, int64(1<<cellBits), s.count)
}
