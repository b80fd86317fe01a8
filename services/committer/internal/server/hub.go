// Package server is the door of the committer: the hub keeps one committer per
// table, and the services answer ingest and operators from it.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
	"github.com/icestream/icestream/services/committer/internal/maintain"
	"github.com/icestream/icestream/services/committer/internal/pull"
)

// Options of a Hub.
type Options struct {
	Deployment string
	Instance   string
	Version    string
	Lake       *lake.Lake
	Resolve    discovery.Resolver
	Dial       Dialer
	// Plan says when a table that these pipelines feed is committed, and how large
	// its files get.
	Plan func(pipelines []string) Plan
	// Commit are the options of every table; Name, Policy and Log are filled in.
	Commit commit.Options
	// Held bounds what is held in memory between streams and files, Files what
	// is held in open row groups; both for all tables together.
	Held, Files int64
	Maintain    maintain.Policy
	// RedAfter is how long a failure may last before a table is not ready.
	RedAfter time.Duration
	Health   *obs.Health
	Metrics  *obs.Metrics
	Log      *slog.Logger
}

// Plan says when a table is committed and how large its files get.
type Plan struct {
	Policy   cut.Policy
	FileSize int64
}

// Hub keeps the committers of tables: one per table, started when somebody opens
// it, and at the start for every table that carries our owner key.
type Hub struct {
	o       Options
	budget  *pull.Budget
	hot     atomic.Int64
	pulse   *pulse
	catalog *obs.Component

	mu       sync.Mutex
	base     context.Context //nolint:containedctx // the lifetime of all tables, set by Run
	draining bool
	tables   map[string]*entry
	renewed  map[string]bool // may be made although the buffer remembers them
	running  sync.WaitGroup
}

// entry is one table. Whoever opens it has the turn.
type entry struct {
	turn   run.Turn
	table  *commit.Table
	puller *pull.Puller
	lake   *lake.Table
	buffer *bufferClient
	stop   context.CancelFunc
	plan   atomic.Pointer[Plan]
	feeds  map[string]bool // pipelines, by turns
	health *obs.Component

	replaying sync.Mutex // held by the one replay of the table
}

// New makes a hub; Run starts it.
func New(o Options) *Hub {
	h := &Hub{o: o, budget: pull.NewBudget(o.Held), pulse: newPulse(), tables: map[string]*entry{}, renewed: map[string]bool{}}
	h.catalog = o.Health.Component("committer/catalog")
	h.catalog.NotReady("the catalog has not answered yet")
	o.Metrics.GaugeFunc(defHeld, func() float64 { return float64(h.budget.Used()) })
	o.Metrics.GaugeFunc(defHot, func() float64 { return float64(h.hot.Load()) })
	return h
}

// Run opens the tables of the deployment, as soon as the catalog answers, and
// works until ctx ends; then nothing new is committed. Call Drain before.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	h.base = ctx
	h.mu.Unlock()
	go h.watch(ctx)
	err := backoff.Retry(ctx, h.o.Commit.Backoff, h.openOwned, func(err error) backoff.Verdict {
		h.catalog.NotReady("%s", fault.Text(err))
		h.o.Log.Warn("tables of the deployment could not all be opened", "error", err)
		return backoff.Again()
	})
	if err == nil {
		h.catalog.Ready()
	}
	<-ctx.Done()
	h.running.Wait()
	return nil
}

// openOwned opens every table that carries our owner key: its outbox is finished
// and the buffer told, whether or not a pipeline still feeds it.
func (h *Hub) openOwned(ctx context.Context) error {
	names, err := h.o.Lake.Owned(ctx, h.o.Deployment)
	for _, name := range names {
		if _, oerr := h.open(ctx, name, "", nil); oerr != nil {
			err = errors.Join(err, oerr)
		}
	}
	return err
}

// Drain lets every table commit once more and ends them, within ctx.
func (h *Hub) Drain(ctx context.Context) error {
	h.mu.Lock()
	h.draining = true
	for _, e := range h.tables {
		if e.stop != nil {
			e.stop()
		}
	}
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		h.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the last commits: %w; their rows are read again at the next start", context.Cause(ctx))
	}
}

// find returns an open table.
func (h *Hub) find(ctx context.Context, name string) (*entry, error) {
	h.mu.Lock()
	e, known := h.tables[name], slices.Sorted(maps.Keys(h.tables))
	h.mu.Unlock()
	if e == nil {
		return nil, fault.New(fault.UnknownTable, "table %s is not open here: no pipeline feeds it and it does not carry the owner key of deployment %q%s",
			name, h.o.Deployment, near.Table(name, known))
	}
	if err := e.turn.Take(ctx); err != nil {
		return nil, fault.New(fault.NotReady, "table %s is being opened: %w", name, err)
	}
	defer e.turn.Give()
	if e.table == nil {
		return nil, fault.New(fault.NotReady, "table %s is being opened", name)
	}
	return e, nil
}

// Held says what an open table holds uncommitted.
func (h *Hub) Held(ctx context.Context, table string) (cut.Load, error) {
	e, err := h.find(ctx, table)
	if err != nil {
		return cut.Load{}, err
	}
	return e.puller.Load(), nil
}

// list returns the open tables by name.
func (h *Hub) list() []*entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*entry
	for _, name := range slices.Sorted(maps.Keys(h.tables)) {
		if e := h.tables[name]; e.health != nil {
			out = append(out, e)
		}
	}
	return out
}

