package pull

import (
	"math"
	"time"

	"github.com/icestream/icestream/internal/ident"
)

// A seal that somebody waits for takes in what readers see, also what is still on its way. It
// waits no longer than that may take: for arrival without any of it, or for enough in all. A
// stop has to commit what it took within its own bounds.
const (
	arrival = 2 * time.Second
	enough  = 10 * time.Second
)

// arrivals is the waiting of one seal.
type arrivals struct {
	upTo    ident.Vector
	epoch   ident.LogEpoch // that the offsets are of
	missing int64          // offsets, when it was last looked
	until   time.Time      // nothing is waited for beyond it
	end     time.Time
}

func (p *Puller) waitFor(upTo ident.Vector) *arrivals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &arrivals{upTo: upTo, epoch: p.tracker.epoch, missing: math.MaxInt64, end: time.Now().Add(enough)}
}

// over reports whether nothing more is waited for. Nothing comes while the buffer is away, nor of
// a partition that stands still; offsets mean nothing in another epoch.
func (p *Puller) over(a *arrivals) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := int64(0)
	for part, next := range a.upTo {
		if have := p.tracker.next[part]; have < next && !p.tracker.held[part] && !p.troubles[part].holds() {
			missing += next - have
		}
	}
	now := time.Now()
	if missing < a.missing {
		if a.until = now.Add(arrival); a.until.After(a.end) {
			a.until = a.end
		}
	}
	a.missing = missing
	return missing == 0 || p.down || p.tracker.epoch != a.epoch || !now.Before(a.until)
}
