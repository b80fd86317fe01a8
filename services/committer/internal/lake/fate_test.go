package lake

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/iceberg-go/catalog"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// expire removes all snapshots but the newest and what a tag holds, as another
// engine would.
func (o *other) expire() {
	o.Helper()
	o.do(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
}

// loseLog removes all metadata files of a table but the present one, until they are
// brought back.
func (b *bench) loseLog() (bringBack func()) {
	b.Helper()
	kept := map[string][]byte{}
	for e := range b.handle().Metadata().PreviousFiles() {
		name := localPath(e.MetadataFile)
		data, err := os.ReadFile(name)
		require.NoError(b, err)
		kept[name] = data
		require.NoError(b, os.Remove(name))
	}
	return func() {
		b.Helper()
		for name, data := range kept {
			require.NoError(b, os.WriteFile(name, data, 0o600))
		}
	}
}

func (b *bench) becomes(st *Staged) Fate {
	b.Helper()
	fate, err := b.Fate(b.Context(), st)
	require.NoError(b, err)
	return fate
}

// manifestsOf are the files that Discard removes.
func manifestsOf(t testing.TB, st *Staged, tbl *Table) []string {
	t.Helper()
	files, err := tbl.files(t.Context())
	require.NoError(t, err)
	list, err := st.snapshot.Manifests(files)
	require.NoError(t, err)
	out := []string{st.snapshot.ManifestList}
	for _, m := range list {
		if m.SnapshotID() == st.SnapshotID {
			out = append(out, m.FilePath())
		}
	}
	return out
}

// G1, G6, T1: the answer to a commit is lost, others append, and expire all but what
// they appended: the commit is no ancestor in what is left of the history, and its
// files are in the table all the same. The tag may be there to hold its snapshot, or
// not.
func TestACommitThatOthersExpiredBeforeWeLookedHasLanded(t *testing.T) {
	for name, tagged := range map[string]bool{"with our tag": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 3)
			c := b.change(KindData)
			c.Files = b.write(b.batch(part(0), c.advance(part(0), Totals{Rows: 5})))
			st := b.stage(c)
			require.NoError(t, b.Send(t.Context(), st))
			o := b.other()
			if !tagged {
				_, _, err := b.cat.CommitTable(t.Context(), b.ident, nil, []table.Update{table.NewRemoveSnapshotRefUpdate(tag)})
				require.NoError(t, err)
			}
			o.insert(1, nil)
			o.insert(1, nil)
			o.expire()
			head := b.reload()
			require.False(t, b.Find(c.CommitID), "it is not to be seen at first sight")
			require.Equal(t, int64(8), head.State.Vector()[part(0)])
			require.Equal(t, Landed, b.becomes(st))
			b.Discard(t.Context(), st)
			b.commitRows(part(0), 2)
			require.Equal(t, int64(12), b.rows(tableName))
			requireVerdict(t, Proven, b.audit(true))
		})
	}
}

// G6: a commit that did not land is told from one that was expired, and loses its
// manifests; while nothing proves it, they stay.
func TestTheManifestsOfACommitGoOnceItIsProvenAbsent(t *testing.T) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 3)
	st := b.stage(b.change(KindProgress))
	manifests := manifestsOf(t, st, b.Table)
	there := func() {
		t.Helper()
		for _, m := range manifests {
			require.FileExists(t, localPath(m))
		}
	}
	require.False(t, b.Discard(t.Context(), st), "the head is its base")
	there()

	o := b.other()
	for range 3 {
		o.insert(1, nil)
	}
	o.expire()
	b.reload()
	bringBack := b.loseLog()
	require.Equal(t, Unproven, b.becomes(st), "the history that is left does not reach back")
	require.False(t, b.Discard(t.Context(), st))
	there()

	bringBack()
	require.Equal(t, Absent, b.becomes(st))
	require.True(t, b.Discard(t.Context(), st))
	for _, m := range manifests {
		requireGone(t, m)
	}
}

// store is the storage of a table of which tests decide what a file says.
type store struct {
	iceio.ReadFileIO
	read  func(name string) ([]byte, error)
	ended <-chan struct{} // with what it was opened with
	asked []string
}

func (s *store) ReadFile(name string) ([]byte, error) {
	s.asked = append(s.asked, name)
	return s.read(name)
}

// Stat says that every file is there.
func (s *store) Stat(string) (fs.FileInfo, error) { return os.Stat(".") }

// on has the loaded table read its files from a store.
func (b *bench) on(s *store) *bench {
	tbl := b.handle()
	b.tbl = table.New(b.ident, tbl.Metadata(), tbl.MetadataLocation(), func(ctx context.Context) (iceio.IO, error) {
		s.ended = ctx.Done()
		return s, nil
	}, b.cat)
	return b
}

