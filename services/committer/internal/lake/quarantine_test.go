package lake

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
)

type recordBatch = arrow.RecordBatch

const quarantineName = tableName + ident.QuarantineSuffix

// outbox commits two quarantined records and leaves them pending.
func outbox(t *testing.T) (*bench, []PendingQuarantine) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Quarantined: 2})
	b.poison(&c, quarantined(part(0), r))
	st := b.commit(c)
	pending := b.Head().State.Pending()
	require.Len(t, pending, 1)
	require.Equal(t, st.Sequence, pending[0].Sequence)
	return b, pending
}

func TestQuarantinedRecordsAreAppliedOnce(t *testing.T) {
	b, pending := outbox(t)
	require.Equal(t, int64(0), b.rows(quarantineName))
	for range 3 {
		require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
		require.Equal(t, int64(2), b.rows(quarantineName))
	}
	require.Equal(t, Proven, b.audit(true).Verdict)

	// Another process that knows only the state does it just as well.
	again, err := newLake(t, b.dir).Load(t.Context(), tableName)
	require.NoError(t, err)
	require.NoError(t, again.ApplyQuarantine(t.Context(), again.Head().State.Pending()))
	require.Equal(t, int64(2), b.rows(quarantineName))
}

// A crash, or an answer that got lost, between the steps of the outbox.
func TestAnAmbiguousApplyNeverDoublesQuarantinedRecords(t *testing.T) {
	for _, landed := range []bool{true, false} {
		b, pending := outbox(t)
		_, err := b.quarantine(t.Context(), true)
		require.NoError(t, err)
		real := b.lake.cat
		b.outbox = nil
		b.lake.cat = &failing{Catalog: real, apply: landed, err: errors.New("connection reset")}
		err = b.ApplyQuarantine(t.Context(), pending)
		if landed {
			require.NoError(t, err, "the table itself says that it landed")
		} else {
			require.ErrorIs(t, err, fault.Of(fault.Unavailable))
		}
		b.lake.cat, b.outbox = real, nil
		require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
		require.Equal(t, int64(2), b.rows(quarantineName))
	}
}

// applied reports whether a quarantine table holds an entry of the outbox.
func (b *bench) applied(q *Table, e PendingQuarantine) bool {
	b.Helper()
	upTo, err := q.appliedSequence(b.Context())
	require.NoError(b, err)
	return q.applied(e, upTo)
}

// T1 for the quarantine table: the snapshot that has the commit id is gone.
func TestAnAppliedEntryIsKnownBySequenceNumberToo(t *testing.T) {
	b, pending := outbox(t)
	require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	unknown := pending[0]
	unknown.CommitID = newID()
	require.True(t, b.applied(q, unknown))
	unknown.Sequence++
	require.False(t, b.applied(q, unknown))
}

func TestAPendingFileThatIsGoneOrAnotherIsNamed(t *testing.T) {
	b, pending := outbox(t)
	wrong := []PendingQuarantine{{CommitID: newID(), Sequence: 99, Files: []QuarantineFile{pending[0].Files[0]}}}
	wrong[0].Files[0].Rows = 5
	require.ErrorIs(t, b.ApplyQuarantine(t.Context(), wrong), fault.Of(fault.Corrupt))
	path := pending[0].Files[0].Path
	require.NoError(t, os.Remove(localPath(path)))
	pending[0].Files[0].Rows = 2
	err := b.ApplyQuarantine(t.Context(), pending)
	require.ErrorIs(t, err, fault.Of(fault.NotFound))
	require.ErrorContains(t, err, path)
}

// What gathered under pressure comes in one snapshot, also where a lost try of an
// earlier call had brought a part of it, and the audit proves it.
func TestEntriesThatGatheredAreAppliedTogetherAndOnce(t *testing.T) {
	for before := range 3 {
		b := newBench(t, Settings{})
		for range 4 {
			c := b.change(KindData)
			b.poison(&c, quarantined(part(0), c.advance(part(0), Totals{Quarantined: 2})))
			b.commit(c)
		}
		pending := b.Head().State.Pending()
		require.Len(t, pending, 4)
		require.NoError(t, b.ApplyQuarantine(t.Context(), pending[:before]))
		require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
		require.Equal(t, int64(8), b.rows(quarantineName))
		q, err := b.quarantine(t.Context(), false)
		require.NoError(t, err)
		require.Len(t, q.handle().Metadata().Snapshots(), min(1, before)+1)
		require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
		require.Equal(t, int64(8), b.rows(quarantineName))
		require.Equal(t, Proven, b.audit(true).Verdict)
	}
}

// G9: a table that was dropped and made again counts its commits from one, while
// its quarantine table stays.
func TestARecreatedTableIsQuarantinedAgain(t *testing.T) {
	b, pending := outbox(t)
	require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
	q, err := b.quarantine(t.Context(), false)
	require.NoError(t, err)
	again := pending[0]
	again.CommitID = newID()
	require.True(t, b.applied(q, again))
	q.main = newID()
	require.False(t, b.applied(q, again))
}

// Two pipelines of one table poison one commit: one snapshot.
func TestEntriesOfOneCommitAreAppliedTogether(t *testing.T) {
	merged := mergeByCommit([]PendingQuarantine{
		{CommitID: ident.UUID{2}, Sequence: 2, Files: []QuarantineFile{{Path: "c"}}},
		{CommitID: ident.UUID{1}, Sequence: 1, Files: []QuarantineFile{{Path: "a"}}},
		{CommitID: ident.UUID{1}, Sequence: 1, Files: []QuarantineFile{{Path: "b"}}},
		{CommitID: ident.UUID{3}, Sequence: 3},
	})
	require.Equal(t, []PendingQuarantine{
		{CommitID: ident.UUID{1}, Sequence: 1, Files: []QuarantineFile{{Path: "a"}, {Path: "b"}}},
		{CommitID: ident.UUID{2}, Sequence: 2, Files: []QuarantineFile{{Path: "c"}}},
	}, merged)
}

