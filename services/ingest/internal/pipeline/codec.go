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
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
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
	var pe *proto.Error
	switch {
	case errors.As(err, &rf):
		return rf.Reason, rf.Text, true
	case errors.As(err, &fe):
		return fe.Reason, fe.Error(), true
	case errors.As(err, &pe):
		return pe.Reason, pe.Error(), true
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
func (Raw) Source(context.Context, *frame.Frame) (Source, error) { return rawSource{}, nil }

type rawSource struct{}

func (rawSource) Name() string { return "raw" }

func (rawSource) Candidate() *schema.Schema {
	return &schema.Schema{Columns: []*schema.Node{{Name: "value", Number: 1, Type: schema.Of(schema.Binary)}}}
}

func (rawSource) Compile(target *schema.Schema) (func() batch.Rows, error) {
	mapped := target.Mapped()
	at := -1
	for i, n := range mapped {
		if n.Number == 1 && n.Type.Kind == schema.Binary {
			at = i
		}
	}
	if at < 0 {
		return nil, errors.New("the table has no binary column for the raw value")
	}
	if _, err := column.New(mapped[at].ArrowField().Type); err != nil {
		return nil, fmt.Errorf("making the column of the raw value: %w", err)
	}
	return func() batch.Rows {
		c, _ := column.New(mapped[at].ArrowField().Type) // tried above
		return &rawRows{nullRows: nullRows{mapped: mapped}, at: at, value: c}
	}, nil
}

// rawRows fills one column; all others are null.
type rawRows struct {
	nullRows

	at    int
	value *column.Column
}

func (r *rawRows) Append(payload []byte) error {
	if !r.value.SetBytes(r.n, payload) {
		return proto.ErrBatchFull
	}
	r.n++
	return nil
}

func (r *rawRows) Size() int { return r.value.Size() }

func (r *rawRows) Finish() []arrow.Array {
	out := r.nullRows.Finish()
	out[r.at].Release()
	out[r.at] = r.value.Finish(r.n)
	return out
}

func (r *rawRows) Reset() {
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

func (r *nullRows) Rows() int { return r.n }
func (r *nullRows) Size() int { return r.n * len(r.mapped) }
func (r *nullRows) Reset()    { r.n = 0 }

func (r *nullRows) Finish() []arrow.Array {
	out := make([]arrow.Array, len(r.mapped))
	for i, n := range r.mapped {
		out[i] = array.MakeArrayOfNull(memory.DefaultAllocator, n.ArrowField().Type, r.n)
	}
	return out
}
