package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

// Serialized descriptors may import serialized ones, source, and what is built in, at
// any depth; source may import serialized ones. A diamond is fetched once.
func TestSerializedDescriptorsWithReferencesAreAccepted(t *testing.T) {
	serialized := func(path, text string, imports map[string]string) string {
		file, err := Compile(t.Context(), path, text, imports)
		require.NoError(t, err)
		raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
		require.NoError(t, err)
		return base64.StdEncoding.EncodeToString(raw)
	}
	const (
		c = `syntax = "proto3"; package c; import "google/protobuf/timestamp.proto"; message C { google.protobuf.Timestamp t = 1; }`
		b = `syntax = "proto2"; package b; import "c.proto"; message B { optional c.C c = 1; extensions 100 to 200; }`
		a = `syntax = "proto3"; package a; import "b.proto"; import "c.proto"; message A { b.B b = 1; c.C c = 2; }`
	)
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(serialized("a.proto", a, map[string]string{"b.proto": b, "c.proto": c}), reference{"b.proto", "b", 1}, reference{"c.proto", "c", 2}))
	f.set("/subjects/b/versions/1?deleted=true", protobufAnswer(b, reference{"c.proto", "c", 2}))
	f.set("/subjects/c/versions/2?deleted=true", protobufAnswer(serialized("c.proto", c, nil)))
	s, err := f.client(nil).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	md, err := s.Message([]int{0})
	require.NoError(t, err)
	inner := md.Fields().ByName("b").Message().Fields().ByName("c").Message()
	require.EqualValues(t, "google.protobuf.Timestamp", inner.Fields().ByName("t").Message().FullName())
	require.Equal(t, 1, f.count("/subjects/c/versions/2?deleted=true"))
}

// An id counts within a context of the registry; references without a context of
// their own are of the schema's.
func TestContexts(t *testing.T) {
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	f.set("/contexts/.staging/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto"; import "b.proto"; message Staged { A a = 1; B b = 2; }`,
		reference{"a.proto", "a", 1}, reference{"b.proto", ":.other:b", 2}))
	f.set("/contexts/.staging/subjects/a/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message A { int32 i = 1; }`))
	f.set("/subjects/:.other:b/versions/2?deleted=true", protobufAnswer(`syntax = "proto3"; import "c.proto"; message B { C c = 1; }`, reference{"c.proto", "c", 1}))
	f.set("/contexts/.other/subjects/c/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message C { int32 i = 1; }`))
	f.set("/subjects/:.staging:orders-value/versions/latest", map[string]any{"id": 1})

	c := f.client(func(cfg *Config) { cfg.CacheDir = t.TempDir() })
	id, err := c.ID(t.Context(), ":.staging:orders-value", 0)
	require.NoError(t, err)
	for range 2 {
		s, err := c.Schema(t.Context(), Ref{ID: id})
		require.NoError(t, err)
		require.EqualValues(t, "p.A", s.File.Messages().Get(0).FullName())
		s, err = c.Schema(t.Context(), Ref{ID: id, Context: ContextOf(":.staging:orders-value")})
		require.NoError(t, err)
		require.EqualValues(t, "Staged", s.File.Messages().Get(0).FullName())
		f.respond(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(503); return true })
		dir := c.cfg.CacheDir // and once more from the folder, where they must not meet either
		c = f.client(func(cfg *Config) { cfg.CacheDir = dir })
	}
	for subject, want := range map[string]string{":.a:s": ".a", "s": "", ":a:s": "", ":.": "", ":.:s": "", ":.a": ""} {
		require.Equal(t, want, ContextOf(subject), subject)
	}
	for want, of := range map[string][2]string{"s": {"", "s"}, ":.a:s": {".a", "s"}, ":.b:s": {".a", ":.b:s"}, ":.:s": {".a", ":.:s"}} {
		require.Equal(t, want, Qualified(of[0], of[1]))
	}
}

// A reference into another context says nothing about those beside it.
func TestAQualifiedReferenceLeavesItsNeighboursInTheirContext(t *testing.T) { // F9
	f := newFake(t)
	f.set("/contexts/.staging/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "a.proto"; import "b.proto"; message M { A a = 1; B b = 2; }`,
		reference{"a.proto", ":.other:a", 1}, reference{"b.proto", "b", 1}))
	f.set("/subjects/:.other:a/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message A { int32 i = 1; }`))
	f.set("/contexts/.staging/subjects/b/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message B { int32 i = 1; }`))
	_, err := f.client(nil).Schema(t.Context(), Ref{ID: 1, Context: ".staging"})
	require.NoError(t, err)
}

// Context .a with subject bc is another one than .ab with c, in the folder too.
func TestTheFolderKeepsSubjectsOfContextsApart(t *testing.T) {
	f := newFake(t)
	for _, s := range []struct{ context, subject, message string }{{".a", "bc", "One"}, {".ab", "c", "Two"}} {
		f.set("/contexts/"+s.context+"/schemas/ids/1", protobufAnswer(`syntax = "proto3"; import "x.proto"; message M { `+s.message+` m = 1; }`, reference{"x.proto", s.subject, 1}))
		f.set("/contexts/"+s.context+"/subjects/"+s.subject+"/versions/1?deleted=true", protobufAnswer(`syntax = "proto3"; message `+s.message+` {}`))
	}
	dir := t.TempDir()
	for range 2 {
		c := f.client(func(cfg *Config) { cfg.CacheDir = dir })
		for _, context := range []string{".a", ".ab"} {
			_, err := c.Schema(t.Context(), Ref{ID: 1, Context: context})
			require.NoError(t, err)
		}
		f.respond(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(503); return true })
	}
}

