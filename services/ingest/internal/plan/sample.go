package plan

import (
	"context"
	"errors"
	"fmt"

	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
)

// Sampled says what became of the newest records of a topic partition in a trial.
type Sampled struct {
	Pipeline   string         `json:"pipeline"`
	Table      string         `json:"table"`
	Topic      string         `json:"topic"`
	Partition  int32          `json:"partition"`
	From       int64          `json:"from"`
	Next       int64          `json:"next"` // end of the partition
	Records    int64          `json:"records"`
	Rows       int64          `json:"rows"`
	Tombstones int64          `json:"tombstones"`
	Waiting    int64          `json:"waiting"` // their schema is refused
	Quarantine map[string]Bad `json:"quarantine,omitempty"`
	// Error says why the sample is not whole.
	Error string `json:"error,omitempty"`
}

// Bad are records with the same fault.
type Bad struct {
	Count  int64  `json:"count"`
	Offset int64  `json:"offset"` // of the first
	Error  string `json:"error"`  // its fault in words
}

// Quarantined is the number of records that would go to quarantine.
func (s *Sampled) Quarantined() int64 {
	var n int64
	for _, b := range s.Quarantine {
		n += b.Count
	}
	return n
}

// header is the schema reference in the headers of a record.
func header(r *batch.Record) []byte {
	for _, h := range r.Headers {
		if h.Key == frame.HeaderName {
			return h.Value
		}
	}
	return nil
}

// trial decodes records of one partition.
type trial struct {
	j     *Judge
	codec pipeline.Codec
	max   int64 // greatest record
	out   *Sampled
	keys  map[frame.Key]*trialPlan
}

// trialPlan is how records of one frame key are decoded.
type trialPlan struct {
	agreed *agreed
	err    error // of the schema: a record's
	rows   batch.Rows
}

// few is the number of rows after which a trial batch is emptied.
const few = 256

// Sample decodes records and counts what would become of them. It changes out
// only; steps are the verdicts on schemas that were not judged before. The error
// is a dependency's: the counts are then those of the records before it.
func (j *Judge) Sample(ctx context.Context, codec pipeline.Codec, recordMax int64, records []batch.Record, out *Sampled) (steps []Step, err error) {
	t := &trial{j: j, codec: codec, max: recordMax, out: out, keys: map[frame.Key]*trialPlan{}}
	known := len(j.seen)
	before := make(map[string]bool, known)
	for name := range j.seen {
		before[name] = true
	}
	for i := range records {
		if err = t.record(ctx, &records[i]); err != nil {
			break
		}
	}
	for name, a := range j.seen {
		if !before[name] {
			steps = append(steps, a.step)
		}
	}
	return steps, err
}

func (t *trial) record(ctx context.Context, r *batch.Record) error {
	t.out.Records++
	if r.Value == nil {
		t.out.Tombstones++
		return nil
	}
	if size := int64(len(r.Value) + len(r.Key)); t.max > 0 && size > t.max {
		t.bad(r, "oversized", fmt.Sprintf("the record has %d bytes, more than record.max", size))
		return nil
	}
	f, err := t.codec.Split(r.Value, header(r))
	if err != nil {
		return t.failed(r, err)
	}
	p := t.keys[f.Key()]
	if p == nil {
		if p, err = t.plan(ctx, &f); err != nil {
			return err
		}
		t.keys[f.Key()] = p
	}
	switch {
	case p.err != nil:
		return t.failed(r, p.err)
	case p.agreed.step.Verdict == Quarantined:
		t.bad(r, pipeline.ReasonSchemaRefused, "the table refuses "+p.agreed.step.Source)
		return nil
	case p.agreed.target == nil:
		t.out.Waiting++
		return nil
	}
	return t.decode(r, p, f.Payload)
}

func (t *trial) plan(ctx context.Context, f *frame.Frame) (*trialPlan, error) {
	src, err := t.codec.Source(ctx, f)
	if err != nil {
		if _, _, bad := pipeline.Reason(err); bad {
			return &trialPlan{err: err}, nil
		}
		return nil, err
	}
	p := &trialPlan{agreed: t.j.judge(src)}
	if p.agreed.target == nil {
		return p, nil
	}
	make, err := pipeline.Compile(src, p.agreed.target)
	if err != nil {
		return nil, fmt.Errorf("compiling the decoder of %s: %w", src.Name(), err)
	}
	p.rows = make()
	return p, nil
}

func (t *trial) decode(r *batch.Record, p *trialPlan, payload []byte) error {
	err := p.rows.Append(payload)
	if errors.Is(err, proto.ErrBatchFull) {
		p.empty()
		err = p.rows.Append(payload)
	}
	if err != nil {
		return t.failed(r, err)
	}
	t.out.Rows++
	if p.rows.Rows() >= few {
		p.empty()
	}
	return nil
}

func (p *trialPlan) empty() {
	for _, a := range p.rows.Finish() {
		a.Release()
	}
	p.rows.Reset()
}

// failed counts a record's fault and returns any other.
func (t *trial) failed(r *batch.Record, err error) error {
	reason, text, bad := pipeline.Reason(err)
	if !bad {
		return err
	}
	t.bad(r, reason, text)
	return nil
}

func (t *trial) bad(r *batch.Record, reason, text string) {
	if t.out.Quarantine == nil {
		t.out.Quarantine = map[string]Bad{}
	}
	b, known := t.out.Quarantine[reason]
	if !known {
		b = Bad{Offset: r.Offset, Error: text}
	}
	b.Count++
	t.out.Quarantine[reason] = b
}
