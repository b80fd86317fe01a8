package cold

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/s3file"
	"github.com/icestream/icestream/internal/testkit/faulty"
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

	catalog := faulty.Lender(t, location, newWarehouse(t).tbl.Metadata(), props)

	for name, l := range map[string]*Lake{
		"own":  New(Config{Type: "sql", Properties: props}, nil),
		"lent": New(Config{Type: "rest", URI: catalog}, nil),
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

// A store that takes a connection and never answers does not hold a read for ever.
func TestAReadFromAStoreThatNeverAnswersEnds(t *testing.T) {
	store, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	props := map[string]string{"s3.endpoint": "http://" + store.Addr().String(), "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
	const location = "s3://lake/wh/a.metadata.json"
	ctx := s3file.Within(t.Context(), s3file.Limits{Answer: 50 * time.Millisecond, Attempts: 1})
	for name, cfg := range map[string]Config{
		"own":  {Type: "sql", Properties: props},
		"lent": {Type: "rest", URI: faulty.Lender(t, location, newWarehouse(t).tbl.Metadata(), props)},
	} {
		_, err := New(cfg, nil).Snapshot(ctx, tableName, location, 1)
		require.ErrorIs(t, err, fault.Of(fault.Unavailable), name)
		require.ErrorContains(t, err, "reading the metadata of table "+tableName+" at "+location, name)
		require.ErrorContains(t, err, "timeout awaiting response headers", name)
	}
}

// The clients of these locations are not ours.
func TestLocationsThatAreNotGuardedAreRefused(t *testing.T) {
	_, err := New(Config{Type: "sql"}, nil).Snapshot(t.Context(), tableName, "oss://lake/wh/a.metadata.json", 1)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
	require.ErrorContains(t, err, "write s3://")
}
