package pull

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// unreadable is an entry whose batch is no batch.
func unreadable(e *event.Append) *event.Append {
	broken := *e
	broken.RowBatch = []byte("these are no rows")
	return &broken
}

// lastUnreadable is what the owner was last told, and how often it was told anything.
func (r *rig) lastUnreadable() (int, error) {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	n := len(r.owner.unreadable)
	if n == 0 {
		return 0, nil
	}
	return n, r.owner.unreadable[n-1]
}

// G1, G8: an entry that cannot be made rows holds its partition alone, red, and is
// tried again; when it is readable everything goes on.
func TestAnEntryThatCannotBeReadHoldsItsPartitionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		good, bad := entryOf(t, s, part(0), 0, 4, 0), entryOf(t, s, part(1), 0, 4, 100)
		behind := entryOf(t, s, part(1), 4, 6, 100)
		r.p.Rebase(at(1, 0, 0), false)
		for range unreadableTries {
			n, _ := r.lastUnreadable()
			require.Zero(t, n)
			h := <-r.streams
			require.NoError(t, r.image(h, at(1, 0, 0), s, good, unreadable(bad), behind))
			synctest.Wait()
		}
		n, err := r.lastUnreadable()
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, fault.Of(fault.Corrupt))
		require.ErrorContains(t, err, part(1).String())
		require.ErrorContains(t, err, "[0,4)")
		require.Zero(t, r.budget.Used(), "what waits behind it is not held here")
		require.Equal(t, good.Bytes(), r.p.o.Hot.Load())

		b := r.seal()
		require.Len(t, b.Parts, 1, "the other partition is committed")
		require.Contains(t, b.Parts, part(0))
		b.Release()
		require.Zero(t, r.p.o.Hot.Load())

		h := <-r.streams // after a minute its rows come with an image
		require.NoError(t, r.image(h, at(1, 4, 0), s, bad, behind))
		synctest.Wait()
		b = r.seal()
		require.Equal(t, ident.Range{First: 0, Next: 6}, b.Parts[part(1)].Range)
		b.Release()
		_, err = r.lastUnreadable()
		require.NoError(t, err)
		r.cancel()
		<-r.done
	})
}

// G10: tries of a held partition drop nothing of the others, so that their age
// grows and their interval is over one day; nor do they begin files anew.
func TestTriesOfAHeldPartitionCostTheOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		good, bad := entryOf(t, s, part(0), 0, 4, 0), unreadable(entryOf(t, s, part(1), 0, 4, 100))
		began := time.Now()
		r.p.Rebase(at(1, 0, 0), false)
		for range unreadableTries + 5 {
			h := <-r.streams
			require.NoError(t, r.image(h, at(1, 0, 0), s, good, bad))
			synctest.Wait()
		}
		require.Greater(t, time.Since(began), 4*unreadableRetry)
		require.Equal(t, began, r.p.Load().SinceRows, "the rows of the other partition grow older")
		require.Equal(t, good.Rows+good.Quarantined, r.p.Load().Rows)
		require.Equal(t, 1, r.files.n)
		require.Empty(t, r.owner.failed)
		b := r.seal()
		require.Len(t, b.Parts, 1)
		b.Release()
		require.True(t, r.p.Load().Empty())
		r.cancel()
		<-r.done
	})
}

// A held partition alone holds nothing: there is nothing to cut.
func TestAHeldPartitionIsNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		r.p.Rebase(at(1, 0), false)
		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 0), s, unreadable(entryOf(t, s, part(0), 0, 4, 0)), entryOf(t, s, part(0), 4, 6, 0)))
		synctest.Wait()
		require.True(t, r.p.Load().Empty())
		require.Zero(t, r.p.Load().Own)
		require.Nil(t, r.seal())
		r.cancel()
		<-r.done
	})
}

// G1: a batch that does not hold what its header says is found before it is written.
func TestAnEntryWhoseRowsDoNotAddUpIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		short := entryOf(t, s, part(0), 1, 4, 0)
		short.Range.Next = 5
		r.p.Rebase(at(1, 1), false)
		for range unreadableTries {
			h := <-r.streams
			require.NoError(t, r.image(h, at(1, 1), s, short))
			synctest.Wait()
		}
		_, err := r.lastUnreadable()
		require.ErrorContains(t, err, "3 of 4 offsets are accounted for")
		require.Zero(t, r.files.n)
		r.cancel()
		<-r.done
	})
}

// G8: small batches are encoded together, so rows that break the encoder show late,
// at an entry of somebody else or at the cut. The partition that is held is theirs.
func TestRowsThatBreakTheEncoderHoldTheirOwnPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		r.files.breaks = 1002
		before, bad, after := entryOf(t, s, part(0), 0, 4, 0), entryOf(t, s, part(1), 1000, 1004, 0), entryOf(t, s, part(2), 0, 4, 0)
		r.p.Rebase(at(1, 0, 1000, 0), false)
		next := func() {
			h := <-r.streams
			require.NoError(t, r.image(h, at(1, 0, 1000, 0), s, before, bad, after))
			synctest.Wait()
		}
		next()
		_, err := r.p.Seal(t.Context(), ident.Vector{})
		require.ErrorContains(t, err, "the encoder panicked")
		for range unreadableTries {
			n, _ := r.lastUnreadable()
			require.Zero(t, n)
			next()
		}
		_, err = r.lastUnreadable()
		require.ErrorContains(t, err, part(1).String())

		since := r.p.Load().SinceRows
		for range 5 { // tries of it cost the others nothing
			next()
		}
		require.Equal(t, since, r.p.Load().SinceRows)
		require.Len(t, r.owner.failed, 2, "once at the cut, once to find whose fault it is")
		b := r.seal()
		require.Len(t, b.Parts, 2)
		require.Equal(t, []int64{1, 2, 3, 1, 2, 3}, r.ids(b))
		require.Len(t, r.files.files, 1, "what was tried is removed")
		b.Release()

		r.files.mu.Lock()
		r.files.breaks = 0
		r.files.mu.Unlock()
		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 4, 1000, 4), s, bad))
		synctest.Wait()
		b = r.seal()
		require.Contains(t, b.Parts, part(1))
		b.Release()
		r.cancel()
		<-r.done
	})
}
