package column

import "slices"

// Fill appends absent values until the column has the given number of rows.
func (c *Column) Fill(rows int) {
	k := rows - c.n
	if k <= 0 {
		return
	}
	if c.absentNull {
		c.needValid()
		c.valid = growBits(c.valid, rows)
		c.nulls += k
	} else if c.hasValid {
		c.valid = growBits(c.valid, rows)
		setBits(c.valid, c.n, rows)
	}
	switch c.kind {
	case kind8:
		c.words8 = growZero(c.words8, k)
	case kind16:
		c.words8 = growZero(c.words8, 2*k)
	case kind4:
		c.words4 = growZero(c.words4, k)
	case kindBool:
		c.bits = growBits(c.bits, rows)
	case kindFixed:
		c.data = growZero(c.data, k*c.width)
	case kindBytes:
		c.fillBytes(k)
	case kindList, kindMap:
		c.offsets = appendSame(c.offsets, int32(c.kids[0].n), k)
	case kindStruct:
	}
	c.n = rows
}

// gap notes the rows from n up to row as absent and row itself as not null, in the
// bitmap only: the values, and n, are for the caller.
func (c *Column) gap(row int) {
	if c.absentNull && row > c.n {
		c.needValid()
		c.nulls += row - c.n
	}
	if !c.hasValid {
		return
	}
	if need := row>>3 + 1; need > len(c.valid) {
		c.valid = growZero(c.valid, need-len(c.valid))
	}
	if !c.absentNull {
		setBits(c.valid, c.n, row)
	}
	c.valid[row>>3] |= 1 << (row & 7)
}

func (c *Column) fillBytes(k int) {
	if c.absentNull || len(c.absent) == 0 {
		c.offsets = appendSame(c.offsets, int32(len(c.data)), k)
		return
	}
	c.data = slices.Grow(c.data, k*len(c.absent))
	for ; k > 0; k-- {
		c.data = append(c.data, c.absent...)
		c.offsets = append(c.offsets, int32(len(c.data)))
	}
}

// Truncate drops all rows from row on, at every depth.
func (c *Column) Truncate(row int) {
	if c.n <= row {
		return
	}
	if c.hasValid {
		for i := row; i < c.n; i++ {
			if c.valid[i>>3]&(1<<(i&7)) == 0 {
				c.nulls--
			}
		}
		c.valid = cutBits(c.valid, row)
	}
	switch c.kind {
	case kind8:
		c.words8 = c.words8[:row]
	case kind16:
		c.words8 = c.words8[:2*row]
	case kind4:
		c.words4 = c.words4[:row]
	case kindBool:
		c.bits = cutBits(c.bits, row)
	case kindFixed:
		c.data = c.data[:row*c.width]
	case kindBytes:
		c.data = c.data[:c.offsets[row]]
		c.offsets = c.offsets[:row+1]
	case kindStruct:
		for _, k := range c.kids {
			k.Truncate(row)
		}
	case kindList, kindMap:
		end := int(c.offsets[row])
		for _, k := range c.kids {
			k.Truncate(end)
		}
		c.offsets = c.offsets[:row+1]
	}
	c.n = row
}

// Reset empties the column and keeps its buffers. Arrays from Finish must not be
// used any more.
func (c *Column) Reset() {
	c.n, c.nulls, c.hasValid = 0, 0, false
	c.words8, c.words4, c.data = c.words8[:0], c.words4[:0], c.data[:0]
	c.bits, c.valid = cutBits(c.bits, 0), cutBits(c.valid, 0)
	if len(c.offsets) > 0 {
		c.offsets = c.offsets[:1] // offsets always start with 0
	}
	for _, k := range c.kids {
		k.Reset()
	}
}

// mark notes the row, which is about to be appended, as not null.
func (c *Column) mark(row int) {
	if row>>3 >= len(c.valid) {
		c.valid = growBits(c.valid, row+1)
	}
	c.valid[row>>3] |= 1 << (row & 7)
}

// markTail notes the next k rows as not null.
func (c *Column) markTail(k int) {
	if c.hasValid {
		c.valid = growBits(c.valid, c.n+k)
		setBits(c.valid, c.n, c.n+k)
	}
}

// unnull notes a row that exists already as not null.
func (c *Column) unnull(row int) {
	if c.hasValid && c.valid[row>>3]&(1<<(row&7)) == 0 {
		c.valid[row>>3] |= 1 << (row & 7)
		c.nulls--
	}
}

// needValid starts the validity bitmap: everything so far is not null.
func (c *Column) needValid() {
	if !c.hasValid {
		c.hasValid = true
		c.valid = growBits(c.valid[:0], c.n)
		setBits(c.valid, 0, c.n)
	}
}

// growBits lengthens a bitmap to n bits; new bits are 0. Bytes beyond the length
// may hold anything.
func growBits(b []byte, n int) []byte {
	need := (n + 7) >> 3
	if need <= len(b) {
		return b
	}
	return growZero(b, need-len(b))
}

// setBits sets the bits [from, to).
func setBits(b []byte, from, to int) {
	for from < to && from&7 != 0 {
		b[from>>3] |= 1 << (from & 7)
		from++
	}
	for ; from+8 <= to; from += 8 {
		b[from>>3] = 0xff
	}
	for ; from < to; from++ {
		b[from>>3] |= 1 << (from & 7)
	}
}

// cutBits shortens a bitmap to n bits and clears what is left of the last byte.
func cutBits(b []byte, n int) []byte {
	need := (n + 7) >> 3
	if need < len(b) {
		b = b[:need]
	}
	if r := n & 7; r != 0 && need == len(b) {
		b[need-1] &= byte(1<<r) - 1
	}
	return b
}

// growZero lengthens a slice by k zeros.
func growZero[T uint64 | uint32 | byte](s []T, k int) []T {
	n := len(s)
	if n+k > cap(s) {
		s = slices.Grow(s, k)
	}
	s = s[:n+k]
	if k <= 16 {
		for i := n; i < len(s); i++ {
			s[i] = 0
		}
		return s
	}
	clear(s[n:])
	return s
}

func appendSame(offsets []int32, v int32, k int) []int32 {
	for ; k > 0; k-- {
		offsets = append(offsets, v)
	}
	return offsets
}
