package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// maxAnswer bounds what one answer may hold.
const maxAnswer = 64 << 20

// reference is how a schema names another one that it imports.
type reference struct {
	Name    string `json:"name"` // the import path
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// within is the version that a schema of a context refers to, and the context of
// what that one refers to in turn.
func (r *reference) within(registryContext string) (v version, inner string) {
	if own := contextOf(r.Subject); own != "" {
		return version{"", r.Subject, r.Version}, own
	}
	return version{registryContext, r.Subject, r.Version}, registryContext
}

// answer is what the registry says about a schema.
type answer struct {
	Schema     string      `json:"schema"`
	Type       string      `json:"schemaType"`
	References []reference `json:"references"`
}

func (a answer) check() error {
	if a.Schema == "" {
		return errors.New("it holds no schema")
	}
	return nil
}

// version is a pinned version of a subject: it never changes.
type version struct {
	context string // of the registry; "" where the subject says it, or the default
	subject string
	number  int
}

// within is the path of a context of the registry.
func within(registryContext string) string {
	if registryContext == "" {
		return ""
	}
	return "/contexts/" + url.PathEscape(registryContext)
}

// contextOf splits a qualified subject, :.context:name, and gives the context.
func contextOf(subject string) string {
	if rest, qualified := strings.CutPrefix(subject, ":."); qualified {
		if name, _, found := strings.Cut(rest, ":"); found && name != "" {
			return "." + name
		}
	}
	return ""
}

// subjectVersion is an answer that is kept.
type subjectVersion struct{ answer answer }

func (c *Client) fetchSchema(ctx context.Context, ref Ref) (answer, error) {
	path, key := within(ref.Context)+fmt.Sprintf("/schemas/ids/%d", ref.ID), fmt.Sprintf("id-%d", ref.ID)
	if ref.Context != "" {
		key = "context-" + hash(ref.Context) + "-" + key
	}
	if ref.ByGUID {
		guid := frame.FormatGUID(ref.GUID)
		path, key = "/schemas/guids/"+guid, "guid-"+guid
	}
	return get[answer](ctx, c, ref.String(), path, key)
}

// fetchVersion asks for a referenced schema. A soft-deleted version is asked for
// too: the schemas that refer to it still do.
func (c *Client) fetchVersion(ctx context.Context, v version) (answer, error) {
	c.mu.Lock()
	kept, found := c.versions.Get(v)
	c.mu.Unlock()
	if found {
		return kept.answer, nil
	}
	number, pinned := strconv.Itoa(v.number), v.number > 0
	if !pinned {
		number = "latest"
	}
	what := fmt.Sprintf("subject %s version %s", v.subject, number)
	path := within(v.context) + "/subjects/" + url.PathEscape(v.subject) + "/versions/" + number + "?deleted=true"
	key := ""
	if pinned {
		key = "version-" + hash(v.subject) + "-" + number
		if v.context != "" {
			key = "context-" + hash(v.context) + "-" + key
		}
	}
	a, err := get[answer](ctx, c, what, path, key)
	if err != nil {
		return answer{}, err
	}
	if pinned {
		c.mu.Lock()
		c.versions.Put(v, subjectVersion{a})
		c.mu.Unlock()
	}
	return a, nil
}

// references fetches everything below a list of references, each import path
// once: the first that claims a path has it, as in the registry itself. The
// result maps import path to file. A subject that names no context of its own is
// one of the schema's context.
func (c *Client) references(ctx context.Context, registryContext string, refs []reference) (map[string]source, error) {
	files := map[string]source{}
	var visit func(within string, refs []reference) error
	visit = func(within string, refs []reference) error {
		for _, r := range refs {
			if _, known := files[r.Name]; known {
				continue
			}
			v, inner := r.within(within)
			a, err := c.fetchVersion(ctx, v)
			if err != nil {
				return err
			}
			files[r.Name] = source{text: a.Schema, subject: r.Subject}
			if err := visit(inner, a.References); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(registryContext, refs); err != nil {
		return nil, err
	}
	return files, nil
}

// subjectsOf names the subjects of a schema for an error text, if the registry
// tells.
func (c *Client) subjectsOf(ctx context.Context, ref Ref) string {
	if ref.ByGUID {
		return ""
	}
	subjects, err := get[[]string](ctx, c, ref.String(), within(ref.Context)+fmt.Sprintf("/schemas/ids/%d/subjects", ref.ID), "")
	if err != nil {
		return "" // the error that is being explained matters more
	}
	return strings.Join(subjects, ", ")
}

// get asks one URL after the other and reads the JSON answer. With a key, the
// answer is kept in the folder and taken from there when no registry answers.
func get[T any](ctx context.Context, c *Client, what, path, key string) (T, error) {
	c.mu.Lock()
	first := c.good
	c.mu.Unlock()
	var none T
	var last error
	for i := range c.urls {
		at := (first + i) % len(c.urls)
		body, err := c.ask(ctx, what, c.urls[at], path)
		if err == nil {
			var a T
			if a, err = read[T](body); err == nil {
				c.answered(at, key, body)
				return a, nil
			}
			err = &UnavailableError{What: what, URL: c.urls[at].Redacted(), Status: http.StatusOK, Detail: "the answer is not a registry's: " + err.Error(), Err: err}
		}
		if !errors.Is(err, ErrUnavailable) {
			return none, err
		}
		last = err
	}
	if body, found := c.kept(key); found {
		if a, err := read[T](body); err == nil {
			return a, nil
		}
	}
	return none, last
}

// read reads an answer. Any JSON object reads as any answer, so each says itself
// whether what makes it one is there.
func read[T any](body []byte) (T, error) {
	var a T
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("reading JSON: %w", err)
	}
	if whole, checked := any(a).(interface{ check() error }); checked {
		return a, whole.check()
	}
	return a, nil
}

func (c *Client) answered(at int, key string, body []byte) {
	c.mu.Lock()
	c.good = at
	c.mu.Unlock()
	if c.answers != nil && key != "" {
		c.answers.put(key, body)
	}
}

func (c *Client) kept(key string) ([]byte, bool) {
	if c.answers == nil || key == "" {
		return nil, false
	}
	return c.answers.get(key)
}

// ask sends one request and sorts the outcome.
func (c *Client) ask(ctx context.Context, what string, base *url.URL, path string) ([]byte, error) {
	bare := *base
	bare.User = nil
	where := bare.String() + path
	unavailable := func(detail string, err error) error {
		return &UnavailableError{What: what, URL: bare.String(), Detail: detail, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, unavailable(err.Error(), err)
	}
	req.Header.Set("Accept", "application/vnd.schemaregistry.v1+json, application/json")
	req.Header.Set("User-Agent", "icestream")
	c.authorize(req, base)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unavailable(err.Error(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, unavailable("reading the answer: "+err.Error(), err)
	}
	if len(body) > maxAnswer {
		return nil, unavailable("the answer is larger than 64 MiB", nil)
	}
	if resp.StatusCode == http.StatusOK {
		return body, nil
	}
	return nil, c.refusal(what, bare.String(), resp, body)
}

func (c *Client) authorize(req *http.Request, base *url.URL) {
	switch {
	case c.cfg.BearerToken != "":
		req.Header.Set("Authorization", "Bearer "+c.cfg.BearerToken)
	case c.cfg.User != "" || c.cfg.Password != "":
		req.SetBasicAuth(c.cfg.User, c.cfg.Password)
	case base.User != nil:
		password, _ := base.User.Password()
		req.SetBasicAuth(base.User.Username(), password)
	}
}

// refusal makes the error for an answer that is not 200. A 404 counts as "no such
// schema" only with one of the registry's own codes for that: a proxy, or a wrong
// path, must not turn good records into bad ones.
func (c *Client) refusal(what, where string, resp *http.Response, body []byte) error {
	var said struct {
		Code    int    `json:"error_code"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(body, &said) // a body that is no JSON leaves said empty, which is handled
	switch status := resp.StatusCode; {
	case status == http.StatusNotFound && said.Code >= 40401 && said.Code <= 40403:
		return &NotFoundError{What: what, Code: said.Code, Message: said.Message}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &UnauthorizedError{What: what, URL: where, Status: status, Detail: excerpt(said.Message, body)}
	case status == http.StatusNotFound:
		return &UnavailableError{
			What: what, URL: where, Status: status,
			Detail: "status 404 without a registry's error code; is the path in the URL right, and does the registry know this call? " + excerpt(said.Message, body),
		}
	default:
		return &UnavailableError{
			What: what, URL: where, Status: status, RetryAfter: retryAfter(resp.Header.Get("Retry-After"), c.cfg.Now()),
			Detail: fmt.Sprintf("status %d: %s", status, excerpt(said.Message, body)),
		}
	}
}

// excerpt is the registry's message, or the beginning of whatever came.
func excerpt(message string, body []byte) string {
	if message != "" {
		return message
	}
	text := strings.Join(strings.Fields(string(body)), " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "..."
	}
	if text == "" {
		return "empty answer"
	}
	return text
}

// maxRetryAfter bounds what the registry may ask for: one that is back early is
// found soon, and one that is not says so again.
const maxRetryAfter = time.Minute

// retryAfter reads the header in both of its forms; nonsense is 0.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil && at.After(now) {
		return min(at.Sub(now), maxRetryAfter)
	}
	return 0
}

// redact takes credentials out of a URL that may not even parse.
func redact(raw string) string {
	if at := strings.LastIndex(raw, "@"); at >= 0 {
		return "..." + raw[at:]
	}
	return raw
}
