package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
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

// Codecs are the formats of a pipeline's records.
type Codecs struct {
	Value pipeline.Codec
	Key   pipeline.Codec // nil where keys are no column
}

// trial decodes records of one partition.
type trial struct {
	j      *Judge
	codecs Codecs
	max    int64 // greatest record
	out    *Sampled
	plans  map[frames]*trialPlan
}

// frames names the schemas of a record.
type frames struct {
	value, key frame.Key
	noKey      bool
}

// trialPlan is how records of the same schemas are decoded.
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
func (j *Judge) Sample(ctx context.Context, codecs Codecs, recordMax int64, records []batch.Record, out *Sampled) (steps []Step, err error) {
	t := &trial{j: j, codecs: codecs, max: recordMax, out: out, plans: map[frames]*trialPlan{}}
	before := maps.Clone(j.seen)
	for i := range records {
		if err = t.record(ctx, &records[i]); err != nil {
			break
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.seen)) {
		if before[name] == nil {
			steps = append(steps, j.seen[name].step)
		}
	}
	return steps, err
}

func (t *trial) record(ctx context.Context, r *batch.Record) error {
	t.out.Records++
	if size := r.Size(); t.max > 0 && size > t.max {
		t.bad(r, batch.ReasonOversized, fmt.Sprintf("the record has %d bytes, record.max is %d", size, t.max))
		return nil
	}
	if r.Value == nil {
		t.out.Tombstones++
		return nil
	}
	value, err := pipeline.SplitValue(t.codecs.Value, r)
	if err != nil {
		return t.failed(r, err)
	}
	var key *frame.Frame // nil where no key is decoded
	kf, hasKey, err := pipeline.SplitKey(t.codecs.Key, r)
	if err != nil {
		return t.failed(r, err)
	}
	at := frames{value: value.Key(), noKey: !hasKey}
	if hasKey {
		key, at.key = &kf, kf.Key()
	}
	p := t.plans[at]
	if p == nil {
		if p, err = t.plan(ctx, &value, key); err != nil {
			return err
		}
		t.plans[at] = p
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
	return t.decode(r, p, value.Payload)
}

func (t *trial) plan(ctx context.Context, value, key *frame.Frame) (*trialPlan, error) {
	src, err := pipeline.FindSource(ctx, t.codecs.Value, t.codecs.Key, value, key)
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
	err := p.append(r, payload)
	if errors.Is(err, cell.ErrBatchFull) {
		p.empty()
		err = p.append(r, payload)
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

func (p *trialPlan) append(r *batch.Record, payload []byte) error {
	if k, ok := p.rows.(batch.Keyed); ok {
		k.NextKey(r.KeyPayload)
	}
	return p.rows.Append(payload)
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