// open returns the committer of a table, and starts it when there is none yet.
// With settings a table that does not exist is made.
func (h *Hub) open(ctx context.Context, name, pipeline string, settings *lake.Settings) (*entry, error) {
	h.mu.Lock()
	switch {
	case h.base == nil:
		h.mu.Unlock()
		return nil, fault.New(fault.NotReady, "opening table %s: the committer is starting", name)
	case h.draining || h.base.Err() != nil:
		h.mu.Unlock()
		return nil, fault.New(fault.Unavailable, "opening table %s: the committer is shutting down", name)
	}
	e := h.tables[name]
	if e == nil {
		e = &entry{turn: run.NewTurn(), feeds: map[string]bool{}}
		h.tables[name] = e
	}
	h.mu.Unlock()

	if err := e.turn.Take(ctx); err != nil {
		return nil, fault.New(fault.Unavailable, "opening table %s: somebody else is opening it, and that takes long: %w", name, err)
	}
	defer e.turn.Give()
	if e.table == nil {
		t, err := h.load(ctx, name, settings)
		if err != nil {
			return nil, err
		}
		if err := h.start(e, name, t); err != nil {
			return nil, err
		}
	}
	if pipeline != "" && !e.feeds[pipeline] {
		e.feeds[pipeline] = true
		h.replan(e)
	}
	return e, nil
}

// load loads a table, or makes it.
func (h *Hub) load(ctx context.Context, name string, settings *lake.Settings) (*lake.Table, error) {
	t, err := h.o.Lake.Load(ctx, name)
	if fault.ReasonOf(err) != fault.UnknownTable || settings == nil {
		return t, err
	}
	if err := h.mayCreate(ctx, name); err != nil {
		return nil, err
	}
	if t, err = h.o.Lake.Create(ctx, name, *settings); err == nil {
		h.mu.Lock()
		delete(h.renewed, name)
		h.mu.Unlock()
	}
	return t, err
}

// replan derives when to commit from the pipelines that feed the table.
func (h *Hub) replan(e *entry) {
	p := h.o.Plan(slices.Sorted(maps.Keys(e.feeds)))
	e.plan.Store(&p)
	if e.table != nil {
		e.table.SetPolicy(p.Policy)
	}
}

// start starts the two loops of a table: the one that follows and writes, and
// the one that commits. The first outlives the second, which needs it for the
// last commit.
func (h *Hub) start(e *entry, name string, t *lake.Table) error {
	for pipeline := range t.Head().State.Pipelines {
		e.feeds[pipeline] = true
	}
	h.replan(e)
	log := h.o.Log.With("table", name)
	buffer := h.bufferOf(name)
	e.lake, e.buffer = t, buffer
	e.puller = pull.New(pull.Options{
		Table: name, Files: &files{hub: h, entry: e}, Budget: h.budget, Hot: &h.hot, Log: h.o.Log,
		Follow: func(ctx context.Context, handler follow.Handler) error {
			return follow.Run(ctx, follow.Options{
				Conn: buffer, Table: name, Role: bufferv1.FollowerRole_FOLLOWER_ROLE_COMMITTER, Name: h.o.Instance, Log: h.o.Log,
			}, handler)
		},
	})
	o := h.o.Commit
	o.Name, o.Policy, o.Revived, o.Log = name, e.plan.Load().Policy, h.pulse.revived, h.o.Log
	table := commit.New(o, commit.Ports{
		Lake: t, Outbox: t, Intents: t, Buffer: buffer, Source: e.puller, Observe: observer{h.o.Metrics, name},
		Maintain: maintain.New(h.o.Maintain, t, e.puller.Pins),
	})

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return fault.New(fault.Unavailable, "opening table %s: the committer is shutting down", name)
	}
	follows, stopFollowing := context.WithCancel(context.WithoutCancel(h.base))
	commits, stop := context.WithCancel(h.base)
	e.table, e.stop, e.health = table, stop, h.o.Health.Component("committer/table "+name)
	remove := e.gauges(h.o.Metrics)
	h.running.Go(func() {
		defer remove()
		pulled := make(chan struct{})
		go func() {
			defer close(pulled)
			_ = e.puller.Run(follows, table) // ends with its context alone
		}()
		if err := table.Run(commits); err != nil {
			log.Error("last commit was not made; its rows are read again at the next start", "error", err)
		}
		stopFollowing()
		<-pulled
	})
	return nil
}

// bufferOf returns a client for the log of a table.
func (h *Hub) bufferOf(table string) *bufferClient {
	return &bufferClient{table: table, resolve: h.o.Resolve, dial: h.o.Dial, log: h.o.Log}
}

// watch shows the state of the tables in the health of the process.
func (h *Hub) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		failing := false
		for _, e := range h.list() {
			s := e.table.Status()
			failing = failing || !s.FailingSince.IsZero()
			if ok, why := s.Ready(time.Now(), h.o.RedAfter); ok {
				e.health.Ready()
			} else {
				e.health.NotReady("%s", why)
			}
		}
		if failing {
			h.pulse.feel(ctx, h.o.Lake.Ping)
		}
	}
}

// files makes the writers of a table.
type files struct {
	hub   *Hub
	entry *entry
}

// Shape implements pull.Files.
func (f *files) Shape() *schema.Schema { return f.entry.lake.Head().Schema }

// NewWriter implements pull.Files. The budget of open row groups is shared
// evenly among the tables that are open.
func (f *files) NewWriter(ctx context.Context, s *schema.Schema, id ident.UUID, epoch ident.WriterEpoch) (pull.Writer, error) {
	f.hub.mu.Lock()
	share := f.hub.o.Files / int64(max(1, len(f.hub.tables)))
	f.hub.mu.Unlock()
	return f.entry.lake.NewWriter(ctx, s, lake.WriterOptions{
		Attempt: id, Epoch: epoch, FileSize: f.entry.plan.Load().FileSize, Budget: share,
	})
}
