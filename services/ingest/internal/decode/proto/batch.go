package proto

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// Batch collects decoded records as columns. It belongs to one goroutine at a
// time. After Finish the arrays share the batch's memory: the next call must be
// Reset, once nobody uses the arrays any more.
type Batch struct {
	root    *message
	columns []*column.Column
	oneofs  []*oneof
	maps    []*field
	dedupe  *column.Dedupe

	rows     int
	slots    int // upper bound of the rows of any column and of the bytes of any string column
	last     int // slots of the last row
	limit    int
	cells    cell.Budget // of the elements that are messages, and of map entries
	doubled  bool        // a map of this record may hold a key twice
	rejoined int         // bytes decoded again because a field came more than once in this record
	at       *field      // where this record failed
	unknown  uint64
	scratch  []byte
	variants cell.Variants
	words8   []uint64
	words4   []uint32
	ints     [5]uint64
}

// maxRejoined bounds the work that repeated occurrences of message fields which
// should come once can cause in one record.
const maxRejoined = 64 << 20

// Append decodes one record into the next row. On an error the batch is exactly
// what it was before. The error is ErrBatchFull, or an *Error with the fault of
// the record. The payload is not kept.
func (b *Batch) Append(payload []byte) error {
	row := b.rows
	slots := 1 + len(payload)
	if b.slots+slots > b.limit {
		return b.full()
	}
	b.at, b.rejoined = nil, 0
	f := b.message(b.root, payload, row, maxDepth)
	if f == ok {
		if b.doubled {
			b.removeDoubles()
		}
		if b.root.needsCheck() && !b.complete(b.root, row, row+1) {
			f = failRequired
		}
	}
	if f != ok {
		b.cells.Failed()
		b.rollback(row)
		return b.explain(f)
	}
	b.slots += slots
	b.last = slots
	b.rows = row + 1
	b.cells.Took()
	return nil
}

// AppendNull adds a row in which everything is null, lists and maps are empty:
// the row of a tombstone.
func (b *Batch) AppendNull() error {
	if b.slots+1 > b.limit {
		return b.full()
	}
	for _, c := range b.columns {
		switch c.Type().ID() {
		case arrow.LIST, arrow.MAP: // empty when absent
		default:
			c.SetNull(b.rows)
		}
	}
	b.slots++
	b.last = 1
	b.rows++
	b.cells.Took()
	return nil
}

// Undo takes the last row back. It may be called once after each Append.
func (b *Batch) Undo() {
	b.rows--
	b.slots -= b.last
	b.cells.Undo()
	b.rollback(b.rows)
}

func (b *Batch) full() error {
	if b.rows == 0 {
		return b.explain(failFull)
	}
	return ErrBatchFull
}

func (b *Batch) explain(f fail) error {
	if f == failFull && b.rows > 0 {
		return ErrBatchFull
	}
	e := &Error{Format: "Protobuf"}
	e.Reason, e.Detail = f.describe()
	if b.at != nil && b.at.desc != nil {
		e.Field = string(b.at.desc.FullName())
	}
	return e
}

func (b *Batch) rollback(row int) {
	for _, c := range b.columns {
		c.Truncate(row)
	}
	for _, o := range b.oneofs {
		o.row = -1
	}
	if b.doubled {
		for _, m := range b.maps {
			m.doubles = m.doubles[:0]
		}
		b.doubled = false
	}
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return b.rows }

// Grown is about how many bytes the last row may take beyond a multiple of its
// payload: those of the cells of its list and map elements.
func (b *Batch) Grown() int { return b.cells.Grown() }

// Size is the number of bytes that the rows take in an Arrow message. It looks at
// every column: ask now and then, not after each record.
func (b *Batch) Size() int {
	size := 0
	for _, c := range b.columns {
		size += c.Size(b.rows)
	}
	return size
}

// Unknown is the number of fields skipped since the batch was made because the
// schema does not have them, at every depth. Reset does not set it back.
func (b *Batch) Unknown() uint64 { return b.unknown }

// Finish gives the rows as Arrow arrays: the mapped columns of the target schema
// in its order. The arrays alias the batch's memory.
func (b *Batch) Finish() []arrow.Array {
	out := make([]arrow.Array, len(b.columns))
	for i, c := range b.columns {
		out[i] = c.Finish(b.rows)
	}
	return out
}

// Reset empties the batch and keeps its memory for the next rows.
func (b *Batch) Reset() {
	for _, c := range b.columns {
		c.Reset()
	}
	for _, o := range b.oneofs {
		o.row = -1
	}
	b.rows, b.slots = 0, 0
	b.cells.Reset()
}

// removeDoubles lets the last entry of each key win. Inner maps come first:
// removing entries of a map never moves the rows of the maps around it.
func (b *Batch) removeDoubles() {
	for _, m := range b.maps {
		rows := m.doubles
		for len(rows) > 0 && rows[len(rows)-1] >= m.col.Len() {
			rows = rows[:len(rows)-1] // taken back with a oneof member
		}
		b.dedupe.KeepLast(m.col, rows)
		m.doubles = m.doubles[:0]
	}
	b.doubled = false
}

// complete reports whether all required fields of the rows [from, to) of a
// message are set, at every depth.
func (b *Batch) complete(m *message, from, to int) bool {
	for _, c := range m.required {
		for row := from; row < to; row++ {
			if !c.Written(row) {
				return false
			}
		}
	}
	for _, f := range m.nested {
		for row := from; row < to; row++ {
			if f.col.Valid(row) && !b.completeBelow(f, row) {
				return false
			}
		}
	}
	return true
}

func (b *Batch) completeBelow(f *field, row int) bool {
	switch f.op {
	case opMap:
		from, to := f.col.Span(row)
		return b.complete(f.value.sub, from, to)
	case opListPayload, opListGroup:
		from, to := f.col.Span(row)
		return b.complete(f.sub, from, to)
	default:
		return b.complete(f.sub, row, row+1)
	}
}
