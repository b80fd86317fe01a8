package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/avro"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/jsonrec"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// TextSchemas is the registry as a codec for schemas of one kind needs it: registry.Texts, or a fake.
type TextSchemas[T any] interface {
	Schema(ctx context.Context, ref registry.Ref) (T, error)
	ID(ctx context.Context, subject string, version int) (int32, error)
}

// Origin says where the schemas of records are.
type Origin struct {
	// Context of the registry in which ids count and subjects are looked up; "" is the default one. A Subject that names
	// its own context is one of that.
	Context string
	// Unframed says that records carry no schema reference and all have one schema: that of FixedID, or of Subject and
	// Version (0 for the latest at the start).
	Unframed bool
	FixedID  int32
	Subject  string
	Version  int
}

// Registered is the format of records whose schema is in the registry and is not Protobuf.
type Registered[T any] struct {
	Origin

	Schemas TextSchemas[T]
	// Format is the pipeline's word for it.
	Format string
	// Read makes the source of a schema. An error is the schema's.
	Read func(s T, id int32, name string) (Source, error)

	pin pinned
}

// newest looks up the latest schema of a subject of the context.
func (o *Origin) newest(ctx context.Context, subject string, look lookUp) (registry.Ref, error) {
	return byVersion(ctx, o.Context, subject, 0, look)
}

type lookUp = func(ctx context.Context, subject string, version int) (int32, error)

// byVersion looks up a version of a subject, which is one of the context unless it names its own: in that the id counts.
func byVersion(ctx context.Context, registryContext, subject string, version int, look lookUp) (registry.Ref, error) {
	subject = registry.Qualified(registryContext, subject)
	id, err := look(ctx, subject, version)
	return registry.Ref{ID: id, Context: registry.ContextOf(subject)}, err
}

// Schemed is a Codec whose schemas are in the registry.
type Schemed interface {
	Codec
	// SourceAt finds the source schema of records that refer to ref.
	SourceAt(ctx context.Context, ref registry.Ref) (Source, error)
}

// pinner is a Codec that may look up which schema records without a reference have.
type pinner interface {
	// pinned is that schema; ok is false where nothing was to be looked up.
	pinned(ctx context.Context) (ref registry.Ref, ok bool, err error)
}

// pins names the schemas that were looked up for records without a reference, "" where there are none. Which it is may
// differ between two processes, and with it the rows: it is a part of the revision.
func (p *Pipeline) pins(ctx context.Context) (string, error) {
	var out []string
	for _, c := range []Codec{p.c.Codec, p.c.Key} {
		looks, ok := c.(pinner)
		if !ok {
			continue
		}
		ref, ok, err := looks.pinned(ctx)
		if errors.Is(err, fault.Of(fault.Unauthorized)) {
			return "", &stopError{err}
		}
		if err != nil {
			return "", err
		}
		if ok {
			out = append(out, ref.String())
		}
	}
	return strings.Join(out, ", "), nil
}

// pinned implements pinner.
func (c *Registered[T]) pinned(ctx context.Context) (registry.Ref, bool, error) {
	return c.pin.looked(ctx, &c.Origin, c.Schemas.ID)
}

// pinned implements pinner.
func (c *Protobuf) pinned(ctx context.Context) (registry.Ref, bool, error) {
	return c.pin.looked(ctx, &c.Origin, c.Schemas.ID)
}

// looked is get where that has to look something up.
func (p *pinned) looked(ctx context.Context, o *Origin, look lookUp) (registry.Ref, bool, error) {
	if !o.Unframed || o.FixedID != 0 {
		return registry.Ref{}, false, nil
	}
	ref, err := p.get(ctx, o, look)
	return ref, err == nil, err
}

// pinned is a schema that is looked up once.
type pinned struct {
	mu  sync.Mutex
	ref registry.Ref
}

// get gives the schema of records without a reference. That it cannot be found is the configuration's fault, never a
// record's.
func (p *pinned) get(ctx context.Context, o *Origin, look lookUp) (registry.Ref, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ref.ID == 0 && o.FixedID != 0 {
		p.ref = registry.Ref{ID: o.FixedID, Context: cmp.Or(o.Context, registry.ContextOf(o.Subject))}
	}
	if p.ref.ID == 0 {
		ref, err := byVersion(ctx, o.Context, o.Subject, o.Version, look)
		if err != nil {
			return registry.Ref{}, configured(registryFault(err))
		}
		p.ref = ref
	}
	return p.ref, nil
}

// Split implements Codec.
func (c *Registered[T]) Split(value, header []byte) (frame.Frame, error) {
	if c.Unframed {
		return frame.Unframed(value), nil
	}
	return frame.Parse(value, header, false)
}

// Source implements Codec.
func (c *Registered[T]) Source(ctx context.Context, f *frame.Frame) (Source, error) {
	if f.Form != frame.Fixed {
		return c.SourceAt(ctx, registry.Ref{ID: f.ID, GUID: f.GUID, ByGUID: f.Form == frame.HeaderGUID, Context: c.Context})
	}
	ref, err := c.pin.get(ctx, &c.Origin, c.Schemas.ID)
	if err != nil {
		return nil, err
	}
	src, err := c.SourceAt(ctx, ref)
	return src, configured(err)
}

// SourceAt implements Schemed.
func (c *Registered[T]) SourceAt(ctx context.Context, ref registry.Ref) (Source, error) {
	s, err := c.Schemas.Schema(ctx, ref)
	if err != nil {
		return nil, registryFault(err)
	}
	src, err := c.Read(s, ref.ID, ref.String())
	if err != nil {
		return nil, &RecordError{Reason: ReasonSchemaInvalid, Text: fmt.Sprintf("mapping %s: %v", ref, err)}
	}
	return src, nil
}

