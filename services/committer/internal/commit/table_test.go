package commit

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// emptyRecords is a batch that has a number of rows and no columns.
func emptyRecords(rows int64) arrow.RecordBatch {
	return array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, rows)
}

func part(n int32) ident.Partition {
	return ident.Partition{Pipeline: "p", Topic: "t", TopicID: ident.UUID{9}, Number: n}
}

// rig is a committer among fakes.
type rig struct {
	t      *testing.T
	lake   *fakeLake
	log    *fakeLog
	buffer *fakeBuffer
	client *client
	source *fakeSource
	table  *Table
	cancel context.CancelFunc
	done   chan error

	revived chan struct{}
}

func newRig(t *testing.T) *rig {
	return &rig{
		t: t, lake: newFakeLake(), log: &fakeLog{end: ident.Vector{}, rows: map[string][]fakeRow{}},
		buffer: &fakeBuffer{want: &Wanted{Nonce: 1, Reason: "new table"}},
	}
}

// start starts a committer, as a process would.
// holding is a rig under way whose source holds the first five offsets of partition 0.
func holding(t *testing.T) *rig {
	r := newRig(t)
	r.start()
	r.pass(time.Second)
	r.open(0)
	r.log.grow(part(0), 5)
	return r
}

func (r *rig) start() {
	r.client = &client{fakeLake: r.lake}
	r.source = &fakeSource{lake: r.lake, log: r.log}
	r.table = New(Options{
		Name: "db.t", Policy: cut.Policy{Interval: time.Minute, Budget: 1000}, Drain: 20 * time.Second,
		Backoff: backoff.Policy{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Factor: 2},
		Revived: func() <-chan struct{} { return r.revived },
	}, Ports{Lake: r.client, Outbox: r.client, Intents: r.client, Buffer: r.buffer, Source: r.source, Observe: nothing{}})
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(cancel) // a failed test must not leave a loop in its bubble
	r.cancel, r.done = cancel, make(chan error, 1)
	table, done := r.table, r.done
	go func() { done <- table.Run(ctx) }()
}

// stop ends a committer in an orderly way.
func (r *rig) stop() error {
	r.cancel()
	return <-r.done
}

// kill ends it as a crash does: nothing of it reaches the lake any more.
func (r *rig) kill() {
	r.client.crash()
	r.cancel()
	<-r.done //nolint:errcheck // an error, rightly: its last commit cannot be made
}

func (r *rig) open(parts ...int32) {
	starts := ident.Vector{}
	for _, n := range parts {
		starts[part(n)] = 0
	}
	_, err := r.table.OpenPipeline(r.t.Context(), "me/cluster", "p", starts)
	require.NoError(r.t, err)
	r.source.Rebase(r.head().Event(), true) // as the Commit event would
}

func (r *rig) head() (h lake.Head) {
	r.lake.view(func() { h = r.lake.headLocked() })
	return h
}

func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// check compares the table with the log: G1, G5, G6.
func (r *rig) check() {
	r.log.mu.Lock() // before the lake, as Seal does
	defer r.log.mu.Unlock()
	r.lake.mu.Lock()
	defer r.lake.mu.Unlock()
	require.Empty(r.t, r.lake.broken)
	h := r.lake.headLocked()
	rows := map[ident.Partition]map[int64]bool{}
	lsns := map[ident.LSN]fakeRow{}
	seen := map[string]bool{}
	for _, s := range r.lake.chain() {
		for _, path := range s.files {
			require.False(r.t, seen[path], "C8: file %s is in two snapshots", path)
			seen[path] = true
			require.False(r.t, r.lake.deleted[path], "G6: file %s is gone", path)
			for _, row := range r.log.rows[path] {
				if rows[row.part] == nil {
					rows[row.part] = map[int64]bool{}
				}
				require.False(r.t, rows[row.part][row.offset], "G1: %v offset %d is there twice", row.part, row.offset)
				rows[row.part][row.offset] = true
				other, taken := lsns[row.lsn]
				require.False(r.t, taken, "G5: LSN %d names %v and %v", row.lsn, row, other)
				lsns[row.lsn] = row
				require.Less(r.t, row.lsn, h.State.LSN.Reserved)
			}
		}
	}
	var quarantined int64
	for p, pos := range h.State.Positions() {
		for o := pos.Start; o < pos.Next; o++ {
			if poison(o) {
				quarantined++
			} else {
				require.True(r.t, rows[p][o], "G1: %v offset %d is missing below %d", p, o, pos.Next)
			}
		}
		total := h.State.Pipelines["p"].Totals[p]
		require.Equal(r.t, pos.Next-pos.Start, total.Len())
	}
	var applied, pending int64
	for _, n := range r.lake.applied {
		applied += n
	}
	for _, q := range h.State.Pending() {
		if _, ok := r.lake.applied[q.CommitID]; !ok {
			pending += q.Rows()
		}
	}
	require.Equal(r.t, quarantined, applied+pending, "quarantined rows")
}

func TestTakeOverFencesThenGrantsTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		h := r.head()
		require.Equal(t, ident.WriterEpoch(1), h.State.WriterEpoch)
		require.Equal(t, ident.LogEpoch(1), h.State.LogEpoch)
		require.Equal(t, ident.LSNState{Start: 1, Next: 1, Reserved: 1 + ident.Reservation}, h.State.LSN)
		require.Equal(t, h.Event(), r.buffer.grants[1])
		require.Equal(t, "running", r.table.Status().State)
		require.NoError(t, r.stop())
	})
}

func TestRowsLandAfterTheIntervalAndAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0, 1)
		r.log.grow(part(0), 10)
		r.table.Wake()
		r.pass(59 * time.Second)
		require.Zero(t, r.head().State.Positions()[part(0)].Next)
		r.pass(2 * time.Second)
		require.Equal(t, int64(10), r.head().State.Positions()[part(0)].Next)
		require.Equal(t, r.head().Event(), r.buffer.commits[len(r.buffer.commits)-1])
		require.Equal(t, int64(2), r.lake.applied[r.head().State.CommitID], "offsets 0 and 7 are poison")
		r.check()
		require.NoError(t, r.stop())
	})
}

func TestCommitNowAnswersAfterTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		c, err := r.table.CommitNow(t.Context())
		require.NoError(t, err)
		require.True(t, c.New)
		require.Equal(t, int64(5), c.Commit.Positions[part(0)].Next)
		require.Equal(t, c.Commit, r.buffer.commits[len(r.buffer.commits)-1])
		c, err = r.table.CommitNow(t.Context())
		require.NoError(t, err)
		require.False(t, c.New)
		require.NoError(t, r.stop())
	})
}

func TestTheLastCommitIsMadeWhenStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		require.NoError(t, r.stop())
		require.Equal(t, int64(5), r.head().State.Positions()[part(0)].Next)
		r.check()
	})
}

func TestTheLastCommitIsMadeWhenTheStopComesInTheMiddleOfAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := holding(t)
		r.lake.view(func() {
			r.lake.reload = func() error { r.cancel(); return nil } // the next poll
		})
		r.pass(15 * time.Second)
		require.NoError(t, <-r.done)
		require.Equal(t, int64(5), r.head().State.Positions()[part(0)].Next)
		r.check()
	})
}

// C10: 409 for 60 s, then normal: exact rows, red then green, no restart.
func TestACatalogThatRefusesForAMinuteIsSurvived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.lake.view(func() { r.lake.answer = func(string) mood { return refuses } })
		r.log.grow(part(0), 20)
		r.table.Wake()
		r.pass(2 * time.Minute)
		ready, why := r.table.Status().Ready(time.Now(), 30*time.Second)
		require.False(t, ready)
		require.Contains(t, why, "failing since")
		r.lake.view(func() { r.lake.answer = nil })
		r.pass(time.Minute)
		ready, why = r.table.Status().Ready(time.Now(), 30*time.Second)
		require.True(t, ready, why)
		require.Equal(t, int64(20), r.head().State.Positions()[part(0)].Next)
		r.check()
		require.NoError(t, r.stop())
	})
}

