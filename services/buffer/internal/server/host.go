// Package server puts table logs on the wire: append streams with credit in
// bytes, followers with images and events, the committer's calls, and what
// readers and operators ask for. It owns the locks, the journal's callbacks and
// the byte budget; every decision about a log is made by the pure machine in
// package table.
//
// Locking: one mutex per table log. Nothing is sent, waited for or validated
// under it. The journal calls back in order, one call at a time.
package server

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// Journal makes records durable. Callbacks come in the order of the calls.
type Journal interface {
	Append(table string, recs []event.Event, done func(error))
	Health() error
}

// Options of a Host. Journal, Boot, Nonce and Log are required.
type Options struct {
	Boot      ident.UUID
	Journal   Journal
	Recovered map[string]table.Recovered
	Lost      string        // why the journal remembers nothing, for people; "" when it was simply new
	Nonce     func() uint64 // random
	HotBytes  int64         // budget of hot rows over all tables
	Window    int64         // credit of one append stream; 0: 8 MiB (some five messages under way), at most a quarter of HotBytes
	MaxLag    int64         // bytes that are kept for a follower alone before it is cut off; 0: a quarter of HotBytes, at least 8 MiB
	MaxQueue  int64         // bytes one append stream may send beyond its credit; 0: 129 MiB (one message)
	Heartbeat time.Duration // of quiet follower streams; 0: 5 s
	PinLife   time.Duration // how long a pin counts after its last report; 0: 15 min
	Committer string        // where the committer is, for people
	Metrics   *obs.Metrics
	Health    *obs.Health
	Log       *slog.Logger
	Draining  <-chan struct{} // closed when the server begins to drain; may be nil
	OwnPins   func(table string) (snapshot, sequence int64)
}

// maxTables bounds the names that peers can make the buffer remember.
const maxTables = 10_000

// Host holds every table log of this buffer.
type Host struct {
	opt    Options
	budget *budget
	meter  meter
	behind atomic.Int64 // hot bytes of partitions that commits pass by
	used   atomic.Int64 // tables that ever had an append

	mu   sync.Mutex
	logs map[string]*tableLog
}

// NewHost returns a host with the tables that the journal remembers.
func NewHost(opt Options) *Host {
	if opt.Window <= 0 {
		opt.Window = max(1, min(8<<20, opt.HotBytes/4))
	}
	if opt.MaxLag <= 0 {
		opt.MaxLag = max(8<<20, opt.HotBytes/4)
	}
	if opt.MaxQueue <= 0 {
		opt.MaxQueue = 129 << 20
	}
	if opt.Heartbeat <= 0 {
		opt.Heartbeat = 5 * time.Second
	}
	if opt.PinLife <= 0 {
		opt.PinLife = 15 * time.Minute
	}
	if opt.Health == nil {
		opt.Health = obs.NewHealth(nil)
	}
	h := &Host{opt: opt, logs: map[string]*tableLog{}, meter: newMeter(opt.Metrics)}
	h.budget = newBudget(opt.HotBytes)
	h.meter.watchBudget(h.budget)
	for name, rec := range opt.Recovered {
		h.logs[name] = h.newLog(name, &rec)
	}
	h.JournalChanged()
	return h
}

// JournalChanged shows the state of the journal; call it when Health may have changed.
func (h *Host) JournalChanged() {
	c := h.opt.Health.Component("buffer/journal")
	if err := h.opt.Journal.Health(); err != nil {
		c.NotReady("%s", fault.Describe(err))
		return
	}
	c.Ready()
}

// log returns the log of a table, made closed when it is not known.
func (h *Host) log(name string) (*tableLog, error) {
	if name == "" {
		return nil, fault.New(fault.InvalidArgument, "the request names no table")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.logs[name]
	if l == nil {
		if len(h.logs) >= maxTables {
			return nil, fault.New(fault.OverLimit, "this buffer holds %d tables already", len(h.logs))
		}
		l = h.newLog(name, nil)
		h.logs[name] = l
	}
	return l, nil
}

// all returns the logs by name.
func (h *Host) all() []*tableLog {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*tableLog, 0, len(h.logs))
	for _, name := range slices.Sorted(maps.Keys(h.logs)) {
		out = append(out, h.logs[name])
	}
	return out
}

// Names lists the tables that a committer has opened or the journal remembers.
func (h *Host) Names() []string {
	var out []string
	for _, l := range h.all() {
		if l.state() != table.Closed {
			out = append(out, l.name)
		}
	}
	return out
}

// Table returns a table as readers see it.
func (h *Host) Table(name string) (readapi.Source, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.logs[name]
	if l == nil {
		return nil, fault.New(fault.UnknownTable, "table %s is not known to this buffer: its committer opens tables when a pipeline feeds them%s",
			name, near.Table(name, slices.Sorted(maps.Keys(h.logs))))
	}
	return source{l}, nil
}

// HotBytes is what hot rows and appends under way count in the budget now.
func (h *Host) HotBytes() int64 { used, _ := h.budget.read(); return used }
