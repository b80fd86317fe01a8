package readapi

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
)

// chunkBytes bounds one ArrowChunk.
const chunkBytes = 1 << 20

// guard bounds how long one send may wait for the reader. A reader that takes
// nothing holds rows, so it is cut; the send that is stuck ends with the stream,
// which the return of the handler ends.
type guard struct {
	ctx    context.Context //nolint:containedctx // the guard lives as long as one call
	limit  time.Duration
	closed <-chan struct{} // ends a stream that has no end of its own; nil for others, which are let finish
}

func (g guard) send(send func() error) error {
	done := make(chan error, 1)
	go func() { done <- send() }()
	t := time.NewTimer(g.limit)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	case <-g.closed:
		return errClosed()
	case <-t.C:
		return fault.New(fault.OverLimit, "the reader took nothing for %s: read faster, or less at a time", g.limit)
	}
}

// arrowStream writes record batches as one Arrow IPC stream cut into chunks.
// Nothing in it depends on time or on the reader, so the same batches make the
// same chunks.
type arrowStream struct {
	send    func(*readstatev1.ArrowChunk) error
	meter   Meter
	w       *ipc.Writer
	buf     []byte
	rows    int64 // that end in buf
	written int64 // bytes in all
	err     error // of a send; the ipc writer may hide it
}

func newArrowStream(shape *schema.Schema, meter Meter, send func(*readstatev1.ArrowChunk) error) *arrowStream {
	s := &arrowStream{send: send, meter: meter}
	s.w = ipc.NewWriter(s, ipc.WithSchema(shape.Arrow()))
	return s
}

// Write takes bytes of the stream. A full chunk goes out only when more comes,
// so the end of a batch always lies in the chunk that is still open.
func (s *arrowStream) Write(b []byte) (int, error) {
	n := len(b)
	s.written += int64(n)
	for len(b) > 0 {
		if len(s.buf) == chunkBytes {
			if err := s.flush(); err != nil {
				return n - len(b), err
			}
		}
		k := min(len(b), chunkBytes-len(s.buf))
		s.buf, b = append(s.buf, b[:k]...), b[k:]
	}
	return n, nil
}

func (s *arrowStream) flush() error {
	if s.err == nil && len(s.buf) > 0 {
		s.err = s.send(&readstatev1.ArrowChunk{Data: s.buf, Rows: s.rows})
		s.buf, s.rows = make([]byte, 0, cap(s.buf)), 0 // a send that was cut may still read the old one
	}
	return s.err
}

// write adds one batch of hot or cold rows; one without rows adds nothing.
func (s *arrowStream) write(part string, rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		return nil
	}
	before := s.written
	err := s.w.Write(rec)
	s.meter.Sent(part, rec.NumRows(), s.written-before)
	if s.err != nil {
		return s.err
	}
	if err != nil {
		return fmt.Errorf("writing an Arrow stream: %w", err)
	}
	s.rows += rec.NumRows()
	return nil
}

// end finishes the stream, with its schema even when it holds no batch.
func (s *arrowStream) end() error {
	err := s.w.Close()
	if s.err == nil && err != nil {
		return fmt.Errorf("ending an Arrow stream: %w", err)
	}
	return s.flush()
}
