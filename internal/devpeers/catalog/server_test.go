package catalog

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/devpeers"
)

var arrowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func rows(n int) array.RecordReader {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema)
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append("row")
	}
	reader, err := array.NewRecordReader(arrowSchema, []arrow.RecordBatch{b.NewRecordBatch()})
	if err != nil {
		panic(err)
	}
	return reader
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func client(t *testing.T, s *Server) *rest.Catalog {
	t.Helper()
	c, err := rest.NewCatalog(t.Context(), "test", s.URL())
	require.NoError(t, err)
	return c
}

func icebergSchema(t *testing.T) *iceberg.Schema {
	t.Helper()
	schema, err := table.ArrowSchemaToIcebergWithFreshIDs(arrowSchema, false)
	require.NoError(t, err)
	return schema
}

func newTable(t *testing.T, c *rest.Catalog, ident table.Identifier, props iceberg.Properties) *table.Table {
	t.Helper()
	if ok, err := c.CheckNamespaceExists(t.Context(), ident[:1]); err != nil || !ok {
		require.NoError(t, err)
		require.NoError(t, c.CreateNamespace(t.Context(), ident[:1], nil))
	}
	tbl, err := c.CreateTable(t.Context(), ident, icebergSchema(t), catalog.WithProperties(props))
	require.NoError(t, err)
	return tbl
}

func count(t *testing.T, tbl *table.Table) int64 {
	t.Helper()
	_, batches, err := tbl.Scan().ToArrowRecords(t.Context())
	require.NoError(t, err)
	var n int64
	for batch, err := range batches {
		require.NoError(t, err)
		n += batch.NumRows()
		batch.Release()
	}
	return n
}

// call sends a raw request and returns status and decoded body.
func call(t *testing.T, s *Server, method, path string, body any) (int, map[string]any) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, bytes.NewReader(data))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var out map[string]any
	if len(raw) > 0 {
		require.NoError(t, json.Unmarshal(raw, &out), string(raw))
	}
	return resp.StatusCode, out
}

func requireError(t *testing.T, code int, kind string, gotCode int, body map[string]any) {
	t.Helper()
	require.Equal(t, code, gotCode, body)
	e := body["error"].(map[string]any)
	require.Equal(t, kind, e["type"])
	require.InDelta(t, code, e["code"], 0)
	require.NotEmpty(t, e["message"])
}

func TestTablesOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	c := client(t, s)
	tbl := newTable(t, c, table.Identifier{"shop", "orders"}, nil)
	require.Equal(t, s.Warehouse()+"/shop.db/orders", tbl.Location())
	tbl, err := tbl.Append(t.Context(), rows(10), iceberg.Properties{"icestream.commit-id": "c1"})
	require.NoError(t, err)
	require.Equal(t, "c1", tbl.CurrentSnapshot().Summary.Properties["icestream.commit-id"])
	require.NoError(t, s.Close())

	c = client(t, start(t, dir))
	tbl, err = c.LoadTable(t.Context(), table.Identifier{"shop", "orders"})
	require.NoError(t, err)
	require.EqualValues(t, 10, count(t, tbl))
}

func TestCommitOnAStaleHeadAnswers409AndChangesNothing(t *testing.T) {
	c := client(t, start(t, t.TempDir()))
	ident := table.Identifier{"shop", "orders"}
	first := newTable(t, c, ident, nil)
	stale, err := c.LoadTable(t.Context(), ident)
	require.NoError(t, err)
	_, err = first.Append(t.Context(), rows(1), nil)
	require.NoError(t, err)
	_, err = stale.Append(t.Context(), rows(5), nil)
	require.ErrorIs(t, err, table.ErrCommitFailed)

	now, err := c.LoadTable(t.Context(), ident)
	require.NoError(t, err)
	require.EqualValues(t, 1, count(t, now))
	_, _, err = c.CommitTable(t.Context(), ident, []table.Requirement{table.AssertTableUUID(uuid.New())}, nil)
	require.ErrorIs(t, err, table.ErrCommitFailed, "another table's uuid")
}