// G11: however long the catalog was away, a commit goes on at once when it is back, with the same snapshot.
func TestACommitGoesOnAtOnceWhenTheCatalogIsBack(t *testing.T) {
	for _, away := range []time.Duration{2 * time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.revived = make(chan struct{})
			r.start()
			r.pass(time.Second)
			r.open(0)
			r.lake.view(func() {
				r.lake.answer = func(string) mood { return neverArrived }
				r.lake.reload = func() error { return errLost }
			})
			r.log.grow(part(0), 20)
			r.table.Wake()
			r.pass(away)
			require.Zero(t, r.head().State.Positions()[part(0)].Next)
			r.lake.view(func() { r.lake.answer, r.lake.reload = nil, nil })
			close(r.revived)
			r.pass(2*herd + 100*time.Millisecond)
			require.Equal(t, int64(20), r.head().State.Positions()[part(0)].Next)
			r.check()
			require.NoError(t, r.stop())
		})
	}
}

// C1, C2: every request is applied and its answer lost.
func TestLostAnswersNeitherDoubleNorDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lake.answer = func(string) mood { return appliedLost }
		r.start()
		r.pass(time.Second)
		r.open(0)
		for range 5 {
			r.log.grow(part(0), 9)
			r.table.Wake()
			r.pass(2 * time.Minute)
		}
		require.Equal(t, int64(45), r.head().State.Positions()[part(0)].Next)
		require.Empty(t, r.lake.deleted)
		r.check()
		require.NoError(t, r.stop())
	})
}

// C4: the request is held by the catalog; the committer dies; its successor
// fences and commits; then the request arrives.
func TestALateRequestOfAPredecessorLosesAndItsFilesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.lake.view(func() {
			r.lake.answer = func(kind string) mood {
				if kind == lake.KindData {
					return late
				}
				return fine
			}
		})
		r.log.grow(part(0), 20)
		r.table.Wake()
		r.pass(2 * time.Minute)
		require.Empty(t, r.lake.deleted, "absence is not proven while the head stands")
		require.NotEmpty(t, r.lake.inflight)
		r.kill()
		r.lake.view(func() { r.lake.answer = nil })
		r.start()
		r.pass(3 * time.Minute)
		require.Equal(t, int64(20), r.head().State.Positions()[part(0)].Next)
		require.NotEmpty(t, r.lake.deleted, "after the fence the files of the attempt are free")
		require.Empty(t, r.lake.intents)
		r.lake.view(func() {
			for _, land := range r.lake.inflight {
				land()
			}
		})
		r.check()
		require.NoError(t, r.stop())
	})
}

func TestAZombieIsFencedAndStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		zombie, zombieCancel, zombieDone := r.table, r.cancel, r.done
		r.start() // a second committer takes over
		r.pass(30 * time.Second)
		s := zombie.Status()
		require.Equal(t, "stopped", s.State)
		require.Contains(t, s.Reason, "taken the table over")
		_, err := zombie.CommitNow(t.Context())
		require.Equal(t, fault.Stopped, fault.ReasonOf(err))
		require.Equal(t, "running", r.table.Status().State)
		zombieCancel()
		require.NoError(t, <-zombieDone)
		require.NoError(t, r.stop())
	})
}

// G6: another committer fences this one the moment it took over, and writes.
func TestATakeOverLeavesTheFilesOfASuccessorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		id := NewID()
		r.lake.view(func() {
			r.lake.intents[id] = true
			r.lake.epochs = map[ident.UUID]ident.WriterEpoch{id: 2}
			r.lake.written[id] = []string{"successor"}
		})
		r.start() // with writer epoch 1
		r.pass(time.Second)
		r.lake.view(func() { require.Empty(t, r.lake.deleted) })
		require.NoError(t, r.stop())
		r.start()
		r.pass(time.Second)
		r.lake.view(func() { require.Empty(t, r.lake.deleted) })
		require.NoError(t, r.stop())
		r.start() // the third fence: nothing of the second epoch can land any more
		r.pass(time.Second)
		r.lake.view(func() { require.True(t, r.lake.deleted["successor"]) })
		require.NoError(t, r.stop())
	})
}