// expired is a table whose present metadata tells nothing of a commit, which is
// absent, nor of any other of ours.
func expired(t *testing.T) (*bench, *Staged) {
	b := newBench(t, Settings{})
	b.commitRows(part(0), 3)
	st := b.stage(b.change(KindProgress))
	o := b.other()
	for range 3 {
		o.insert(1, nil)
	}
	o.expire()
	b.reload()
	return b, st
}

// G11, T1: a store that never answers holds whoever looks for a commit no longer than
// a load of the table does, whether or not its client hears that it was given up.
func TestAStoreThatNeverAnswersDoesNotHoldTheLookForACommit(t *testing.T) {
	for name, hears := range map[string]bool{"its client hears": true, "its client does not": false} {
		t.Run(name, func(t *testing.T) {
			b, st := expired(t)
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				defer close(end)
				s := &store{}
				s.read = func(string) ([]byte, error) {
					ended := s.ended
					if !hears {
						ended = nil
					}
					select {
					case <-ended:
					case <-end:
					}
					return nil, context.DeadlineExceeded
				}
				began := time.Now()
				fate, err := b.on(s).Fate(t.Context(), st)
				require.Equal(t, Unproven, fate)
				require.Equal(t, fault.Unavailable, fault.ReasonOf(err), "to be asked again")
				require.ErrorContains(t, err, s.asked[0]+" of table "+tableName+": the store has not answered in time")
				require.Len(t, s.asked, 1, "the next file would take as long")
				require.Equal(t, b.lake.cfg.Timeouts.Load, time.Since(began))
			})
			b.reload()
			require.Equal(t, Absent, b.becomes(st))
		})
	}
}

// restful is a catalog that keeps the client of a table's storage.
type restful struct{ catalog.Catalog }

func (restful) CatalogType() catalog.Type { return catalog.REST }

// The client that a REST catalog keeps for a table lives on after the look.
func TestTheLookForACommitDoesNotEndTheStorageOfTheTable(t *testing.T) {
	b, st := expired(t)
	b.cat = restful{b.cat}
	s := &store{read: func(name string) ([]byte, error) { return os.ReadFile(localPath(name)) }}
	require.Equal(t, Absent, b.on(s).becomes(st))
	require.NotEmpty(t, s.asked)
	require.Nil(t, s.ended, "it never ends")
}

// answer is what an object store answers.
type answer int

func (a answer) Error() string       { return "it answers " + http.StatusText(int(a)) }
func (a answer) HTTPStatusCode() int { return int(a) }

// T1: an older metadata file that may be read later makes the commit and the state
// of the table unknown; one that is there and never will be is passed over.
func TestAnOlderMetadataFileThatCannotBeReadNow(t *testing.T) {
	denied := []string{"access to it was denied", "grant the right to read it"}
	for name, c := range map[string]struct {
		err  error
		text []string // nil: it is passed over
	}{
		"an object store denies it": {answer(http.StatusForbidden), denied},
		"a disk denies it":          {&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, denied},
		"a store is in trouble":     {answer(http.StatusServiceUnavailable), []string{"it answers Service Unavailable"}},
		"it is no metadata":         {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, st := expired(t)
			s := &store{read: func(string) ([]byte, error) { return []byte("{"), c.err }}
			fate, err := b.on(s).Fate(t.Context(), st)
			require.Equal(t, Unproven, fate)
			head, unknown := b.recover(t.Context(), b.handle())
			if c.text == nil {
				require.NoError(t, err)
				require.NoError(t, unknown)
				require.Error(t, head.StateLost)
				return
			}
			for _, err := range []error{err, unknown} {
				require.Equal(t, fault.Unavailable, fault.ReasonOf(err))
				require.ErrorContains(t, err, "reading older metadata file "+s.asked[0]+" of table "+tableName)
				for _, text := range c.text {
					require.ErrorContains(t, err, text)
				}
			}
			require.Equal(t, int64(3), b.reload().State.Vector()[part(0)], "it heals by itself")
			require.Equal(t, Absent, b.becomes(st))
		})
	}
}

// G6, G9: a commit that landed and was rolled back is in no history of the head, but
// somebody can bring its snapshot back.
func TestACommitThatWasRolledBackKeepsItsManifests(t *testing.T) {
	b := newBench(t, Settings{})
	base := b.commitRows(part(0), 3)
	st := b.commitRows(part(0), 2)
	b.rollTo(b.cat, base.SnapshotID)
	b.other().insert(1, nil)
	b.reload()
	b.Discard(t.Context(), st)
	for _, m := range manifestsOf(t, st, b.Table) {
		require.FileExists(t, localPath(m))
	}
}

// rollTo makes another snapshot the head, as an operator would.
func (b *bench) rollTo(cat catalog.Catalog, id int64) {
	b.Helper()
	_, _, err := cat.CommitTable(b.Context(), b.ident, nil,
		[]table.Update{table.NewSetSnapshotRefUpdate(table.MainBranch, id, table.BranchRef, 0, 0, 0)})
	require.NoError(b, err)
}