// Doubt implements Doubter: it looks at the newest schema of the topic's subject.
func (c *Registered[T]) Doubt(ctx context.Context, topic string) (mistake string, known bool, err error) {
	subject := topic + "-value"
	ref, err := c.newest(ctx, subject, c.Schemas.ID)
	if errors.Is(err, registry.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, registryFault(err)
	}
	_, err = c.Schemas.Schema(ctx, ref)
	var bad *registry.BadSchemaError
	switch {
	case errors.As(err, &bad) && bad.Type != "":
		return fmt.Sprintf("subject %s: its schemas are %s, the pipeline's format is %s", subject, strings.ToLower(bad.Type), c.Format), true, nil
	case err == nil, errors.Is(err, registry.ErrBadSchema), errors.Is(err, registry.ErrNotFound):
		return "", true, nil
	default:
		return "", false, registryFault(err)
	}
}

// NewAvro is the format of Avro records.
func NewAvro(client *registry.Client, o Origin, opts avro.Options) *Registered[*avro.Schema] {
	parse := func(t *registry.Text) (*avro.Schema, error) {
		refs := make([]string, len(t.References))
		for i, r := range t.References {
			refs[i] = r.Text
		}
		s, err := avro.Parse(t.Text, refs...)
		if err != nil {
			return nil, err
		}
		return s.With(opts), nil
	}
	return &Registered[*avro.Schema]{
		Origin: o, Schemas: registry.NewTexts(client, registry.TypeAvro, parse), Format: "avro",
		Read: func(s *avro.Schema, id int32, name string) (Source, error) {
			candidate, err := s.Candidate()
			return &decoderSource{
				id: id, name: name + ", " + s.Name(), candidate: candidate, single: !s.IsRecord(),
				compile: func(target *schema.Schema) (func() batch.Rows, error) {
					p, err := avro.Compile(s, target)
					return func() batch.Rows { return p.NewBatch() }, err
				},
			}, err
		},
	}
}

// NewJSONSchema is the format of JSON records that have a JSON Schema.
func NewJSONSchema(client *registry.Client, o Origin, opts jsonrec.Options) *Registered[*jsonrec.Shape] {
	parse := func(t *registry.Text) (*jsonrec.Shape, error) {
		refs := make(map[string]string, len(t.References))
		for _, r := range t.References {
			refs[r.Name] = r.Text
		}
		s, err := jsonrec.FromSchema(t.Text, refs)
		if err != nil {
			return nil, err
		}
		return s.With(opts), nil
	}
	return &Registered[*jsonrec.Shape]{
		Origin: o, Schemas: registry.NewTexts(client, registry.TypeJSON, parse), Format: "json_schema",
		Read: func(s *jsonrec.Shape, id int32, name string) (Source, error) {
			return shapeSource(s, id, name+", "+s.Name())
		},
	}
}

// JSON is the format of JSON records without a schema: the whole text is one column, or Shape says what the columns are.
type JSON struct{ shape *jsonrec.Shape }

// NewJSON takes the columns that the pipeline declares; "" declares none. The options are for the whole text: declared
// columns have their types.
func NewJSON(columns string, opts jsonrec.Options) (*JSON, error) {
	if columns == "" {
		return &JSON{jsonrec.Document().With(opts)}, nil
	}
	shape, err := jsonrec.FromColumns(columns)
	if err != nil {
		return nil, err
	}
	return &JSON{shape}, nil
}

// Needs lists the declared columns of types that tables of a format version do not have.
func (c *JSON) Needs(version int) []schema.Refusal {
	candidate, err := c.shape.Candidate()
	if err != nil {
		return nil // said when the first record comes
	}
	return schema.Evolve(&schema.Schema{}, candidate, nil, schema.Options{FormatVersion: version}).Refusals
}

// Split implements Codec.
func (*JSON) Split(value, _ []byte) (frame.Frame, error) { return frame.Unframed(value), nil }

// Source implements Codec.
func (c *JSON) Source(context.Context, *frame.Frame) (Source, error) {
	return shapeSource(c.shape, 0, c.shape.Name())
}

func shapeSource(s *jsonrec.Shape, id int32, name string) (Source, error) {
	candidate, err := s.Candidate()
	return &decoderSource{
		id: id, name: name, candidate: candidate, single: !s.IsObject(),
		compile: func(target *schema.Schema) (func() batch.Rows, error) {
			p, err := jsonrec.Compile(s, target)
			return func() batch.Rows { return p.NewBatch() }, err
		},
	}, err
}

// decoderSource is a source schema of any decoder.
type decoderSource struct {
	id        int32
	name      string
	candidate *schema.Schema
	single    bool
	compile   func(target *schema.Schema) (func() batch.Rows, error)
}

// Name implements Source.
func (s *decoderSource) Name() string { return s.name }

// Candidate implements Source.
func (s *decoderSource) Candidate() *schema.Schema { return s.candidate }

// Order is the id in the registry, which grows with every new schema; 0 for one known by its GUID alone, or not at all.
func (s *decoderSource) Order() int64 { return int64(s.id) }

// Single reports whether the one column is the value as a whole, and no field of it.
func (s *decoderSource) Single() bool { return s.single }

// Compile implements Source.
func (s *decoderSource) Compile(target *schema.Schema) (func() batch.Rows, error) {
	return s.compile(target)
}
