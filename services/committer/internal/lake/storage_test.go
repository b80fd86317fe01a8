package lake

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/stretchr/testify/require"
)

// G6: what a store refuses to show is not gone, whatever its words, and whether our
// settings made the client or those that a catalog vends with a table.
func TestAFileThatS3DeniesIsNotGone(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-amz-request-id", "A301B") // as good as a file of that name while the store cannot be reached
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(s.Close)
	props := map[string]string{"s3.endpoint": s.URL, "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
	for _, cfg := range []Config{
		{Type: "sql", URI: "unused.db", Warehouse: "s3://lake/wh", Properties: props},
		{Type: "rest", URI: "http://unused", Warehouse: "shop"}, // the properties come with the table
	} {
		l, err := Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		name := "s3://lake/wh/00301-a.metadata.json"
		files, err := iceio.LoadFS(l.storage(t.Context()), props, name)
		require.NoError(t, err)
		_, err = files.(iceio.ReadFileIO).ReadFile(name)
		require.True(t, denied(err), "%s: %v", cfg.Type, err)
		_, err = exists(files, name)
		require.True(t, denied(err), "%s: %v", cfg.Type, err)
		require.Error(t, remove(files, name))
	}
}