// A server remembers the newest version of a table; what another process on the same file commits, or who drops the
// table and makes it anew, must be seen all the same.
func TestWhatAnotherProcessDidToATableIsSeen(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := client(t, start(t, dir)), client(t, start(t, dir))
	ident := table.Identifier{"shop", "orders"}
	tbl := newTable(t, ours, ident, nil)
	for _, n := range []string{"1", "2"} {
		_, _, err := theirs.CommitTable(t.Context(), ident, nil, []table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{"n": n})})
		require.NoError(t, err)
		now, err := ours.LoadTable(t.Context(), ident)
		require.NoError(t, err)
		require.Equal(t, n, now.Properties()["n"])
	}
	require.NoError(t, theirs.DropTable(t.Context(), ident))
	_, err := ours.LoadTable(t.Context(), ident)
	require.ErrorIs(t, err, catalog.ErrNoSuchTable)
	again := newTable(t, theirs, ident, nil)
	now, err := ours.LoadTable(t.Context(), ident)
	require.NoError(t, err)
	require.Equal(t, again.Metadata().TableUUID(), now.Metadata().TableUUID())
	require.NotEqual(t, tbl.Metadata().TableUUID(), now.Metadata().TableUUID())
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	c := client(t, start(t, t.TempDir()))
	ident := table.Identifier{"shop", "orders"}
	newTable(t, c, ident, nil)
	const writers, each = 3, 4
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				tbl, err := c.LoadTable(t.Context(), ident)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err = tbl.Append(t.Context(), rows(1), nil); err == nil {
					done++
				}
			}
		})
	}
	wg.Wait()
	tbl, err := c.LoadTable(t.Context(), ident)
	require.NoError(t, err)
	require.EqualValues(t, writers*each, count(t, tbl))
	require.Len(t, tbl.Metadata().Snapshots(), writers*each)
}

func TestEvolveRenameRegisterDrop(t *testing.T) {
	s := start(t, t.TempDir())
	c, ctx := client(t, s), t.Context()
	ident, moved := table.Identifier{"shop", "orders"}, table.Identifier{"shop", "orders_2"}
	tbl := newTable(t, c, ident, nil)
	tx := tbl.NewTransaction()
	require.NoError(t, tx.UpdateSchema(true, false).AddColumn([]string{"note"}, iceberg.PrimitiveTypes.String, "", false, nil).Commit())
	tbl, err := tx.Commit(ctx)
	require.NoError(t, err)
	require.Equal(t, 3, tbl.Schema().NumFields())

	_, err = c.RenameTable(ctx, ident, moved)
	require.NoError(t, err)
	_, err = c.LoadTable(ctx, ident)
	require.ErrorIs(t, err, catalog.ErrNoSuchTable)
	tbl, err = c.LoadTable(ctx, moved)
	require.NoError(t, err)

	require.NoError(t, c.DropTable(ctx, moved))
	back, err := c.RegisterTable(ctx, ident, tbl.MetadataLocation())
	require.NoError(t, err)
	require.Equal(t, tbl.Metadata().TableUUID(), back.Metadata().TableUUID())
	_, err = c.RegisterTable(ctx, ident, tbl.MetadataLocation())
	require.ErrorIs(t, err, catalog.ErrTableAlreadyExists)

	var names []string
	for id, err := range c.ListTables(ctx, table.Identifier{"shop"}) {
		require.NoError(t, err)
		names = append(names, id[len(id)-1])
	}
	require.Equal(t, []string{"orders"}, names)
	require.NoError(t, c.PurgeTable(ctx, ident))
	exists, err := c.CheckTableExists(ctx, ident)
	require.NoError(t, err)
	require.False(t, exists)
}

