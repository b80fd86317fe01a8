package pipeline

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/avro"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// answers is a registry that says one thing for each path.
type answers map[string]any

// refusal is an answer that is not 200.
type refusal struct {
	status int
	body   string
	after  string // Retry-After
}

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch said := a[r.URL.RequestURI()].(type) {
	case nil:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error_code":40403,"message":"Schema not found"}`))
	case refusal:
		if said.after != "" {
			w.Header().Set("Retry-After", said.after)
		}
		w.WriteHeader(said.status)
		_, _ = w.Write([]byte(said.body))
	case string:
		_ = json.NewEncoder(w).Encode(map[string]any{"schema": said, "schemaType": "PROTOBUF"})
	default:
		_ = json.NewEncoder(w).Encode(said)
	}
}

func (a answers) codec(t testing.TB) *Protobuf {
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := registry.New(registry.Config{URLs: []string{server.URL}})
	require.NoError(t, err)
	return &Protobuf{Schemas: client}
}

// sourceOf takes a record apart and finds its schema, as a worker does.
func sourceOf(t testing.TB, c Codec, value, header []byte) (Source, error) {
	t.Helper()
	f, err := c.Split(value, header)
	if err != nil {
		return nil, err
	}
	return c.Source(t.Context(), &f)
}

func prefixed(id uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, id), rest...)
}

const twoTypes = `syntax = "proto3"; package p; message A { int32 a = 1; message In { int32 i = 1; } } message B { int32 b = 1; message In { string s = 1; } }`

// F1, F2, F4, F10: prefix and header form side by side find the type that the record
// names, nested ones too; the old form of the path by option only. GUIDs are shown on
// a registry made for the test.
func TestEveryFormOfAReferenceFindsItsType(t *testing.T) {
	c := answers{"/schemas/ids/7": twoTypes, "/schemas/guids/00010203-0405-0607-0809-0a0b0c0d0e0f": twoTypes}.codec(t)
	guid := []byte{1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for _, r := range []struct {
		value, header []byte
		old           bool
		want          string
	}{
		{value: prefixed(7, 0), want: "p.A"},
		{value: prefixed(7, 2, 0), want: "p.A"},
		{value: prefixed(7, 2, 2), want: "p.B"},
		{value: prefixed(7, 4, 2, 0), want: "p.B.In"},
		{value: prefixed(7, 0), old: true, want: "p.A"},
		{value: prefixed(7, 1, 1), old: true, want: "p.B"},
		{value: prefixed(7, 2, 1, 0), old: true, want: "p.B.In"},
		{header: prefixed(7), want: "p.A"},
		{header: prefixed(7, 4, 2, 0), want: "p.B.In"},
		{header: append(guid, 2, 2), want: "p.B"},
		{header: append(guid, 2, 2), old: true, want: "p.B"},
	} {
		c.UnsignedPath = r.old
		src, err := sourceOf(t, c, r.value, r.header)
		require.NoError(t, err, "%x %x", r.value, r.header)
		require.Contains(t, src.Name(), "message "+r.want)
	}
	c.UnsignedPath = false

	var many strings.Builder
	many.WriteString(`syntax = "proto3"; package p;`)
	for i := range 70 {
		fmt.Fprintf(&many, "message T%d { message A {} message B { message C { string s = 1; } } }\n", i)
	}
	large := answers{"/schemas/ids/8": many.String()}.codec(t)
	for want, path := range map[string][]byte{"p.T69": {2, 0x8a, 1}, "p.T2.B.C": {6, 4, 2, 0}, "p.T64.A": {4, 0x80, 1, 0}} {
		src, err := sourceOf(t, large, prefixed(8, path...), nil)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(src.Name(), "message "+want), src.Name())
	}

	_, err := sourceOf(t, c, prefixed(7, 2, 4), nil)
	reason, text, ofRecord := reasonOf(err)
	require.True(t, ofRecord, "an index out of range is the record's fault")
	require.Equal(t, ReasonSchemaInvalid, reason)
	require.Contains(t, text, "2 messages")
}

