package pipeline

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// Quarantine reasons of records whose schema is the trouble.
const (
	ReasonSchemaUnknown = "schema_unknown" // the registry does not have it
	ReasonSchemaInvalid = "schema_invalid" // it does not compile, lacks the message, or cannot be mapped
)

// Schemas is the registry: registry.Client, or a fake.
type Schemas interface {
	Schema(ctx context.Context, ref registry.Ref) (*registry.Schema, error)
	ID(ctx context.Context, subject string, version int) (int32, error)
}

// Protobuf is the format of Protobuf records.
type Protobuf struct {
	Origin

	Schemas Schemas
	Options proto.Options
	// UnsignedPath says that the message path in the prefix is written in the deprecated form.
	UnsignedPath bool
	// Message is the full name of the message where records do not say which; "" is the first of the file.
	Message string

	pin pinned
}

// configured turns a fault of a record into one of the configuration.
func configured(err error) error {
	if rf, ok := errors.AsType[*RecordError](err); ok {
		return &stopError{fmt.Errorf("using the configured schema: %s; correct the pipeline's schema section, or register it", rf.Text)}
	}
	return err
}

// Split implements Codec.
func (c *Protobuf) Split(value, header []byte) (frame.Frame, error) {
	if c.Unframed {
		return frame.Unframed(value), nil
	}
	if c.UnsignedPath {
		return frame.ParseUnsigned(value, header)
	}
	return frame.Parse(value, header, true)
}

// Source implements Codec.
func (c *Protobuf) Source(ctx context.Context, f *frame.Frame) (Source, error) {
	if f.Form == frame.Fixed {
		ref, err := c.pin.get(ctx, &c.Origin, c.Schemas.ID)
		if err != nil {
			return nil, err
		}
		src, err := c.source(ctx, ref, f)
		return src, configured(err)
	}
	return c.source(ctx, registry.Ref{ID: f.ID, GUID: f.GUID, ByGUID: f.Form == frame.HeaderGUID, Context: c.Context}, f)
}

// SourceAt implements Schemed; the message is the configured one, or the first.
func (c *Protobuf) SourceAt(ctx context.Context, ref registry.Ref) (Source, error) {
	return c.source(ctx, ref, &frame.Frame{})
}

func (c *Protobuf) source(ctx context.Context, ref registry.Ref, f *frame.Frame) (Source, error) {
	s, err := c.Schemas.Schema(ctx, ref)
	if err != nil {
		return nil, registryFault(err)
	}
	md, err := c.message(s, f)
	if err != nil {
		return nil, registryFault(err)
	}
	candidate, err := proto.Candidate(md, c.Options)
	if err != nil {
		return nil, &RecordError{Reason: ReasonSchemaInvalid, Text: fmt.Sprintf("mapping message %s of %s: %v", md.FullName(), ref, err)}
	}
	if c.Options.NoteUnknown {
		candidate = withRaw(candidate)
	}
	return &protoSource{id: ref.ID, md: md, name: fmt.Sprintf("%s, message %s", ref, md.FullName()), candidate: candidate, options: c.Options}, nil
}

// message finds the message type: by the record's own path; by the configured name where there is one and the record
// says nothing or only "the first".
func (c *Protobuf) message(s *registry.Schema, f *frame.Frame) (protoreflect.MessageDescriptor, error) {
	if c.Message == "" {
		return s.Message(pathOf(f))
	}
	want, err := s.MessageByName(c.Message)
	if err != nil {
		return nil, &RecordError{Reason: ReasonSchemaInvalid, Text: err.Error(), noMessage: true}
	}
	if f.Form == frame.Fixed || len(f.Index) == 0 {
		return want, nil
	}
	md, err := s.Message(pathOf(f))
	if err == nil && md.FullName() != want.FullName() {
		return nil, &RecordError{Reason: "message_other", Text: fmt.Sprintf("the record is a %s, the pipeline reads %s", md.FullName(), c.Message)}
	}
	return md, err
}

func pathOf(f *frame.Frame) []int {
	if len(f.Index) == 0 {
		return []int{0}
	}
	return f.Path()
}

// registryFault tells the record's faults from the registry's.
func registryFault(err error) error {
	var away *registry.UnavailableError
	var rf *RecordError
	switch {
	case errors.As(err, &rf):
		return err
	case errors.Is(err, registry.ErrNotFound):
		return &RecordError{Reason: ReasonSchemaUnknown, Text: err.Error()}
	case errors.Is(err, registry.ErrBadSchema):
		bad, _ := errors.AsType[*registry.BadSchemaError](err)
		return &RecordError{Reason: ReasonSchemaInvalid, Text: err.Error(), noMessage: bad != nil && bad.Type != ""}
	case errors.Is(err, registry.ErrUnauthorized):
		return fault.New(fault.Unauthorized, "%w", err)
	case errors.As(err, &away):
		return fault.New(fault.Unavailable, "%w", err).After(away.RetryAfter)
	default:
		return fault.New(fault.Unavailable, "%w", err)
	}
}

type protoSource struct {
	id        int32
	md        protoreflect.MessageDescriptor
	name      string
	candidate *schema.Schema
	options   proto.Options
}

func (s *protoSource) Name() string { return s.name }

// Order is the id in the registry, which grows with every new schema; 0 for one known by its GUID alone.
func (s *protoSource) Order() int64 { return int64(s.id) }

func (s *protoSource) Candidate() *schema.Schema { return s.candidate }

func (s *protoSource) Compile(target *schema.Schema) (func() batch.Rows, error) {
	if s.options.NoteUnknown {
		return compileRaw(target, s.decoder)
	}
	p, err := proto.Compile(s.md, target, s.options)
	if err != nil {
		return nil, err
	}
	return func() batch.Rows { return p.NewBatch() }, nil
}

// decoder is Compile without the column of the raw record.
func (s *protoSource) decoder(target *schema.Schema) (func() unknownRows, error) {
	p, err := proto.Compile(s.md, target, s.options)
	if err != nil {
		return nil, err
	}
	return func() unknownRows { return p.NewBatch() }, nil
}
