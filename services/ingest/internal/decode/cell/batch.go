package cell

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
)

// maxSlots bounds the rows of any column and thereby the offsets of lists.
const maxSlots = 1 << 30

// Batch is the columns of decoded records. A decoder embeds it, writes a record's
// values to row Rows() of the columns, and says Took or Failed. It belongs to one
// goroutine at a time. After Finish the arrays share the batch's memory: the next
// call must be Reset, once nobody uses the arrays any more.
type Batch struct {
	format  string
	columns []*column.Column
	rows    int
	slots   int // upper bound of the rows of any column
	last    int // slots of the last row
	cells   Budget
}

// NewBatch makes the columns for nodes. Format is for error texts.
func NewBatch(format string, nodes []*schema.Node) (Batch, error) {
	b := Batch{format: format, cells: NewBudget()}
	for _, n := range nodes {
		c, err := column.New(n.ArrowField().Type)
		if err != nil {
			return b, fmt.Errorf("column %s: %w", n.Name, err)
		}
		b.columns = append(b.columns, c)
	}
	return b, nil
}

// Columns are the columns, in the order of the nodes.
func (b *Batch) Columns() []*column.Column { return b.columns }

// Spend takes note of cells that elements of lists and maps have; false means that the
// record has too many for the batch.
func (b *Batch) Spend(cells int) bool { return b.cells.Spend(cells) }

// Limit lowers the number of cells that Spend allows.
func (b *Batch) Limit(cells int) { b.cells.Limit(cells) }

// Room says whether a record that makes at most so many values fits.
func (b *Batch) Room(slots int) error {
	if b.slots+slots > maxSlots {
		return b.Failed(Full, "")
	}
	return nil
}

// Took makes the values written to row Rows() a row. Slots is the number of values
// it can have made in one column at the most.
func (b *Batch) Took(slots int) {
	b.rows++
	b.slots += slots
	b.last = slots
	b.cells.Took()
}

// Failed takes back what was written for a record, and is the error to return.
func (b *Batch) Failed(f Fail, field string) error {
	b.cells.Failed()
	b.truncate()
	if f == Full && b.rows > 0 {
		return ErrBatchFull
	}
	e := &Error{Format: b.format, Field: field}
	e.Reason, e.Detail = f.Describe()
	return e
}

func (b *Batch) truncate() {
	for _, c := range b.columns {
		c.Truncate(b.rows)
	}
}

// AppendNull adds a row in which everything is null, lists and maps are empty.
func (b *Batch) AppendNull() error {
	if err := b.Room(1); err != nil {
		return err
	}
	for _, c := range b.columns {
		switch c.Type().ID() {
		case arrow.LIST, arrow.MAP: // empty when absent
		default:
			c.SetNull(b.rows)
		}
	}
	b.Took(1)
	return nil
}

// Undo takes the last row back. It may be called once after each Append.
func (b *Batch) Undo() {
	b.rows--
	b.slots -= b.last
	b.cells.Undo()
	b.truncate()
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return b.rows }

// Grown is about how many bytes the last row may take beyond a multiple of its
// payload: those of the cells of its list and map elements.
func (b *Batch) Grown() int { return b.cells.Grown() }

// Size is the number of bytes that the rows take in an Arrow message. It looks at
// every column: ask now and then.
func (b *Batch) Size() int {
	size := 0
	for _, c := range b.columns {
		size += c.Size(b.rows)
	}
	return size
}

// Finish gives the rows as Arrow arrays that alias the batch's memory.
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
	b.rows, b.slots, b.last = 0, 0, 0
	b.cells.Reset()
}

// Unfed prepares a column that nothing feeds: it will be null, but lists and maps are
// empty, because engines disagree about null ones.
func Unfed(n *schema.Node, c *column.Column) {
	if n.Type.Kind == schema.List || n.Type.Kind == schema.Map {
		c.AbsentIsZero()
	}
}
