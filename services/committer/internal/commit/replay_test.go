package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// poisoned is a rig whose table holds offsets 0 to 29 of partition 0; 0, 7, 14,
// 21 and 28 are quarantined.
func poisoned(t *testing.T) *rig {
	r := newRig(t)
	r.start()
	r.pass(time.Second)
	r.open(0)
	r.log.grow(part(0), 30)
	_, err := r.table.CommitNow(t.Context())
	require.NoError(t, err)
	r.pass(time.Second)
	return r
}

// replayOf writes the rows of a replay, as the replay room would, and the commit
// that it asks for.
func (r *rig) replayOf(ticket Ticket, offsets ...int64) Replay {
	out := Replay{ID: NewID(), Ticket: ticket, Offsets: map[ident.Partition][]ident.Range{}}
	path := fmt.Sprint("replay-", out.ID)
	at := r.head()
	r.log.mu.Lock()
	for _, o := range offsets {
		out.Offsets[part(0)] = append(out.Offsets[part(0)], ident.Range{First: o, Next: o + 1})
		r.log.rows[path] = append(r.log.rows[path], fakeRow{part(0), o, lsnOf(at.Event(), part(0), o), at.State.LogEpoch})
	}
	r.log.mu.Unlock()
	out.Files = []lake.File{{Path: path, Rows: int64(len(offsets))}}
	r.lake.view(func() {
		r.lake.intents[out.ID] = true
		r.lake.written[out.ID] = append(r.lake.written[out.ID], path)
	})
	return out
}

func (r *rig) ticket() Ticket {
	k, err := r.table.BeginReplay(r.t.Context())
	require.NoError(r.t, err)
	return k
}

// requireReplayed checks that exactly these offsets are rows out of quarantine.
func (r *rig) requireReplayed(offsets ...int64) {
	r.t.Helper()
	r.check()
	r.lake.mu.Lock()
	defer r.lake.mu.Unlock()
	rows := map[int64]int{}
	for _, s := range r.lake.chain() {
		for _, path := range s.files {
			for _, row := range r.log.rows[path] {
				if poison(row.offset) {
					rows[row.offset]++
					require.Equal(r.t, lake.KindReplay, s.kind, "the mark of the snapshot")
				}
			}
		}
	}
	h := r.lake.headLocked()
	require.Len(r.t, rows, len(offsets))
	for _, o := range offsets {
		require.Equal(r.t, 1, rows[o], "G1: offset %d", o)
	}
	total := h.State.Pipelines["p"].Totals[part(0)]
	pos := h.State.Positions()[part(0)]
	bad := (pos.Next - pos.Start + 6) / 7
	require.Equal(r.t, bad-int64(len(offsets)), total.Quarantined)
}

// requireMarked checks replayed_in of the quarantine table.
func (r *rig) requireMarked(offsets ...int64) {
	r.t.Helper()
	r.lake.mu.Lock()
	defer r.lake.mu.Unlock()
	require.Len(r.t, r.lake.marked[part(0)], len(offsets))
	for _, o := range offsets {
		require.Contains(r.t, r.lake.marked[part(0)], o)
	}
}

func TestAReplayMovesTotalsAndMarksAndLeavesPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		before := r.head()
		done, err := r.table.LandReplay(t.Context(), r.replayOf(r.ticket(), 7, 14))
		require.NoError(t, err)
		h := r.head()
		require.Equal(t, Replayed{SnapshotID: h.SnapshotID, Marked: true}, done)
		require.Equal(t, before.State.Positions(), h.State.Positions())
		require.Empty(t, h.State.Pipelines["p"].First)
		require.Equal(t, lake.Totals{Rows: 2, Quarantined: -2}, h.State.Pipelines["p"].Delta)
		r.requireReplayed(7, 14)
		r.requireMarked(7, 14)
		require.Equal(t, h.SnapshotID, r.buffer.commits[len(r.buffer.commits)-1].SnapshotID, "readers are told")
		r.log.grow(part(0), 5)
		_, err = r.table.CommitNow(t.Context())
		require.NoError(t, err)
		require.Empty(t, r.head().State.Pending(), "the entry is not carried for ever")
		r.requireReplayed(7, 14)
		require.NoError(t, r.stop())
	})
}

// C1 to C4 for a replay: whatever the catalog answers, it lands once.
func TestAReplayLandsOnceWhateverTheCatalogAnswers(t *testing.T) {
	for _, m := range []mood{appliedLost, neverArrived, late, refuses} {
		synctest.Test(t, func(t *testing.T) {
			r := poisoned(t)
			k := r.ticket()
			tries := 0
			r.lake.view(func() {
				r.lake.answer = func(kind string) mood {
					if kind == lake.KindReplay && tries < 2 {
						tries++
						return m
					}
					return fine
				}
			})
			_, err := r.table.LandReplay(t.Context(), r.replayOf(k, 0, 28))
			require.NoError(t, err)
			r.lake.view(func() {
				for _, arrive := range r.lake.inflight {
					arrive()
				}
			})
			r.requireReplayed(0, 28)
			r.requireMarked(0, 28)
			require.NoError(t, r.stop())
		})
	}
}

