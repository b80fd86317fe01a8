package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// script notes what happened, in order.
type script struct {
	mu    sync.Mutex
	lines []string
}

func (s *script) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *script) actor(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		s.note("end " + name)
		return ctx.Err()
	}
}

func (s *script) phase(name string) func(context.Context) error {
	return func(context.Context) error { s.note("phase " + name); return nil }
}

func TestDrainRunsPhasesInWrittenOrderAndEndsActorsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		g := NewGroup(Options{})
		g.Add("journal", s.actor("journal"))
		g.Add("server", s.actor("server"))
		g.OnStop("not ready", s.phase("not ready"))
		g.OnStop("stop intake", s.phase("stop intake"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.NoError(t, g.Run(ctx))
		require.Equal(t, []string{"phase not ready", "phase stop intake", "end server", "end journal"}, s.lines)
	})
}

func TestFirstFailureStopsAllAndNamesActorAndCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		cause := errors.New("no space left")
		g := NewGroup(Options{})
		g.Add("server", s.actor("server"))
		g.Add("journal", func(context.Context) error {
			return WithCode(Dependency, fmt.Errorf("syncing segment 3: %w", cause))
		})
		g.OnStop("stop intake", s.phase("stop intake"))
		err := g.Run(t.Context())
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "running journal: syncing segment 3")
		require.Equal(t, Dependency, CodeOf(err))
		require.Equal(t, []string{"phase stop intake", "end server"}, s.lines)
	})
}

func TestAnActorThatEndsByItselfIsAFailure(t *testing.T) {
	g := NewGroup(Options{})
	g.Add("loop", func(context.Context) error { return nil })
	err := g.Run(t.Context())
	require.ErrorContains(t, err, "loop")
	require.Equal(t, Internal, CodeOf(err))
}

func TestGroupOfTasksEndsWhenAllAreDone(t *testing.T) {
	g := NewGroup(Options{})
	g.AddTask("produce", func(context.Context) error { return nil })
	g.AddTask("verify", func(context.Context) error { return nil })
	require.NoError(t, g.Run(t.Context()))
}

func TestATaskDoneLeavesServicesRunningUntilStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s script
		g := NewGroup(Options{})
		g.Add("server", s.actor("server"))
		g.AddTask("produce", func(context.Context) error { s.note("produced"); return nil })
		time.AfterFunc(time.Minute, func() { s.note("stop"); g.Stop(); g.Stop() })
		require.NoError(t, g.Run(t.Context()))
		require.Equal(t, []string{"produced", "stop", "end server"}, s.lines)
	})
}

func TestAPanicIsAnInternalFailureWithTheActorsName(t *testing.T) {
	g := NewGroup(Options{})
	g.Add("decoder", func(context.Context) error { panic("bad index") })
	err := g.Run(t.Context())
	require.ErrorContains(t, err, "running decoder: panic: bad index")
	require.Equal(t, Internal, CodeOf(err))
}

func TestDrainDeadlineNamesWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := NewGroup(Options{Drain: 5 * time.Second})
		g.Add("stuck", func(context.Context) error { <-release; return nil })
		g.OnStop("slow", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		started := time.Now()
		g.Stop()
		err := g.Run(t.Context())
		require.Equal(t, 5*time.Second, time.Since(started))
		require.ErrorContains(t, err, "stuck did not end within 5s")
		require.ErrorContains(t, err, `phase "slow"`)
		close(release)
	})
}

func TestActorsWorkOnWhilePhasesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive := make(chan error, 1)
		var actorCtx context.Context
		ready := make(chan struct{})
		g := NewGroup(Options{})
		g.Add("committer", func(ctx context.Context) error {
			actorCtx = ctx
			close(ready)
			<-ctx.Done()
			return nil
		})
		g.OnStop("finish in-flight", func(context.Context) error {
			<-ready
			alive <- actorCtx.Err()
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, g.Run(ctx))
		require.NoError(t, <-alive)
	})
}

func TestExitCodesAreUniqueAndOutermostMarkCounts(t *testing.T) {
	seen := map[Code]bool{}
	for _, d := range Codes() {
		require.False(t, seen[d.Code], d.Name)
		seen[d.Code] = true
		require.NotEmpty(t, d.Meaning)
		require.Equal(t, d.Name, d.Code.String())
	}
	require.Equal(t, OK, CodeOf(nil))
	require.NoError(t, WithCode(Violated, nil))
	inner := WithCode(Dependency, errors.New("x"))
	require.Equal(t, BadConfig, CodeOf(fmt.Errorf("w: %w", WithCode(BadConfig, inner))))
}