// T2, and G9: a foreign snapshot is reported, re-anchored, and loses nothing.
func TestAForeignSnapshotIsReportedAndAnchored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.lake.foreign()
		foreign := r.head().SnapshotID
		r.pass(15 * time.Second)
		require.Equal(t, foreign, r.buffer.commits[len(r.buffer.commits)-1].SnapshotID)
		require.True(t, r.table.Status().Foreign)
		r.pass(40 * time.Second)
		h := r.head()
		require.False(t, h.Foreign())
		require.Equal(t, lake.KindAnchor, r.lake.snaps[h.SnapshotID].kind)
		require.False(t, r.table.Status().Foreign)
		r.log.grow(part(0), 3)
		require.NoError(t, r.stop())
		r.check()
	})
}

func TestARollBackStopsTheTableUntilItIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.lake.view(func() { r.lake.rolled = errors.New("rolled back from 10 to 5") })
		r.log.grow(part(0), 3)
		r.table.Wake()
		r.pass(15 * time.Second)
		ready, why := r.table.Status().Ready(time.Now(), time.Hour)
		require.False(t, ready)
		require.Contains(t, why, "rolled back from 10 to 5")
		r.lake.view(func() { r.lake.rolled = nil })
		r.pass(2 * time.Minute)
		require.Equal(t, "running", r.table.Status().State)
		require.Equal(t, int64(3), r.head().State.Positions()[part(0)].Next)
		r.check()
		require.NoError(t, r.stop())
	})
}

func TestAnEpochFenceKeepsHeldRowsAndStartsAtTheOldReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(10 * time.Second)
		r.open(0)
		r.log.grow(part(0), 6)
		before := r.head().State
		r.table.Want(Wanted{Nonce: 2, Reason: "journal lost", AppendsWaiting: true})
		r.pass(time.Second)
		after := r.head().State
		require.Equal(t, before.LogEpoch+1, after.LogEpoch)
		require.Equal(t, int64(6), after.Positions()[part(0)].Next)
		require.GreaterOrEqual(t, after.LSN.Start, before.LSN.Reserved)
		require.Equal(t, after.LSN.Start+ident.Reservation, after.LSN.Reserved)
		require.Equal(t, after.LogEpoch, r.buffer.grants[2].LogEpoch)
		r.table.Want(Wanted{Nonce: 2, Reason: "the answer was lost"})
		r.pass(time.Minute)
		require.Equal(t, after.LogEpoch, r.head().State.LogEpoch, "one nonce, one fence")
		r.check()
		require.NoError(t, r.stop())
	})
}

func TestAGrantThatNobodyWaitsForIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(10 * time.Second)
		r.buffer.set(func() { r.buffer.refuseGrants = true })
		epoch := r.head().State.LogEpoch
		r.table.Want(Wanted{Nonce: 2, AppendsWaiting: true})
		r.pass(time.Minute)
		require.Equal(t, epoch+1, r.head().State.LogEpoch)
		opened := len(r.buffer.opened)
		r.pass(time.Minute)
		require.Len(t, r.buffer.opened, opened, "it asked once what is wanted, and nothing was")
		require.NoError(t, r.stop())
	})
}

// G11: a buffer that does not take a fence and wants one all the same gets another, not the same for ever.
func TestAGrantThatIsRefusedIsNotOfferedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(10 * time.Second)
		epoch := r.head().State.LogEpoch
		r.buffer.set(func() { r.buffer.refuses, r.buffer.want = epoch+1, &Wanted{Nonce: 2} })
		r.table.Want(Wanted{Nonce: 2})
		r.pass(time.Minute)
		require.Equal(t, epoch+2, r.head().State.LogEpoch)
		require.NoError(t, r.stop())
	})
}

// G11: what the answer to an opening wants is done although the fence before was just now, and nobody says it twice.
func TestAWishThatHasToWaitIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		epoch := r.head().State.LogEpoch
		r.buffer.set(func() { r.buffer.want = &Wanted{Nonce: 2} })
		r.table.Reopen()
		r.pass(time.Minute)
		require.Equal(t, epoch+1, r.head().State.LogEpoch)
		require.Contains(t, r.buffer.grants, uint64(2))
		require.NoError(t, r.stop())
	})
}

