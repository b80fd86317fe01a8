//go:build synctests

package chaos

import (
	"math/rand/v2"
	"time"
)

// plan is what a seed does: which faults there are at all, and how often. A seed with few kinds of faults meets
// combinations that a seed with all of them never reaches, because something else happens first.
type plan struct {
	steps    int
	pace     time.Duration // mean time between two actions
	lag      time.Duration
	interval string // between commits
	batch    string
	expire   int
	keep     int
	skips    bool // a revision skips what is invalid

	killAt     float64 // at each step point
	stale      float64 // answers of discovery
	ambiguous  float64 // commits
	staleReads float64
	readFails  float64
	moods      []mood
	again      float64 // calls to the table log that are sent again, late
	disk       float64 // operations of the journal that fail
	weights    map[string]float64
}

// action is what the driver does between two pauses.
type action struct {
	name   string
	weight float64
	fault  string // kind; "" always happens
	run    func(*world) error
}

// kinds of faults. Each is in about half of the seeds.
var kinds = []string{
	"killAt", "killIngest", "killBuffer", "killCommitter", "killReadstate", "journal", "disk", "twins", "lease", "rebalance", "freeze", "cut", "slow",
	"again", "ambiguous", "reads", "foreign", "expiry", "config", "jump",
}

func newPlan(r *rand.Rand) plan {
	p := plan{
		steps: 30 + r.IntN(50), pace: pick(r, 50*time.Millisecond, 200*time.Millisecond, 700*time.Millisecond),
		lag: pick(r, 200*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond), interval: pick(r, "300ms", "1s", "3s"),
		batch: pick(r, "1KiB", "64KiB"), weights: map[string]float64{}, skips: r.IntN(2) == 0,
		expire: pick(r, 2, 10), keep: pick(r, 2, 5, 50),
	}
	intensity := pick(r, 0.3, 1, 2)
	share := pick(r, 0.25, 0.5, 0.8)
	for _, k := range kinds {
		if r.Float64() < share {
			p.weights[k] = intensity
		}
	}
	p.killAt = p.weights["killAt"] * pick(r, 0.002, 0.02)
	p.stale = p.weights["lease"] * 0.1
	p.ambiguous = min(0.9, p.weights["ambiguous"]*0.4)
	p.staleReads = p.weights["reads"] * pick(r, 0, 0.1)
	p.readFails = p.weights["reads"] * 0.1
	p.again = min(0.5, p.weights["again"]*0.2)
	p.disk = p.weights["disk"] * 0.01
	for _, m := range commitMoods {
		if r.Float64() < 0.5 {
			p.moods = append(p.moods, m)
		}
	}
	if len(p.moods) == 0 {
		p.moods = commitMoods
	}
	return p
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }
