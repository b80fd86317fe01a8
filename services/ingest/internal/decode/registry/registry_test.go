package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

// fake is a registry of a few paths, mounted below /reg. What it does not have
// gets a registry's own 404.
type fake struct {
	t      *testing.T
	url    string
	mu     sync.Mutex
	paths  map[string]any // path with query to JSON answer
	asked  map[string]int
	before func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, paths: map[string]any{}, asked: map[string]int{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL + "/reg/"
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.RequestURI(), "/reg")
	f.mu.Lock()
	f.asked[path]++
	answer, found := f.paths[path]
	before := f.before
	f.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	if !found {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error_code":40403,"message":"Schema not found"}`))
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *fake) set(path string, answer any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths[path] = answer
}

func (f *fake) respond(before func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *fake) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[path]
}

func (f *fake) client(change func(*Config)) *Client {
	cfg := Config{URLs: []string{f.url}}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	require.NoError(f.t, err)
	return c
}

func protobufAnswer(text string, refs ...reference) answer {
	return answer{Schema: text, Type: "PROTOBUF", References: refs}
}

const simple = `syntax = "proto3"; package p; message A { int32 x = 1; message In { string s = 1; } } message B {}`

func TestSchemaByIDAndGUIDIsFetchedOnce(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/7", protobufAnswer(simple))
	f.set("/schemas/guids/00010203-0405-0607-0809-0a0b0c0d0e0f", protobufAnswer(simple))
	c := f.client(nil)
	for range 3 {
		s, err := c.Schema(t.Context(), Ref{ID: 7})
		require.NoError(t, err)
		md, err := s.Message([]int{0, 0})
		require.NoError(t, err)
		require.EqualValues(t, "p.A.In", md.FullName())
		_, err = s.Message([]int{2})
		require.ErrorIs(t, err, ErrBadSchema)
		_, err = s.Message([]int{1, 0})
		require.ErrorContains(t, err, "level 2")
		md, err = s.MessageByName("p.A.In")
		require.NoError(t, err)
		require.EqualValues(t, "p.A.In", md.FullName())
		_, err = s.MessageByName("p.C")
		require.ErrorContains(t, err, "p.C")
	}
	require.Equal(t, 1, f.count("/schemas/ids/7"))
	guid := Ref{ByGUID: true, GUID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}
	_, err := c.Schema(t.Context(), guid)
	require.NoError(t, err)
}

// F7: references are followed transitively at their pinned version, each once,
// although two files import the same one.
func TestReferencesAreFollowedAtTheirPinnedVersion(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto"; import "dir/b.proto"; message M { A a = 1; B b = 2; }`,
		reference{"a.proto", "subject a/x", 1}, reference{"dir/b.proto", "b", 3}))
	f.set("/subjects/subject%20a%2Fx/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; import "c.proto"; message A { C old_name = 1; }`, reference{"c.proto", "c", 2}))
	f.set("/subjects/subject%20a%2Fx/versions/2?deleted=true", protobufAnswer(`syntax = "proto3"; import "c.proto"; message A { C new_name = 1; }`, reference{"c.proto", "c", 2}))
	f.set("/subjects/b/versions/3?deleted=true", protobufAnswer(`syntax = "proto3"; import "c.proto"; message B { C c = 1; }`, reference{"c.proto", "c", 2}))
	f.set("/subjects/c/versions/2?deleted=true", protobufAnswer(`syntax = "proto3"; message C { int32 i = 1; }`))
	f.set("/schemas/ids/2", protobufAnswer(`syntax = "proto3"; import "c.proto"; message N { C c = 1; }`, reference{"c.proto", "c", 2}))
	c := f.client(nil)
	s, err := c.Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	md, err := s.Message([]int{0})
	require.NoError(t, err)
	require.NotNil(t, md.Fields().ByName("a").Message().Fields().ByName("old_name"))
	_, err = c.Schema(t.Context(), Ref{ID: 2})
	require.NoError(t, err)
	require.Equal(t, 1, f.count("/subjects/c/versions/2?deleted=true"))
	require.Zero(t, f.count("/subjects/subject%20a%2Fx/versions/2?deleted=true"))
}