// G11: the wish of a buffer that is not followed any more is not granted to the next one.
func TestAWishEndsWithItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		epoch := r.head().State.LogEpoch
		r.table.Want(Wanted{Nonce: 2}) // has to wait, since a fence was just now
		r.pass(time.Second)
		r.table.Reopen() // another buffer, which serves
		r.pass(time.Minute)
		require.Equal(t, epoch, r.head().State.LogEpoch)
		require.NotContains(t, r.buffer.grants, uint64(2))
		require.NoError(t, r.stop())
	})
}

func TestFencesAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(10 * time.Second)
		before := r.head().State.LogEpoch
		for nonce := range uint64(100) {
			r.table.Want(Wanted{Nonce: 10 + nonce})
			r.pass(100 * time.Millisecond)
		}
		require.LessOrEqual(t, r.head().State.LogEpoch-before, ident.LogEpoch(3), "in 10 s")
		require.NoError(t, r.stop())
	})
}

func TestOpeningIsIdempotentAndKeepsStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		at := r.head().SnapshotID
		r.open(0)
		require.Equal(t, at, r.head().SnapshotID, "nothing new, no snapshot")
		o, err := r.table.OpenPipeline(t.Context(), "me/cluster", "p", ident.Vector{part(0): 77, part(1): 5})
		require.NoError(t, err)
		require.Equal(t, ident.Position{Start: 0, Next: 0, LeaderEpoch: -1}, o.Positions[part(0)])
		require.Equal(t, ident.Position{Start: 5, Next: 5, LeaderEpoch: -1}, o.Positions[part(1)])
		_, err = r.table.OpenPipeline(t.Context(), "other/cluster", "p", nil)
		require.Equal(t, fault.Stopped, fault.ReasonOf(err))
		require.ErrorContains(t, err, "me/cluster")
		require.NoError(t, r.stop())
	})
}

// G1: what Kafka replaced is recorded behind the rows that were read of it, once, and
// what of it has not come yet is asked for again.
func TestWhatKafkaReplacedIsRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.commits(1)
		r.log.grow(part(0), 5) // hot
		lost := func() []lake.Lost { return r.head().State.Pipelines["p"].Lost }
		replaced := func(first, next int64) []lake.Lost {
			return []lake.Lost{{Partition: part(0), Range: ident.Range{First: first, Next: next}, Why: lake.LossReplaced}}
		}
		err := r.table.RecordReplaced(t.Context(), part(0), ident.Range{First: 8, Next: 17})
		require.Equal(t, fault.Unavailable, fault.ReasonOf(err))
		require.ErrorContains(t, err, "it is at 15, the rest is not committed yet")
		require.Equal(t, replaced(8, 15), lost())
		r.log.grow(part(0), 5)
		require.NoError(t, r.table.RecordReplaced(t.Context(), part(0), ident.Range{First: 8, Next: 17}))
		require.Equal(t, replaced(8, 17), lost())
		at := r.head()
		require.Equal(t, int64(20), at.State.Positions()[part(0)].Next)
		require.NoError(t, r.table.RecordReplaced(t.Context(), part(0), ident.Range{First: 9, Next: 17}))
		require.Equal(t, at.SnapshotID, r.head().SnapshotID, "nothing new, no snapshot")
		r.pass(time.Second)
		require.Equal(t, at.Event(), r.buffer.commits[len(r.buffer.commits)-1], "the buffer knows the snapshot")
		require.Equal(t, fault.UnknownPartition, fault.ReasonOf(r.table.RecordReplaced(t.Context(), part(7), ident.Range{First: 0, Next: 1})))
		r.commits(1)
		require.Equal(t, replaced(8, 17), lost(), "it stays")
		r.check()
		require.NoError(t, r.stop())
	})
}

func TestProposedColumnsLandBeforeTheyArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		candidate := &schema.Schema{Columns: []*schema.Node{{Name: "id", Number: 1, Type: schema.Of(schema.Long)}}}
		p, err := r.table.Propose(t.Context(), Proposal{Pipeline: "p", Source: "schema id 1", Candidate: candidate})
		require.NoError(t, err)
		require.Len(t, p.Changes, 1)
		require.Equal(t, []string{"report", "schema"}, r.buffer.lastWords[len(r.buffer.lastWords)-2:])
		at := r.head().SnapshotID
		again, err := r.table.Propose(t.Context(), Proposal{Pipeline: "p", Source: "schema id 1", Candidate: candidate})
		require.NoError(t, err)
		require.Equal(t, p.Schema.Fingerprint, again.Schema.Fingerprint)
		require.Equal(t, at, r.head().SnapshotID, "idempotent")

		refused, err := r.propose("schema id 2", 0, field("id", 1, schema.String))
		require.NoError(t, err)
		require.Len(t, refused.Refusals, 1)
		require.Equal(t, at, r.head().SnapshotID)
		require.NoError(t, r.stop())
	})
}

func TestAnUnreachableBufferHoldsUpNoCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.buffer.set(func() { r.buffer.fail = fault.New(fault.Unavailable, "no route") })
		r.log.grow(part(0), 4)
		r.table.Wake()
		r.pass(2 * time.Minute)
		require.Equal(t, int64(4), r.head().State.Positions()[part(0)].Next)
		r.buffer.set(func() { r.buffer.fail = nil })
		r.pass(30 * time.Second)
		require.Equal(t, r.head().SnapshotID, r.buffer.opened[len(r.buffer.opened)-1].SnapshotID)
		require.NoError(t, r.stop())
	})
}

func TestAFullOutboxHoldsPoisonBackAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.lake.view(func() { r.lake.apply = func() error { return errLost } })
		for range maxPending {
			r.log.grow(part(0), 7)
			_, err := r.table.CommitNow(t.Context())
			require.NoError(t, err)
		}
		r.pass(time.Minute)
		require.True(t, r.source.hold)
		ready, why := r.table.Status().Ready(time.Now(), time.Hour)
		require.False(t, ready)
		require.Contains(t, why, "quarantine files wait")
		r.lake.view(func() { r.lake.apply = nil })
		r.pass(time.Minute)
		require.False(t, r.source.hold)
		r.check()
		require.NoError(t, r.stop())
	})
}

// Senders wait for room: rows are given back before their quarantined neighbours are in their table, and those follow
// together, by number and when the pressure is over (O7).
func TestUnderPressureTheReportDoesNotWaitForTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.source.set(func() { r.source.hot = 1000 })
		var applied atomic.Int64
		r.lake.view(func() { r.lake.apply = func() error { applied.Add(1); return nil } })
		commit := func() {
			reports := r.buffer.reports()
			r.log.grow(part(0), 7)
			r.table.Wake()
			synctest.Wait()
			require.Equal(t, reports+1, r.buffer.reports(), "half of the budget is held: it is committed at once")
		}
		for range hurried - 1 {
			commit()
		}
		require.Zero(t, applied.Load())
		require.Equal(t, hurried-1, r.table.Status().Pending)
		commit()
		require.EqualValues(t, hurried, applied.Load(), "enough has gathered")
		commit()
		require.EqualValues(t, hurried, applied.Load())
		r.pass(2 * time.Second)
		require.EqualValues(t, hurried+1, applied.Load(), "the pressure is over")
		commit()
		_, err := r.table.CommitNow(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, hurried+2, applied.Load(), "whoever asks for a commit finds the quarantine applied too")
		r.check()
		commit()
		require.NoError(t, r.stop())
		require.EqualValues(t, hurried+3, applied.Load(), "nothing is left for the next start")
		r.check()
	})
}

// G7: what a commit must not leave behind is what readers have seen. A buffer that does not say
// holds no commit up (G11).
func TestTheCommitOfAStopTakesWhatReadersHaveSeen(t *testing.T) {
	for name, away := range map[string]error{"the buffer says": nil, "the buffer is away": fault.New(fault.Unavailable, "no route")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := holding(t)
				shown := ident.Vector{part(0): 5}
				r.buffer.mu.Lock()
				r.buffer.visible, r.buffer.fail = shown, away
				r.buffer.mu.Unlock()
				require.NoError(t, r.stop())
				require.Equal(t, int64(5), r.head().State.Positions()[part(0)].Next)
				if away != nil {
					shown = ident.Vector{}
				}
				require.Equal(t, shown, r.source.upTo[len(r.source.upTo)-1])
			})
		})
	}
}
