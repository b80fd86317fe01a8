package cold

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
)

// Fields of _kafka that bounds are checked with.
const (
	topicField     = "topic"
	partitionField = "partition"
	offsetField    = "offset"
)

// bounds keeps rows by their position in Kafka. A nil *bounds keeps all.
type bounds struct{ ranges map[place]kept }

// place is what a row says of where it came from: neither pipeline nor topic id.
type place struct {
	topic  string
	number int32
}

type kept struct {
	ident.Range
	partition ident.Partition
}

// newBounds reads the bounds of a scan. Two partitions that rows do not tell
// apart (one topic fed by two pipelines, or re-created) must have the same
// bounds, else there is no exact answer.
func newBounds(s readapi.ColdScan) (*bounds, error) {
	if s.Below == nil {
		return nil, nil
	}
	b := &bounds{ranges: make(map[place]kept, len(s.Below))}
	for p, next := range s.Below {
		k := kept{ident.Range{First: s.From[p], Next: next}, p}
		at := place{p.Topic, p.Number}
		if other, ok := b.ranges[at]; ok && other.Range != k.Range {
			return nil, fault.New(fault.TooOld, "table %s holds rows of %s and of %s, which they do not tell apart: begin the read again",
				s.Table, p, other.partition)
		}
		b.ranges[at] = k
	}
	return b, nil
}

// position reads the columns that say where rows came from.
type position struct {
	topic  *array.String
	number *array.Int32
	offset *array.Int64
}

func positionOf(rec arrow.RecordBatch) (position, error) {
	var p position
	at := rec.Schema().FieldIndices(schema.KafkaColumn)
	if len(at) == 1 {
		if col, ok := rec.Column(at[0]).(*array.Struct); ok {
			t := col.DataType().(*arrow.StructType)
			field := func(name string) arrow.Array {
				if i, ok := t.FieldIdx(name); ok {
					return col.Field(i)
				}
				return nil
			}
			p.topic, _ = field(topicField).(*array.String)
			p.number, _ = field(partitionField).(*array.Int32)
			p.offset, _ = field(offsetField).(*array.Int64)
		}
	}
	if p.topic == nil || p.number == nil || p.offset == nil {
		return p, fault.New(fault.Corrupt, "the column %s is not the one that Icestream writes", schema.KafkaColumn)
	}
	return p, nil
}

// find returns the entry that keeps row i, if any. A row of somebody else, with
// null there, is kept by none.
func (b *bounds) find(p position, i int) (kept, bool) {
	if p.topic.IsNull(i) || p.number.IsNull(i) || p.offset.IsNull(i) {
		return kept{}, false
	}
	k, ok := b.ranges[place{p.topic.Value(i), p.number.Value(i)}]
	return k, ok && k.Contains(p.offset.Value(i))
}

// filter returns the rows of rec that are kept, as a batch of its own.
func (b *bounds) filter(ctx context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if b == nil {
		rec.Retain()
		return rec, nil
	}
	p, err := positionOf(rec)
	if err != nil {
		return nil, err
	}
	mask := array.NewBooleanBuilder(memory.DefaultAllocator)
	defer mask.Release()
	mask.Reserve(int(rec.NumRows()))
	for i := range int(rec.NumRows()) {
		_, ok := b.find(p, i)
		mask.UnsafeAppend(ok)
	}
	keep := mask.NewArray()
	defer keep.Release()
	return compute.FilterRecordBatch(ctx, rec, keep, compute.DefaultFilterOptions())
}

// exactFilter is how many partitions a filter names one by one; a filter over
// more takes the widest bounds of all, so that it does not grow without end.
const exactFilter = 64

// expression returns the bounds as a filter for planning: files whose statistics
// rule it out are not opened. The rows themselves are checked by filter.
func (b *bounds) expression() iceberg.BooleanExpression {
	if b == nil {
		return iceberg.AlwaysTrue{}
	}
	offset := iceberg.Reference(schema.KafkaColumn + "." + offsetField)
	within := func(r ident.Range) iceberg.BooleanExpression {
		return iceberg.NewAnd(iceberg.GreaterThanEqual(offset, r.First), iceberg.LessThan(offset, r.Next))
	}
	widest := ident.Range{First: math.MaxInt64}
	var any iceberg.BooleanExpression = iceberg.AlwaysFalse{}
	for at, k := range b.ranges {
		widest = ident.Range{First: min(widest.First, k.First), Next: max(widest.Next, k.Next)}
		if len(b.ranges) <= exactFilter {
			number := iceberg.EqualTo(iceberg.Reference(schema.KafkaColumn+"."+partitionField), at.number)
			any = iceberg.NewOr(any, iceberg.NewAnd(number, within(k.Range)))
		}
	}
	if len(b.ranges) > exactFilter {
		return within(widest)
	}
	return any
}

