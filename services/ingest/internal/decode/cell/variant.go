package cell

import (
	"errors"

	"github.com/icestream/icestream/internal/variant"
	"github.com/icestream/icestream/services/ingest/internal/column"
)

// Variants stores values of any shape in columns of type variant. It belongs to one
// batch.
type Variants struct{ enc variant.Encoder }

// Store stores the value of a JSON text, which was checked to be JSON.
func (v *Variants) Store(c *column.Column, row int, text []byte) Fail {
	metadata, value, err := v.enc.JSON(text)
	switch {
	case err == nil:
	case errors.Is(err, variant.ErrDuplicateKey):
		return Duplicate
	case errors.Is(err, variant.ErrRange):
		return Range
	case errors.Is(err, variant.ErrDepth):
		return Depth
	default:
		return Syntax
	}
	c.Open(row)
	if !c.Kid(0).SetBytes(row, metadata) || !c.Kid(1).SetBytes(row, value) {
		return Full
	}
	return OK
}
