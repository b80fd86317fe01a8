package column

import (
	"bytes"
	"hash/maphash"
	"slices"
)

// Dedupe removes doubled keys from rows of maps. It keeps its scratch memory
// between uses and belongs to one goroutine. The zero value is not usable.
type Dedupe struct {
	seed  maphash.Seed
	table []int32
	keep  []bool
}

// NewDedupe makes a Dedupe.
func NewDedupe() *Dedupe { return &Dedupe{seed: maphash.MakeSeed()} }

// HasKey reports whether one of the map entries [from, to) has the same key as
// the entry numbered to. It compares one by one and is meant for few entries.
func (c *Column) HasKey(from, to int) bool {
	k := c.kids[0]
	switch k.kind {
	case kindBytes:
		return k.hasBytes(from, to)
	case kind8:
		return slices.Contains(k.words8[from:to], k.words8[to])
	case kind4:
		return slices.Contains(k.words4[from:to], k.words4[to])
	default:
		for i := from; i < to; i++ {
			if k.same(i, to) {
				return true
			}
		}
		return false
	}
}

// hasBytes compares the lengths first: keys of one map often differ there.
func (c *Column) hasBytes(from, to int) bool {
	ends := c.offsets[from : to+2]
	last := len(ends) - 1
	want := c.data[ends[last-1]:ends[last]]
	for i := range last - 1 {
		if int(ends[i+1]-ends[i]) == len(want) && string(c.data[ends[i]:ends[i+1]]) == string(want) {
			return true
		}
	}
	return false
}

// KeepLast removes, in the given rows of a map, every entry whose key comes again
// later in the same row; what is left keeps its order. Rows are ascending. The
// work is linear in the number of entries from the first of the rows to the end
// of the column, whatever the keys are.
func (d *Dedupe) KeepLast(c *Column, rows []int) {
	if len(rows) == 0 {
		return
	}
	first := int(c.offsets[rows[0]])
	total := c.kids[0].n - first
	d.keep = growTrue(d.keep[:0], total)
	lost := false
	for _, row := range rows {
		from, to := c.Span(row)
		if d.markDoubles(c.kids[0], from, to, first) {
			lost = true
		}
	}
	if !lost {
		return
	}
	c.shiftOffsets(rows[0], first, d.keep)
	for _, k := range c.kids {
		k.retain(first, d.keep)
	}
}

// markDoubles clears keep for all entries but the last of each key.
func (d *Dedupe) markDoubles(key *Column, from, to, first int) bool {
	size := 8
	for size < 2*(to-from) {
		size *= 2
	}
	if cap(d.table) < size {
		d.table = make([]int32, size)
	}
	table := d.table[:size]
	clear(table)
	mask := uint64(size - 1)
	lost := false
	for i := to - 1; i >= from; i-- {
		slot := d.hash(key, i) & mask
		for table[slot] != 0 && !key.same(int(table[slot])-1, i) {
			slot = (slot + 1) & mask
		}
		if table[slot] != 0 {
			d.keep[i-first] = false
			lost = true
			continue
		}
		table[slot] = int32(i + 1)
	}
	return lost
}

func (d *Dedupe) hash(key *Column, i int) uint64 {
	switch key.kind {
	case kindBytes:
		return maphash.Bytes(d.seed, key.data[key.offsets[i]:key.offsets[i+1]])
	case kind8:
		return maphash.Comparable(d.seed, key.words8[i])
	case kind4:
		return maphash.Comparable(d.seed, key.words4[i])
	case kind16:
		return maphash.Comparable(d.seed, [2]uint64{key.words8[2*i], key.words8[2*i+1]})
	default:
		return 0 // booleans: two values, any hash will do
	}
}

// same compares two values of a primitive column that is without nulls.
func (c *Column) same(i, j int) bool {
	switch c.kind {
	case kindBytes:
		return bytes.Equal(c.data[c.offsets[i]:c.offsets[i+1]], c.data[c.offsets[j]:c.offsets[j+1]])
	case kind8:
		return c.words8[i] == c.words8[j]
	case kind16:
		return c.words8[2*i] == c.words8[2*j] && c.words8[2*i+1] == c.words8[2*j+1]
	case kind4:
		return c.words4[i] == c.words4[j]
	case kindBool:
		return bit(c.bits, i) == bit(c.bits, j)
	default:
		return false
	}
}

