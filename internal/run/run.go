// Package run holds the life cycle of a process: a group of named actors that start together, of which the first
// failure stops all, and a drain whose phases run in the order in which they were written down.
//
// A service is a set of actors (its gRPC server, its Kafka loop, its commit loop, ...). Its main adds them to a Group,
// adds the phases of the drain ("leave discovery", "stop intake", "finish work in flight") and calls Run, which
// returns when everything has ended, with an error that names the actor that failed and carries the exit code.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultDrain is how long a drain may take when Options does not say.
const DefaultDrain = 60 * time.Second

// Options of a Group. The zero value is usable.
type Options struct {
	// Log receives state changes. Nil discards them.
	Log *slog.Logger
	// Drain bounds the whole drain: all phases, and the end of all actors. Zero means DefaultDrain.
	Drain time.Duration
}

// Group runs actors until the first fails, all tasks are done, Stop is called or the context ends, and then drains.
// Add everything before Run; Run may be called once. Stop is safe from any goroutine.
type Group struct {
	log    *slog.Logger
	drain  time.Duration
	actors []*actor
	phases []phase

	stopOnce sync.Once
	stop     chan struct{}
}

type actor struct {
	name   string
	run    func(context.Context) error
	mayEnd bool
	cancel context.CancelFunc
	done   chan struct{}
}

type phase struct {
	name string
	run  func(context.Context) error
}

// ended is the news that an actor has returned.
type ended struct {
	actor *actor
	err   error
}

// NewGroup returns an empty group.
func NewGroup(o Options) *Group {
	g := &Group{log: o.Log, drain: o.Drain, stop: make(chan struct{})}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.drain <= 0 {
		g.drain = DefaultDrain
	}
	return g
}

// Add adds an actor that has to run until its context ends. If it returns earlier, even with nil, the group fails:
// a loop of a service that ends silently is worse than one that fails. The context ends after the drain phases, not
// when the process is asked to stop, so an actor works on while the phases run. Actors are told to end in the
// reverse order of Add, each after the next has ended, so that an actor may rely on those added before it.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.actors = append(g.actors, &actor{name: name, run: run, done: make(chan struct{})})
}

// AddTask adds an actor that may be done before the group is: its return with nil ends nothing but itself. When
// every actor of a group has ended so, the group ends with nil.
func (g *Group) AddTask(name string, run func(context.Context) error) {
	g.actors = append(g.actors, &actor{name: name, run: run, mayEnd: true, done: make(chan struct{})})
}

// OnStop adds a phase of the drain. Phases run one after the other in the order of the calls; the context of each
// ends with the drain's deadline. A phase that fails is logged and reported, and the next one still runs.
func (g *Group) OnStop(name string, run func(context.Context) error) {
	g.phases = append(g.phases, phase{name: name, run: run})
}

// Stop asks the group to drain, as the end of Run's context does.
func (g *Group) Stop() { g.stopOnce.Do(func() { close(g.stop) }) }

// Run starts all actors and blocks until all have ended. It returns nil after an orderly drain, or the first failure
// (named after its actor, with its exit code) joined with what went wrong during the drain. Actors that do not end
// before the drain's deadline are named and left behind; the caller is expected to exit.
func (g *Group) Run(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	news := make(chan ended, len(g.actors))
	for _, a := range g.actors {
		var actx context.Context
		actx, a.cancel = context.WithCancel(base)
		go func() {
			err := protect(actx, a.run)
			news <- ended{a, err} // never blocks: one place per actor; before done, so that no late failure is missed
			close(a.done)
		}()
	}
	first := g.wait(ctx, news)
	if first != nil {
		g.log.Error("stopping after a failure", "error", first, "exit_code", int(CodeOf(first)))
	} else {
		g.log.Info("draining")
	}

	dctx, cancel := context.WithTimeout(base, g.drain)
	defer cancel()
	problems := g.runPhases(dctx)
	problems = append(problems, g.endActors(dctx, news, first)...)
	return errors.Join(append([]error{first}, problems...)...)
}

// wait returns when the group has to stop: with the first failure, or nil.
func (g *Group) wait(ctx context.Context, news <-chan ended) error {
	for running := len(g.actors); running > 0; running-- {
		select {
		case <-ctx.Done():
			return nil
		case <-g.stop:
			return nil
		case e := <-news:
			if err := e.failure(); err != nil {
				return err
			}
			g.log.Info("task done", "actor", e.actor.name)
		}
	}
	return nil
}

// failure says why the return of an actor stops the group, or nil if it does not.
func (e ended) failure() error {
	switch {
	case e.err != nil:
		return fmt.Errorf("running %s: %w", e.actor.name, e.err)
	case e.actor.mayEnd:
		return nil
	default:
		return WithCode(Internal, fmt.Errorf("running %s: it ended by itself without an error, which is a fault of it", e.actor.name))
	}
}

func (g *Group) runPhases(ctx context.Context) []error {
	var problems []error
	for _, p := range g.phases {
		started := time.Now()
		err := protect(ctx, p.run)
		if err != nil {
			err = fmt.Errorf("draining, phase %q: %w", p.name, err)
			problems = append(problems, err)
			g.log.Warn("drain phase failed", "phase", p.name, "error", err)
			continue
		}
		g.log.Info("drain phase done", "phase", p.name, "took", time.Since(started))
	}
	return problems
}

// endActors cancels the actors in reverse order, each after the one added later has ended or the deadline has passed.
func (g *Group) endActors(ctx context.Context, news <-chan ended, first error) []error {
	var hanging []string
	for _, a := range slices.Backward(g.actors) {
		a.cancel()
		select {
		case <-a.done:
		default:
			select {
			case <-a.done:
			case <-ctx.Done():
				hanging = append(hanging, a.name)
			}
		}
	}
	problems := g.lateFailures(news, first)
	if len(hanging) > 0 {
		problems = append(problems, WithCode(Internal, fmt.Errorf(
			"draining: %s did not end within %s; what they held is recovered at the next start",
			strings.Join(hanging, ", "), g.drain)))
	}
	return problems
}

// lateFailures collects the errors of actors that failed after the first failure or during the drain. The end of
// their own context is no failure.
func (g *Group) lateFailures(news <-chan ended, first error) []error {
	var problems []error
	for {
		select {
		case e := <-news:
			if e.err == nil || errors.Is(e.err, context.Canceled) {
				continue
			}
			err := fmt.Errorf("ending %s: %w", e.actor.name, e.err)
			g.log.Warn("actor failed while stopping", "actor", e.actor.name, "error", e.err)
			if first == nil { // after a failure the others fail because of it; they are logged only
				problems = append(problems, err)
			}
		default:
			return problems
		}
	}
}

// protect turns a panic of fn into an error, so that its actor is named and the others still drain.
func protect(ctx context.Context, fn func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = WithCode(Internal, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	return fn(ctx)
}

// Signals returns a context that ends at the first SIGINT or SIGTERM. After it the signals have their usual effect
// again, so that a second one ends a process whose drain takes too long. Call stop when the process is done.
func Signals(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
