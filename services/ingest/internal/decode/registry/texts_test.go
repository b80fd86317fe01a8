package registry

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// joined shows what a compiler is given.
func joined(t *Text) (string, error) {
	out := t.Text
	for _, r := range t.References {
		out += "|" + r.Name + "=" + r.Text
	}
	if strings.Contains(out, "broken") {
		return "", errors.New("it is broken")
	}
	return out, nil
}

func TestTextsBringReferencesInOrderOfUseEachOnce(t *testing.T) { // F9: a diamond
	f := newFake(t)
	ref := func(name string) map[string]any {
		return map[string]any{"name": name, "subject": "s-" + name, "version": 1}
	}
	f.set("/schemas/ids/1", map[string]any{"schema": "root", "references": []any{ref("b"), ref("c")}})
	f.set("/subjects/s-b/versions/1?deleted=true", map[string]any{"schema": "B", "references": []any{ref("d")}})
	f.set("/subjects/s-c/versions/1?deleted=true", map[string]any{"schema": "C", "references": []any{ref("d")}})
	f.set("/subjects/s-d/versions/1?deleted=true", map[string]any{"schema": "D"})
	texts := NewTexts(f.client(nil), TypeAvro, joined)
	for range 3 {
		got, err := texts.Schema(t.Context(), Ref{ID: 1})
		require.NoError(t, err)
		require.Equal(t, "root|d=D|b=B|c=C", got)
	}
	require.Equal(t, 1, f.count("/schemas/ids/1"))
	require.Equal(t, 1, f.count("/subjects/s-d/versions/1?deleted=true"))
}

func TestTextsOfAnotherKindAreBadSchemas(t *testing.T) { // F4
	f := newFake(t)
	f.set("/schemas/ids/1", map[string]any{"schema": "x", "schemaType": "PROTOBUF"})
	f.set("/schemas/ids/2", map[string]any{"schema": "x"})
	_, err := NewTexts(f.client(nil), TypeAvro, joined).Schema(t.Context(), Ref{ID: 1})
	bad, ok := errors.AsType[*BadSchemaError](err)
	require.True(t, ok)
	require.Equal(t, "PROTOBUF", bad.Type)
	_, err = NewTexts(f.client(nil), TypeJSON, joined).Schema(t.Context(), Ref{ID: 2})
	require.ErrorContains(t, err, "it is of type AVRO, not JSON")
}

func TestTextsRememberFaultsForAWhileAndOutagesNever(t *testing.T) { // F7, G8
	f := newFake(t)
	now := time.Unix(0, 0)
	texts := NewTexts(f.client(func(c *Config) { c.Now = func() time.Time { return now } }), TypeAvro, joined)
	f.set("/schemas/ids/1", map[string]any{"schema": "broken"})
	for range 2 {
		_, err := texts.Schema(t.Context(), Ref{ID: 1})
		require.ErrorIs(t, err, ErrBadSchema)
		_, err = texts.Schema(t.Context(), Ref{ID: 9})
		require.ErrorIs(t, err, ErrNotFound)
	}
	require.Equal(t, 1, f.count("/schemas/ids/1"))
	require.Equal(t, 1, f.count("/schemas/ids/9"))
	now = now.Add(time.Minute)
	f.set("/schemas/ids/9", map[string]any{"schema": "there"})
	got, err := texts.Schema(t.Context(), Ref{ID: 9})
	require.NoError(t, err)
	require.Equal(t, "there", got)
	f.respond(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	for range 2 {
		_, err = texts.Schema(t.Context(), Ref{ID: 3})
		require.ErrorIs(t, err, ErrUnavailable)
	}
	require.Equal(t, 2, f.count("/schemas/ids/3"))
}