// F5: what everybody imports needs no reference.
func TestWellKnownImportsAreBuiltIn(t *testing.T) {
	file, err := Compile(t.Context(), "m.proto", `syntax = "proto3";
		import "google/protobuf/timestamp.proto"; import "google/protobuf/struct.proto"; import "google/type/date.proto"; import "google/type/money.proto";
		import "confluent/type/decimal.proto"; import "confluent/meta.proto";
		message M { google.protobuf.Timestamp t = 1; google.type.Date d = 2; google.type.Money m = 3;
		  confluent.type.Decimal c = 4 [(confluent.field_meta).params = { key: "scale" value: "2" }]; google.protobuf.Struct s = 5; }`, nil)
	require.NoError(t, err)
	require.Equal(t, 5, file.Messages().Get(0).Fields().Len())
}

// Descriptors of editions files must answer whether a string is checked, or bad
// UTF-8 would reach string columns.
func TestEditionsKnowAboutUTF8(t *testing.T) {
	file, err := Compile(t.Context(), "m.proto", `edition = "2023"; message M { string a = 1; string b = 2 [features.utf8_validation = NONE]; }`, nil)
	require.NoError(t, err)
	for i, want := range []bool{true, false} {
		fd, can := file.Messages().Get(0).Fields().Get(i).(interface{ EnforceUTF8() bool })
		require.True(t, can)
		require.Equal(t, want, fd.EnforceUTF8())
	}
}

func TestSerializedDescriptorsAreAccepted(t *testing.T) {
	file, err := Compile(t.Context(), "orig.proto", simple, nil)
	require.NoError(t, err)
	raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	require.NoError(t, err)
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(base64.StdEncoding.EncodeToString(raw)))
	s, err := f.client(nil).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	require.EqualValues(t, "p.A", s.File.Messages().Get(0).FullName())
}

// The Python serializer sends descriptors whose fields have no JSON names.
func TestSerializedDescriptorsWithoutJSONNamesAreAccepted(t *testing.T) {
	file, err := Compile(t.Context(), "orig.proto", `syntax = "proto3"; message M { int32 a_b = 1; int32 c = 2; message N { int32 d = 1; int32 e = 2; } }`, nil)
	require.NoError(t, err)
	fdp := protodesc.ToFileDescriptorProto(file)
	for _, m := range append(fdp.GetMessageType()[0].GetNestedType(), fdp.GetMessageType()[0]) {
		for _, f := range m.GetField() {
			f.JsonName = nil
		}
	}
	raw, err := proto.Marshal(fdp)
	require.NoError(t, err)
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(base64.StdEncoding.EncodeToString(raw)))
	s, err := f.client(nil).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	require.Equal(t, "aB", s.File.Messages().Get(0).Fields().Get(0).JSONName())
}

// F5: the error of a schema that does not compile names subject, file and line,
// and it does not touch other schemas.
func TestBadSchemaIsNamedAndHarmsOnlyItself(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "bad.proto"; message M { A a = 1; }`, reference{"bad.proto", "bad-subject", 1}))
	f.set("/subjects/bad-subject/versions/1?deleted=true", protobufAnswer("syntax = \"proto3\";\nmessage A {\n  Missing m = 1;\n}"))
	f.set("/schemas/ids/2", protobufAnswer(`syntax = "proto3"; import "nowhere.proto";`))
	f.set("/schemas/ids/2/subjects", []string{"orders-value"})
	f.set("/schemas/ids/3", protobufAnswer(simple))
	f.set("/schemas/ids/4", answer{Schema: `{}`, Type: "AVRO"})
	c := f.client(nil)
	_, err := c.Schema(t.Context(), Ref{ID: 1})
	var bad *BadSchemaError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, []any{"bad-subject", "bad.proto", 3}, []any{bad.Subject, bad.File, bad.Line})
	_, err = c.Schema(t.Context(), Ref{ID: 2})
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "orders-value", bad.Subject)
	require.Contains(t, err.Error(), "nowhere.proto")
	_, err = c.Schema(t.Context(), Ref{ID: 3})
	require.NoError(t, err)
	_, err = c.Schema(t.Context(), Ref{ID: 4})
	require.ErrorContains(t, err, "AVRO")
	require.ErrorIs(t, err, ErrBadSchema)
}

// F8: an unknown id costs a request each half minute and no more, and heals by
// itself (G11).
func TestMissIsRememberedAndHeals(t *testing.T) {
	f := newFake(t)
	now := time.Unix(1000, 0)
	c := f.client(func(cfg *Config) { cfg.Now = func() time.Time { return now } })
	for range 10_000 {
		_, err := c.Schema(t.Context(), Ref{ID: 9})
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorContains(t, err, "schema id 9")
	}
	require.Equal(t, 1, f.count("/schemas/ids/9"))
	f.set("/schemas/ids/9", protobufAnswer(simple))
	now = now.Add(29 * time.Second)
	_, err := c.Schema(t.Context(), Ref{ID: 9})
	require.ErrorIs(t, err, ErrNotFound)
	now = now.Add(time.Second)
	_, err = c.Schema(t.Context(), Ref{ID: 9})
	require.NoError(t, err)
}

// G8: whatever is wrong with the dependency is never taken for a bad record, and
// is not remembered.
func TestFaultsOfTheRegistryAreNotFaultsOfRecords(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	c := f.client(func(cfg *Config) { cfg.Now = func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) } })
	answer := func(status int, body string, headers ...string) {
		f.respond(func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		})
	}
	for _, r := range []struct {
		status     int
		body       string
		header     []string
		want       error
		retryAfter time.Duration
	}{
		{status: 500, body: `{"error_code":50001,"message":"store down"}`, want: ErrUnavailable},
		{status: 503, body: `<html>gateway</html>`, header: []string{"Retry-After", "7"}, want: ErrUnavailable, retryAfter: 7 * time.Second},
		{status: 429, header: []string{"Retry-After", "Thu, 01 Jan 2026 00:00:50 GMT"}, want: ErrUnavailable, retryAfter: 50 * time.Second},
		{status: 503, header: []string{"Retry-After", "86400"}, want: ErrUnavailable, retryAfter: time.Minute},
		{status: 503, header: []string{"Retry-After", "99999999999"}, want: ErrUnavailable, retryAfter: time.Minute},
		{status: 503, header: []string{"Retry-After", "Fri, 02 Jan 2026 00:00:00 GMT"}, want: ErrUnavailable, retryAfter: time.Minute},
		{status: 503, header: []string{"Retry-After", "soon"}, want: ErrUnavailable},
		{status: 404, body: `<html>nginx</html>`, want: ErrUnavailable},
		{status: 404, body: `{"error_code":404,"message":"HTTP 404 Not Found"}`, want: ErrUnavailable},
		{status: 200, body: `<html>login</html>`, want: ErrUnavailable},
		{status: 200, body: `{}`, want: ErrUnavailable},
		{status: 200, body: `null`, want: ErrUnavailable},
		{status: 200, body: `{"schemaType":"AVRO","message":"maintenance"}`, want: ErrUnavailable},
		{status: 400, body: `bad`, want: ErrUnavailable},
		{status: 401, body: `no`, want: ErrUnauthorized},
		{status: 403, body: `{"message":"denied"}`, want: ErrUnauthorized},
	} {
		answer(r.status, r.body, r.header...)
		_, err := c.Schema(t.Context(), Ref{ID: 1})
		require.ErrorIs(t, err, r.want, "%d %s", r.status, r.body)
		require.NotErrorIs(t, err, ErrNotFound)
		require.NotErrorIs(t, err, ErrBadSchema)
		if u, is := errors.AsType[*UnavailableError](err); is {
			require.Equal(t, r.retryAfter, u.RetryAfter, "%d %s", r.status, r.body)
		}
	}
	f.respond(nil)
	_, err := c.Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
}

func TestAReferenceThatIsUnavailableMakesTheSchemaUnavailable(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto";`, reference{"a.proto", "a", 1}))
	f.respond(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "subjects") {
			w.WriteHeader(502)
			return true
		}
		return false
	})
	_, err := f.client(nil).Schema(t.Context(), Ref{ID: 1})
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "subject a version 1")
}

func TestManyCallersShareOneRequest(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	release := make(chan struct{})
	arrived := make(chan struct{}, 1)
	f.respond(func(http.ResponseWriter, *http.Request) bool {
		arrived <- struct{}{}
		<-release
		return false
	})
	c := f.client(nil)

	impatient, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { _, err := c.Schema(impatient, Ref{ID: 1}); gaveUp <- err }()
	<-arrived
	var wg sync.WaitGroup
	var good atomic.Int32
	for range 20 {
		wg.Go(func() {
			if _, err := c.Schema(t.Context(), Ref{ID: 1}); err == nil {
				good.Add(1)
			}
		})
	}
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled, "a caller that gives up does not wait")
	close(release)
	wg.Wait()
	require.EqualValues(t, 20, good.Load(), "and does not take the request away from others")
	require.Equal(t, 1, f.count("/schemas/ids/1"))
}

