package arrowx

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// MaterialiseReplay is Materialise for rows that come back from quarantine: rows
// is a batch of RowSchema(target), p where its records came from, and lsns the
// LSN that each offset had. An offset that lsns does not name gets a null _lsn.
func MaterialiseReplay(target *schema.Schema, p ident.Partition, rows []byte, lsns map[int64]ident.LSN) (arrow.RecordBatch, error) {
	in, err := Decode(RowSchema(target), rows)
	if err != nil {
		return nil, fault.New(fault.ReasonOf(err), "replaying rows of %v: %w", p, err)
	}
	offs := slices.Clone(Offsets(in))
	n := in.NumRows()
	in.Release()
	if len(offs) == 0 {
		return Empty(target.Arrow()), nil
	}
	all := ident.Range{First: offs[0], Next: offs[len(offs)-1] + 1}
	e := &event.Append{Header: event.Header{Partition: p, Range: all, Rows: n}, RowBatch: rows}
	rec, err := Materialise(target, e, all)
	if err != nil {
		return nil, err
	}
	defer rec.Release()
	if rec.NumRows() != int64(len(offs)) {
		return nil, fault.New(fault.Corrupt, "replaying rows of %v: the offsets of the batch do not ascend", p)
	}
	cols := make([]arrow.Array, 0, rec.NumCols())
	for i, c := range rec.Columns() {
		if target.Columns[i].Name == schema.LSNColumn {
			c = lsnsOf(offs, lsns)
			defer c.Release()
		}
		cols = append(cols, c)
	}
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows()), nil
}

func lsnsOf(offs []int64, lsns map[int64]ident.LSN) arrow.Array {
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	for _, o := range offs {
		if l, ok := lsns[o]; ok {
			b.Append(int64(l))
		} else {
			b.AppendNull()
		}
	}
	return b.NewArray()
}
