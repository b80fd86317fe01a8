package readapi

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/schema"
)

// written returns the schema under which the rows of a piece were made.
func written(p readview.Piece) (*schema.Schema, error) {
	if p.Schema.Fingerprint != p.Append.Fingerprint {
		return nil, fault.New(fault.Internal, "the log holds %v %v of schema %s, which it does not know: report this",
			p.Append.Partition, p.Append.Range, p.Append.Fingerprint)
	}
	return parseSchema(p.Schema)
}

// rowsOf returns the rows of a piece in the given shape. Rows of an older schema
// are widened, and get nulls where they lack a column.
func rowsOf(p readview.Piece, shape *schema.Schema) (arrow.RecordBatch, error) {
	from, err := written(p)
	if err != nil {
		return nil, err
	}
	rec, err := arrowx.Materialise(from, p.Append, p.Within)
	if err != nil {
		return nil, fmt.Errorf("reading hot rows: %w", err)
	}
	defer rec.Release()
	return arrowx.Conform(rec, from, shape)
}

// rowsIn counts the rows of a piece. Only a piece that is part of its entry has
// to be looked into.
func rowsIn(p readview.Piece) (int64, error) {
	if p.Within == p.Append.Range || p.Append.Rows == 0 {
		return p.Append.Rows, nil
	}
	from, err := written(p)
	if err != nil {
		return 0, err
	}
	rec, err := arrowx.Decode(arrowx.RowSchema(from), p.Append.RowBatch)
	if err != nil {
		return 0, err
	}
	defer rec.Release()
	var n int64
	for _, o := range arrowx.Offsets(rec) {
		if p.Within.Contains(o) {
			n++
		}
	}
	return n, nil
}
