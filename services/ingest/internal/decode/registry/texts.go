package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/icestream/icestream/internal/lru"
)

// The words of registries for the kinds of schemas that Texts serves.
const (
	TypeAvro = "AVRO"
	TypeJSON = "JSON"
)

// Text is a schema that is not Protobuf, as the registry has it.
type Text struct {
	Ref  Ref
	Text string
	// References are the schemas that it uses, also indirectly, each once and after
	// those that it uses itself.
	References []NamedText
}

// NamedText is a schema under the name by which another one uses it.
type NamedText struct{ Name, Text string }

// Texts looks schemas of one kind up and compiles them, each once: like
// Client.Schema, for the kinds that this package does not compile. It is safe for
// concurrent use.
type Texts[T any] struct {
	client  *Client
	kind    string
	compile func(*Text) (T, error)
	flight  singleflight.Group

	mu    sync.Mutex
	known *lru.Cache[Ref, textOutcome[T]]
}

type textOutcome[T any] struct {
	schema T
	err    error
	until  time.Time // of an error
}

// NewTexts serves the schemas of a kind, TypeAvro or TypeJSON. An error of compile is
// the schema's.
func NewTexts[T any](c *Client, kind string, compile func(*Text) (T, error)) *Texts[T] {
	return &Texts[T]{client: c, kind: kind, compile: compile, known: lru.New[Ref, textOutcome[T]](c.cfg.CacheSize)}
}

// ID is Client.ID.
func (t *Texts[T]) ID(ctx context.Context, subject string, number int) (int32, error) {
	return t.client.ID(ctx, subject, number)
}

// Schema gives a compiled schema. The errors are those of Client.Schema.
func (t *Texts[T]) Schema(ctx context.Context, ref Ref) (T, error) {
	var none T
	if o, known := t.remembered(ref); known {
		return o.schema, o.err
	}
	result := t.flight.DoChan(ref.String(), func() (any, error) {
		if o, known := t.remembered(ref); known {
			return o.schema, o.err
		}
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.client.longest())
		defer cancel()
		s, err := t.load(detached, ref)
		t.remember(ref, s, err)
		return s, err
	})
	select {
	case <-ctx.Done():
		return none, fmt.Errorf("looking up %s: %w", ref, ctx.Err())
	case r := <-result:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(T), nil
	}
}

func (t *Texts[T]) remembered(ref Ref) (textOutcome[T], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, found := t.known.Get(ref)
	return o, found && (o.err == nil || t.client.cfg.Now().Before(o.until))
}

func (t *Texts[T]) remember(ref Ref, s T, err error) {
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrBadSchema) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known.Put(ref, textOutcome[T]{schema: s, err: err, until: t.client.cfg.Now().Add(t.client.cfg.NegativeTTL)})
}

func (t *Texts[T]) load(ctx context.Context, ref Ref) (T, error) {
	var none T
	root, err := t.client.fetchSchema(ctx, ref)
	if err != nil {
		return none, err
	}
	kind := root.Type
	if kind == "" {
		kind = TypeAvro // which registries leave out
	}
	if !strings.EqualFold(kind, t.kind) {
		return none, &BadSchemaError{What: ref.String(), Type: kind, Detail: "it is of type " + kind + ", not " + t.kind}
	}
	text := &Text{Ref: ref, Text: root.Schema}
	if err := t.collect(ctx, text, ref.Context, root.References, map[string]bool{}); err != nil {
		return none, err
	}
	s, err := t.compile(text)
	if err != nil {
		return none, &BadSchemaError{What: ref.String(), Subject: t.client.subjectsOf(ctx, ref), Detail: err.Error()}
	}
	return s, nil
}

// collect fetches references, each name once; what one uses goes before it.
func (t *Texts[T]) collect(ctx context.Context, into *Text, within string, refs []reference, seen map[string]bool) error {
	for _, r := range refs {
		if seen[r.Name] {
			continue
		}
		seen[r.Name] = true
		v, inner := r.within(within)
		a, err := t.client.fetchVersion(ctx, v)
		if err != nil {
			return err
		}
		if err := t.collect(ctx, into, inner, a.References, seen); err != nil {
			return err
		}
		into.References = append(into.References, NamedText{Name: r.Name, Text: a.Schema})
	}
	return nil
}
