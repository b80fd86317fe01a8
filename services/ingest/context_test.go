package ingest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/run"
)

// The ids of contexts overlap: a plan looks subjects of values and keys up in the pipeline's context, or in their own.
func TestPlanKeepsToTheContextOfTheSubject(t *testing.T) { // F4
	w := newWorld(t, ordersTopic, topic(1))
	inner := w.registry
	w.registry = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch subject, versions := strings.CutPrefix(r.URL.Path, "/subjects/:.staging:"); {
		case versions && strings.HasSuffix(subject, "/versions"):
			_, _ = rw.Write([]byte("[4]"))
		case versions:
			_, _ = fmt.Fprintf(rw, `{"id":%d}`, map[string]int{"orders-value/versions/4": 1, "orders-key/versions/latest": 2}[subject])
		case r.URL.Path == "/contexts/.staging/schemas/ids/1":
			_ = json.NewEncoder(rw).Encode(map[string]any{"schema": `syntax = "proto3"; message V { string staged = 1; }`, "schemaType": "PROTOBUF"})
		case r.URL.Path == "/contexts/.staging/schemas/ids/2":
			_ = json.NewEncoder(rw).Encode(map[string]any{"schema": `syntax = "proto3"; message K { string k = 1; }`, "schemaType": "PROTOBUF"})
		default:
			inner.Config.Handler.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(w.registry.Close)
	want := []string{"added staged string", "added _key struct<k: string>"}
	for pipeline, changes := range map[string][]string{
		ordersTopic + ", key: decode, schema: {context: .staging}":                               want,
		ordersTopic + ", schema: {subject: ':.staging:orders-value', framing: none}":             want[:1],
		ordersTopic + ", schema: {subject: orders-value, framing: none, context: .staging}":      want[:1],
		ordersTopic + ", schema: {subject: ':.staging:orders-value', framing: none, version: 4}": want[:1],
	} {
		w.cfg = w.config(pipeline)
		r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: noTable})
		require.NoError(t, err)
		require.Equal(t, run.OK, r.Code(), "%s %v", pipeline, r.Unknown)
		require.Len(t, r.Steps, 1)
		require.Equal(t, changes, r.Steps[0].Changes, pipeline)
		require.Equal(t, ":.staging:orders-value", r.Steps[0].Subject)
	}
}
