// Package registry fetches Protobuf schemas from a Confluent-compatible schema
// registry and compiles them.
//
// A Client asks for each schema once: answers are kept in a bounded cache, many
// callers share one request, a miss is remembered for a while and then asked for
// again, and a folder can hold answers for a start while the registry is down. It
// never retries; errors say whether a record is at fault, or the registry, and how
// long the registry wants to be left alone (see the errors).
//
// It speaks HTTP itself instead of using franz-go's client, because that one drops
// the Retry-After header and hands a proxy's HTML page on as a registry's answer:
// here only a registry's own 404 makes a schema unknown.
package registry

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/lru"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// Config says where the registry is and how to talk to it. Only URLs is needed.
type Config struct {
	// URLs of the same registry, with a path if it has one; tried in order,
	// starting with the last that answered. User and password may stand in them.
	URLs []string
	// User and Password are sent as basic authentication, BearerToken instead of
	// it if set.
	User, Password string
	BearerToken    string
	// TLS is used for https; nil means the system's defaults.
	TLS *tls.Config
	// Timeout bounds one request, so that a URL which is silent leaves time for the
	// others; 30 s if 0.
	Timeout time.Duration
	// Overrides are files with the schema of an id or GUID that the registry lost, or
	// has wrong: they go before its answer. See override.go for what they may import.
	Overrides map[string]string
	// CacheSize is how many compiled schemas are kept; 1000 if 0.
	CacheSize int
	// NegativeTTL is how long a miss is remembered; 30 s if 0.
	NegativeTTL time.Duration
	// CacheDir keeps answers between runs, for a start without the registry. It
	// is only read when the registry is unavailable. Empty: no folder.
	CacheDir string
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Transport replaces the HTTP transport, for tests.
	Transport http.RoundTripper
}

// Ref names a schema: by GUID if ByGUID is set, by ID else. An id means something
// only within a context of the registry; "" is the default one, others are written
// with their dot: ".staging".
type Ref struct {
	ID      int32
	GUID    [16]byte
	ByGUID  bool
	Context string
}

// String is the reference for people.
func (r Ref) String() string {
	if r.ByGUID {
		return "schema guid " + frame.FormatGUID(r.GUID)
	}
	if r.Context != "" {
		return fmt.Sprintf("schema id %d of context %s", r.ID, r.Context)
	}
	return fmt.Sprintf("schema id %d", r.ID)
}

// Schema is a compiled schema; safe for concurrent use.
type Schema struct {
	Ref  Ref
	File protoreflect.FileDescriptor
}

// Message finds a message type by its path in the file: [1, 0] is the first
// message nested in the second one. The error is a *BadSchemaError: the record
// names a type that its schema does not have.
func (s *Schema) Message(path []int) (protoreflect.MessageDescriptor, error) {
	var md protoreflect.MessageDescriptor
	level := s.File.Messages()
	for depth, i := range path {
		if i < 0 || i >= level.Len() {
			return nil, &BadSchemaError{
				What: s.Ref.String(), File: s.File.Path(),
				Detail: fmt.Sprintf("the record names message %v, but there are only %d messages at level %d", path, level.Len(), depth+1),
			}
		}
		md = level.Get(i)
		level = md.Messages()
	}
	if md == nil {
		return nil, &BadSchemaError{What: s.Ref.String(), File: s.File.Path(), Detail: "the record names no message"}
	}
	return md, nil
}

// MessageByName finds a message type of the file by its full name, nested ones
// included.
func (s *Schema) MessageByName(name string) (protoreflect.MessageDescriptor, error) {
	if md := findMessage(s.File.Messages(), protoreflect.FullName(name)); md != nil {
		return md, nil
	}
	return nil, &BadSchemaError{What: s.Ref.String(), File: s.File.Path(), Detail: fmt.Sprintf("it has no message %s, only %s", name, messageNames(s.File.Messages()))}
}

