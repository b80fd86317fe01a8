package cell

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/services/ingest/internal/column"
)

// maxCells is how many cells the elements of lists and maps of one batch may have, in
// all columns below them: an element of few bytes stands for a cell in each column of
// its struct. No message could carry more.
const maxCells = 1 << 27

// Spread is the number of cells that a row of the column has: one, and those of the
// children of a struct.
func Spread(c *column.Column) int {
	n := 1
	if c.Type().ID() == arrow.STRUCT {
		for i := range c.Kids() {
			n += Spread(c.Kid(i))
		}
	}
	return n
}

// Budget counts the cells that elements of lists and maps have in a batch. The size of
// the columns does not show them before the columns are finished.
type Budget struct {
	spent int
	rows  int // of the rows, the record at hand apart
	last  int // of the last row
	most  int // maxCells, less in tests
}

// NewBudget is that of an empty batch.
func NewBudget() Budget { return Budget{most: maxCells} }

// Spend takes note of cells; false means that the record does not fit into the batch.
func (b *Budget) Spend(cells int) bool {
	b.spent += cells
	return b.spent <= b.most
}

// Took makes what was spent that of a row.
func (b *Budget) Took() { b.last, b.rows = b.spent-b.rows, b.spent }

// Failed gives back what was spent for a record.
func (b *Budget) Failed() { b.spent = b.rows }

// Undo gives back what the last row spent.
func (b *Budget) Undo() {
	b.rows -= b.last
	b.spent, b.last = b.rows, 0
}

// cellBytes is more than a cell takes where its value is absent.
const cellBytes = 64

// Grown is a bound for the bytes of the cells that the last row spent.
func (b *Budget) Grown() int { return b.last * cellBytes }

// Reset gives everything back.
func (b *Budget) Reset() { b.spent, b.rows, b.last = 0, 0, 0 }

// Limit lowers the number of cells.
func (b *Budget) Limit(cells int) { b.most = cells }
