package source

import (
	"math/bits"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// poolKeep bounds the records in the slices that a pool keeps, which is some five
// MiB. Batches are small where producers wait little, so that a queue holds
// hundreds of them: the number of slices says nothing.
const poolKeep = 32 << 10

// poolReach is how many classes above its own a slice may come from.
const poolReach = 4

// recordPool gives the client's record slices back to it. Batches have all sizes:
// slices are made a little larger, of four sizes from one power of two to the next,
// so that one fits the batches of its size. The zero value is ready.
type recordPool struct {
	mu   sync.Mutex
	free [4 * 64][][]kgo.Record // by class
	kept int                    // records in them
}

// classOf is the class of slices for n records, and their capacity.
func classOf(n int) (class, size int) {
	if n <= 8 {
		return 4, 8
	}
	shift := bits.Len(uint(n-1)) - 3 // n-1 has three digits above it
	quarter := (n-1)>>shift + 1      // 5 to 8
	return 4*shift + quarter - 4, quarter << shift
}

// GetRecords implements kgo.PoolRecords.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	class, size := classOf(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := class; c <= class+poolReach && c < len(p.free); c++ {
		if last := len(p.free[c]) - 1; last >= 0 {
			r := p.free[c][last]
			p.free[c][last] = nil
			p.free[c] = p.free[c][:last]
			p.kept -= cap(r)
			return r[:0]
		}
	}
	return make([]kgo.Record, 0, size)
}

// PutRecords implements kgo.PoolRecords.
func (p *recordPool) PutRecords(r []kgo.Record) {
	class, size := classOf(cap(r))
	p.mu.Lock()
	defer p.mu.Unlock()
	if size != cap(r) || p.kept+size > poolKeep {
		return
	}
	p.free[class] = append(p.free[class], r)
	p.kept += size
}

var _ kgo.PoolRecords = (*recordPool)(nil)