// G6: an attempt's files are known by its record, and removed only while nothing
// names them.
func TestUndoRemovesOnlyWhatNothingNames(t *testing.T) {
	b := newBench(t, Settings{})
	lost := b.options()
	w, err := b.NewWriter(t.Context(), b.Head().Schema, lost)
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	files, err := w.Close(t.Context())
	require.NoError(t, err)
	poison, err := b.WriteQuarantine(t.Context(), lost, quarantined(part(0), ident.Range{First: 5, Next: 6}))
	require.NoError(t, err)

	landed := b.options()
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 4})
	w, err = b.NewWriter(t.Context(), b.Head().Schema, landed)
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), r)))
	c.Files, err = w.Close(t.Context())
	require.NoError(t, err)
	b.commit(c)

	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	require.Len(t, intents, 2)
	for _, i := range intents {
		paths, err := b.IntentFiles(t.Context(), i)
		require.NoError(t, err)
		if i.Attempt == lost.Attempt {
			require.Equal(t, []string{files[0].Path, poison[0].Path}, paths)
		}
		require.NoError(t, b.Undo(t.Context(), i))
	}
	requireGone(t, files[0].Path)
	requireGone(t, poison[0].Path)
	require.FileExists(t, localPath(c.Files[0].Path))
	intents, err = b.Intents(t.Context())
	require.NoError(t, err)
	require.Empty(t, intents)
	require.Equal(t, int64(4), b.rows(tableName))
}

// A process that is killed leaves the temporary files of what it had open, as large as data files are.
func TestUndoRemovesWhatAKilledProcessHadBegun(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, b.options())
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	require.NoError(t, w.flush())
	others := b.commitRows(part(0), 3)
	begun := func() int {
		names, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "*", "data", ".tmp-*"))
		require.NoError(t, err)
		return len(names)
	}
	require.Equal(t, 1, begun())
	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	for _, i := range intents {
		require.NoError(t, b.Undo(t.Context(), i))
	}
	require.Zero(t, begun())
	require.Equal(t, others.Rows, b.rows(tableName))
}

// flaky is a local disk that answers as an object store in trouble does.
type flaky struct {
	icefile.FS

	noAnswer, noRemoval bool
}

type flakyFile struct {
	iceio.FileWriter

	fs *flaky
}

func (f *flaky) Create(name string) (iceio.FileWriter, error) {
	w, err := f.FS.Create(name)
	return &flakyFile{w, f}, err
}

func (f *flaky) Remove(name string) error {
	if f.noRemoval && strings.HasSuffix(name, ".parquet") {
		return errors.New("no answer")
	}
	return f.FS.Remove(name)
}

func (f *flakyFile) Close() error {
	err := f.FileWriter.Close()
	if f.fs.noAnswer {
		return errors.New("no answer")
	}
	return err
}

// The answer to an upload may be lost: the object is there, and no snapshot will ever name it.
func TestAbortRemovesAFileWhoseUploadWasNotAnswered(t *testing.T) {
	b := newBench(t, Settings{Partition: "day(created_at)"})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, b.options())
	require.NoError(t, err)
	disk := &flaky{}
	w.fs = disk
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 25})))
	require.NoError(t, w.flush())
	require.Len(t, w.open, 3)
	disk.noAnswer = true
	_, err = w.Close(t.Context())
	require.Error(t, err)
	w.Abort(t.Context())
	left, err := filepath.Glob(filepath.Join(b.dir, "warehouse", "*", "*", "data", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// What cannot be removed now is removed by the next take-over: its record outlives it.
func TestTheRecordOfAnAttemptOutlivesItsFiles(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, WriterOptions{Attempt: newID(), Epoch: 1, FileSize: 1})
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	path := w.files[0].Path
	disk := &flaky{noRemoval: true}
	b.fs = disk
	w.Abort(t.Context())
	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	require.Len(t, intents, 1)
	require.Error(t, b.Undo(t.Context(), intents[0]))
	require.FileExists(t, localPath(path))
	disk.noRemoval = false
	require.NoError(t, b.Undo(t.Context(), intents[0]))
	requireGone(t, path)
	intents, err = b.Intents(t.Context())
	require.NoError(t, err)
	require.Empty(t, intents)
}

func TestAbortLeavesNothing(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, WriterOptions{Attempt: newID(), Epoch: 1, FileSize: 1})
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	require.Len(t, w.files, 1)
	path := w.files[0].Path
	w.opts.FileSize = 1 << 20
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{First: 5, Next: 9})))
	w.Abort(t.Context())
	requireGone(t, path)
	require.Error(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	intents, err := b.Intents(t.Context())
	require.NoError(t, err)
	require.Empty(t, intents)
}

func TestAbortAfterCloseKeepsTheFiles(t *testing.T) {
	b := newBench(t, Settings{})
	w, err := b.NewWriter(t.Context(), b.Head().Schema, b.options())
	require.NoError(t, err)
	require.NoError(t, w.Write(b.batch(part(0), ident.Range{Next: 5})))
	files, err := w.Close(t.Context())
	require.NoError(t, err)
	w.Abort(t.Context())
	require.FileExists(t, localPath(files[0].Path))
}
