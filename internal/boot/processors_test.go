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
		l := load{cpu: func() time.Duration {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.used
		}, take: func(n int) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.taken = n
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
