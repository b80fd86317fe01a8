package cold

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
)

// A store that refuses to show a file has not lost it: the read is worth another
// try, and not to be begun again. Whether our own settings made the client or those
// that a REST catalog lends with the table makes no difference.
func TestAFileThatTheStoreDoesNotShowIsNoSnapshotThatIsGone(t *testing.T) {
	status := http.StatusForbidden
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-amz-request-id", "A301B") // as good as a file of that name while the store cannot be reached
		w.WriteHeader(status)
	}))
	t.Cleanup(store.Close)
	props := map[string]string{"s3.endpoint": store.URL, "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
	const location = "s3://lake/wh/00301-a.metadata.json"

	table := map[string]any{
		"metadata-location": location, "metadata": newWarehouse(t).tbl.Metadata(),
		"storage-credentials": []any{map[string]any{"prefix": "s3://lake/", "config": props}},
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

	for name, l := range map[string]*Lake{
		"own":  New(Config{Type: "sql", Properties: props}, nil),
		"lent": New(Config{Type: "rest", URI: catalog.URL}, nil),
	} {
		status = http.StatusForbidden
		_, err := l.Snapshot(t.Context(), tableName, location, 1)
		require.ErrorIs(t, err, fault.Of(fault.Unavailable), name)
		require.ErrorContains(t, err, "403", name)
		status = http.StatusNotFound
		_, err = l.Snapshot(t.Context(), tableName, location, 1)
		require.ErrorIs(t, err, fault.Of(fault.SnapshotGone), name)
	}
}
