package pull

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
)

// G1, G8: an entry that cannot be made rows holds its partition alone, red, and is
// tried again; when it is readable everything goes on.
func TestAnEntryThatCannotBeReadHoldsItsPartitionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1<<20)
		s := tableOf()
		good, bad := entryOf(t, s, part(0), 0, 4, 0), entryOf(t, s, part(1), 0, 4, 100)
		broken := *bad
		broken.RowBatch = []byte("these are no rows")
		r.p.Rebase(at(1, 0, 0), false)
		for range unreadableTries {
			h := <-r.streams
			_ = r.image(h, at(1, 0, 0), s, good, &broken)
			synctest.Wait()
			<-time.After(10 * time.Second) // the pause after a failure
			synctest.Wait()
		}
		r.owner.mu.Lock()
		require.Len(t, r.owner.unreadable, 1)
		err := r.owner.unreadable[0]
		r.owner.mu.Unlock()
		require.ErrorIs(t, err, fault.Of(fault.Corrupt))
		require.ErrorContains(t, err, part(1).String())
		require.ErrorContains(t, err, "[0,4)")

		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 0, 0), s, good, &broken))
		synctest.Wait()
		b, err := r.p.Seal(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, b.Parts, 1, "the other partition is committed")
		require.Contains(t, b.Parts, part(0))

		<-time.After(unreadableRetry)
		synctest.Wait()
		h = <-r.streams // and its rows come with an image
		require.NoError(t, r.image(h, at(1, 4, 0), s, bad))
		synctest.Wait()
		b, err = r.p.Seal(t.Context(), true)
		require.NoError(t, err)
		require.Contains(t, b.Parts, part(1))
		r.owner.mu.Lock()
		require.NoError(t, r.owner.unreadable[len(r.owner.unreadable)-1])
		r.owner.mu.Unlock()
		r.cancel()
		<-r.done
	})
}