// Window implements readapi.Cold.
func (l *Lake) Window(ctx context.Context, s readapi.ColdScan) (out []readapi.ColdRows, err error) {
	if s.Below == nil {
		return nil, fault.New(fault.Internal, "a window without bounds: report this")
	}
	w := window{ctx: ctx, target: s.Target, parts: map[ident.Partition]*partRows{}}
	defer w.release()
	err = l.each(ctx, s, func(rec arrow.RecordBatch, from *schema.Schema, keep *bounds) (bool, error) {
		return true, w.add(rec, from, keep)
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, r := range out {
				r.Rows.Release()
			}
			out = nil
		}
	}()
	for p, rows := range w.parts {
		rec, err := rows.sorted(ctx, s.Target)
		if err != nil {
			return out, err
		}
		out = append(out, readapi.ColdRows{Partition: p, Rows: rec})
	}
	slices.SortFunc(out, func(a, b readapi.ColdRows) int { return a.Partition.Compare(b.Partition) })
	return out, nil
}

// window collects the rows of a window by partition.
type window struct {
	ctx    context.Context //nolint:containedctx // a window lives as long as one call
	target *schema.Schema
	parts  map[ident.Partition]*partRows
}

// partRows are rows of one partition: batches, and the offsets of their rows in
// the order of the batches.
type partRows struct {
	batches []arrow.RecordBatch
	offsets []int64
}

// add takes the rows that are kept, by partition.
func (w *window) add(rec arrow.RecordBatch, from *schema.Schema, keep *bounds) error {
	p, err := positionOf(rec)
	if err != nil {
		return err
	}
	rows := map[ident.Partition]*array.Int64Builder{}
	defer func() {
		for _, b := range rows {
			b.Release()
		}
	}()
	for i := range int(rec.NumRows()) {
		k, ok := keep.find(p, i)
		if !ok {
			continue
		}
		b := rows[k.partition]
		if b == nil {
			b = array.NewInt64Builder(memory.DefaultAllocator)
			rows[k.partition] = b
		}
		b.Append(int64(i))
		pr := w.parts[k.partition]
		if pr == nil {
			pr = &partRows{}
			w.parts[k.partition] = pr
		}
		pr.offsets = append(pr.offsets, p.offset.Value(i))
	}
	for part, b := range rows {
		index := b.NewArray()
		taken, err := take(w.ctx, rec, index)
		index.Release()
		if err != nil {
			return err
		}
		shaped, err := arrowx.Conform(taken, from, w.target)
		taken.Release()
		if err != nil {
			return err
		}
		w.parts[part].batches = append(w.parts[part].batches, shaped)
	}
	return nil
}

func (w *window) release() {
	for _, p := range w.parts {
		for _, b := range p.batches {
			b.Release()
		}
	}
}

// sorted returns the rows as one batch in offset order.
func (p *partRows) sorted(ctx context.Context, target *schema.Schema) (arrow.RecordBatch, error) {
	all, err := arrowx.Concat(target.Arrow(), p.batches)
	if err != nil {
		return nil, err
	}
	if slices.IsSorted(p.offsets) {
		return all, nil
	}
	defer all.Release()
	order := make([]int64, len(p.offsets))
	for i := range order {
		order[i] = int64(i)
	}
	slices.SortFunc(order, func(a, b int64) int { return cmp.Compare(p.offsets[a], p.offsets[b]) })
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	b.AppendValues(order, nil)
	index := b.NewArray()
	defer index.Release()
	return take(ctx, all, index)
}

// take returns the rows of rec with the given indices, in their order.
func take(ctx context.Context, rec arrow.RecordBatch, index arrow.Array) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for _, c := range rec.Columns() {
		taken, err := compute.TakeArray(ctx, c, index)
		if err != nil {
			return nil, fault.New(fault.Internal, "taking rows of a column of type %s: %w", c.DataType(), err)
		}
		cols = append(cols, taken)
	}
	return array.NewRecordBatch(rec.Schema(), cols, int64(index.Len())), nil
}
