package proto

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// message decodes one message into row of the columns it is bound to. It may be
// called again for the same row: occurrences of one field merge, scalars are
// overwritten, as Protobuf wants it.
func (b *Batch) message(m *message, data []byte, row, depth int) fail {
	if depth--; depth < 0 {
		return failDepth
	}
	if m.present != nil {
		m.present.SetBool(row, true)
	}
	table := m.table
	i := 0
	for i < len(data) {
		tag := uint64(data[i])
		if tag < 0x80 {
			i++
		} else if i+1 < len(data) && data[i+1] < 0x80 {
			tag = tag&0x7f | uint64(data[i+1])<<7
			i += 2
		} else if tag, i = varint(data, i); i < 0 {
			return failTruncated
		}
		var f *field
		if tag < uint64(len(table)) {
			f = table[tag]
		} else if m.far != nil {
			f = m.far[tag]
		}
		if f == nil {
			n, failed := skip(tag, data[i:])
			if failed != ok {
				return failed
			}
			b.unknown++
			i += n
			continue
		}
		if f.oneof != nil {
			f.oneof.take(f, row)
		}
		c := f.col
		switch f.op {
		case opVarint:
			var v uint64
			if i < len(data) && data[i] < 0x80 {
				v = uint64(data[i])
				i++
			} else if v, i = varint(data, i); i < 0 {
				return b.failed(f, failTruncated)
			}
			switch f.conv {
			case conv8:
				if !c.Put8(row, v) {
					c.Set8(row, v)
				}
			case conv4:
				if !c.Put4(row, uint32(v)) {
					c.Set4(row, uint32(v))
				}
			case convBool:
				c.SetBool(row, v != 0)
			default:
				if failed := b.store(f, c, row, v); failed != ok {
					return b.failed(f, failed)
				}
			}
		case opFix8:
			if len(data)-i < 8 {
				return b.failed(f, failTruncated)
			}
			v := binary.LittleEndian.Uint64(data[i:])
			i += 8
			if f.conv != conv8 {
				b.store(f, c, row, v)
			} else if !c.Put8(row, v) {
				c.Set8(row, v)
			}
		case opFix4:
			if len(data)-i < 4 {
				return b.failed(f, failTruncated)
			}
			v := binary.LittleEndian.Uint32(data[i:])
			i += 4
			if f.conv != conv4 {
				b.store(f, c, row, uint64(v))
			} else if !c.Put4(row, v) {
				c.Set4(row, v)
			}
		case opListVarint, opListFix8, opListFix4:
			var v uint64
			if v, i = scalar(f.inner, data, i); i < 0 {
				return b.failed(f, failTruncated)
			}
			c.Open(row)
			element := c.Kid(0)
			if failed := b.store(f, element, element.Len(), v); failed != ok {
				return b.failed(f, failed)
			}
			c.CloseList(row)
		case opGroup, opListGroup:
			s, n := protowire.ConsumeGroup(f.num, data[i:])
			if n < 0 {
				return b.failed(f, failWire)
			}
			i += n
			if failed := b.delimited(f, s, row, depth); failed != ok {
				return b.failed(f, failed)
			}
		default: // length-delimited
			var v uint64
			if i < len(data) && data[i] < 0x80 {
				v = uint64(data[i])
				i++
			} else if v, i = varint(data, i); i < 0 {
				return b.failed(f, failTruncated)
			}
			if v > uint64(len(data)-i) {
				return b.failed(f, failTruncated)
			}
			s := data[i : i+int(v)]
			i += int(v)
			switch f.op {
			case opString:
				if !cell.ValidUTF8(s) {
					return b.failed(f, failUTF8)
				}
				if !c.SetBytes(row, s) {
					return b.failed(f, failFull)
				}
			case opMessage:
				c.Open(row)
				if failed := b.message(f.sub, s, row, depth); failed != ok {
					return b.failed(f, failed)
				}
			case opListString:
				if !cell.ValidUTF8(s) {
					return b.failed(f, failUTF8)
				}
				c.Open(row)
				element := c.Kid(0)
				if !element.SetBytes(element.Len(), s) {
					return b.failed(f, failFull)
				}
				c.CloseList(row)
			default:
				if failed := b.delimited(f, s, row, depth); failed != ok {
					return b.failed(f, failed)
				}
			}
		}
	}
	return ok
}

// failed notes the innermost field in which the record failed.
func (b *Batch) failed(f *field, why fail) fail {
	if b.at == nil {
		b.at = f
	}
	return why
}

