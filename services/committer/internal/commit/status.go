package commit

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Status is what a table is doing, for health, operators and metrics.
type Status struct {
	// State is one word: starting, running, stopped, ended.
	State string
	// Reason says why it is not running, or what fails at the moment.
	Reason string
	// FailingSince is when the present series of failures began; zero when the
	// last thing tried went well.
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

// board is a Status that is written by the loop of the table and read by all.
type board struct {
	mu sync.Mutex
	s  Status
}

func (b *board) get() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.s
}

func (b *board) change(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.s)
}

func (b *board) failed(now time.Time, err error) {
	b.change(func(s *Status) {
		if s.FailingSince.IsZero() {
			s.FailingSince = now
		}
		s.Reason = err.Error()
	})
}

func (b *board) succeeded(now time.Time) {
	b.change(func(s *Status) { s.FailingSince, s.Reason, s.Confirmed = time.Time{}, "", now })
}

// positions renders the committed positions of a state for people, at most a
// handful.
func positions(s lake.State) string {
	v := s.Vector()
	var out []string
	for _, p := range v.Partitions() {
		if len(out) == 8 {
			out = append(out, fmt.Sprintf("and %d more", len(v)-8))
			break
		}
		out = append(out, fmt.Sprintf("%v at %d", p, v[p]))
	}
	return strings.Join(out, ", ")
}