// G6, G9: a head that was rolled back to before the base of a request proves nothing:
// when it is rolled forward, as we ask for, a request that is late lands.
func TestARequestThatLandsAfterTheTableWasRolledForwardHasItsManifests(t *testing.T) {
	b := newBench(t, Settings{})
	before := b.commitRows(part(0), 3)
	base := b.commitRows(part(0), 2)
	c := b.change(KindData)
	c.Files = b.write(b.batch(part(0), c.advance(part(0), Totals{Rows: 4})))
	st := b.stage(c)
	b.rollTo(b.cat, before.SnapshotID)
	require.Error(t, b.reload().RolledBack)
	require.Equal(t, Unproven, b.becomes(st))
	require.False(t, b.Discard(t.Context(), st))
	b.rollTo(b.cat, base.SnapshotID)
	require.NoError(t, b.Send(t.Context(), st)) // it was on its way
	b.reload()
	require.Equal(t, Landed, b.becomes(st))
	require.Equal(t, int64(9), b.rows(tableName))
	requireVerdict(t, Proven, b.audit(true))
}

// G1, G6, T1: the same for the quarantine table, whose snapshots no tag holds; a
// catalog that takes no table properties leaves the history alone to tell.
func TestRecordsThatWereAppliedBeforeOthersExpiredThemAreNotAppliedAgain(t *testing.T) {
	for name, refusals := range map[string]int32{"with our property": 0, "without": enoughRefusals} {
		t.Run(name, func(t *testing.T) {
			b, pending := outbox(t)
			q, err := b.quarantine(t.Context(), true)
			require.NoError(t, err)
			q.noCopies.Store(refusals)
			_, err = q.Reload(t.Context())
			require.NoError(t, err)
			require.NoError(t, q.carryOut(t.Context(), pending[0])) // and nobody looks
			require.Len(t, b.tries.list, 1)
			qb := &bench{TB: t, lake: b.lake, Table: q, dir: b.dir}
			o := qb.other()
			o.insert(1, nil)
			o.insert(1, nil)
			o.expire()
			bringBack := qb.loseLog()
			require.NoError(t, qb.reload().StateLost, "it has no state of its own to lose")
			bringBack()
			b.outbox = nil
			require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
			require.Empty(t, b.tries.list)
			require.Equal(t, int64(4), b.rows(quarantineName))
			for range 2 {
				b.outbox = nil
				require.NoError(t, b.ApplyQuarantine(t.Context(), pending))
			}
			require.Equal(t, int64(4), b.rows(quarantineName))
		})
	}
}

// G6, C5: what was expired from the history of the main table has landed all the
// same: its quarantine file stays though the copy of the quarantine table is too old to name it.
func TestUndoKeepsTheFilesOfAnAttemptThatOthersExpired(t *testing.T) {
	for name, lost := range map[string]bool{"older metadata tells": false, "nothing tells": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Settings{})
			b.commitRows(part(0), 2)
			// A first record, so that the quarantine table is there.
			c := b.change(KindData)
			b.poison(&c, quarantined(part(1), c.advance(part(1), Totals{Quarantined: 1})))
			b.commit(c)
			require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
			b.commit(b.forgetApplied(KindProgress))
			old, err := b.lake.Load(t.Context(), quarantineName)
			require.NoError(t, err)

			c = b.change(KindData)
			o := b.options()
			r := c.advance(part(0), Totals{Quarantined: 3})
			files, err := b.WriteQuarantine(t.Context(), o, quarantined(part(0), r))
			require.NoError(t, err)
			c.CommitID = o.Attempt
			c.State.Pipelines["p"].Pending = append(c.State.Pipelines["p"].Pending, PendingQuarantine{CommitID: c.CommitID, Files: files})
			b.commit(c)
			require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
			forget := b.forgetApplied(KindProgress)
			b.commit(forget)
			others := b.other()
			others.insert(1, nil)
			others.expire()

			// A successor, to which the catalog shows an old copy of the quarantine table.
			again, err := newLake(t, b.dir).Load(t.Context(), tableName)
			require.NoError(t, err)
			s := &bench{TB: t, lake: again.lake, Table: again, dir: b.dir}
			s.commit(s.change(KindWriter))
			require.False(t, s.Find(c.CommitID))
			if lost {
				s.loseLog()
			}
			s.lake.cat = &amnesiac{Catalog: s.lake.cat, old: old.handle(), now: true}
			intents, err := s.Intents(t.Context())
			require.NoError(t, err)
			for _, i := range intents {
				require.NoError(t, s.Undo(t.Context(), i))
			}
			require.FileExists(t, localPath(files[0].Path))
			require.Equal(t, ident.Vector{part(0): 5, part(1): 1}, s.Head().State.Vector())
			intents, err = s.Intents(t.Context())
			require.NoError(t, err)
			require.Empty(t, intents)
		})
	}
}
