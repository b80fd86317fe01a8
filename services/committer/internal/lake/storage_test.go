package lake

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/s3file"
	"github.com/icestream/icestream/internal/testkit/faulty"
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

// lent loads a table through a REST catalog that lends settings to reach its files.
func lent(ctx context.Context, t *testing.T, location string, props map[string]string) (*Table, error) {
	t.Helper()
	uri := faulty.Lender(t, location, newBench(t, Settings{}).handle().Metadata(), props)
	l, err := Open(t.Context(), Config{Type: "rest", URI: uri}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return l.Load(ctx, tableName)
}

// A store that takes a connection and never answers does not hold a call for ever.
func TestAStoreThatNeverAnswersEndsTheCall(t *testing.T) {
	store, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	props := map[string]string{"s3.endpoint": "http://" + store.Addr().String(), "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
	ctx := s3file.Within(t.Context(), s3file.Limits{Answer: 50 * time.Millisecond, Attempts: 1})
	gaveUp := func(err error, doing string) {
		t.Helper()
		require.ErrorIs(t, err, fault.Of(fault.Unavailable))
		require.ErrorContains(t, err, doing)
		require.ErrorContains(t, err, "timeout awaiting response headers")
	}

	own, err := Open(t.Context(), Config{Type: "sql", URI: t.TempDir() + "/catalog.db", Warehouse: "s3://lake/wh", Properties: props}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	_, err = own.Create(ctx, tableName, Settings{})
	gaveUp(err, "creating table "+tableName)

	tbl, err := lent(ctx, t, "s3://lake/wh/a.metadata.json", props)
	require.NoError(t, err)
	const path = "s3://lake/wh/a.parquet"
	gaveUp(tbl.deletePaths(ctx, []string{path}), "removing "+path)
}

// The clients of these locations are not ours.
func TestTablesWhoseLocationIsNotGuardedAreRefused(t *testing.T) {
	_, err := lent(t.Context(), t, "oss://lake/wh/a.metadata.json", nil)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
	require.ErrorContains(t, err, tableName)
	require.ErrorContains(t, err, "write s3://")
}
