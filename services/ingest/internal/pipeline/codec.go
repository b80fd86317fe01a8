package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// Source is a source schema: the columns it wants and how its payloads become rows of a target. One whose age among
// others is known has also Order() int64.
type Source interface {
	// Name is for people: the registry's id and the message.
	Name() string
	// Candidate is the column tree that is proposed to the committer.
	Candidate() *schema.Schema
	// Compile makes the factory of batches that decode into the mapped columns of target.
	Compile(target *schema.Schema) (func() batch.Rows, error)
}

// Codec is a record format.
type Codec interface {
	// Split takes the schema reference off a value that is not null. Errors are faults of the record.
	Split(value, header []byte) (frame.Frame, error)
	// Source finds the schema of a frame. A *RecordError is the record's; anything else is the dependency's, with
	// fault.Unauthorized for what only an operator can heal.
	Source(ctx context.Context, f *frame.Frame) (Source, error)
}

// RecordError says that a record can never be a row.
type RecordError struct {
	Reason string // short code, kept in the quarantine table and in metrics
	Text   string

	noMessage bool // the schema lacks the pipeline's message, or is of another format: the settings may be what is wrong
}

// Error is the fault in words.
func (f *RecordError) Error() string { return f.Reason + ": " + f.Text }

// reasonOf is the quarantine reason and text of a record's error; ok is false when it is no fault of the record.
func reasonOf(err error) (reason, text string, ok bool) {
	var rf *RecordError
	var fe *frame.Error
	var ce *cell.Error
	var te *batch.TooLargeError
	switch {
	case errors.As(err, &rf):
		return rf.Reason, rf.Text, true
	case errors.As(err, &fe):
		return fe.Reason, fe.Error(), true
	case errors.As(err, &ce):
		return ce.Reason, ce.Error(), true
	case errors.As(err, &te):
		return batch.ReasonOversized, te.Error(), true
	default:
		return "", "", false
	}
}

// isRecords reports whether an error is a record's.
func isRecords(err error) bool {
	_, _, ok := reasonOf(err)
	return ok
}

// Raw is the format whose rows have one column, value, with the bytes of the record.
type Raw struct{}

// Split implements Codec.
func (Raw) Split(value, _ []byte) (frame.Frame, error) { return frame.Unframed(value), nil }

// Source implements Codec.
func (Raw) Source(context.Context, *frame.Frame) (Source, error) {
	return wholeSource{schema.Binary}, nil
}

// Text is the format whose rows have one column, value, with the text of the record, which must be UTF-8.
type Text struct{}

// Split implements Codec.
func (Text) Split(value, _ []byte) (frame.Frame, error) { return frame.Unframed(value), nil }

// Source implements Codec.
func (Text) Source(context.Context, *frame.Frame) (Source, error) {
	return wholeSource{schema.String}, nil
}

// wholeSource takes a record as it is: as a binary, or as a string.
type wholeSource struct{ kind schema.Kind }

func (s wholeSource) Name() string {
	if s.kind == schema.String {
		return "string"
	}
	return "raw"
}

// Single says that the column is the record as a whole.
func (wholeSource) Single() bool { return true }

func (s wholeSource) Candidate() *schema.Schema {
	return &schema.Schema{Columns: []*schema.Node{{Name: "value", Number: 1, Type: schema.Of(s.kind)}}}
}

func (s wholeSource) Compile(target *schema.Schema) (func() batch.Rows, error) {
	mapped := target.Mapped()
	at := -1
	for i, n := range mapped {
		if n.Number == 1 && schema.CanHold(n.Type, schema.Of(s.kind)) {
			at = i
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("the table has no column for a value of type %s", s.kind)
	}
	if _, err := column.New(mapped[at].ArrowField().Type); err != nil {
		return nil, fmt.Errorf("making the column of the value: %w", err)
	}
	return func() batch.Rows {
		c, _ := column.New(mapped[at].ArrowField().Type) // tried above
		return &wholeRows{nullRows: nullRows{mapped: mapped}, at: at, value: c, text: s.kind == schema.String}
	}, nil
}

// wholeRows fills one column; all others are null.
type wholeRows struct {
	nullRows

	at    int
	value *column.Column
	text  bool
}

func (r *wholeRows) Append(payload []byte) error {
	if r.text && !cell.ValidUTF8(payload) {
		e := &cell.Error{Format: "string"}
		e.Reason, e.Detail = cell.UTF8.Describe()
		return e
	}
	if !r.value.SetBytes(r.n, payload) {
		return cell.ErrBatchFull
	}
	r.n++
	return nil
}

func (r *wholeRows) AppendNull() error {
	r.value.Fill(r.n + 1)
	return r.nullRows.AppendNull()
}

func (r *wholeRows) Undo() {
	r.nullRows.Undo()
	r.value.Truncate(r.n)
}

func (r *wholeRows) Size() int { return r.nullRows.Size() + r.value.Size(r.n) }

func (r *wholeRows) Finish() []arrow.Array {
	out := r.nullRows.Finish()
	out[r.at].Release()
	out[r.at] = r.value.Finish(r.n)
	return out
}

func (r *wholeRows) Reset() {
	r.nullRows.Reset()
	r.value.Reset()
}

// nullRows makes rows without any value: tombstones before the first schema is known.
type nullRows struct {
	mapped []*schema.Node
	n      int
}

func (r *nullRows) Append([]byte) error {
	return errors.New("a batch without a schema cannot decode")
}

func (r *nullRows) AppendNull() error {
	r.n++
	return nil
}

func (r *nullRows) Undo() { r.n-- }

func (r *nullRows) Rows() int  { return r.n }
func (r *nullRows) Grown() int { return 0 }
func (r *nullRows) Reset()     { r.n = 0 }

func (r *nullRows) Size() int {
	size := 0
	for _, n := range r.mapped {
		if c, err := column.New(n.ArrowField().Type); err == nil {
			size += c.Size(r.n)
		}
	}
	return size
}

func (r *nullRows) Finish() []arrow.Array {
	out := make([]arrow.Array, len(r.mapped))
	for i, n := range r.mapped {
		if k := n.Type.Kind; k == schema.List || k == schema.Map {
			if c, err := column.New(n.ArrowField().Type); err == nil {
				cell.Unfed(n, c) // empty: engines disagree about null ones
				out[i] = c.Finish(r.n)
				continue
			}
		}
		out[i] = array.MakeArrayOfNull(memory.DefaultAllocator, n.ArrowField().Type, r.n)
	}
	return out
}
