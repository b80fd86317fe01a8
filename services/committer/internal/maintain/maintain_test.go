package maintain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/services/committer/internal/lake"
)

// chain counts what a policy would remove from snapshots 1..n, all ours.
type chain struct{ n int64 }

func (c *chain) Expirable(p lake.ExpirePolicy) int {
	top := c.n - int64(p.Keep)
	if p.NotBelow > 0 {
		top = min(top, p.NotBelow-1)
	}
	return int(max(0, top))
}

func (c *chain) commit(k *Keeper) (lake.ExpirePolicy, bool) {
	c.n++
	return k.Upkeep(lake.Head{Sequence: c.n})
}

func TestExpiryWaitsForALeaseAndForEnoughSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chain{}
		k := New(Policy{MaxLease: 15 * time.Minute}, c, func() (int64, bool) { return 0, true })
		for range 300 {
			_, due := c.commit(k)
			require.False(t, due, "within the first lease nothing is known about readers")
			<-time.After(time.Second)
		}
		<-time.After(10 * time.Minute)
		change, due := c.commit(k) // the head of a lease ago is snapshot 1
		require.False(t, due, "%+v", change)
		<-time.After(15 * time.Minute)
		change, due = c.commit(k)
		require.True(t, due)
		require.Equal(t, lake.ExpirePolicy{Keep: 50, NotBelow: 301}, change)
	})
}

func TestExpiryKeepsWhatReadersPinAndStopsWhenNobodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &chain{n: 200}
		pinned, known := int64(100), false
		k := New(Policy{MaxLease: time.Minute}, c, func() (int64, bool) { return pinned, known })
		c.commit(k)
		<-time.After(time.Hour)
		_, due := c.commit(k)
		require.False(t, due, "without a buffer nothing is expired")
		known = true
		change, due := c.commit(k)
		require.True(t, due)
		require.Equal(t, int64(100), change.NotBelow)
		pinned = 10
		_, due = c.commit(k)
		require.False(t, due, "fewer than Every are free")
	})
}
