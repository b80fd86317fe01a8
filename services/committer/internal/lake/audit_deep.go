package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

func isNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || fault.ReasonOf(err) == fault.NotFound
}

// place is what a row says about where it came from.
type place struct {
	topic     string
	partition int32
}

// deep reads where every row came from.
func (a *auditor) deep(ctx context.Context, q *Table) error {
	if a.head.Schema.Column(schema.KafkaColumn) == nil {
		a.r.find(Unknown, "deep scan", "the table has no column %s: offsets cannot be told", schema.KafkaColumn)
		return nil
	}
	rows := scan{doubled: map[place][]int64{}, sets: map[place]*offsetSet{}}
	if err := rows.read(ctx, a.t, schema.KafkaColumn, kafkaPlaces); err != nil {
		return err
	}
	poison := scan{doubled: map[place][]int64{}, sets: map[place]*offsetSet{}}
	if q != nil {
		if err := poison.read(ctx, q, "", a.quarantinePlaces); err != nil {
			return err
		}
	}
	if rows.strangers > 0 {
		a.r.note("%d rows name no Kafka record: others wrote them", rows.strangers)
	}
	known := map[place]int{}
	for _, p := range a.r.Partitions {
		known[place{p.Topic, p.Partition}]++
	}
	for i := range a.r.Partitions {
		p := &a.r.Partitions[i]
		at := place{p.Topic, p.Partition}
		if known[at] > 1 {
			a.r.find(Unknown, at.String(), "several pipelines or lives of the topic feed it: a row does not say which one it is of")
			continue
		}
		a.comparePartition(p, rows.sets[at], poison.sets[at], a.r.Pending == 0)
		if d := rows.doubled[at]; len(d) > 0 {
			a.r.find(Violated, at.String(), "offsets that are more than one row: %v", d)
		}
		if d := poison.doubled[at]; len(d) > 0 {
			a.r.find(Violated, at.String(), "offsets that are quarantined more than once: %v", d)
		}
	}
	for at, set := range rows.sets {
		if known[at] == 0 {
			a.r.find(Unknown, at.String(), "%d rows of a partition that the state does not know", set.count)
		}
	}
	return nil
}

func (p place) String() string { return fmt.Sprintf("%s[%d]", p.topic, p.partition) }

func (a *auditor) comparePartition(p *PartitionReport, rows, poison *offsetSet, allApplied bool) {
	if rows == nil {
		rows = &offsetSet{}
	}
	if poison == nil {
		poison = &offsetSet{}
	}
	where := place{p.Topic, p.Partition}.String()
	p.Scanned = &rows.count
	if rows.count > 0 && (rows.low < p.Start || rows.high >= p.Next) {
		a.r.find(Violated, where, "rows of offsets %d to %d, but only [%d,%d) is committed", rows.low, rows.high, p.Start, p.Next)
	}
	if both := rows.both(poison); len(both) > 0 {
		a.r.find(Violated, where, "offsets that are a row and quarantined: %v", both)
	}
	switch {
	case rows.count > p.Rows:
		a.r.find(Violated, where, "%d offsets are rows, %d were counted", rows.count, p.Rows)
	case rows.count < p.Rows && a.lost:
		a.r.find(Unknown, where, "%d offsets are rows, %d were counted: others removed rows", rows.count, p.Rows)
	case rows.count < p.Rows:
		a.r.find(Violated, where, "%d offsets are rows, %d were counted; offsets without a row begin with %v", rows.count, p.Rows, rows.holes(poison, p.Start, p.Next))
	}
	if allApplied && poison.count != p.Quarantined {
		a.r.find(Violated, where, "%d offsets are in the quarantine table, %d were counted", poison.count, p.Quarantined)
	}
}

// scan collects the offsets of a table.
type scan struct {
	sets      map[place]*offsetSet
	doubled   map[place][]int64 // first examples
	strangers int64             // rows that name no record
}

// examples is how many offsets a finding shows.
const examples = 5