func TestNamespaces(t *testing.T) {
	s := start(t, t.TempDir())
	c, ctx := client(t, s), t.Context()
	require.NoError(t, c.CreateNamespace(ctx, table.Identifier{"a"}, iceberg.Properties{"owner": "x"}))
	require.ErrorIs(t, c.CreateNamespace(ctx, table.Identifier{"a"}, nil), catalog.ErrNamespaceAlreadyExists)
	require.NoError(t, c.CreateNamespace(ctx, table.Identifier{"a", "b"}, nil))
	summary, err := c.UpdateNamespaceProperties(ctx, table.Identifier{"a"}, []string{"owner", "none"}, iceberg.Properties{"k": "v"})
	require.NoError(t, err)
	require.Equal(t, []string{"none"}, summary.Missing)
	props, err := c.LoadNamespaceProperties(ctx, table.Identifier{"a"})
	require.NoError(t, err)
	require.Equal(t, iceberg.Properties{"k": "v"}, props)
	top, err := c.ListNamespaces(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, []table.Identifier{{"a"}}, top)
	below, err := c.ListNamespaces(ctx, table.Identifier{"a"})
	require.NoError(t, err)
	require.Equal(t, []table.Identifier{{"a", "b"}}, below)

	newTable(t, c, table.Identifier{"shop", "orders"}, nil)
	code, body := call(t, s, http.MethodDelete, "/v1/namespaces/shop", nil)
	requireError(t, 409, "NamespaceNotEmptyException", code, body)
	require.NoError(t, c.DropNamespace(ctx, table.Identifier{"a", "b"}))
	require.ErrorIs(t, c.DropNamespace(ctx, table.Identifier{"a", "b"}), catalog.ErrNoSuchNamespace)
}

func TestStagedTableAppearsWithItsFirstCommit(t *testing.T) {
	s := start(t, t.TempDir())
	c, ctx := client(t, s), t.Context()
	require.NoError(t, c.CreateNamespace(ctx, table.Identifier{"shop"}, nil))
	code, body := call(t, s, http.MethodPost, "/v1/namespaces/shop/tables", map[string]any{
		"name": "staged", "schema": icebergSchema(t), "stage-create": true, "properties": map[string]string{"p": "1"},
	})
	require.Equal(t, 200, code)
	require.NotContains(t, body, "metadata-location")
	raw, err := json.Marshal(body["metadata"])
	require.NoError(t, err)
	meta, err := table.ParseMetadataBytes(raw)
	require.NoError(t, err)
	exists, err := c.CheckTableExists(ctx, table.Identifier{"shop", "staged"})
	require.NoError(t, err)
	require.False(t, exists)

	unpartitioned := meta.PartitionSpec()
	order := meta.SortOrder()
	commit := map[string]any{
		"requirements": table.Requirements{table.AssertCreate()},
		"updates": table.Updates{
			table.NewAssignUUIDUpdate(meta.TableUUID()), table.NewUpgradeFormatVersionUpdate(2),
			table.NewAddSchemaUpdate(meta.CurrentSchema()), table.NewSetCurrentSchemaUpdate(-1),
			table.NewAddPartitionSpecUpdate(&unpartitioned, true), table.NewSetDefaultSpecUpdate(-1),
			table.NewAddSortOrderUpdate(&order), table.NewSetDefaultSortOrderUpdate(-1),
			table.NewSetLocationUpdate(meta.Location()), table.NewSetPropertiesUpdate(meta.Properties()),
		},
	}
	code, body = call(t, s, http.MethodPost, "/v1/namespaces/shop/tables/staged", commit)
	require.Equal(t, 200, code, body)
	tbl, err := c.LoadTable(ctx, table.Identifier{"shop", "staged"})
	require.NoError(t, err)
	require.Equal(t, meta.TableUUID(), tbl.Metadata().TableUUID())
	require.Equal(t, "1", tbl.Properties()["p"])
	code, body = call(t, s, http.MethodPost, "/v1/namespaces/shop/tables/staged", commit)
	requireError(t, 409, "AlreadyExistsException", code, body)
}

func TestTransactionWithOneStaleTableCommitsNone(t *testing.T) {
	s := start(t, t.TempDir())
	c, ctx := client(t, s), t.Context()
	a := newTable(t, c, table.Identifier{"shop", "a"}, nil)
	b := newTable(t, c, table.Identifier{"shop", "b"}, nil)
	commit := func() error {
		multi, err := catalog.NewMultiTableTransaction(c)
		require.NoError(t, err)
		for _, tbl := range []*table.Table{a, b} {
			tx := tbl.NewTransaction()
			require.NoError(t, tx.Append(ctx, rows(3), nil))
			require.NoError(t, multi.AddTransaction(tx))
		}
		_, err = multi.CommitAndReload(ctx)
		return err
	}
	require.NoError(t, commit())
	var err error
	a, err = c.LoadTable(ctx, table.Identifier{"shop", "a"})
	require.NoError(t, err)
	require.ErrorIs(t, commit(), table.ErrCommitFailed, "b is stale")
	a, err = c.LoadTable(ctx, table.Identifier{"shop", "a"})
	require.NoError(t, err)
	require.EqualValues(t, 3, count(t, a))
}

