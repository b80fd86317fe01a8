package batch

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/zeebo/xxh3"

	"github.com/icestream/icestream/internal/arrowx"
)

// KeepOversized is how much of the value (and of the key) of an oversized record is kept, in bytes.
const KeepOversized = 64 << 10

// ReasonOversized is the quarantine reason of records above record.max and of rows that no message can carry.
const ReasonOversized = "oversized"

// quarantine collects the quarantined records of an entry in the fixed schema of arrowx.QuarantineSchema.
type quarantine struct {
	build   *array.RecordBuilder
	n       int64
	size    int64
	reasons map[string]int64
}

func newQuarantine() *quarantine { return &quarantine{} }

func (q *quarantine) add(r *Record, reason, text string, schemaID int32) {
	if q.build == nil { // most partitions never need it
		q.build = array.NewRecordBuilder(memory.DefaultAllocator, arrowx.QuarantineSchema())
	}
	key, value, headers := r.Key, r.Value, r.Headers
	if reason == ReasonOversized {
		text = fmt.Sprintf("%s; key %d bytes, value %d bytes, %d headers, value xxh3-128 %x",
			text, len(key), len(value), len(headers), xxh3.Hash128(value).Bytes())
		key, value = cut(key), cut(value)
		if headerBytes(headers) > KeepOversized {
			headers = nil
		}
	}
	for i := range q.build.Fields() {
		q.field(i, r, key, value, headers, reason, text, schemaID)
	}
	q.n++
	q.size += int64(len(key)+len(value)+len(reason)+len(text)+64) + headerBytes(headers)
	if q.reasons == nil {
		q.reasons = map[string]int64{}
	}
	q.reasons[reason]++
}

func (q *quarantine) field(i int, r *Record, key, value []byte, headers []Header, reason, text string, schemaID int32) {
	f := q.build.Field(i)
	switch q.build.Schema().Field(i).Name {
	case "offset":
		f.(*array.Int64Builder).Append(r.Offset)
	case "timestamp":
		f.(*array.TimestampBuilder).Append(arrow.Timestamp(r.Time * 1000))
	case "key":
		appendBinary(f.(*array.BinaryBuilder), key)
	case "value":
		appendBinary(f.(*array.BinaryBuilder), value)
	case "headers":
		list := f.(*array.ListBuilder)
		list.Append(true)
		pair := list.ValueBuilder().(*array.StructBuilder)
		for _, h := range headers {
			pair.Append(true)
			pair.FieldBuilder(0).(*array.StringBuilder).Append(h.Key)
			appendBinary(pair.FieldBuilder(1).(*array.BinaryBuilder), h.Value)
		}
	case "schema_id":
		if schemaID < 0 {
			f.AppendNull()
			return
		}
		f.(*array.Int32Builder).Append(schemaID)
	case "reason":
		f.(*array.StringBuilder).Append(reason)
	case "error":
		f.(*array.StringBuilder).Append(text)
	default:
		f.AppendNull()
	}
}

func (q *quarantine) finish() arrow.RecordBatch {
	rec := q.build.NewRecordBatch()
	q.n, q.size, q.reasons = 0, 0, nil
	return rec
}

func (q *quarantine) drop() {
	if q.n > 0 {
		q.finish().Release()
	}
}

func appendBinary(b *array.BinaryBuilder, v []byte) {
	if v == nil {
		b.AppendNull()
		return
	}
	b.Append(v)
}

func cut(b []byte) []byte { return b[:min(len(b), KeepOversized):min(len(b), KeepOversized)] }

func headerBytes(hs []Header) int64 {
	var n int64
	for i := range hs {
		n += int64(len(hs[i].Key) + len(hs[i].Value))
	}
	return n
}
