package pipeline

import (
	"context"
	"errors"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// refs is what a record is decoded with.
type refs struct {
	value *frame.Frame // nil for a tombstone
	key   *frame.Frame // nil where no key is decoded: none is asked for, or its schema is not known since it is null
}

// planKey names a plan: the schemas of value and key.
type planKey struct {
	value, key     frame.Key
	noValue, noKey bool
}

func (r refs) planKey() planKey {
	k := planKey{noValue: r.value == nil, noKey: r.key == nil}
	if r.value != nil {
		k.value = r.value.Key()
	}
	if r.key != nil {
		k.key = r.key.Key()
	}
	return k
}

// sameKey reports whether rows of both plans have keys of one schema.
func (k planKey) sameKey(other planKey) bool { return k.noKey == other.noKey && k.key == other.key }

// splitKey takes the schema reference off the record's key and leaves the rest in the record. ok is false where the key
// takes no part in the choice of the plan.
//
// A null key without a schema is decoded with a plan of its own, never with that of its neighbours: what an entry holds
// must not depend on where reading began.
func (p *Pipeline) splitKey(r *batch.Record) (f frame.Frame, ok bool, err error) {
	return SplitKey(p.c.Key, r)
}

// SplitValue takes the schema reference off a record's value, or finds it in the headers.
func SplitValue(c Codec, r *batch.Record) (frame.Frame, error) {
	return c.Split(r.Value, header(r, frame.HeaderName))
}

// SplitKey is SplitValue for the key, see splitKey; c is nil where keys are no column.
func SplitKey(c Codec, r *batch.Record) (f frame.Frame, ok bool, err error) {
	if c == nil {
		return frame.Frame{}, false, nil
	}
	r.KeyPayload = nil
	if r.Key == nil {
		f, err = c.Split(nil, nil)
		return f, err == nil && f.Form == frame.Fixed, nil
	}
	if f, err = c.Split(r.Key, header(r, frame.KeyHeaderName)); err != nil {
		return f, false, keyFault(err)
	}
	if r.KeyPayload = f.Payload; r.KeyPayload == nil {
		r.KeyPayload = []byte{}
	}
	return f, true, nil
}

// keyFault says of a record's fault that it lies in the key.
func keyFault(err error) error {
	reason, text, ok := reasonOf(err)
	if !ok {
		return err
	}
	if fe, framed := errors.AsType[*frame.Error](err); framed {
		what, _, _ := strings.Cut(fe.Detail, "; set the pipeline's schema") // which is about values
		text = strings.ReplaceAll(what, "the value", "the key") + "; for keys that are not framed set key to raw or string, or a key_schema"
	}
	return &RecordError{Reason: "key_" + reason, Text: "in the key: " + text}
}

// source finds the schemas of a record and puts them together.
func (p *Pipeline) source(ctx context.Context, r refs) (Source, error) {
	return FindSource(ctx, p.c.Codec, p.c.Key, r.value, r.key)
}

// FindSource finds the schemas of a value and a key, of which one may be nil, and puts them together.
func FindSource(ctx context.Context, values, keys Codec, value, key *frame.Frame) (Source, error) {
	var v, k Source
	var err error
	if value != nil {
		if v, err = values.Source(ctx, value); err != nil {
			return nil, err
		}
	}
	if key != nil {
		if k, err = keys.Source(ctx, key); err != nil {
			return nil, keyFault(err)
		}
	}
	return WithKey(v, k), nil
}

// WithKey is a source whose columns are those of value and one for the key. Without value, for tombstones, it is the
// key alone; without key it is value. One of them must be given.
func WithKey(value, key Source) Source {
	switch {
	case key == nil && value == nil:
		return nothing{}
	case key == nil:
		return value
	default:
		return &keyedSource{value: value, key: key}
	}
}

// nothing is the source of tombstones with a null key.
type nothing struct{}

func (nothing) Name() string              { return "records without key and value" }
func (nothing) Candidate() *schema.Schema { return &schema.Schema{} }

func (nothing) Compile(target *schema.Schema) (func() batch.Rows, error) {
	return func() batch.Rows { return &nullRows{mapped: target.Mapped()} }, nil
}

type keyedSource struct{ value, key Source }

func (s *keyedSource) Name() string {
	if s.value == nil {
		return "key " + s.key.Name()
	}
	return s.value.Name() + ", key " + s.key.Name()
}

// Order is that of the value, or of the key where there is no value.
func (s *keyedSource) Order() int64 {
	if s.value == nil {
		return orderOf(s.key)
	}
	return orderOf(s.value)
}

// single reports whether the one column of a source is its value as a whole.
func single(s Source) bool {
	one, ok := s.(interface{ Single() bool })
	return ok && one.Single()
}

// Candidate adds the key's column after those of the value.
func (s *keyedSource) Candidate() *schema.Schema {
	out := &schema.Schema{}
	if s.value != nil {
		out = s.value.Candidate().Clone()
	}
	key := s.key.Candidate().Clone()
	n := &schema.Node{Type: schema.Of(schema.Struct), Kids: key.Columns}
	if single(s.key) {
		n = key.Columns[0]
	}
	n.Name, n.Number, n.Source, n.Aliases, n.Doc = schema.RecordKeyName, schema.RecordKeyNumber, "", nil, "key of the Kafka record"
	out.Columns = append(out.Columns, n)
	schema.ResolveNames(out.Columns, true)
	return out
}

// Compile makes batches that decode key and value side by side.
func (s *keyedSource) Compile(target *schema.Schema) (func() batch.Rows, error) {
	rest, at := &schema.Schema{}, -1
	var key *schema.Node
	for i, n := range target.Mapped() {
		if n.Number == schema.RecordKeyNumber {
			key, at = n, i
			continue
		}
		rest.Columns = append(rest.Columns, n)
	}
	if key == nil {
		return nil, errors.New("the table has no column for the record's key")
	}
	inner := &schema.Schema{Columns: key.Kids}
	if single(s.key) {
		n, from := key.Clone(), s.key.Candidate().Columns[0]
		n.Number, n.Source = from.Number, from.Source
		inner.Columns = []*schema.Node{n}
	}
	keys, err := s.key.Compile(inner)
	if err != nil {
		return nil, err
	}
	value := Source(nothing{})
	if s.value != nil {
		value = s.value
	}
	columns, err := value.Compile(rest)
	if err != nil {
		return nil, err
	}
	var wrap arrow.DataType
	if !single(s.key) {
		wrap = key.ArrowField().Type
	}
	return func() batch.Rows { return &keyedRows{values: columns(), key: keys(), at: at, wrap: wrap} }, nil
}

type values = batch.Rows

// keyedRows decodes keys beside values.
type keyedRows struct {
	values // their columns

	key  batch.Rows
	at   int            // place of the key among the columns
	wrap arrow.DataType // the struct around the key's columns; nil where the key is one column itself
	next []byte
	// nulls are the rows whose key is null, where it is a struct.
	nulls []int
}

// NextKey implements batch.Keyed.
func (r *keyedRows) NextKey(key []byte) { r.next = key }

func (r *keyedRows) appendKey() error {
	if r.next == nil {
		if err := r.key.AppendNull(); err != nil {
			return err
		}
		r.nulls = append(r.nulls, r.key.Rows()-1)
		return nil
	}
	err := r.key.Append(r.next)
	if err == nil || errors.Is(err, cell.ErrBatchFull) {
		return err
	}
	return keyFault(err)
}

func (r *keyedRows) undoKey() {
	r.key.Undo()
	if n := len(r.nulls); n > 0 && r.nulls[n-1] == r.key.Rows() {
		r.nulls = r.nulls[:n-1]
	}
}

// Append implements batch.Rows.
func (r *keyedRows) Append(payload []byte) error {
	if err := r.appendKey(); err != nil {
		return err
	}
	err := r.values.Append(payload)
	if err != nil {
		r.undoKey()
	}
	return err
}

// AppendNull implements batch.Rows: the value is null, the key is not.
func (r *keyedRows) AppendNull() error {
	if err := r.appendKey(); err != nil {
		return err
	}
	err := r.values.AppendNull()
	if err != nil {
		r.undoKey()
	}
	return err
}

// Undo implements batch.Rows.
func (r *keyedRows) Undo() {
	r.values.Undo()
	r.undoKey()
}

// Size implements batch.Rows.
func (r *keyedRows) Size() int { return r.values.Size() + r.key.Size() }

// Grown implements batch.Rows.
func (r *keyedRows) Grown() int { return r.values.Grown() + r.key.Grown() }

// Reset implements batch.Rows.
func (r *keyedRows) Reset() {
	r.values.Reset()
	r.key.Reset()
	r.nulls, r.next = r.nulls[:0], nil
}

// Finish implements batch.Rows.
func (r *keyedRows) Finish() []arrow.Array {
	columns, key := r.values.Finish(), r.finishKey()
	out := make([]arrow.Array, 0, len(columns)+1)
	out = append(out, columns[:r.at]...)
	out = append(out, key)
	return append(out, columns[r.at:]...)
}

func (r *keyedRows) finishKey() arrow.Array {
	columns := r.key.Finish()
	if r.wrap == nil {
		return columns[0]
	}
	n := r.key.Rows()
	var validity *memory.Buffer
	if len(r.nulls) > 0 {
		bits := make([]byte, bitutil.BytesForBits(int64(n)))
		bitutil.SetBitsTo(bits, 0, int64(n), true)
		for _, row := range r.nulls {
			bitutil.ClearBit(bits, row)
		}
		validity = memory.NewBufferBytes(bits)
	}
	kids := make([]arrow.ArrayData, len(columns))
	for i, c := range columns {
		kids[i] = c.Data()
	}
	data := array.NewData(r.wrap, n, []*memory.Buffer{validity}, kids, len(r.nulls), 0)
	defer data.Release()
	for _, c := range columns {
		c.Release()
	}
	return array.MakeFromData(data)
}
