package boot

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// G7: what the process takes beyond its budgets is a fixed amount, not a multiple.
func TestGarbageIsBoundedByHeadroomAndNotByAMultiple(t *testing.T) {
	require.Equal(t, mostPace, paceFor(0, Headroom))
	require.Equal(t, mostPace, paceFor(1<<20, 1<<20+Headroom))
	require.Equal(t, 100, paceFor(Headroom, 2*Headroom))
	require.Equal(t, 50, paceFor(2*Headroom, 3*Headroom))
	require.Equal(t, leastPace, paceFor(100*Headroom, 101*Headroom))
	require.Equal(t, 200, paceFor(Headroom, 3*Headroom), "twice the headroom was live lately")
}

func TestThePaceFollowsTheLiveHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetGCPercent(100)
	Tune(Headroom)
	live := make([]byte, 2*Headroom)
	require.Eventually(t, func() bool {
		runtime.GC()
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now >= leastPace && now <= 60
	}, 10e9, 10e6)
	runtime.KeepAlive(live)
	debug.SetGCPercent(before)
}
