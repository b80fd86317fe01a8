package lake

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// sorter orders the rows of a batch by a table's sort order. A file is made of
// several sorted batches, so it does not claim the order in its metadata.
type sorter struct {
	fields []sorterField
}

type sorterField struct {
	splitField
	desc, nullsLast bool
}

// newSorter is nil for a table without an order, and for an order that others
// set with transforms other than identity on columns of a kind we cannot order.
func newSorter(order table.SortOrder, t *iceberg.Schema, sch *schema.Schema) *sorter {
	s := &sorter{}
	for _, f := range order.Fields() {
		if _, ok := f.Transform.(iceberg.IdentityTransform); !ok {
			return nil
		}
		path := pathOf(sch.Columns, int32(f.SourceID()))
		source, ok := t.FindTypeByID(f.SourceID())
		if path == nil || !ok {
			return nil
		}
		s.fields = append(s.fields, sorterField{
			splitField: splitField{path: path, source: source},
			desc:       f.Direction == table.SortDESC, nullsLast: f.NullOrder == table.NullsLast,
		})
	}
	if len(s.fields) == 0 {
		return nil
	}
	return s
}

// order sorts rows, which are indices into rec; rows that compare equal keep
// their order.
func (s *sorter) order(rec arrow.RecordBatch, rows []int64) error {
	compares := make([]func(a, b int64) int, len(s.fields))
	for i, f := range s.fields {
		read, err := f.reader(rec)
		if err != nil {
			return err
		}
		// Read once: the comparisons are n log n.
		values := make([]any, rec.NumRows())
		for _, row := range rows {
			values[row] = read(int(row))
		}
		compares[i] = func(a, b int64) int { return f.compare(values[a], values[b]) }
	}
	slices.SortStableFunc(rows, func(a, b int64) int {
		for _, c := range compares {
			if d := c(a, b); d != 0 {
				return d
			}
		}
		return 0
	})
	return nil
}

func (f sorterField) compare(a, b any) int {
	if a == nil || b == nil {
		switch {
		case a == nil && b == nil:
			return 0
		case (a == nil) == f.nullsLast:
			return 1
		default:
			return -1
		}
	}
	d := compareValues(a, b)
	if f.desc {
		return -d
	}
	return d
}

func compareValues(a, b any) int {
	switch x := a.(type) {
	case bool:
		y := b.(bool)
		switch {
		case x == y:
			return 0
		case y:
			return -1
		default:
			return 1
		}
	case int32:
		return cmp.Compare(x, b.(int32))
	case int64:
		return cmp.Compare(x, b.(int64))
	case float32:
		return compareFloats(float64(x), float64(b.(float32)))
	case float64:
		return compareFloats(x, b.(float64))
	case iceberg.Date:
		return cmp.Compare(x, b.(iceberg.Date))
	case iceberg.Time:
		return cmp.Compare(x, b.(iceberg.Time))
	case iceberg.Timestamp:
		return cmp.Compare(x, b.(iceberg.Timestamp))
	case iceberg.TimestampNano:
		return cmp.Compare(x, b.(iceberg.TimestampNano))
	case string:
		return strings.Compare(x, b.(string))
	case []byte:
		return bytes.Compare(x, b.([]byte))
	case iceberg.Decimal:
		return x.Val.Cmp(b.(iceberg.Decimal).Val)
	default:
		return 0
	}
}

// compareFloats puts NaN after everything, as Iceberg does.
func compareFloats(a, b float64) int {
	switch {
	case a != a && b != b:
		return 0
	case a != a:
		return 1
	case b != b:
		return -1
	default:
		return cmp.Compare(a, b)
	}
}

// take copies the given rows into a batch of their own.
func take(ctx context.Context, rec arrow.RecordBatch, rows []int64) (arrow.RecordBatch, error) {
	if int64(len(rows)) == rec.NumRows() && slices.IsSorted(rows) {
		rec.Retain()
		return rec, nil
	}
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(rows, nil)
	indices := b.NewInt64Array()
	defer indices.Release()
	columns := make([]arrow.Array, rec.NumCols())
	for i := range columns {
		var err error
		columns[i], err = compute.TakeArray(ctx, rec.Column(i), indices)
		if err != nil {
			return nil, fault.New(fault.Internal, "splitting a batch, column %q: %w", rec.ColumnName(i), err)
		}
		defer columns[i].Release()
	}
	return array.NewRecordBatch(rec.Schema(), columns, int64(len(rows))), nil
}
