package source

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// poolKeep bounds how many slices a pool keeps.
const poolKeep = 64

// recordPool gives the client's record slices back to it. The zero value is ready.
type recordPool struct {
	mu   sync.Mutex
	free [][]kgo.Record
}

// GetRecords implements kgo.PoolRecords.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.free) - 1; i >= 0; i-- {
		if r := p.free[i]; cap(r) >= n {
			last := len(p.free) - 1
			p.free[i] = p.free[last]
			p.free = p.free[:last]
			return r[:0]
		}
	}
	return make([]kgo.Record, 0, n)
}

// PutRecords implements kgo.PoolRecords.
func (p *recordPool) PutRecords(r []kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < poolKeep {
		p.free = append(p.free, r)
	}
}

var _ kgo.PoolRecords = (*recordPool)(nil)
