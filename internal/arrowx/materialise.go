package arrowx

import (
	"bytes"
	"slices"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// CheckEntry decodes both batches of e and checks that they hold what the header
// says: the counts, and offsets that ascend inside the range and do not meet the
// skipped ones. target is the schema that e.Fingerprint names. It is the door
// through which bytes from the network come in.
func CheckEntry(target *schema.Schema, e *event.Append) error {
	rows, err := checkBatch(e, e.RowBatch, RowSchema(target), e.Rows)
	if err != nil {
		return err
	}
	bad, err := checkBatch(e, e.Quarantine, QuarantineSchema(), e.Quarantined)
	if err != nil {
		return err
	}
	return checkDisjoint(e, rows, bad)
}

func checkBatch(e *event.Append, b []byte, s *arrow.Schema, want int64) ([]int64, error) {
	if want == 0 {
		if len(b) != 0 {
			return nil, fault.New(fault.Corrupt, "append %v %v carries a batch for no rows", e.Partition, e.Range)
		}
		return nil, nil
	}
	rec, err := Decode(s, b)
	if err != nil {
		return nil, fault.New(fault.ReasonOf(err), "append %v %v: %w", e.Partition, e.Range, err)
	}
	defer rec.Release()
	if rec.NumRows() != want {
		return nil, fault.New(fault.Corrupt, "append %v %v carries %d rows, its header says %d", e.Partition, e.Range, rec.NumRows(), want)
	}
	offs := Offsets(rec)
	last := e.Range.First - 1
	for _, o := range offs {
		if o <= last || o >= e.Range.Next {
			return nil, fault.New(fault.Corrupt, "append %v %v carries offset %d after %d", e.Partition, e.Range, o, last)
		}
		last = o
	}
	return offs, nil
}

// checkDisjoint walks rows, quarantined records and skips side by side: since
// each ascends and their lengths sum up to the range (the wire checked that),
// no offset met twice means every offset is accounted for once.
func checkDisjoint(e *event.Append, rows, bad []int64) error {
	for len(rows) > 0 && len(bad) > 0 {
		switch {
		case rows[0] == bad[0]:
			return fault.New(fault.Corrupt, "append %v %v carries offset %d as row and as quarantined", e.Partition, e.Range, rows[0])
		case rows[0] < bad[0]:
			rows = rows[1:]
		default:
			bad = bad[1:]
		}
	}
	return nil
}

// Offsets returns the offset column of a row or quarantine batch; nil when there
// is none.
func Offsets(rec arrow.RecordBatch) []int64 {
	if c, ok := column(rec, OffsetColumn).(*array.Int64); ok {
		return c.Int64Values()
	}
	return nil
}

// column is the last column named name: internal columns stand behind mapped
// ones, which may have the same name.
func column(rec arrow.RecordBatch, name string) arrow.Array {
	idx := rec.Schema().FieldIndices(name)
	if len(idx) == 0 {
		return nil
	}
	return rec.Column(idx[len(idx)-1])
}

// window is the index range of the offsets that lie in within.
func window(offs []int64, within ident.Range) (lo, hi int) {
	lo = sort.Search(len(offs), func(i int) bool { return offs[i] >= within.First })
	hi = sort.Search(len(offs), func(i int) bool { return offs[i] >= within.Next })
	return lo, max(lo, hi)
}

// Materialise returns the rows of e whose offset lies in within as rows of the
// table target, including _lsn and _kafka where the table has them. target is
// the schema that e.Fingerprint names. An entry without rows gives an empty batch.
func Materialise(target *schema.Schema, e *event.Append, within ident.Range) (arrow.RecordBatch, error) {
	out := target.Arrow()
	if e.Rows == 0 {
		return Empty(out), nil
	}
	rec, err := Decode(RowSchema(target), e.RowBatch)
	if err != nil {
		return nil, fault.New(fault.ReasonOf(err), "append %v %v: %w", e.Partition, e.Range, err)
	}
	defer rec.Release()
	lo, hi := window(Offsets(rec), within)
	rec = rec.NewSlice(int64(lo), int64(hi))
	defer rec.Release()

	cols := make([]arrow.Array, 0, out.NumFields())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	mapped := 0
	for i, n := range target.Columns {
		switch n.Name {
		case schema.LSNColumn:
			cols = append(cols, lsnColumn(e, rec))
		case schema.KafkaColumn:
			cols = append(cols, kafkaColumn(e, rec, out.Field(i).Type.(*arrow.StructType)))
		default:
			c := rec.Column(mapped)
			c.Retain()
			cols = append(cols, c)
			mapped++
		}
	}
	return array.NewRecordBatch(out, cols, rec.NumRows()), nil
}

func lsnColumn(e *event.Append, rec arrow.RecordBatch) arrow.Array {
	offs := Offsets(rec)
	out := make([]int64, len(offs))
	for i, o := range offs {
		out[i] = int64(e.LSN) + o - e.Range.First
	}
	return int64Array(out)
}

func int64Array(values []int64) arrow.Array {
	data := array.NewData(arrow.PrimitiveTypes.Int64, len(values),
		[]*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int64Traits.CastToBytes(values))}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// kafkaColumn builds the struct _kafka. The types of t carry field ids, so the
// children are re-labelled with them.
func kafkaColumn(e *event.Append, rec arrow.RecordBatch, t *arrow.StructType) arrow.Array {
	n := int(rec.NumRows())
	kids := make([]arrow.ArrayData, 0, t.NumFields())
	defer releaseData(&kids)
	for _, f := range t.Fields() {
		var arr arrow.Array
		switch f.Name {
		case "topic":
			arr = constString(e.Partition.Topic, n)
		case "partition":
			arr = constInt32(e.Partition.Number, n)
		default:
			if arr = column(rec, f.Name); arr != nil {
				arr.Retain()
			} else {
				arr = array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, n)
			}
		}
		kids = append(kids, relabel(arr.Data(), f.Type))
		arr.Release()
	}
	data := array.NewData(t, n, []*memory.Buffer{nil}, kids, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// relabel returns d under type t, which differs only in field names and
// metadata, at every depth.
func relabel(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	kids := make([]arrow.ArrayData, 0, len(d.Children()))
	defer releaseData(&kids)
	for i, k := range d.Children() {
		kids = append(kids, relabel(k, childType(t, i)))
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

func childType(t arrow.DataType, i int) arrow.DataType {
	if nested, ok := t.(arrow.NestedType); ok && t.ID() != arrow.MAP {
		return nested.Fields()[i].Type
	}
	if m, ok := t.(*arrow.MapType); ok {
		return m.Elem()
	}
	return t
}

// constString is n times s.
func constString(s string, n int) arrow.Array {
	offsets := make([]int32, n+1)
	for i := range offsets {
		offsets[i] = int32(i * len(s))
	}
	data := array.NewData(arrow.BinaryTypes.String, n, []*memory.Buffer{
		nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), memory.NewBufferBytes(bytes.Repeat([]byte(s), n)),
	}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// constInt32 is n times v.
func constInt32(v int32, n int) arrow.Array {
	values := slices.Repeat([]int32{v}, n)
	data := array.NewData(arrow.PrimitiveTypes.Int32, n,
		[]*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(values))}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// Empty is a batch of s without rows.
func Empty(s *arrow.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	return b.NewRecordBatch()
}

// MaterialiseQuarantine returns the quarantined records of e whose offset lies in
// within, as rows of the quarantine table, decided by commit.
func MaterialiseQuarantine(e *event.Append, within ident.Range, commit ident.UUID) (arrow.RecordBatch, error) {
	out := schema.QuarantineSchema().Arrow()
	if e.Quarantined == 0 {
		return Empty(out), nil
	}
	rec, err := Decode(QuarantineSchema(), e.Quarantine)
	if err != nil {
		return nil, fault.New(fault.ReasonOf(err), "append %v %v, quarantine: %w", e.Partition, e.Range, err)
	}
	defer rec.Release()
	lo, hi := window(Offsets(rec), within)
	rec = rec.NewSlice(int64(lo), int64(hi))
	defer rec.Release()
	n := int(rec.NumRows())
	cols := make([]arrow.Array, 0, out.NumFields())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for _, f := range out.Fields() {
		arr := quarantineColumn(e, rec, f, commit, n)
		data := relabel(arr.Data(), f.Type)
		arr.Release()
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(out, cols, int64(n)), nil
}

func quarantineColumn(e *event.Append, rec arrow.RecordBatch, f arrow.Field, commit ident.UUID, n int) arrow.Array {
	switch f.Name {
	case "pipeline":
		return constString(e.Partition.Pipeline, n)
	case "topic":
		return constString(e.Partition.Topic, n)
	case "topic_id":
		return constString(e.Partition.TopicID.OrEmpty(), n)
	case "partition":
		return constInt32(e.Partition.Number, n)
	case "commit_id":
		return constString(commit.String(), n)
	case schema.LSNName:
		return lsnColumn(e, rec)
	}
	if arr := column(rec, f.Name); arr != nil {
		arr.Retain()
		return arr
	}
	return array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, n)
}
