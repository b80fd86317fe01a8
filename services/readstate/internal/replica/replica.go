// Package replica keeps a copy of the hot state of every table: it finds the
// tables at the buffers, follows each log, and is the readapi.Tables of
// readstate. It goes on by itself after every outage and serves meanwhile what
// it has: an old position, but a consistent one.
package replica

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
)

// Timing of a replica.
const (
	DefaultPoll = time.Second
	// DefaultForget is how long a table that no buffer lists any more is kept: a
	// buffer that restarts lists nothing until a committer has opened its tables.
	DefaultForget = 10 * time.Minute
	DefaultPins   = 5 * time.Second
	callTimeout   = 5 * time.Second
)

// Config of a replica. Resolver and Dial are required.
type Config struct {
	// Instance names this follower, for people and for its pins.
	Instance string
	Resolver discovery.Resolver
	// Dial returns the client for an address, the same one each time.
	Dial func(address string) (grpc.ClientConnInterface, error)
	// Pins returns the oldest snapshot that readers of a table need.
	Pins func(table string) (snapshot, sequence int64)
	// Poll, Forget and PinEvery override the defaults.
	Poll, Forget, PinEvery time.Duration
	// Backoff spaces out reconnects.
	Backoff backoff.Policy
	Health  *obs.Health
	Metrics *obs.Metrics
	Log     *slog.Logger
}

// Replica follows all tables. Safe for concurrent use.
type Replica struct {
	cfg    Config
	search *obs.Component

	mu     sync.Mutex
	tables map[string]*follower
}

var _ readapi.Tables = (*Replica)(nil)

// New returns a replica that follows nothing yet.
func New(cfg Config) *Replica {
	if cfg.Poll <= 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.Forget <= 0 {
		cfg.Forget = DefaultForget
	}
	if cfg.PinEvery <= 0 {
		cfg.PinEvery = DefaultPins
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Health == nil {
		cfg.Health = obs.NewHealth(nil)
	}
	if cfg.Pins == nil {
		cfg.Pins = func(string) (int64, int64) { return 0, 0 }
	}
	return &Replica{cfg: cfg, search: cfg.Health.Component("readstate/tables"), tables: map[string]*follower{}}
}

// Names implements readapi.Tables.
func (r *Replica) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.tables))
}

// Table implements readapi.Tables.
func (r *Replica) Table(name string) (readapi.Source, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.tables[name]
	if !ok {
		return nil, fault.New(fault.UnknownTable, "no buffer holds a table %q: is its name right, and has its pipeline started?%s", name, near.Table(name, slices.Sorted(maps.Keys(r.tables))))
	}
	return f.live, nil
}

// Run finds and follows tables until ctx ends.
func (r *Replica) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { r.reportPins(ctx) })
	defer wg.Wait()
	defer r.stopAll()
	tick := time.NewTicker(r.cfg.Poll)
	defer tick.Stop()
	for {
		r.poll(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// poll asks every buffer for its tables, follows the new ones and those that
// moved, and forgets those that are gone for long.
func (r *Replica) poll(ctx context.Context) {
	listed, err := r.list(ctx)
	if err != nil {
		if ctx.Err() == nil && len(r.Names()) == 0 {
			r.search.NotReady("waiting for a buffer to list its tables: %s", fault.Describe(err))
		}
		return
	}
	now := time.Now()
	for name, owner := range listed {
		if err := r.follow(ctx, name, owner, now); err != nil {
			r.cfg.Log.Warn("cannot follow a table", "table", name, "buffer", owner, "error", err)
		}
	}
	r.forget(now)
	r.search.Ready()
}

// list returns the tables of all buffers with the address of each one's buffer.
func (r *Replica) list(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	buffers, err := r.cfg.Resolver.Instances(ctx, discovery.Buffer)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var failed error
	for _, address := range buffers {
		conn, err := r.cfg.Dial(address)
		if err != nil {
			failed = err
			continue
		}
		resp, err := readstatev1.NewReadStateServiceClient(conn).ListTables(ctx, &readstatev1.ListTablesRequest{})
		if err != nil {
			failed = err
			continue
		}
		for _, t := range resp.GetTables() {
			out[t.GetTable()] = address
		}
	}
	if len(out) == 0 && failed != nil {
		return nil, failed
	}
	return out, nil
}

// follow makes sure that a table is followed at its owner.
func (r *Replica) follow(ctx context.Context, name, address string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.tables[name]
	if f == nil {
		f = newFollower(name, &r.cfg)
		r.tables[name] = f
		r.cfg.Log.Info("table found", "table", name, "buffer", address)
	}
	f.seen = now
	if f.address == address {
		return nil
	}
	conn, err := r.cfg.Dial(address)
	if err != nil {
		return err
	}
	f.stop()
	f.start(ctx, address, conn)
	return nil
}

// forget drops tables that no buffer has listed for long.
func (r *Replica) forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.tables {
		if now.Sub(f.seen) > r.cfg.Forget {
			f.stop()
			f.remove()
			delete(r.tables, name)
			r.cfg.Log.Info("table gone", "table", name)
		}
	}
}

func (r *Replica) stopAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.tables {
		f.stop()
	}
}

// reportPins tells each table's buffer the oldest snapshot that readers here
// need, so that it is not expired under them. Zeros are reported too: they take
// an older report back.
func (r *Replica) reportPins(ctx context.Context) {
	tick := time.NewTicker(r.cfg.PinEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range r.Names() {
			r.reportPin(ctx, name)
		}
	}
}

func (r *Replica) reportPin(ctx context.Context, name string) {
	r.mu.Lock()
	f := r.tables[name]
	var conn grpc.ClientConnInterface
	if f != nil {
		conn = f.conn
	}
	r.mu.Unlock()
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	snapshot, sequence := r.cfg.Pins(name)
	_, err := bufferv1.NewTableLogServiceClient(conn).ReportPins(ctx, &bufferv1.ReportPinsRequest{
		Table: name, Follower: r.cfg.Instance,
		Pins: &bufferv1.Pins{OldestSnapshotId: snapshot, OldestSequenceNumber: sequence},
	})
	if err != nil && ctx.Err() == nil {
		r.cfg.Log.Debug("pins not reported", "table", name, "error", err)
	}
}
