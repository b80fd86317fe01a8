package commit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Status is what a table is doing, for health, operators and metrics.
type Status struct {
	// State is one word: starting, running, stopped, ended.
	State string
	// Reason says why it is not running, or what fails at the moment.
	Reason string
	// FailingSince is when the oldest of the present failures began; zero when
	// nothing fails.
	FailingSince time.Time
	// Confirmed is when a commit of ours was last seen in the table.
	Confirmed time.Time
	// Head is the newest known snapshot, with the state that holds there.
	Head lake.Head
	// Pending is the number of quarantine outbox entries not yet applied.
	Pending int
	// Foreign says that the head is a snapshot of somebody else.
	Foreign bool
}

// Ready reports whether the table is fine, and why not. A failure counts only
// once it has lasted for redAfter, so that a lost race or a slow answer makes no
// alarm.
func (s Status) Ready(now time.Time, redAfter time.Duration) (bool, string) {
	switch {
	case s.State != "running":
		return false, strings.TrimSuffix(s.State+": "+s.Reason, ": ")
	case !s.FailingSince.IsZero() && now.Sub(s.FailingSince) >= redAfter:
		return false, fmt.Sprintf("failing since %s: %s", s.FailingSince.UTC().Format(time.RFC3339), s.Reason)
	case s.Pending >= maxPending:
		return false, fmt.Sprintf("%d quarantine files wait for their table: %s", s.Pending, s.Reason)
	default:
		return true, ""
	}
}

// area is what can fail by itself: success in one says nothing about another.
type area string

const (
	atCatalog area = "catalog"
	atCommit  area = "commit"
	atFiles   area = "files"
	atOutbox  area = "quarantine"
	atBuffer  area = "buffer"
)

// failure is a series of failures in one area.
type failure struct {
	since  time.Time
	reason string
}

// board is a Status that is written by the loop of the table and read by all.
type board struct {
	mu    sync.Mutex
	s     Status
	fails map[area]failure
}

func (b *board) get() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.s
	for _, a := range slices.Sorted(maps.Keys(b.fails)) {
		f := b.fails[a]
		if s.FailingSince.IsZero() || f.since.Before(s.FailingSince) {
			s.FailingSince = f.since
		}
		s.Reason = strings.TrimPrefix(s.Reason+"; "+string(a)+": "+f.reason, "; ")
	}
	return s
}

func (b *board) change(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.s)
}

// failed notes an error; a series keeps its beginning.
func (b *board) failed(a area, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails == nil {
		b.fails = make(map[area]failure)
	}
	f := b.fails[a]
	if f.since.IsZero() {
		f.since = time.Now()
	}
	f.reason = fault.Text(err)
	b.fails[a] = f
}

// fine ends a series of failures.
func (b *board) fine(a area) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.fails, a)
}

// positions renders the committed positions of a state for people, at most a
// handful.
func positions(s lake.State) string {
	v := s.Vector()
	var out []string
	for _, p := range v.Partitions() {
		out = append(out, fmt.Sprintf("%v at %d", p, v[p]))
	}
	return strings.Join(fault.FirstOf(out, 8), ", ")
}
