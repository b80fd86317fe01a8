package boot

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"time"
)

// A process takes as many processors as its load needs, and not all that it may have. Where more than one is free, the
// runtime wakes another thread for nearly every goroutine that is made ready, and a stream of batches makes one ready for
// each of its frames: of a buffer that uses a tenth of a processor that was an eighth of its CPU, with two processors.
const (
	loadEvery  = 250 * time.Millisecond
	loadKeep   = 8           // a processor is given up when it was not needed for so many looks
	limitEvery = time.Minute // how often the limit of the machine or of its container is asked for again
	perBusy    = 2           // processors for each that is busy: they double with each look while there are too few
)

// FollowLoad makes the process take as many processors as it needs, until it ends. Where the environment says how many
// (GOMAXPROCS), it stays with that.
func (p *Process) FollowLoad() {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	l := load{cpu: cpuTime, take: func(n int) { runtime.GOMAXPROCS(n) }, limit: func() int {
		runtime.SetDefaultGOMAXPROCS()
		return runtime.GOMAXPROCS(0)
	}}
	p.Group.Add("processors", l.follow)
}

// load is what follow needs to know and to do.
type load struct {
	cpu   func() (used time.Duration, ok bool) // by the process since its start; not ok: not known now
	take  func(n int)
	limit func() int // takes all that the process may have, and returns how many that is
}

// follow ends with ctx and leaves the process with all that it may have.
func (l load) follow(ctx context.Context) error {
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	defer l.limit()
	p := newProcessors(l.limit())
	taken, then, asked := p.limit, time.Now(), time.Now()
	used, known := l.cpu()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		cpu, ok := l.cpu()
		if now.Sub(asked) >= limitEvery {
			p.limit = l.limit()
			taken, asked = p.limit, now
		}
		busy := float64(p.limit) // who cannot see what it uses has all
		if known && ok {
			busy = float64(cpu-used) / float64(now.Sub(then))
		}
		if n := p.next(busy); n != taken {
			l.take(n)
			taken = n
		}
		then, used, known = now, cpu, ok
	}
}

// processors decides how many a process takes.
type processors struct {
	limit int
	wants [loadKeep]int
	at    int
}

// newProcessors begins with all.
func newProcessors(limit int) *processors {
	p := &processors{limit: limit}
	for i := range p.wants {
		p.wants[i] = limit
	}
	return p
}

// next is told how many processors were busy since the last look, and returns how many to take until the next.
func (p *processors) next(busy float64) int {
	p.wants[p.at] = 1 + int(perBusy*busy)
	p.at = (p.at + 1) % loadKeep
	most := 0
	for _, n := range p.wants {
		most = max(most, n)
	}
	return min(most, p.limit)
}

// cpuTime is what the process has used, in user and system mode.
func cpuTime() (used time.Duration, ok bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
