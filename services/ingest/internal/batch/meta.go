package batch

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/services/ingest/internal/column"
)

// meta holds the internal columns of a row batch: offset always; timestamp, key, headers and schema id where the
// table carries _kafka. The arrays it finishes share its memory until it is reset.
type meta struct {
	kafka    bool
	rows     int
	all      []*column.Column // in batch order
	offset   *column.Column
	time     *column.Column
	key      *column.Column
	headers  *column.Column
	schemaID *column.Column
}

// newMeta makes the columns for the internal fields of a row schema.
func newMeta(fields []arrow.Field) (*meta, error) {
	m := &meta{}
	for _, f := range fields {
		c, err := column.New(f.Type)
		if err != nil {
			return nil, fmt.Errorf("making the internal column %s: %w", f.Name, err)
		}
		m.all = append(m.all, c)
		switch f.Name {
		case arrowx.OffsetColumn:
			m.offset = c
		case arrowx.TimestampColumn:
			m.time, m.kafka = c, true
		case arrowx.KeyColumn:
			m.key = c
		case arrowx.HeadersColumn:
			m.headers = c
			c.AbsentIsZero() // a record without headers has an empty list
		case arrowx.SchemaIDColumn:
			m.schemaID = c
		default:
			return nil, fmt.Errorf("making the internal column %s: ingest does not know it", f.Name)
		}
	}
	return m, nil
}

func (m *meta) reset() {
	m.rows = 0
	for _, c := range m.all {
		c.Reset()
	}
}

func (m *meta) size() int64 {
	n := 0
	for _, c := range m.all {
		n += c.Size(m.rows)
	}
	return int64(n)
}

// add takes the internal columns of r; schemaID below zero is null. An entry holds at most a few times record.max of
// keys and headers, far below the reach of a column's offsets.
func (m *meta) add(r *Record, schemaID int32) {
	row := m.rows
	m.rows++
	if !m.offset.Put8(row, uint64(r.Offset)) {
		m.offset.Set8(row, uint64(r.Offset))
	}
	if !m.kafka {
		return
	}
	if !m.time.Put8(row, uint64(r.Time*1000)) {
		m.time.Set8(row, uint64(r.Time*1000))
	}
	if r.Key != nil {
		m.key.SetBytes(row, r.Key)
	}
	if len(r.Headers) > 0 {
		m.addHeaders(row, r.Headers)
	}
	if schemaID >= 0 && !m.schemaID.Put4(row, uint32(schemaID)) {
		m.schemaID.Set4(row, uint32(schemaID))
	}
}

func (m *meta) addHeaders(row int, headers []Header) {
	m.headers.Open(row)
	pairs := m.headers.Kid(0)
	for i := range headers {
		at := pairs.Len()
		pairs.Open(at)
		pairs.Kid(0).SetBytes(at, []byte(headers[i].Key))
		if headers[i].Value != nil {
			pairs.Kid(1).SetBytes(at, headers[i].Value)
		}
	}
	m.headers.CloseList(row)
}

// finish wraps the columns without a copy.
func (m *meta) finish() []arrow.Array {
	out := make([]arrow.Array, len(m.all))
	for i, c := range m.all {
		out[i] = c.Finish(m.rows)
	}
	return out
}
