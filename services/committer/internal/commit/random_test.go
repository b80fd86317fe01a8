package commit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
)

// TestRandomRuns is G1, G5, G6 and G9 under everything at once: a catalog that
// loses answers, applies late or never, refuses, and cannot be read; requests of a
// predecessor that arrive between a look and the next request; crashes, in the middle
// of a commit too, and zombies that go on; foreign commits; new epochs; an outbox that fails.
func TestRandomRuns(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRun(t, rand.New(rand.NewPCG(seed, 7)), rand.New(rand.NewPCG(seed, 8))) })
		})
	}
}

// randomRun plays with rnd; faults is the lake's own, used under its lock.
func randomRun(t *testing.T, rnd, faults *rand.Rand) {
	r := newRig(t)
	trouble := true
	r.lake.answer = func(string) mood {
		if n := len(r.lake.inflight); trouble && n > 0 && faults.IntN(4) == 0 {
			r.lake.deliver(n - 1) // after the look that this request stands on
		}
		switch {
		case !trouble || faults.IntN(2) == 0:
			return fine
		case faults.IntN(10) == 0:
			return pick(faults, crash, orphan)
		}
		return mood(faults.IntN(5))
	}
	r.lake.reload = func() error {
		if trouble && faults.IntN(4) == 0 {
			return errLost
		}
		return nil
	}
	r.lake.apply = func() error {
		if trouble && faults.IntN(2) == 0 {
			return errLost
		}
		return nil
	}
	r.start()
	nonce := uint64(100)
	opened := false
	var zombies []*rig
	for range 120 {
		r.revive()
		switch rnd.IntN(12) {
		case 0:
			r.lake.foreign()
		case 1:
			if rnd.IntN(3) == 0 {
				zombie := *r
				zombies = append(zombies, &zombie)
			} else {
				r.kill()
			}
			r.start()
		case 2:
			nonce++
			r.table.Want(Wanted{Nonce: nonce, AppendsWaiting: true})
		case 3, 4:
			r.lake.view(func() {
				if n := len(r.lake.inflight); n > 0 {
					r.lake.deliver(rnd.IntN(n))
				}
			})
		case 5:
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if _, err := r.table.OpenPipeline(ctx, "me/cluster", "p", ident.Vector{part(0): 0, part(1): 0, part(2): 0}); err == nil {
				r.source.Rebase(r.head().Event(), true)
				opened = true
			}
			cancel()
		default:
			r.log.grow(part(rnd.Int32N(3)), rnd.Int64N(12))
			r.table.Wake()
			r.pass(time.Duration(rnd.IntN(90)) * time.Second)
		}
		r.check()
	}
	r.lake.view(func() {
		trouble = false
		for _, land := range r.lake.inflight {
			land()
		}
		r.lake.inflight = nil
	})
	for _, zombie := range zombies {
		zombie.kill()
	}
	r.pass(time.Minute)
	if len(zombies) > 0 && strings.Contains(r.table.Status().Reason, "taken the table over") {
		r.kill() // one of them has fenced it: it says that it needs a restart
		r.start()
	}
	r.revive()
	r.pass(5 * time.Minute)
	r.check()
	if opened { // G11: all that arrived is in the table, with no restart but that
		require.Equal(t, "running", r.table.Status().State)
		require.Equal(t, map[ident.Partition]int64(r.ends()), map[ident.Partition]int64(r.head().State.Vector()))
	}
	r.kill()
	r.start()
	r.pass(time.Minute)
	told := r.buffer.told()
	require.Equal(t, r.head().SnapshotID, told.SnapshotID, "the successor tells the buffer what has landed")
	require.NoError(t, r.stop())
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// revive starts a committer in the place of one that has crashed by itself.
func (r *rig) revive() {
	if r.client.gone() != nil {
		r.kill()
		r.start()
	}
}

// deliver lets a request arrive that was under way; f.mu is held.
func (f *fakeLake) deliver(i int) {
	land := f.inflight[i]
	f.inflight = slices.Delete(f.inflight, i, i+1)
	land()
}

// ends are the ends of the log for the partitions that the table knows.
func (r *rig) ends() ident.Vector {
	out := ident.Vector{}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	for p := range r.head().State.Vector() {
		out[p] = r.log.end[p]
	}
	return out
}