// A URL may have a path, such as that of a context or behind a proxy.
func TestURLWithAPath(t *testing.T) {
	f := newFake(t)
	f.set("/contexts/.team/schemas/ids/1", protobufAnswer(simple))
	for _, path := range []string{"contexts/.team", "contexts/.team/"} {
		c := f.client(func(cfg *Config) { cfg.URLs = []string{f.url + path} })
		_, err := c.Schema(t.Context(), Ref{ID: 1})
		require.NoError(t, err)
	}
	_, err := New(Config{URLs: []string{f.url + "?tenant=1"}})
	require.ErrorContains(t, err, "query")
}

// silent is a transport on which one host never answers.
type silent struct {
	host string
	rest http.RoundTripper
}

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == s.host {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return s.rest.RoundTrip(r)
}

// canned answers every request.
type canned string

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	_, _ = w.WriteString(string(c))
	return w.Result(), nil
}

// A registry that takes the connection and says nothing costs one timeout and then
// the next one is asked; when none answers, the registry is away and the record waits
// (G8).
func TestSilentURLDoesNotUseUpTheTimeOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{
			URLs: []string{"http://silent:1", "http://other:2"}, Timeout: 10 * time.Second,
			Transport: silent{"silent:1", canned(`{"schema":"syntax = \"proto3\"; message M {}"}`)},
		}
		c, err := New(cfg)
		require.NoError(t, err)
		start := time.Now()
		_, err = c.Schema(t.Context(), Ref{ID: 1})
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, time.Since(start))
		_, err = c.Schema(t.Context(), Ref{ID: 2})
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, time.Since(start), "the one that answered goes first from then on")

		cfg.URLs = cfg.URLs[:1]
		c, err = New(cfg)
		require.NoError(t, err)
		_, err = c.Schema(t.Context(), Ref{ID: 1})
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, "silent:1")
	})
}

// certificate makes a key pair that is its own authority.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, DNSNames: []string{"localhost"},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}, pool
}

func TestMutualTLS(t *testing.T) {
	own, trustOwn := certificate(t)
	f := newFake(t)
	f.set("/schemas/ids/1", protobufAnswer(simple))
	server := httptest.NewUnstartedServer(f)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trustOwn}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of the handshake that fails below
	server.StartTLS()
	t.Cleanup(server.Close)
	trust := x509.NewCertPool()
	trust.AddCert(server.Certificate())

	client := func(certs ...tls.Certificate) *Client {
		return f.client(func(cfg *Config) {
			cfg.URLs, cfg.TLS = []string{server.URL}, &tls.Config{RootCAs: trust, Certificates: certs}
		})
	}
	_, err := client(own).Schema(t.Context(), Ref{ID: 1})
	require.NoError(t, err)
	_, err = client().Schema(t.Context(), Ref{ID: 1})
	require.ErrorIs(t, err, ErrUnavailable, "a handshake that fails is no fault of the record")
}

// The operator supplies the schema of an id that the registry lost, with what it
// imports beside it or above it; the registry is not asked.
func TestOverrideStandsForALostSchema(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("shop/v1/common.proto", `syntax = "proto3"; package shop.v1; message Money { int64 units = 1; }`)
	order := write("shop/v1/order.proto", `syntax = "proto3"; package shop.v1; import "shop/v1/common.proto"; import "google/type/date.proto";
		message Order { Money total = 1; google.type.Date day = 2; }`)
	f := newFake(t)
	f.set("/schemas/ids/18", protobufAnswer(simple))
	const guid = "00010203-0405-0607-0809-0a0b0c0d0e0f"
	c := f.client(func(cfg *Config) { cfg.Overrides = map[string]string{"17": order, guid: order} })
	for _, ref := range []Ref{{ID: 17}, {ID: 17, Context: ".staging"}, {ByGUID: true, GUID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}} {
		s, err := c.Schema(t.Context(), ref)
		require.NoError(t, err)
		md, err := s.Message([]int{0})
		require.NoError(t, err)
		require.EqualValues(t, "shop.v1.Money", md.Fields().ByName("total").Message().FullName())
	}
	require.Zero(t, f.count("/schemas/ids/17"))
	_, err := c.Schema(t.Context(), Ref{ID: 18})
	require.NoError(t, err)

	for key, c := range map[string]struct{ path, want string }{
		"17":  {write("bad.proto", "syntax = \"proto3\";\nmessage M { Missing m = 1; }"), "line 2"},
		"18":  {filepath.Join(dir, "nowhere.proto"), "nowhere.proto"},
		"19":  {write("outside.proto", `syntax = "proto3"; import "../../etc/x.proto";`), "etc/x.proto"},
		"-1":  {order, "neither a schema id nor a GUID"},
		"abc": {order, "neither a schema id nor a GUID"},
	} {
		_, err := New(Config{URLs: []string{f.url}, Overrides: map[string]string{key: c.path}})
		require.ErrorContains(t, err, c.want, key)
	}
}

// A caller whose time is up is told so, and not that the registry is away.
func TestCallersTimeIsTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{URLs: []string{"http://silent:1"}, Transport: silent{host: "silent:1"}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Schema(ctx, Ref{ID: 1})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrUnavailable)
		_, err = c.Schema(t.Context(), Ref{ID: 1}) // the request goes on for others
		require.ErrorIs(t, err, ErrUnavailable)
	})
	require.True(t, strings.HasPrefix(Ref{ID: 3, Context: ".a"}.String(), "schema id 3 of"))
}
