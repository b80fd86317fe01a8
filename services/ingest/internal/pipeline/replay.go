package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// Decoded is what became of raw records: each is in a batch or is refused.
type Decoded struct {
	Batches  []DecodedBatch
	Refusals []Refusal
}

// DecodedBatch is rows of one target.
type DecodedBatch struct {
	Schema event.Schema
	Rows   []byte // Arrow IPC batch of arrowx.RowSchema of the target; nil in a dry run
	Count  int64
}

// Refusal is a record that cannot be a row.
type Refusal struct {
	Offset       int64
	Reason, Text string
}

// Decode makes rows of records of one topic partition, whose offsets ascend, as a
// session would, and sends nothing to the log. In a dry run the table is not
// evolved and batches carry no rows. An error says nothing about the records: a
// dependency is away, or they are too many for one answer (OVER_LIMIT).
func (p *Pipeline) Decode(ctx context.Context, table string, part ident.Partition, records []batch.Record, dry bool) (Decoded, error) {
	if len(records) == 0 {
		return Decoded{}, nil
	}
	d := &decoding{
		p: p, t: p.tableNamed(table), dry: dry, plans: map[planKey]*plan{},
		b: batch.New(batch.Options{Partition: part, Revision: p.c.Revision, MaxBytes: p.c.BatchBytes, MaxRows: maxRows, MaxMessage: p.c.MessageMax}, records[0].Offset),
	}
	defer func() { d.b.Drop(d.b.First()) }()
	for i := range records {
		if err := ctx.Err(); err != nil {
			return Decoded{}, err
		}
		if err := d.record(ctx, &records[i]); err != nil {
			return Decoded{}, err
		}
	}
	return d.out, d.cut()
}

// tableNamed is a table of the pipeline, or one that only replays know so far.
func (p *Pipeline) tableNamed(name string) *table {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.tables[name]
	if t == nil {
		t = newTable(p, name)
	}
	return t
}

// decoding is one call of Decode.
type decoding struct {
	p     *Pipeline
	t     *table
	dry   bool
	b     *batch.Builder
	bound *plan
	plans map[planKey]*plan
	size  int64 // of finished batches
	out   Decoded
}

func (d *decoding) refuse(r *batch.Record, reason, text string) {
	d.out.Refusals = append(d.out.Refusals, Refusal{Offset: r.Offset, Reason: reason, Text: text})
}

// record decides about one record; errors are not its own.
func (d *decoding) record(ctx context.Context, r *batch.Record) error {
	switch {
	case r.Size() > d.p.c.RecordMax:
		d.refuse(r, batch.ReasonOversized, fmt.Sprintf("the record has %d bytes, record.max is %d", r.Size(), d.p.c.RecordMax))
		return nil
	case r.Value == nil && d.p.c.Pipeline.Tombstones != "row":
		d.refuse(r, "no_value", "the record has no value, and tombstones are skipped")
		return nil
	case r.Value == nil:
		return d.tombstone(ctx, r)
	}
	f, err := SplitValue(d.p.c.Codec, r)
	if err != nil {
		return d.fault(r, err)
	}
	kf, hasKey, err := d.p.splitKey(r)
	if err != nil {
		return d.fault(r, err)
	}
	with := refs{value: &f}
	if hasKey {
		with.key = &kf
	}
	pl, err := d.plan(ctx, with)
	if err != nil {
		return d.fault(r, err)
	}
	schemaID := int32(-1)
	if f.Form == frame.PrefixID || f.Form == frame.HeaderID {
		schemaID = f.ID
	}
	return d.row(r, &f, pl, schemaID)
}

// tombstone decodes a record without a value, which is in quarantine for its key.
func (d *decoding) tombstone(ctx context.Context, r *batch.Record) error {
	kf, hasKey, err := d.p.splitKey(r)
	if err != nil {
		return d.fault(r, err)
	}
	var with refs
	if hasKey {
		with.key = &kf
	}
	pl, err := d.plan(ctx, with)
	if err != nil {
		return d.fault(r, err)
	}
	return d.row(r, nil, pl, -1)
}

