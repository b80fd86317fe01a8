package lake

import (
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/ident"
)

// place is what a row says about where it came from.
type place struct {
	topic     string
	partition int32
}

func (p place) String() string { return ident.TopicPartition(p.topic, p.partition) }

// cell is 65,536 offsets of a place. Cells have an order, so that a scan can be
// cut at one.
type cell struct {
	place
	key int64
}

const cellBits = 16

func cellOf(at place, offset int64) cell { return cell{at, offset >> cellBits} }

func (c cell) compare(o cell) int {
	switch {
	case c.topic != o.topic:
		return strings.Compare(c.topic, o.topic)
	case c.partition != o.partition:
		return int(c.partition) - int(o.partition)
	case c.key < o.key:
		return -1
	case c.key > o.key:
		return 1
	default:
		return 0
	}
}

// offsetSet is a set of offsets in chunks of 65,536. A full chunk costs nothing
// but its mark, so the memory is that of the chunks that are not full: what is
// sparse or still out of order.
type offsetSet struct {
	chunks map[int64]*chunk
	count  int64
}

type chunk struct {
	bits  []uint64 // nil when full
	n     int
	again int64 // offsets that came more than once, each time but the first
	// sum adds up what the rows say of their records, where they are compared with
	// the log; silent when one says nothing.
	sum    uint64
	silent bool
}

const (
	chunkSize  = 1 << cellBits
	chunkBytes = chunkSize / 8
)

// add reports whether the offset is new, and by how many chunks that hold memory
// the set has grown.
func (s *offsetSet) add(offset int64, sum uint64) (fresh bool, grown int) {
	if s.chunks == nil {
		s.chunks = map[int64]*chunk{}
	}
	key := offset >> cellBits
	c := s.chunks[key]
	if c == nil {
		c = &chunk{bits: make([]uint64, chunkSize/64)}
		s.chunks[key] = c
		grown++
	}
	bit := offset & (chunkSize - 1)
	if c.has(offset) {
		c.again++
		return false, grown
	}
	c.bits[bit/64] |= 1 << (bit % 64)
	c.n++
	c.sum += sum
	c.silent = c.silent || sum == 0
	if c.n == chunkSize {
		c.bits = nil
		grown--
	}
	s.count++
	return true, grown
}

// total counts the offsets with those that came again.
func (s *offsetSet) total() int64 {
	n := s.count
	for _, c := range s.chunks {
		n += c.again
	}
	return n
}

// drop takes a chunk out, and reports by how many that hold memory the set has
// shrunk.
func (s *offsetSet) drop(key int64) int {
	c := s.chunks[key]
	if c == nil {
		return 0
	}
	s.count -= int64(c.n)
	delete(s.chunks, key)
	if c.bits == nil {
		return 0
	}
	return 1
}

func (s *offsetSet) has(offset int64) bool {
	c := s.chunks[offset>>cellBits]
	return c != nil && c.has(offset)
}

func (c *chunk) has(offset int64) bool {
	bit := offset & (chunkSize - 1)
	return c.bits == nil || c.bits[bit/64]&(1<<(bit%64)) != 0
}

// ends are the least and the greatest offset; false when there is none.
func (s *offsetSet) ends() (low, high int64, ok bool) {
	if s.count == 0 {
		return 0, 0, false
	}
	keys := slices.Sorted(maps.Keys(s.chunks))
	first, last := s.chunks[keys[0]], s.chunks[keys[len(keys)-1]]
	low, high = keys[0]<<cellBits, keys[len(keys)-1]<<cellBits|(chunkSize-1)
	for ; !first.has(low); low++ {
	}
	for ; !last.has(high); high-- {
	}
	return low, high, true
}

// each visits the offsets in ascending order until visit says stop.
func (s *offsetSet) each(visit func(int64) bool) {
	for _, key := range slices.Sorted(maps.Keys(s.chunks)) {
		c := s.chunks[key]
		for word := range chunkSize / 64 {
			w := ^uint64(0)
			if c.bits != nil {
				w = c.bits[word]
			}
			for ; w != 0; w &= w - 1 {
				if !visit(key<<cellBits | int64(word*64+bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// both lists first offsets that are in s and in o.
func (s *offsetSet) both(o *offsetSet) []int64 {
	var out []int64
	o.each(func(offset int64) bool {
		if s.has(offset) {
			out = append(out, offset)
		}
		return len(out) < examples
	})
	return out
}

// in lists first offsets of s that are in one of the ranges, range by range.
func (s *offsetSet) in(ranges []ident.Range) []int64 {
	if len(ranges) == 0 {
		return nil
	}
	var out []int64
	keys := slices.Sorted(maps.Keys(s.chunks))
	for _, r := range ranges {
		first, _ := slices.BinarySearch(keys, r.First>>cellBits)
		for _, key := range keys[first:] {
			from, to := max(r.First, key<<cellBits), min(r.Next, (key+1)<<cellBits)
			if from >= to {
				break
			}
			for offset := from; offset < to && len(out) < examples; offset++ {
				if s.has(offset) {
					out = append(out, offset)
				}
			}
		}
	}
	return out
}

// holes lists first offsets of r that are in neither set. They may be skipped
// ones: only the count tells.
func (s *offsetSet) holes(o *offsetSet, r ident.Range) []int64 {
	var out []int64
	for offset := r.First; offset < r.Next && len(out) < examples; offset++ {
		if c := s.chunks[offset>>cellBits]; c != nil && c.bits == nil {
			offset |= chunkSize - 1
			continue
		}
		if !s.has(offset) && !o.has(offset) {
			out = append(out, offset)
		}
	}
	return out
}
