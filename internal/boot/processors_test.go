package boot

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// machine is one on which the process under test is busy as the test says.
type machine struct {
	mu    sync.Mutex // the detector of races does not see that the bubble's goroutines take turns
	busy  float64    // processors that it would use
	limit int
	taken int
	used  time.Duration
	blind bool // the process cannot tell what it uses
	calls int  // of take
}

// pass lets the process be busy for a while; it cannot use more than it has taken.
func (m *machine) pass(looks int) {
	for range looks {
		m.mu.Lock()
		m.used += time.Duration(min(m.busy, float64(m.taken)) * float64(loadEvery))
		m.mu.Unlock()
		<-time.After(loadEvery)
		synctest.Wait()
	}
}

func withMachine(t *testing.T, limit int, check func(m *machine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &machine{limit: limit}
		l := load{cpu: func() (time.Duration, bool) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.used, !m.blind
		}, take: func(n int) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.taken = n
			m.calls++
		}, limit: func() int {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.taken = m.limit
			return m.limit
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.follow(ctx) }()
		synctest.Wait()
		<-time.After(time.Millisecond) // looks of the test are just after those of the process
		check(m)
		m.taken = 0
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, m.limit, m.taken, "all are there again at the end")
	})
}

func TestAQuietProcessGivesProcessorsUpAfterAWhile(t *testing.T) {
	withMachine(t, 8, func(m *machine) {
		m.busy = 0.2
		m.pass(loadKeep - 1)
		require.Equal(t, 8, m.taken)
		m.pass(1)
		require.Equal(t, 1, m.taken)
	})
}

func TestABusyProcessHasAllProcessorsWithinASecond(t *testing.T) {
	withMachine(t, 8, func(m *machine) {
		m.pass(loadKeep)
		require.Equal(t, 1, m.taken)
		m.busy = 8
		m.pass(int(time.Second / loadEvery))
		require.Equal(t, 8, m.taken)
		m.busy = 2.6 // twice what is busy, and one
		m.pass(loadKeep)
		require.Equal(t, 6, m.taken)
	})
}

func TestABurstKeepsItsProcessorsForAWhile(t *testing.T) {
	withMachine(t, 2, func(m *machine) {
		m.pass(loadKeep)
		m.busy = 0.9
		m.pass(1)
		require.Equal(t, 2, m.taken)
		m.busy = 0
		m.pass(loadKeep - 1)
		require.Equal(t, 2, m.taken)
		m.pass(1)
		require.Equal(t, 1, m.taken)
	})
}

func TestTheLimitOfAContainerMayChange(t *testing.T) {
	withMachine(t, 2, func(m *machine) {
		m.busy, m.limit = 6, 4
		m.pass(int(limitEvery / loadEvery))
		require.Equal(t, 4, m.taken)
		m.limit = 1
		m.pass(int(limitEvery / loadEvery))
		require.Equal(t, 1, m.taken)
	})
}

func TestAProcessThatCannotTellWhatItUsesTakesAll(t *testing.T) {
	withMachine(t, 8, func(m *machine) {
		m.pass(2 * loadKeep)
		require.Equal(t, 1, m.taken)
		m.blind = true
		m.pass(1)
		require.Equal(t, 8, m.taken)
		m.pass(2 * loadKeep)
		require.Equal(t, 8, m.taken)
		m.blind = false
		m.pass(loadKeep + 1) // the first look behind it has nothing to compare with
		require.Equal(t, 1, m.taken)
	})
}

// Each look at most doubles what is taken, and a call stops the world.
func TestAMachineWithManyProcessors(t *testing.T) {
	withMachine(t, 64, func(m *machine) {
		m.pass(loadKeep)
		require.Equal(t, 1, m.taken)
		m.busy = 64
		m.pass(7) // 1, 3, 7, 15, 31, 63, 64
		require.Equal(t, 64, m.taken)
		m.busy, m.calls = 20.3, 0
		m.pass(loadKeep)
		require.Equal(t, 41, m.taken)
		require.LessOrEqual(t, m.calls, 2)
		m.calls = 0
		for range 100 { // a load that swings within the time that processors are kept
			m.busy = 0
			m.pass(loadKeep / 2)
			m.busy = 20.3
			m.pass(loadKeep / 2)
		}
		require.LessOrEqual(t, m.calls, 1+int(100*loadKeep*loadEvery/limitEvery), "one for each time that the limit is asked for")
		for range 100 { // one that swings slower
			m.busy = 0
			m.pass(2 * loadKeep)
			m.busy = 20.3
			m.pass(2 * loadKeep)
		}
		require.LessOrEqual(t, m.calls, 100*7, "seven in eight seconds at the worst")
		t.Log(m.calls)
	})
}
