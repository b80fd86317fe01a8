package arrowx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// capture is an ipc.PayloadWriter that keeps the slices of the last payload.
type capture struct {
	slices [][]byte
	size   int
	seen   int
}

func (c *capture) Start() error { return nil }
func (c *capture) Close() error { return nil }

// WritePayload keeps the second payload; the first one is the schema.
func (c *capture) WritePayload(p ipc.Payload) error {
	c.seen++
	if c.seen != 2 {
		return nil
	}
	meta := p.Meta()
	defer meta.Release()
	padded := (meta.Len() + 8 + 7) / 8 * 8
	head := make([]byte, padded)
	binary.LittleEndian.PutUint32(head, 0xFFFFFFFF)
	binary.LittleEndian.PutUint32(head[4:], uint32(padded-8))
	copy(head[8:], meta.Bytes())
	c.slices, c.size = append(c.slices, head), c.size+padded
	return p.SerializeBody(c)
}

// Write takes one buffer of the body, or its padding, without copying.
func (c *capture) Write(b []byte) (int, error) {
	c.slices, c.size = append(c.slices, b), c.size+len(b)
	return len(b), nil
}

// Encode returns rec as one encapsulated Arrow IPC record batch message without
// its schema, uncompressed, in slices, and the sum of their lengths. The slices
// point into rec, which must be kept until they are used up.
func Encode(rec arrow.RecordBatch) ([][]byte, int, error) {
	var c capture
	w := ipc.NewWriterWithPayloadWriter(&c, ipc.WithSchema(rec.Schema()))
	if err := w.Write(rec); err != nil {
		return nil, 0, fmt.Errorf("encoding a batch of %d rows: %w", rec.NumRows(), err)
	}
	return c.slices, c.size, nil
}

// EncodeBytes is Encode into one slice of its own.
func EncodeBytes(rec arrow.RecordBatch) ([]byte, error) {
	slices, _, err := Encode(rec)
	if err != nil {
		return nil, err
	}
	return bytes.Join(slices, nil), nil
}

// StreamBytes returns a whole Arrow IPC stream (schema, batches, end) for
// readers outside.
func StreamBytes(s *arrow.Schema, recs ...arrow.RecordBatch) ([]byte, error) {
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	for _, rec := range recs {
		if err := w.Write(rec); err != nil {
			return nil, errors.Join(fmt.Errorf("writing an Arrow stream: %w", err), w.Close())
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("ending an Arrow stream: %w", err)
	}
	return buf.Bytes(), nil
}
