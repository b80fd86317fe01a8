package jsonrec

import (
	"strings"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// Batch collects decoded records as columns; see cell.Batch.
type Batch struct {
	cell.Batch

	root    *value
	dedupe  *column.Dedupe
	data    []byte // the record
	fail    cell.Fail
	at      []string // where, innermost first
	closing []byte   // brackets that are open
	scratch []byte   // the last text with escapes
	decoded []byte   // the last base64
	object  uint64   // number of the object that was entered last
	unknown uint64
	one     [1]int

	variants cell.Variants
}

// Append decodes one record into the next row. On an error the batch is exactly what
// it was before. The error is cell.ErrBatchFull, or a *cell.Error. The payload is not
// kept.
func (b *Batch) Append(payload []byte) error {
	if err := b.Room(1 + len(payload)); err != nil {
		return err
	}
	b.data, b.fail, b.at, b.closing = payload, cell.OK, b.at[:0], b.closing[:0]
	b.record()
	b.data = nil
	if b.fail != cell.OK {
		return b.Failed(b.fail, b.path())
	}
	b.Took(1 + len(payload))
	return nil
}

// Unknown is the number of members skipped since the batch was made because no column
// takes them. Reset does not set it back.
func (b *Batch) Unknown() uint64 { return b.unknown }

func (b *Batch) record() {
	i := b.space(0)
	if i < 0 {
		return
	}
	if b.root.kind == kindStruct && b.data[i] != '{' {
		if b.pass(i, cell.MaxDepth) >= 0 {
			b.no(cell.Type)
		}
		return
	}
	if i = b.value(b.root, i, b.Rows(), cell.MaxDepth); i < 0 {
		return
	}
	for ; i < len(b.data); i++ {
		if c := b.data[i]; c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			b.no(cell.Trailing)
			return
		}
	}
}

func (b *Batch) path() string {
	out := make([]string, len(b.at))
	for i, name := range b.at {
		out[len(out)-1-i] = name
	}
	return strings.Join(out, ".")
}

// value decodes the value at i, which is no white space, into row of its column and
// gives the index behind it, negative when the record is refused. A null leaves the
// row absent.
func (b *Batch) value(v *value, i, row, depth int) int {
	if i < 0 {
		return i
	}
	c := b.data[i]
	if c == 'n' {
		end := b.literal(i, "null")
		if end >= 0 && v.kind == kindJSON && v == b.root {
			return b.stored(b.free(v, b.data[i:end], row), end)
		}
		return end
	}
	switch v.kind {
	case kindJSON:
		end := b.pass(i, depth)
		if end < 0 {
			return end
		}
		return b.stored(b.free(v, b.data[i:end], row), end)
	case kindStruct:
		if c == '{' {
			return b.members(v, i, row, depth)
		}
	case kindList:
		if c == '[' {
			return b.list(v, i, row, depth)
		}
	case kindMap:
		if c == '{' {
			return b.mapped(v, i, row, depth)
		}
	case kindBoolean:
		switch c {
		case 't':
			if i = b.literal(i, "true"); i >= 0 {
				v.col.SetBool(row, true)
			}
			return i
		case 'f':
			if i = b.literal(i, "false"); i >= 0 {
				v.col.SetBool(row, false)
			}
			return i
		}
	default:
		if c == '"' {
			s, end := b.text(i)
			if end < 0 {
				return end
			}
			return b.stored(b.fromText(v, s, row), end)
		}
		if c == '-' || c-'0' <= 9 {
			end, whole := b.number(i)
			if end < 0 {
				return end
			}
			return b.stored(b.fromNumber(v, b.data[i:end], whole, row), end)
		}
	}
	if b.pass(i, depth) >= 0 { // JSON, but not what the column holds
		b.no(cell.Type)
	}
	return -1
}

// free stores a value that has no fixed columns.
func (b *Batch) free(v *value, text []byte, row int) cell.Fail {
	if v.to.Kind == schema.Variant {
		return b.variants.Store(v.col, row, text)
	}
	return cell.StoreBytes(v.col, row, text)
}

// members decodes an object into the columns of a struct.
func (b *Batch) members(v *value, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	if v.col != nil {
		v.col.Open(row)
	}
	if v.seen != nil {
		v.seen.SetBool(row, true)
	}
	b.object++
	object, expected := b.object, 0
	for first := true; ; first = false {
		var done bool
		if i, done = b.enter(i, first); done || i < 0 {
			return i
		}
		var key []byte
		if key, i = b.key(i); i < 0 {
			return i
		}
		// Writers nearly always keep the order of the schema.
		var f *value
		if expected < len(v.fields) && v.fields[expected].name == string(key) {
			f = v.fields[expected]
			expected++
		} else if f = v.byKey[string(key)]; f != nil {
			expected = f.index + 1
		}
		if f == nil {
			b.unknown++
			if i = b.pass(i, depth); i < 0 {
				return i
			}
			continue
		}
		if f.mark == object {
			b.at = append(b.at, f.name)
			return b.no(cell.Duplicate)
		}
		f.mark = object
		if i = b.value(f, i, row, depth); i < 0 {
			b.at = append(b.at, f.name)
			return i
		}
	}
}

func (b *Batch) list(v *value, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	c := v.col
	c.Open(row)
	element := c.Kid(0)
	for first := true; ; first = false {
		var done bool
		if i, done = b.enter(i, first); done || i < 0 {
			if done {
				c.CloseList(row)
			}
			return i
		}
		if !b.Spend(v.spread) {
			return b.no(cell.Full)
		}
		at := element.Len()
		if i = b.value(v.item, i, at, depth); i < 0 {
			return i
		}
		element.Fill(at + 1)
	}
}

// manyKeys is from how many entries on a map is checked for doubled keys as a whole.
const manyKeys = 32

func (b *Batch) mapped(v *value, i, row, depth int) int {
	if depth--; depth < 0 {
		return b.no(cell.Depth)
	}
	c := v.col
	c.Open(row)
	from, _ := c.Span(row)
	key, element := c.Kid(0), c.Kid(1)
	for first := true; ; first = false {
		var done bool
		if i, done = b.enter(i, first); i < 0 {
			return i
		}
		if done {
			break
		}
		if !b.Spend(v.spread) {
			return b.no(cell.Full)
		}
		var k []byte
		if k, i = b.key(i); i < 0 {
			return i
		}
		at := key.Len()
		if !key.SetBytes(at, k) {
			return b.no(cell.Full)
		}
		if at-from < manyKeys && c.HasKey(from, at) {
			return b.no(cell.Duplicate)
		}
		if i = b.value(v.item, i, at, depth); i < 0 {
			return i
		}
		element.Fill(at + 1)
	}
	c.CloseList(row)
	if n := key.Len(); n-from > manyKeys {
		b.one[0] = row
		if b.dedupe.KeepLast(c, b.one[:]); key.Len() < n {
			return b.no(cell.Duplicate)
		}
	}
	return i
}