func (s *scan) read(ctx context.Context, t *Table, column string, places func(arrow.RecordBatch, func(place, int64), func()) error) error {
	tbl := t.rehandle(t.handle().Metadata())
	options := []table.ScanOption{}
	if column != "" {
		options = append(options, table.WithSelectedFields(append(older(t.Head().Schema, column), column+".topic", column+".partition", column+".offset")...))
	} else {
		options = append(options, table.WithSelectedFields("topic", "partition", "offset", replayedColumn))
	}
	if tbl.CurrentSnapshot() == nil {
		return nil
	}
	_, recs, err := tbl.Scan(options...).ToArrowRecords(ctx)
	if err != nil {
		return classify(err, "scanning table %s", t.name)
	}
	for rec, err := range recs {
		if err != nil {
			return classify(err, "scanning table %s", t.name)
		}
		err = places(rec, s.add, func() { s.strangers++ })
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// older names a column that is older than the one given, if there is any: files
// may be older as well, and the library cannot read one of which it wants no
// column.
func older(s *schema.Schema, column string) []string {
	oldest := s.Column(column)
	for _, c := range s.Columns {
		if c.FieldID < oldest.FieldID {
			oldest = c
		}
	}
	if oldest.Name == column {
		return nil
	}
	return []string{oldest.Name}
}

func (s *scan) add(at place, offset int64) {
	set := s.sets[at]
	if set == nil {
		set = &offsetSet{}
		s.sets[at] = set
	}
	if !set.add(offset) && len(s.doubled[at]) < examples {
		s.doubled[at] = append(s.doubled[at], offset)
	}
}

func kafkaPlaces(rec arrow.RecordBatch, add func(place, int64), stranger func()) error {
	at := rec.Schema().FieldIndices(schema.KafkaColumn)
	if len(at) != 1 {
		return fault.New(fault.Internal, "scanning %s: it is not there", schema.KafkaColumn)
	}
	k, ok := rec.Column(at[0]).(*array.Struct)
	if !ok {
		return fault.New(fault.Internal, "scanning %s: it is no struct", schema.KafkaColumn)
	}
	column := func(name string) arrow.Array {
		i, found := k.DataType().(*arrow.StructType).FieldIdx(name)
		if !found {
			return nil
		}
		return k.Field(i)
	}
	return walkPlaces(k, column("topic"), column("partition"), column("offset"), func(_ int, at place, offset int64) { add(at, offset) }, stranger)
}

// quarantinePlaces leaves out what was replayed: those offsets are rows.
func (a *auditor) quarantinePlaces(rec arrow.RecordBatch, add func(place, int64), stranger func()) error {
	column := func(name string) arrow.Array {
		if i := rec.Schema().FieldIndices(name); len(i) == 1 {
			return rec.Column(i[0])
		}
		return nil
	}
	replayed := column(replayedColumn)
	return walkPlaces(nil, column("topic"), column("partition"), column("offset"), func(i int, at place, offset int64) {
		if (replayed == nil || replayed.IsNull(i)) && !within(a.waiting[at], offset) {
			add(at, offset)
		}
	}, stranger)
}

func walkPlaces(parent, topic, partition, offset arrow.Array, add func(int, place, int64), stranger func()) error {
	texts, okT := topic.(array.StringLike)
	numbers, okP := partition.(*array.Int32)
	offsets, okO := offset.(*array.Int64)
	if !okT || !okP || !okO {
		return fault.New(fault.Unsupported, "scanning offsets: topic, partition and offset do not have the types that Icestream gives them")
	}
	for i := range offsets.Len() {
		if (parent != nil && parent.IsNull(i)) || texts.IsNull(i) || numbers.IsNull(i) || offsets.IsNull(i) {
			stranger()
			continue
		}
		add(i, place{texts.Value(i), numbers.Value(i)}, offsets.Value(i))
	}
	return nil
}

// offsetSet is a set of offsets in chunks of 65,536. A full chunk costs nothing
// but its mark, so the memory is that of the chunks that are not full: what is
// sparse or still out of order.
type offsetSet struct {
	chunks    map[int64]*chunk
	count     int64
	low, high int64
}

type chunk struct {
	bits []uint64 // nil when full
	n    int
}

const chunkBits = 16

// add reports whether the offset is new.
func (s *offsetSet) add(offset int64) bool {
	if s.chunks == nil {
		s.chunks, s.low, s.high = map[int64]*chunk{}, offset, offset
	}
	key := offset >> chunkBits
	c := s.chunks[key]
	if c == nil {
		c = &chunk{bits: make([]uint64, 1<<chunkBits/64)}
		s.chunks[key] = c
	}
	bit := offset & (1<<chunkBits - 1)
	if c.bits == nil || c.bits[bit/64]&(1<<(bit%64)) != 0 {
		return false
	}
	c.bits[bit/64] |= 1 << (bit % 64)
	c.n++
	if c.n == 1<<chunkBits {
		c.bits = nil
	}
	s.count++
	s.low, s.high = min(s.low, offset), max(s.high, offset)
	return true
}

func (s *offsetSet) has(offset int64) bool {
	c := s.chunks[offset>>chunkBits]
	if c == nil {
		return false
	}
	bit := offset & (1<<chunkBits - 1)
	return c.bits == nil || c.bits[bit/64]&(1<<(bit%64)) != 0
}

// each visits the offsets of a chunk until visit says stop.
func (s *offsetSet) each(visit func(int64) bool) {
	for key, c := range s.chunks {
		for word := range 1 << chunkBits / 64 {
			w := ^uint64(0)
			if c.bits != nil {
				w = c.bits[word]
			}
			for ; w != 0; w &= w - 1 {
				if !visit(key<<chunkBits | int64(word*64+bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// both lists first offsets that are in s and in o.
func (s *offsetSet) both(o *offsetSet) []int64 {
	var out []int64
	o.each(func(offset int64) bool {
		if s.has(offset) {
			out = append(out, offset)
		}
		return len(out) < examples
	})
	return out
}

// holes lists first offsets of [start,next) that are in neither set. They may be
// skipped ones: only the count tells.
func (s *offsetSet) holes(o *offsetSet, start, next int64) []int64 {
	var out []int64
	for offset := start; offset < next && len(out) < examples; offset++ {
		if c := s.chunks[offset>>chunkBits]; c != nil && c.bits == nil {
			offset |= 1<<chunkBits - 1
			continue
		}
		if !s.has(offset) && !o.has(offset) {
			out = append(out, offset)
		}
	}
	return out
}