// Commits go on between the begin of a replay and its landing, and others write
// to the table too (G9).
func TestAReplayIsRacedByCommitsAndByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		k := r.ticket()
		replay := r.replayOf(k, 14, 21)
		r.log.grow(part(0), 12)
		_, err := r.table.CommitNow(t.Context())
		require.NoError(t, err)
		r.lake.foreign()
		first := true
		r.lake.view(func() {
			r.lake.answer = func(kind string) mood {
				if kind == lake.KindReplay && first { // somebody is quicker while it is sent
					first = false
					r.lake.last++
					r.lake.snaps[r.lake.last] = &fakeSnapshot{id: r.lake.last, parent: r.lake.head}
					r.lake.head = r.lake.last
				}
				return fine
			}
		})
		_, err = r.table.LandReplay(t.Context(), replay)
		require.NoError(t, err)
		r.requireReplayed(14, 21)
		require.NoError(t, r.stop())
	})
}

// A fence between begin and landing: the new committer may have replayed the same
// records, so the old ticket is worth nothing, and the files go (G6).
func TestATicketOfAnOlderWriterEpochLandsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		old, oldClient := r.table, r.client
		stale := r.replayOf(r.ticket(), 7)
		cancelOld, doneOld := r.cancel, r.done
		r.start() // another committer takes the table over
		r.pass(time.Second)
		r.open(0)
		_, err := r.table.LandReplay(t.Context(), r.replayOf(r.ticket(), 7))
		require.NoError(t, err)
		_, err = old.LandReplay(t.Context(), stale)
		require.Error(t, err)
		r.requireReplayed(7)
		r.lake.view(func() { require.True(t, r.lake.deleted[stale.Files[0].Path], "its files go with the fence") })
		oldClient.crash()
		cancelOld()
		<-doneOld //nolint:errcheck // it is fenced

		// The same process may take the table over again too: an older ticket stays worthless.
		k := r.ticket()
		k.epoch--
		_, err = r.table.LandReplay(t.Context(), r.replayOf(k, 14))
		require.ErrorIs(t, err, fault.Of(fault.Conflict))
		require.ErrorContains(t, err, "begin it again")
		r.requireReplayed(7)
		require.NoError(t, r.stop())
	})
}

// A crash between landing and mark: the successor marks, before it gives out a
// ticket, and nothing is replayed twice.
func TestACrashBetweenAReplayAndItsMarkIsFinishedByTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		k := r.ticket()
		r.lake.view(func() { r.lake.apply = func() error { return errors.New("the quarantine table is away") } })
		done, err := r.table.LandReplay(t.Context(), r.replayOf(k, 0, 7))
		require.NoError(t, err)
		require.False(t, done.Marked)
		r.requireReplayed(0, 7)
		r.requireMarked()
		_, err = r.table.BeginReplay(t.Context())
		require.ErrorContains(t, err, "entries wait for its quarantine table", "what was replayed cannot be told yet")
		r.kill()
		r.start()
		r.pass(time.Second)
		r.open(0)
		_, err = r.table.BeginReplay(t.Context())
		require.Error(t, err)
		r.lake.view(func() { r.lake.apply = nil })
		r.pass(time.Minute)
		r.ticket()
		r.requireMarked(0, 7)
		r.requireReplayed(0, 7)
		require.NoError(t, r.stop())
	})
}

// G8: a mark of many files takes several snapshots; rows are committed and readers
// told in between, also after a restart.
func TestALongMarkHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		k := r.ticket()
		parts := 0
		r.lake.view(func() {
			r.lake.apply = func() error {
				if parts++; parts < 40 {
					time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
					return lake.ErrMarking
				}
				return nil
			}
		})
		done, err := r.table.LandReplay(t.Context(), r.replayOf(k, 0, 7))
		require.NoError(t, err)
		require.False(t, done.Marked)
		require.Equal(t, done.SnapshotID, r.buffer.commits[len(r.buffer.commits)-1].SnapshotID, "readers are told first")
		require.Equal(t, 1, parts)
		for range 2 {
			began := time.Now()
			r.log.grow(part(0), 5)
			_, err = r.table.CommitNow(t.Context())
			require.NoError(t, err)
			require.Less(t, time.Since(began), 30*time.Second)
			require.Less(t, parts, 20)
			r.kill()
			r.start()
			r.pass(15 * time.Second)
			r.open(0)
		}
		r.pass(10 * time.Minute)
		r.ticket()
		r.requireMarked(0, 7)
		r.requireReplayed(0, 7)
		require.NoError(t, r.stop())
	})
}