func TestCredentialsAreSentAndNeverPrinted(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	var got string
	f.respond(func(w http.ResponseWriter, r *http.Request) bool {
		got = r.Header.Get("Authorization")
		if r.URL.Path == "/reg/schemas/ids/2" {
			w.WriteHeader(500)
			return true
		}
		return false
	})
	withUser := strings.Replace(f.url, "http://", "http://user:s3cret@", 1)
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(cfg *Config) { cfg.User, cfg.Password = "u", "p" }, "Basic dTpw"},
		{func(cfg *Config) { cfg.BearerToken = "tok" }, "Bearer tok"},
		{func(cfg *Config) { cfg.URLs = []string{withUser} }, "Basic dXNlcjpzM2NyZXQ="},
	} {
		client := f.client(c.change)
		_, err := client.Schema(t.Context(), Ref{ID: 1})
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		_, err = client.Schema(t.Context(), Ref{ID: 2})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cret")
	}
	_, err := New(Config{URLs: []string{"user:s3cret@host"}})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
	_, err = New(Config{})
	require.Error(t, err)
}

func TestOtherURLIsTriedWhenOneIsDown(t *testing.T) {
	down := httptest.NewServer(nil)
	down.Close()
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	c := f.client(func(cfg *Config) { cfg.URLs = []string{down.URL, f.url} })
	_, err := c.Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	require.Equal(t, 1, c.good, "the next look-up starts with the one that answered")
	_, err = c.Schema(t.Context(), Ref{ID: 2})
	require.ErrorIs(t, err, ErrNotFound)
}

// A start without the registry goes on with the schemas of the last run; with the
// registry up, the folder is never asked.
func TestFolderIsUsedOnlyWhenTheRegistryIsAway(t *testing.T) {
	dir := t.TempDir()
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto"; message M { A a = 1; }`, reference{"a.proto", "a", 1}))
	f.set("/subjects/a/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message A { int32 i = 1; }`))
	withDir := func(cfg *Config) { cfg.CacheDir = dir }
	_, err := f.client(withDir).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)

	f.set("/schemas/ids/1", protobufAnswer(simple))
	s, err := f.client(withDir).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	require.Equal(t, 2, s.File.Messages().Len(), "the registry's answer goes first")

	f.respond(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(503); return true })
	s, err = f.client(withDir).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	require.Equal(t, 2, s.File.Messages().Len())
	_, err = f.client(withDir).Schema(t.Context(), Ref{ID: 2})
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = f.client(nil).Schema(t.Context(), Ref{ID: 1})
	require.ErrorIs(t, err, ErrUnavailable)
}

// What a gateway says in JSON is no schema: it is neither kept nor held against the
// schema, and the next URL is asked.
func TestAnswerWithoutASchemaIsNoAnswer(t *testing.T) { // G8
	gateway := func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"schemaType":"AVRO","message":"maintenance"}`))
		return true
	}
	dir := t.TempDir()
	f, behind := newFake(t), newFake(t)
	withDir := func(cfg *Config) { cfg.CacheDir = dir }
	behind.respond(gateway)
	both := behind.client(func(cfg *Config) { cfg.URLs = append(cfg.URLs, f.url) })
	f.set("/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto"; message M { A a = 1; }`, reference{"a.proto", "a", 1}))
	f.set("/subjects/a/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message A { int32 i = 1; }`))
	f.set("/subjects/a/versions/1", map[string]any{"id": 1})
	_, err := both.Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)

	c := f.client(withDir)
	for _, away := range []bool{false, true, false, true} {
		f.respond(nil)
		if away {
			f.respond(gateway)
			c = f.client(withDir)
		}
		id, err := c.ID(t.Context(), "a", 1)
		require.NoError(t, err, "from the folder while the registry is away: %v", away)
		require.EqualValues(t, 1, id)
		_, err = c.Schema(t.Context(), Ref{ID: 1})
		require.NoError(t, err)
	}

	f.respond(func(w http.ResponseWriter, r *http.Request) bool {
		return strings.Contains(r.URL.Path, "subjects") && gateway(w, r)
	})
	c = f.client(nil)
	_, err = c.Schema(t.Context(), Ref{ID: 1})
	require.ErrorIs(t, err, ErrUnavailable)
	f.respond(nil)
	_, err = c.Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err, "a pinned reference is not remembered as empty")
}
