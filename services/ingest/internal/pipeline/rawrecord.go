package pipeline

import (
	"errors"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/column"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// withRaw adds the column of the raw record after those of the message.
func withRaw(candidate *schema.Schema) *schema.Schema {
	out := candidate.Clone()
	out.Columns = append(out.Columns, &schema.Node{
		Name: schema.RawName, Number: schema.RawNumber, Type: schema.Of(schema.Binary), Doc: "the encoded record, where it has fields that its schema does not",
	})
	schema.ResolveNames(out.Columns, true)
	return out
}

// unknownRows are rows of a decoder that counts the fields it skips.
type unknownRows interface {
	batch.Rows
	Unknown() uint64
}

// rawRows are rows with one column more: the payload of records of which the decoder skipped something.
type rawRows struct {
	unknownRows

	raw *column.Column
	at  int // place of raw among the columns
}

// compileRaw makes batches that decode into all columns of target but the one of the raw record, and that one.
func compileRaw(target *schema.Schema, compile func(*schema.Schema) (func() unknownRows, error)) (func() batch.Rows, error) {
	mapped := target.Mapped()
	at := slices.IndexFunc(mapped, func(n *schema.Node) bool { return n.Number == schema.RawNumber })
	if at < 0 || !schema.CanHold(mapped[at].Type, schema.Of(schema.Binary)) {
		return nil, errors.New("the table has no column for the raw record")
	}
	make, err := compile(&schema.Schema{Columns: slices.Delete(slices.Clone(mapped), at, at+1)})
	if err != nil {
		return nil, err
	}
	kind := mapped[at].ArrowField().Type
	if _, err := column.New(kind); err != nil {
		return nil, err
	}
	return func() batch.Rows {
		c, _ := column.New(kind) // tried above
		return &rawRows{unknownRows: make(), raw: c, at: at}
	}, nil
}

// Append implements batch.Rows.
func (r *rawRows) Append(payload []byte) error {
	before := r.Unknown()
	if err := r.unknownRows.Append(payload); err != nil {
		return err
	}
	if r.Unknown() == before {
		return nil // null, as whatever is not written
	}
	if !r.raw.SetBytes(r.Rows()-1, payload) {
		r.unknownRows.Undo()
		return cell.ErrBatchFull
	}
	return nil
}

// Undo implements batch.Rows.
func (r *rawRows) Undo() {
	r.unknownRows.Undo()
	r.raw.Truncate(r.Rows())
}

// Size implements batch.Rows.
func (r *rawRows) Size() int { return r.unknownRows.Size() + r.raw.Size(r.Rows()) }

// Reset implements batch.Rows.
func (r *rawRows) Reset() {
	r.unknownRows.Reset()
	r.raw.Reset()
}

// Finish implements batch.Rows.
func (r *rawRows) Finish() []arrow.Array {
	return slices.Insert(r.unknownRows.Finish(), r.at, r.raw.Finish(r.Rows()))
}