// shiftOffsets lowers the ends of all rows from row on by what they lose.
func (c *Column) shiftOffsets(row, first int, keep []bool) {
	read, kept := first, int32(first)
	for ; row < c.n; row++ {
		for end := int(c.offsets[row+1]); read < end; read++ {
			if keep[read-first] {
				kept++
			}
		}
		c.offsets[row+1] = kept
	}
}

// retain drops the rows [start, start+len(keep)) whose flag is false; they are
// the tail of the column. Values only ever move down, so it works in place.
func (c *Column) retain(start int, keep []bool) {
	if len(keep) == 0 {
		return
	}
	c.Fill(start + len(keep))
	if c.hasValid {
		c.dropNulls(start, keep)
		c.valid = retainBits(c.valid, start, keep)
	}
	switch c.kind {
	case kind8:
		c.words8 = retainWords(c.words8, start, keep)
	case kind4:
		c.words4 = retainWords(c.words4, start, keep)
	case kind16:
		c.words8 = retainWords(c.words8, 2*start, twice(keep))
	case kindBool:
		c.bits = retainBits(c.bits, start, keep)
	case kindFixed:
		c.data = retainSpans(c.data, start, keep, func(i int) (int, int) { return i * c.width, (i + 1) * c.width })
	case kindBytes:
		c.data = retainSpans(c.data, start, keep, c.Span)
		c.retainOffsets(start, keep)
	case kindStruct:
		for _, k := range c.kids {
			k.retain(start, keep)
		}
	case kindList, kindMap:
		c.retainKids(start, keep)
		c.retainOffsets(start, keep)
	}
	c.n = start
	for _, k := range keep {
		if k {
			c.n++
		}
	}
}

func (c *Column) retainKids(start int, keep []bool) {
	first := int(c.offsets[start])
	below := make([]bool, c.kids[0].n-first)
	for i, k := range keep {
		from, to := c.Span(start + i)
		for j := from; j < to; j++ {
			below[j-first] = k
		}
	}
	for _, k := range c.kids {
		k.retain(first, below)
	}
}

func (c *Column) retainOffsets(start int, keep []bool) {
	end := c.offsets[start]
	read := end // start of the row that is looked at, before anything moved
	w := start
	for i, k := range keep {
		next := c.offsets[start+i+1]
		if k {
			end += next - read
			w++
			c.offsets[w] = end
		}
		read = next
	}
	c.offsets = c.offsets[:w+1]
}

// dropNulls takes the nulls that retain is about to drop out of the count.
func (c *Column) dropNulls(start int, keep []bool) {
	for i, k := range keep {
		if !k && !bit(c.valid, start+i) {
			c.nulls--
		}
	}
}

func retainWords[T uint64 | uint32](s []T, start int, keep []bool) []T {
	w := start
	for i, k := range keep {
		if k {
			s[w] = s[start+i]
			w++
		}
	}
	return s[:w]
}

func retainBits(b []byte, start int, keep []bool) []byte {
	w := start
	for i, k := range keep {
		if !k {
			continue
		}
		if bit(b, start+i) {
			b[w>>3] |= 1 << (w & 7)
		} else {
			b[w>>3] &^= 1 << (w & 7)
		}
		w++
	}
	return cutBits(b, w)
}

func retainSpans(data []byte, start int, keep []bool, span func(int) (int, int)) []byte {
	w, _ := span(start)
	for i, k := range keep {
		if k {
			from, to := span(start + i)
			w += copy(data[w:], data[from:to])
		}
	}
	return data[:w]
}

func twice(keep []bool) []bool {
	out := make([]bool, 0, 2*len(keep))
	for _, k := range keep {
		out = append(out, k, k)
	}
	return out
}

func growTrue(keep []bool, n int) []bool {
	for range n {
		keep = append(keep, true)
	}
	return keep
}

func bit(b []byte, i int) bool { return b[i>>3]&(1<<(i&7)) != 0 }