// take gives the row to a member: another member that held it loses its value.
func (o *oneof) take(f *field, row int) {
	if o.row != row || o.member != f {
		if o.row == row {
			o.member.col.Truncate(row)
		}
		o.member, o.row = f, row
	}
	if o.caseName != nil {
		o.caseName.SetBytes(row, f.caseTag)
	}
}

// delimited stores a value whose bytes are known, by the field's op.
func (b *Batch) delimited(f *field, s []byte, row, depth int) fail {
	c := f.col
	switch f.op {
	case opListPayload, opListGroup:
		if !b.cells.Spend(f.spread) {
			return failFull
		}
		c.Open(row)
		element := c.Kid(0)
		at := element.Len()
		if failed := b.payload(f, element, s, at, depth); failed != ok {
			return failed
		}
		c.CloseList(row)
		return ok
	case opPacked:
		return b.packed(f, s, row)
	case opMap:
		return b.entry(f, s, row, depth)
	default:
		return b.payload(f, c, s, row, depth)
	}
}

// payload stores one value of a length-delimited kind in a column.
func (b *Batch) payload(f *field, c *column.Column, s []byte, row, depth int) fail {
	switch f.inner {
	case opBytes: // strings do not come here: message has them
		if !c.SetBytes(row, s) {
			return failFull
		}
		return ok
	case opMessage:
		c.Open(row)
		return b.message(f.sub, s, row, depth)
	case opWrapper:
		if c.Len() <= row {
			c.SetZero(row)
		}
		return b.message(f.sub, s, row, depth)
	default: // opValue
		if c.Len() > row {
			if b.rejoined += len(f.seen) + len(s); b.rejoined > maxRejoined {
				return failComplex
			}
			f.joined = append(append(f.joined[:0], f.seen...), s...)
			s = f.joined
		}
		f.seen = s
		return b.value(f, c, s, row, depth)
	}
}

// packed appends all elements of a packed list.
func (b *Batch) packed(f *field, s []byte, row int) fail {
	c := f.col
	c.Open(row)
	element := c.Kid(0)
	switch {
	case f.inner == opFix8 && len(s)%8 != 0, f.inner == opFix4 && len(s)%4 != 0:
		return failTruncated
	case f.inner == opFix8 && f.conv == conv8, f.inner == opFix4 && f.conv == conv4:
		element.AppendRaw(s)
	case f.inner == opVarint && f.conv == conv8:
		words := b.words8[:0]
		for i := 0; i < len(s); {
			var v uint64
			if v, i = varint(s, i); i < 0 {
				return failTruncated
			}
			words = append(words, v)
		}
		element.Append8(words)
		b.words8 = words
	case f.inner == opVarint && f.conv == conv4:
		words := b.words4[:0]
		for i := 0; i < len(s); {
			var v uint64
			if v, i = varint(s, i); i < 0 {
				return failTruncated
			}
			words = append(words, uint32(v))
		}
		element.Append4(words)
		b.words4 = words
	default:
		for i := 0; i < len(s); {
			var v uint64
			if v, i = scalar(f.inner, s, i); i < 0 {
				return failTruncated
			}
			if failed := b.store(f, element, element.Len(), v); failed != ok {
				return failed
			}
		}
	}
	c.CloseList(row)
	return ok
}

// manyKeys is from how many entries on a map is checked for doubled keys as a
// whole after the record, instead of entry by entry.
const manyKeys = 32

// entry appends one map entry. A missing key is zero, a missing value is what an
// empty value of its type is.
func (b *Batch) entry(f *field, s []byte, row, depth int) fail {
	if !b.cells.Spend(f.spread) {
		return failFull
	}
	c := f.col
	c.Open(row)
	key, value := c.Kid(0), c.Kid(1)
	at := key.Len()
	value.Fill(at)
	if failed := b.message(f.sub, s, at, depth); failed != ok {
		return failed
	}
	key.Fill(at + 1)
	if value.Len() <= at {
		if failed := b.empty(f.value, at, depth); failed != ok {
			return b.failed(f.value, failed)
		}
	}
	c.CloseList(row)
	from, _ := c.Span(row)
	if n := at - from; n == manyKeys || n > 0 && n < manyKeys && c.HasKey(from, at) {
		b.doubled = true
		for len(f.doubles) > 0 && f.doubles[len(f.doubles)-1] >= row {
			f.doubles = f.doubles[:len(f.doubles)-1]
		}
		f.doubles = append(f.doubles, row)
	}
	return ok
}

// empty stores the value that a map entry without one has.
func (b *Batch) empty(f *field, row, depth int) fail {
	switch f.inner {
	case opMessage, opWrapper, opValue:
		return b.payload(f, f.col, nil, row, depth)
	default:
		f.col.Fill(row + 1)
		return ok
	}
}