// A crash while the outcome of a replay is open: the fence of the successor
// settles it, whether the request arrives before or after.
func TestACrashWhileAReplayIsSentIsSettledByTheFence(t *testing.T) {
	for _, m := range []mood{appliedLost, neverArrived, late} {
		synctest.Test(t, func(t *testing.T) {
			r := poisoned(t)
			k := r.ticket()
			r.lake.view(func() {
				r.lake.answer = func(kind string) mood {
					if kind == lake.KindReplay {
						r.lake.reload = func() error { return errors.New("the catalog is away") }
						return m
					}
					return fine
				}
			})
			replay := r.replayOf(k, 21)
			go func(table *Table) { _, _ = table.LandReplay(t.Context(), replay) }(r.table)
			r.pass(time.Second)
			r.kill()
			r.lake.view(func() { r.lake.reload, r.lake.answer = nil, nil })
			r.start()
			r.pass(time.Second)
			r.lake.view(func() {
				for _, arrive := range r.lake.inflight {
					arrive()
				}
			})
			r.open(0)
			if m == appliedLost {
				r.requireReplayed(21)
				r.requireMarked(21)
			} else {
				r.requireReplayed()
				r.requireMarked()
				_, err := r.table.LandReplay(t.Context(), r.replayOf(r.ticket(), 21))
				require.NoError(t, err)
				r.requireReplayed(21)
			}
			require.NoError(t, r.stop())
		})
	}
}

// G6: the files of a replay that the catalog denies stay until the head has left
// what the replay was staged on.
func TestAReplayThatTheCatalogDeniesIsAnAnswerAndItsFilesGoLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		r.lake.view(func() {
			r.lake.answer = func(kind string) mood {
				if kind == lake.KindReplay {
					return denies
				}
				return fine
			}
		})
		bad := r.replayOf(r.ticket(), 7)
		_, err := r.table.LandReplay(t.Context(), bad)
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
		r.lake.view(func() { require.False(t, r.lake.deleted[bad.Files[0].Path], "nothing proves that it never lands") })
		r.log.grow(part(0), 5)
		_, err = r.table.CommitNow(t.Context())
		require.NoError(t, err)
		r.lake.view(func() { require.True(t, r.lake.deleted[bad.Files[0].Path]) })
		r.requireReplayed()
		r.lake.view(func() { r.lake.answer = nil })
		_, err = r.table.LandReplay(t.Context(), r.replayOf(r.ticket(), 7))
		require.NoError(t, err)
		r.requireReplayed(7)
		require.NoError(t, r.stop())
	})
}

// The committer has other work until the caller gives up, or the table is stopped:
// the files of the replay do not wait for the next take-over.
func TestAReplayThatIsNeverBegunLeavesNoFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		k := r.ticket()
		r.lake.view(func() { r.lake.reload = func() error { return errors.New("the catalog is away") } })
		r.log.grow(part(0), 5)
		go func() { _, _ = r.table.CommitNow(t.Context()) }() // it takes as long as the outage
		r.pass(time.Second)
		late := r.replayOf(k, 7)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := r.table.LandReplay(ctx, late)
		require.ErrorIs(t, err, fault.Of(fault.Unavailable))
		r.lake.view(func() {
			require.True(t, r.lake.deleted[late.Files[0].Path])
			r.lake.reload = nil
		})
		r.pass(time.Minute)
		r.requireReplayed()

		r.lake.view(func() { r.lake.rolled = errors.New("somebody rolled it back") })
		r.pass(time.Minute)
		stopped := r.replayOf(k, 7)
		_, err = r.table.LandReplay(t.Context(), stopped)
		require.ErrorIs(t, err, fault.Of(fault.Stopped))
		r.lake.view(func() {
			require.True(t, r.lake.deleted[stopped.Files[0].Path])
			r.lake.rolled = nil
		})
		r.pass(time.Minute)
		r.requireReplayed()
		require.NoError(t, r.stop())
	})
}

func TestAReplayThatDoesNotFitTheTableIsRefusedAndItsFilesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := poisoned(t)
		k := r.ticket()
		unknown := r.replayOf(k, 7)
		unknown.Offsets[part(5)] = []ident.Range{{First: 0, Next: 1}}
		tooMany := r.replayOf(k, 1, 2, 3, 4, 5, 6)
		hot := r.replayOf(k, 35)
		for _, bad := range []Replay{unknown, tooMany, hot} {
			_, err := r.table.LandReplay(t.Context(), bad)
			require.Error(t, err)
			r.lake.view(func() { require.True(t, r.lake.deleted[bad.Files[0].Path]) })
		}
		r.requireReplayed()
		require.NoError(t, r.stop())
	})
}
