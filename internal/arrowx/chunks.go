package arrowx

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// Chunks reads an Arrow IPC stream that arrives in pieces. Next returns the next
// piece, or io.EOF after the last; its errors are passed on. Not safe for
// concurrent use.
type Chunks struct {
	Next func() ([]byte, error)
	rest []byte
}

// Read implements io.Reader.
func (c *Chunks) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		piece, err := c.Next()
		if err != nil {
			return 0, err
		}
		c.rest = piece
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// EachBatch calls fn for every batch of an Arrow IPC stream; fn must not keep it.
// A stream without a single byte has no batches.
func EachBatch(r io.Reader, fn func(arrow.RecordBatch) error) error {
	rd, err := ipc.NewReader(r)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading an Arrow stream: %w", err)
	}
	defer rd.Release()
	for rd.Next() {
		if err := fn(rd.RecordBatch()); err != nil {
			return err
		}
	}
	if err := rd.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading an Arrow stream: %w", err)
	}
	return nil
}