// messageNames lists the first few messages of a file for people.
func messageNames(level protoreflect.MessageDescriptors) string {
	const few = 8
	var names []string
	for i := range min(level.Len(), few) {
		names = append(names, string(level.Get(i).FullName()))
	}
	if more := level.Len() - few; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func findMessage(level protoreflect.MessageDescriptors, name protoreflect.FullName) protoreflect.MessageDescriptor {
	for i := range level.Len() {
		md := level.Get(i)
		if md.FullName() == name {
			return md
		}
		if found := findMessage(md.Messages(), name); found != nil {
			return found
		}
	}
	return nil
}

// Client looks schemas up. It is safe for concurrent use.
type Client struct {
	http    *http.Client
	urls    []*url.URL
	cfg     Config
	flight  singleflight.Group
	answers store // nil without a folder

	overrides map[Ref]*Schema // never changes; without contexts
	given     string          // hash of overrides

	mu       sync.Mutex
	good     int // index of the URL that answered last
	schemas  *lru.Cache[Ref, outcome]
	versions *lru.Cache[version, subjectVersion]
}

// outcome is a schema, or the miss that is remembered until a time.
type outcome struct {
	schema *Schema
	err    error
	until  time.Time
}

// New makes a client. It does not talk to the registry yet.
func New(cfg Config) (*Client, error) {
	if len(cfg.URLs) == 0 {
		return nil, errors.New("making registry client: no URL given")
	}
	c := &Client{cfg: cfg}
	for _, raw := range cfg.URLs {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("making registry client: %q is not an http or https URL without a query", redact(raw))
		}
		u.Path = strings.TrimRight(u.Path, "/")
		c.urls = append(c.urls, u)
	}
	c.setDefaults()
	transport := cfg.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.TLSClientConfig = cfg.TLS
		transport = t
	}
	c.http = &http.Client{Transport: transport}
	c.schemas = lru.New[Ref, outcome](c.cfg.CacheSize)
	c.versions = lru.New[version, subjectVersion](2 * c.cfg.CacheSize)
	if cfg.CacheDir != "" {
		c.answers = newFolder(cfg.CacheDir, c.identity())
	}
	var err error
	if c.overrides, err = readOverrides(cfg.Overrides); err != nil {
		return nil, fmt.Errorf("making registry client: %w", err)
	}
	if c.given, err = hashOverrides(c.overrides); err != nil {
		return nil, fmt.Errorf("making registry client: %w", err)
	}
	return c, nil
}

func (c *Client) setDefaults() {
	if c.cfg.Timeout <= 0 {
		c.cfg.Timeout = 30 * time.Second
	}
	if c.cfg.CacheSize <= 0 {
		c.cfg.CacheSize = 1000
	}
	if c.cfg.NegativeTTL <= 0 {
		c.cfg.NegativeTTL = 30 * time.Second
	}
	if c.cfg.Now == nil {
		c.cfg.Now = time.Now
	}
}

// identity keeps the folders of different registries apart: ids mean something
// only within one.
func (c *Client) identity() string {
	var names []string
	for _, u := range c.urls {
		names = append(names, u.Scheme+"://"+u.Host+u.Path)
	}
	slices.Sort(names)
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return hex.EncodeToString(sum[:8])
}

// Schema gives a compiled schema. A schema that is known costs no request. The
// error is one of this package's, or the context's own if that ends first; the
// request goes on for others then.
func (c *Client) Schema(ctx context.Context, ref Ref) (*Schema, error) {
	if s, given := c.overrides[Ref{ID: ref.ID, GUID: ref.GUID, ByGUID: ref.ByGUID}]; given {
		return s, nil
	}
	if o, known := c.remembered(ref); known {
		return o.schema, o.err
	}
	result := c.flight.DoChan(ref.String(), func() (any, error) {
		if o, known := c.remembered(ref); known {
			return o.schema, o.err
		}
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.longest())
		defer cancel()
		s, err := c.load(detached, ref)
		c.remember(ref, s, err)
		return s, err
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("looking up %s: %w", ref, ctx.Err())
	case r := <-result:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*Schema), nil
	}
}

// longest bounds a look-up with all its references.
func (c *Client) longest() time.Duration {
	const requests = 6
	return requests * time.Duration(len(c.urls)) * c.cfg.Timeout
}

func (c *Client) remembered(ref Ref) (outcome, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, found := c.schemas.Get(ref)
	return o, found && (o.err == nil || c.cfg.Now().Before(o.until))
}

// remember keeps schemas, and misses for a time. An unavailable registry is never
// remembered: how long to wait is for the caller to say.
func (c *Client) remember(ref Ref, s *Schema, err error) {
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrBadSchema) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schemas.Put(ref, outcome{schema: s, err: err, until: c.cfg.Now().Add(c.cfg.NegativeTTL)})
}

// load fetches a schema with everything it refers to and compiles it.
func (c *Client) load(ctx context.Context, ref Ref) (*Schema, error) {
	root, err := c.fetchSchema(ctx, ref)
	if err != nil {
		return nil, err
	}
	if root.Type != "" && !strings.EqualFold(root.Type, "PROTOBUF") {
		return nil, &BadSchemaError{What: ref.String(), Type: root.Type, Detail: "it is of type " + root.Type + ", not PROTOBUF"}
	}
	files, err := c.references(ctx, ref.Context, root.References)
	if err != nil {
		return nil, err
	}
	file, err := compile(ctx, ref.String(), rootName(ref), root.Schema, files)
	if err != nil {
		var bad *BadSchemaError
		if errors.As(err, &bad) && bad.Subject == "" {
			bad.Subject = c.subjectsOf(ctx, ref)
		}
		return nil, err
	}
	return &Schema{Ref: ref, File: file}, nil
}

// rootName is the name under which the schema itself is compiled; no reference
// can have it.
func rootName(ref Ref) string {
	if ref.ByGUID {
		return "registry:" + frame.FormatGUID(ref.GUID) + ".proto"
	}
	return fmt.Sprintf("registry:%d.proto", ref.ID)
}