func TestOldMetadataFilesAreRemovedWhenTheTableWantsIt(t *testing.T) {
	s := start(t, t.TempDir())
	c := client(t, s)
	tbl := newTable(t, c, table.Identifier{"shop", "orders"}, iceberg.Properties{
		"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2",
	})
	for range 6 {
		_, location, err := c.CommitTable(t.Context(), tbl.Identifier(), nil,
			[]table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{"n": uuid.NewString()})})
		require.NoError(t, err)
		require.NotEmpty(t, location)
	}
	dir := strings.TrimPrefix(tbl.Location(), "file://") + "/metadata"
	files, err := filepath.Glob(dir + "/*.metadata.json")
	require.NoError(t, err)
	require.Len(t, files, 3, "the current one and two before it")
}

func TestErrorsCarryTheRightCodeAndType(t *testing.T) {
	s := start(t, t.TempDir())
	newTable(t, client(t, s), table.Identifier{"shop", "orders"}, nil)
	snapshotless := map[string]any{"requirements": []any{}, "updates": []any{
		map[string]any{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77},
	}}
	for _, c := range []struct {
		method, path string
		body         any
		code         int
		kind         string
	}{
		{"GET", "/v1/namespaces/shop/tables/none", nil, 404, "NoSuchTableException"},
		{"GET", "/v1/namespaces/none/tables/orders", nil, 404, "NoSuch"},
		{"GET", "/v1/namespaces/none", nil, 404, "NoSuchNamespaceException"},
		{"GET", "/v1/namespaces/none/tables", nil, 404, "NoSuchNamespaceException"},
		{"POST", "/v1/namespaces/shop/tables/none", map[string]any{}, 404, "NoSuchTableException"},
		{"POST", "/v1/namespaces/shop/tables", map[string]any{"name": "orders", "schema": icebergSchema(t)}, 409, "AlreadyExistsException"},
		{"POST", "/v1/namespaces/shop/tables", map[string]any{"name": "x"}, 400, "BadRequestException"},
		{"POST", "/v1/namespaces/shop/tables/orders", "no object", 400, "BadRequestException"},
		{"POST", "/v1/namespaces/shop/tables/orders", map[string]any{"requirements": []any{map[string]any{"type": "assert-moon"}}}, 400, "BadRequestException"},
		{"POST", "/v1/namespaces/shop/tables/orders", snapshotless, 400, "BadRequestException"},
		{"POST", "/v1/namespaces/shop/register", map[string]any{"name": "x", "metadata-location": "file:///none"}, 400, "BadRequestException"},
		{"POST", "/v1/nothing", nil, 404, "NotFoundException"},
	} {
		code, body := call(t, s, c.method, c.path, c.body)
		require.Equal(t, c.code, code, "%s %s: %v", c.method, c.path, body)
		require.Contains(t, body["error"].(map[string]any)["type"], c.kind)
	}
	code, _ := call(t, s, http.MethodHead, "/v1/namespaces/shop/tables/none", nil)
	require.Equal(t, 404, code)
	code, _ = call(t, s, http.MethodHead, "/v1/namespaces/shop/tables/orders", nil)
	require.Equal(t, 204, code)
}

func TestStartRefusesATakenPortAndAnUnsafeFolder(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, err = Start(t.Context(), Config{Dir: t.TempDir(), Port: ln.Addr().(*net.TCPAddr).Port})
	require.ErrorIs(t, err, devpeers.ErrPortInUse)
	require.ErrorContains(t, err, ln.Addr().String())
	_, err = Start(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "with space")})
	require.ErrorContains(t, err, "without spaces")
}