// fault keeps what is the record's: it stays in quarantine. Anything else ends the
// call.
func (d *decoding) fault(r *batch.Record, err error) error {
	reason, text, ok := reasonOf(err)
	if !ok {
		return err
	}
	d.refuse(r, reason, text)
	return nil
}

// plan is the plan of a frame, or why its records stay in quarantine, found once in a
// call: because the schema is at fault, or an operator must decide about it.
func (d *decoding) plan(ctx context.Context, r refs) (*plan, error) {
	key := r.planKey()
	if pl := d.plans[key]; pl != nil {
		return pl.result()
	}
	pl, err := d.find(ctx, r)
	var stop *stopError
	reason, text, bad := reasonOf(err)
	switch {
	case bad:
		pl = &plan{refused: &RecordError{Reason: reason, Text: text}}
	case errors.As(err, &stop) && fault.ReasonOf(err) == fault.SchemaRefused:
		pl = &plan{refused: &RecordError{Reason: ReasonSchemaRefused, Text: err.Error()}}
	case err != nil:
		return nil, err
	}
	d.plans[key] = pl
	return pl.result()
}

// find is the session's plan of a frame, or in a dry run one that nobody else sees.
// What was refused before is asked again: a replay often follows a decision.
func (d *decoding) find(ctx context.Context, r refs) (*plan, error) {
	if !d.dry {
		d.t.reconsider(r.planKey())
		return d.t.planFor(ctx, r)
	}
	src, err := d.p.source(ctx, r)
	if err != nil {
		return nil, err
	}
	target, err := d.t.ask(ctx, src, true)
	if err != nil {
		return nil, err
	}
	s := &schema.Schema{}
	if err := json.Unmarshal(target.Columns, s); err != nil {
		return nil, fault.New(fault.Corrupt, "reading the target schema of table %s: %w", d.t.name, err)
	}
	make, err := Compile(src, s)
	if err != nil {
		return nil, fault.New(fault.Internal, "compiling the decoder of %s for table %s: %w", src.Name(), d.t.name, err)
	}
	return &plan{source: src, make: make, target: newTarget(s, target.Fingerprint), agreed: target}, nil
}

// row decodes into the open batch; without a frame the record is a tombstone.
func (d *decoding) row(r *batch.Record, f *frame.Frame, pl *plan, schemaID int32) error {
	add := func() error {
		if f == nil {
			return d.b.NullRow(r)
		}
		return d.b.Row(r, f.Payload, schemaID)
	}
	if d.bound != pl || d.b.Full() {
		if err := d.cut(); err != nil {
			return err
		}
	}
	if err := d.bind(pl); err != nil {
		return err
	}
	err := add()
	if errors.Is(err, cell.ErrBatchFull) {
		if err := d.cut(); err != nil {
			return err
		}
		if err := d.bind(pl); err != nil {
			return err
		}
		err = add()
	}
	if err != nil {
		return d.fault(r, err)
	}
	return nil
}

func (d *decoding) bind(pl *plan) error {
	if d.b.Bound() != nil {
		return nil
	}
	d.bound = pl
	return d.b.Bind(pl.target, pl.rows(), pl.put)
}

// cut finishes the open batch.
func (d *decoding) cut() error {
	pl := d.bound
	d.bound = nil
	if d.b.Empty() {
		d.b.Drop(d.b.First()) // columns may be bound
		return nil
	}
	e, err := d.b.Cut()
	if err != nil {
		return fault.New(fault.Internal, "%w", err)
	}
	defer e.Release(true)
	if e.Rows == 0 {
		return nil
	}
	if d.size += e.Size(); d.size > d.p.c.MessageMax {
		return fault.New(fault.OverLimit, "decoding records of %s: the rows have more than %d bytes: send fewer records", e.Partition, d.p.c.MessageMax)
	}
	out := DecodedBatch{Schema: *pl.agreed, Count: e.Rows}
	if !d.dry {
		out.Rows = slices.Concat(e.RowSlices...)
	}
	d.out.Batches = append(d.out.Batches, out)
	return nil
}