// F10: key and value each have a header of their own, by id or GUID, and the last of
// that name counts.
func TestKeyAndValueHaveTheirOwnHeader(t *testing.T) {
	c := answers{"/schemas/ids/7": twoTypes, "/schemas/guids/00010203-0405-0607-0809-0a0b0c0d0e0f": twoTypes}.codec(t)
	guid := []byte{1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	p := &Pipeline{c: Config{Codec: c, Key: c}}
	r := &batch.Record{Key: []byte{8, 1}, Value: []byte{8, 2}, Headers: []batch.Header{
		{Key: frame.HeaderName, Value: prefixed(99, 0)},
		{Key: frame.HeaderName, Value: append(guid, 2, 2)},
		{Key: frame.KeyHeaderName, Value: prefixed(7, 4, 2, 0)},
	}}
	f, decoded, err := p.splitKey(r)
	require.NoError(t, err)
	require.True(t, decoded)
	require.Equal(t, []byte{8, 1}, r.KeyPayload)
	src, err := c.Source(t.Context(), &f)
	require.NoError(t, err)
	require.Contains(t, src.Name(), "message p.B.In")
	src, err = sourceOf(t, c, r.Value, header(r, frame.HeaderName))
	require.NoError(t, err)
	require.Contains(t, src.Name(), "message p.B")
	require.NotContains(t, src.Name(), "p.B.In")

	r.Headers[2].Value = []byte{7}
	_, _, err = p.splitKey(r)
	reason, text, ofRecord := reasonOf(err)
	require.True(t, ofRecord)
	require.Equal(t, "key_"+frame.ReasonHeader, reason)
	require.Contains(t, text, "in the key")
}

// An id counts in the context of the pipeline; a subject that is qualified brings its
// own.
func TestContextOfThePipeline(t *testing.T) {
	a := answers{
		"/schemas/ids/7":                                   `syntax = "proto3"; message Default {}`,
		"/contexts/.staging/schemas/ids/7":                 `syntax = "proto3"; message Staged {}`,
		"/subjects/:.staging:orders-value/versions/latest": map[string]any{"id": 7},
	}
	for want, change := range map[string]func(c *Protobuf){
		"Default": func(*Protobuf) {},
		"Staged":  func(c *Protobuf) { c.Context = ".staging" },
	} {
		c := a.codec(t)
		change(c)
		src, err := sourceOf(t, c, prefixed(7, 0), nil)
		require.NoError(t, err)
		require.Contains(t, src.Name(), "message "+want)
	}
	for _, o := range []Origin{
		{Subject: ":.staging:orders-value"}, {Subject: ":.staging:orders-value", Context: ".other"}, {Subject: "orders-value", Context: ".staging"},
	} {
		c := a.codec(t)
		c.Origin, c.Unframed = o, true
		src, err := sourceOf(t, c, nil, nil)
		require.NoError(t, err)
		require.Contains(t, src.Name(), "message Staged")
	}
}

// What other contexts have under the same name says nothing about the settings.
func TestSettingsAreDoubtedByTheContextOfThePipelineAlone(t *testing.T) { // F4
	a := answers{
		"/subjects/orders-value/versions/latest":           map[string]any{"id": 7},
		"/schemas/ids/7":                                   map[string]any{"schema": "{}", "schemaType": "AVRO"},
		"/subjects/:.staging:orders-value/versions/latest": map[string]any{"id": 7},
		"/contexts/.staging/schemas/ids/7":                 `syntax = "proto3"; message Staged {}`,
		"/subjects/:.avro:orders-value/versions/latest":    map[string]any{"id": 7},
		"/contexts/.avro/schemas/ids/7":                    map[string]any{"schema": `"string"`, "schemaType": "AVRO"},
	}
	for context, wrong := range map[string][2]bool{"": {true, false}, ".staging": {false, true}, ".avro": {true, false}} { // as Protobuf, as Avro
		c := a.codec(t)
		c.Context = context
		for i, d := range []Doubter{c, NewAvro(c.Schemas.(*registry.Client), c.Origin, avro.Options{})} {
			mistake, known, err := d.Doubt(t.Context(), "orders")
			require.NoError(t, err)
			require.True(t, known)
			require.Equal(t, wrong[i], mistake != "", "%s %d %s", context, i, mistake)
		}
	}
}

// What is wrong with the registry is never a fault of the record: 401 and 403 are red
// and need an operator, everything else is tried again, not before the registry wants
// it. Only the registry's own 404, or a schema that cannot be used, makes the record
// bad (G8).
func TestWhoseFaultItIs(t *testing.T) {
	for _, r := range []struct {
		name   string
		answer any
		record string // reason, where it is the record's fault
		fault  fault.Reason
		after  time.Duration
	}{
		{name: "not there", answer: nil, record: ReasonSchemaUnknown},
		{name: "does not compile", answer: `syntax = "proto3"; message {`, record: ReasonSchemaInvalid},
		{name: "another format", answer: map[string]any{"schema": "{}", "schemaType": "AVRO"}, record: ReasonSchemaInvalid},
		{name: "too many requests", answer: refusal{429, "slow down", "7"}, fault: fault.Unavailable, after: 7 * time.Second},
		{name: "server error", answer: refusal{500, `{"error_code":50001,"message":"store"}`, ""}, fault: fault.Unavailable},
		{name: "a proxy's page", answer: refusal{502, "<html>", "3"}, fault: fault.Unavailable, after: 3 * time.Second},
		{name: "a proxy's 404", answer: refusal{404, "<html>", ""}, fault: fault.Unavailable},
		{name: "no credentials", answer: refusal{401, "", ""}, fault: fault.Unauthorized},
		{name: "no right", answer: refusal{403, "<html>", ""}, fault: fault.Unauthorized},
	} {
		_, err := sourceOf(t, answers{"/schemas/ids/7": r.answer}.codec(t), prefixed(7, 0), nil)
		require.Error(t, err, r.name)
		reason, _, ofRecord := reasonOf(err)
		require.Equal(t, r.record != "", ofRecord, r.name)
		require.Equal(t, r.record, reason, r.name)
		if ofRecord {
			continue
		}
		var f *fault.Error
		require.ErrorAs(t, err, &f, r.name)
		require.Equal(t, r.fault, f.Reason, r.name)
		require.Equal(t, r.after, f.RetryAfter, r.name)
	}
}

// A configured schema that is not there is the configuration's fault: the records
// wait, none is taken for a bad one.
func TestConfiguredSchemaThatIsMissingIsNoFaultOfRecords(t *testing.T) {
	for _, c := range []Origin{{FixedID: 9}, {Subject: "nowhere"}} {
		codec := answers{}.codec(t)
		codec.Unframed, codec.FixedID, codec.Subject = true, c.FixedID, c.Subject
		f := frame.Unframed([]byte{8, 1})
		_, err := codec.Source(t.Context(), &f)
		_, _, ofRecord := reasonOf(err)
		require.False(t, ofRecord)
		var stop *stopError
		require.ErrorAs(t, err, &stop)
	}
}
