package server

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// tableLog is one table log with everybody who is connected to it.
type tableLog struct {
	h      *Host
	name   string
	health *obs.Component

	counted atomic.Int64 // what this log counts in the budget, apart from appends being validated; written under mu

	mu        sync.Mutex
	m         *table.Machine
	feed      *feed
	changed   chan struct{} // closed and replaced by every change
	served    chan struct{} // closed when the log ceases to serve; nil before it first does
	appenders map[*appender]struct{}
	followers map[*follower]struct{}
	progress  map[ident.Partition]readapi.Progress
	pins      map[string]pin
	under     int64 // bytes of appends accepted and not durable yet
	shares    shares
	parsed    map[string]*schema.Schema
}

// pin is what a follower said it needs.
type pin struct {
	snapshot, sequence int64
	heard              time.Time
}

func (h *Host) newLog(name string, rec *table.Recovered) *tableLog {
	why := h.opt.Lost
	l := &tableLog{
		h: h, name: name, m: table.New(name, h.opt.Boot, h.opt.Nonce, rec, why),
		feed: newFeed(), changed: make(chan struct{}),
		appenders: map[*appender]struct{}{}, followers: map[*follower]struct{}{},
		progress: map[ident.Partition]readapi.Progress{}, pins: map[string]pin{}, parsed: map[string]*schema.Schema{},
	}
	h.meter.watchLog(l)
	l.showHealth()
	return l
}

func (l *tableLog) state() table.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.m.State()
}

// touch wakes everybody who waits for a change; the caller holds mu.
func (l *tableLog) touch() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// settle follows a change of the machine's state; the caller holds mu.
func (l *tableLog) settle() {
	serving := l.m.State() == table.Serving
	switch {
	case serving && l.served == nil:
		l.served = make(chan struct{})
		l.h.opt.Log.Info("table log serves", "table", l.name, "log_epoch", int64(l.m.View().Epoch()), "next_lsn", int64(l.m.NextLSN()), "outstanding", len(l.m.Outstanding()))
	case !serving && l.served != nil:
		close(l.served)
		l.served = nil
		l.unweigh()
		req, _ := l.m.Request()
		l.h.opt.Log.Warn("table log needs a new epoch", "table", l.name, "reason", req.Reason)
	}
	l.showHealth()
	l.touch()
}

// showHealth names who is waited for. A table that nobody has opened is no
// reason to be not ready: a peer may have asked for any name.
func (l *tableLog) showHealth() {
	if l.health == nil {
		if l.m.State() == table.Closed {
			return
		}
		l.health = l.h.opt.Health.Component("buffer/table/" + l.name)
	}
	if l.m.State() == table.Serving {
		l.health.Ready()
		return
	}
	l.health.NotReady("%s", l.waitsFor())
}

// waitsFor says in words what keeps the table from serving; the caller holds mu.
func (l *tableLog) waitsFor() string {
	who := "the committer"
	if l.h.opt.Committer != "" {
		who += " at " + l.h.opt.Committer
	}
	if req, ok := l.m.Request(); ok {
		return fmt.Sprintf("waits for a fence commit by %s: %s", who, req.Reason)
	}
	return fmt.Sprintf("%s is %s: is %s running?", l.name, l.m.State(), who)
}

// notReady is the error for callers that need a serving log; the caller holds mu.
func (l *tableLog) notReady() error {
	return fault.New(fault.NotReady, "table %s: %s", l.name, l.waitsFor()).After(time.Second)
}

// submit makes a step durable and then shows its events; the caller holds mu, so
// that steps reach the journal in the order in which the machine made them.
// after is called without the lock, also when the step came to nothing.
func (l *tableLog) submit(s *table.Step, after func(error)) {
	l.h.opt.Journal.Append(l.name, s.Records, func(err error) {
		l.mu.Lock()
		if err == nil {
			var evs []event.Event
			if evs, err = l.m.Done(s); err == nil {
				l.publish(evs)
				l.settle()
			}
		}
		l.mu.Unlock()
		after(err)
	})
}

// wait is submit for unary calls: it returns a channel with the outcome.
func (l *tableLog) wait(s *table.Step) <-chan error {
	out := make(chan error, 1)
	l.submit(s, func(err error) { out <- err })
	return out
}

// publish hands durable events to followers and append streams; mu is held.
func (l *tableLog) publish(evs []event.Event) {
	for _, ev := range evs {
		l.feed.push(ev)
		switch {
		case ev.Commit != nil:
			l.weigh()
			l.tellAppenders(func(a *appender) { a.committed(ev.Commit.Positions) })
		case ev.Epoch != nil:
			l.unweigh()
		case ev.Schema != nil:
			l.tellAppenders(func(a *appender) { a.schema(ev.Schema) })
		}
	}
	l.feed.trim(l.h.feedKeep())
	l.account()
	hot := l.m.View().Bytes() - l.shares.sum // those that commits pass by are old, and taken long ago
	for f := range l.followers {
		f.checkLag(l.feed, hot)
	}
}

func (l *tableLog) tellAppenders(f func(*appender)) {
	for a := range l.appenders {
		f(a)
	}
}

// account brings the budget up to what the log holds, and wakes who waits for its
// room; mu is held.
func (l *tableLog) account() {
	now := l.under + l.m.View().Bytes()
	more := now - l.counted.Swap(now)
	l.h.budget.change(more)
	if more < 0 {
		l.touch()
	}
}

// schemaOf returns the parsed schema with that fingerprint.
func (l *tableLog) schemaOf(fingerprint string) (*schema.Schema, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.parsed[fingerprint]; s != nil {
		return s, nil
	}
	for _, known := range l.m.Schemas() {
		if known.Fingerprint != fingerprint {
			continue
		}
		s := &schema.Schema{}
		if err := json.Unmarshal(known.Columns, s); err != nil {
			return nil, fault.New(fault.Corrupt, "reading schema %q of table %s: %w", fingerprint, l.name, err)
		}
		l.parsed[fingerprint] = s
		return s, nil
	}
	return nil, nil
}

// report keeps what ingest says of its partitions and wakes followers.
func (l *tableLog) report(list []event.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, p := range list {
		l.progress[p.Partition] = readapi.Progress{Progress: p, Heard: now}
		for f := range l.followers {
			f.progress[p.Partition] = p
		}
	}
	l.touch()
}

// oldestPin is the oldest snapshot that anybody still needs; mu is held.
func (l *tableLog) oldestPin(now time.Time) (snapshot, sequence int64) {
	consider := func(id, seq int64) {
		if id != 0 && (snapshot == 0 || seq < sequence) {
			snapshot, sequence = id, seq
		}
	}
	for name, p := range l.pins {
		if now.Sub(p.heard) > l.h.opt.PinLife {
			delete(l.pins, name)
			continue
		}
		consider(p.snapshot, p.sequence)
	}
	if l.h.opt.OwnPins != nil {
		consider(l.h.opt.OwnPins(l.name))
	}
	return snapshot, sequence
}
