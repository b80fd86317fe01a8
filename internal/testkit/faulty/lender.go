package faulty

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Lender is a REST catalog that knows one table by any name, with the given metadata,
// and lends settings with it by which files under s3://lake/ are reached. It returns
// the address.
func Lender(t testing.TB, location string, metadata any, settings map[string]string) (uri string) {
	t.Helper()
	table := map[string]any{
		"metadata-location": location, "metadata": metadata,
		"storage-credentials": []any{map[string]any{"prefix": "s3://lake/", "config": settings}},
	}
	catalog := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := any(table)
		if r.URL.Path == "/v1/config" {
			answer = map[string]any{"defaults": map[string]string{}, "overrides": map[string]string{}}
		}
		_ = json.NewEncoder(w).Encode(answer) // the client sees what is missing
	}))
	t.Cleanup(catalog.Close)
	return catalog.URL
}
