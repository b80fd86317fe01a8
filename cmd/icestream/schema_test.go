package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

// lakeWithOrders is a configuration whose catalog has the table shop.orders(id string, units long); nothing else runs.
func lakeWithOrders(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	server, err := catalog.Start(t.Context(), catalog.Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	post := func(path, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", path)
	}
	post("/v1/namespaces", `{"namespace":["shop"]}`)
	post("/v1/namespaces/shop/tables", `{"name":"orders","schema":{"type":"struct","schema-id":0,"fields":[
		{"id":1,"name":"id","type":"string","required":true},{"id":2,"name":"units","type":"long","required":false}]}}`)
	path := filepath.Join(dir, "icestream.yaml")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `
kafka: { bootstrap.servers: "127.0.0.1:1" }
registry: { url: "http://127.0.0.1:1" }
catalog: { type: rest, uri: %q, warehouse: "file://%s/warehouse" }
pipelines: [{ name: orders, topics: [orders], table: shop.orders, message: shop.Order }]
`, server.URL(), dir), 0o600))
	return path
}

func protoFile(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "order.proto")
	require.NoError(t, os.WriteFile(path, []byte(`syntax = "proto3"; package shop; import "money/m.proto"; message Order { `+fields+` }`), 0o600))
	return path
}

// What CI of a schema repository runs: a file that is not registered, with nothing but the catalog (issue 4 point 8).
func TestAFileIsComparedWithTheLiveTable(t *testing.T) {
	config := lakeWithOrders(t)
	include := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(include, "money"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(include, "money", "m.proto"), []byte(`syntax = "proto3"; package shop; message M { int64 cents = 1; }`), 0o600))
	plan := func(fields string, more ...string) (run.Code, string, string) {
		return icestream(t, append([]string{"plan", "-c", config, "--proto", protoFile(t, fields), "--include", include}, more...)...)
	}
	code, out, errs := plan("string id = 1; int32 units = 2; M price = 3;")
	require.Equal(t, run.OK, code, "%s%s", out, errs)
	require.Contains(t, out, "+ added price struct<cents: long>")
	require.Contains(t, out, "+ made optional id")
	require.Contains(t, out, "= stored without loss: units from int to long")
	require.Contains(t, out, "no breaking change")
	code, out, _ = plan("string id = 1; string units = 2;")
	require.Equal(t, run.Violated, code)
	require.Contains(t, out, "! column units (field 2): the table has long, the schema has string")
	require.Contains(t, out, "BREAKING")
	code, out, _ = plan("string id = 1; string units = 2;", "-o", "json")
	require.Equal(t, run.Violated, code)
	require.Contains(t, out, `"verdict": "refused"`)
	code, out, _ = plan("string id = 1; Missing x = 2;")
	require.Equal(t, run.Violated, code)
	require.Contains(t, out, "order.proto")
	code, _, errs = plan("string id = 1;", "--pipeline", "other")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, `"orders"`)
	code, _, errs = icestream(t, "plan", "-c", config, "--proto", "no/such/file.proto")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, "--proto")
	code, out, _ = icestream(t, "plan", "-c", config, "--sample", "0")
	require.Equal(t, run.CannotTell, code, "the registry is away")
	require.Contains(t, out, "cannot tell: pipeline orders: subject orders-value")
	code, out, _ = icestream(t, "schema", "diff", "-c", config, "shop.orders", "--proto", protoFile(t, "int64 id = 1;"), "--include", include)
	require.Equal(t, run.Violated, code)
	require.Contains(t, out, "column id")
	code, _, errs = icestream(t, "schema", "diff", "-c", config, "shop.nothing", "--proto", protoFile(t, "int64 id = 1;"))
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, "shop.nothing")
}

func TestSchemaShowsColumnsAndHistory(t *testing.T) {
	config := lakeWithOrders(t)
	code, out, errs := icestream(t, "schema", "show", "-c", config, "shop.orders")
	require.Equal(t, run.OK, code, errs)
	require.Regexp(t, `1\s+id\s+string\s+required`, out)
	require.Regexp(t, `2\s+units\s+long\s+null`, out)
	code, out, _ = icestream(t, "schema", "history", "-c", config, "shop.orders")
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "schema 0 (current): the table was made\n   added id string\n   added units long\n")
	for _, verb := range []string{"show", "history"} {
		code, out, _ = icestream(t, "schema", verb, "-c", config, "shop.orders", "-o", "json")
		require.Equal(t, run.OK, code)
		require.Contains(t, out, "units")
		code, _, errs = icestream(t, "schema", verb, "-c", config, "shop.nothing")
		require.Equal(t, run.CannotTell, code)
		require.Contains(t, errs, "shop.nothing")
	}
}

// decider is a committer that only hears decisions.
type decider struct {
	committerv1.UnimplementedAdminServiceServer

	asked []*committerv1.DecideSchemaRequest
}

func (d *decider) DecideSchema(_ context.Context, req *committerv1.DecideSchemaRequest) (*committerv1.DecideSchemaResponse, error) {
	d.asked = append(d.asked, req)
	if req.GetColumn() == "nothing" {
		return nil, wire.ToStatus(fault.New(fault.NotFound, "nothing that waits matches"))
	}
	return &committerv1.DecideSchemaResponse{
		Decisions: []*committerv1.SchemaDecision{{Pipeline: "p", Field: "2", Column: "units", SourceSchema: "schema id 7", TableType: "long", SourceType: "string"}},
	}, nil
}

func (d *decider) ListSchemaRefusals(context.Context, *committerv1.ListSchemaRefusalsRequest) (*committerv1.ListSchemaRefusalsResponse, error) {
	return &committerv1.ListSchemaRefusalsResponse{Refused: []*committerv1.RefusedSchema{{
		Table: "shop.orders", Pipeline: "p", SourceSchema: "schema id 7",
		Refusals: []*committerv1.SchemaRefusal{{Path: "units", Field: "2", TableType: "long", SourceType: "string", Why: "because"}},
	}}}, nil
}

func TestDecisionsAreTheCommittersToMake(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &decider{}
	s := grpc.NewServer()
	committerv1.RegisterAdminServiceServer(s, d)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	addr := l.Addr().String()
	for verb, action := range map[string]committerv1.SchemaAction{
		"accept": committerv1.SchemaAction_SCHEMA_ACTION_ACCEPT, "ignore": committerv1.SchemaAction_SCHEMA_ACTION_IGNORE,
		"quarantine": committerv1.SchemaAction_SCHEMA_ACTION_QUARANTINE,
	} {
		code, out, errs := icestream(t, "schema", verb, "--addr", addr, "shop.orders", "--pipeline", "p", "--schema", "schema id 7")
		require.Equal(t, run.OK, code, errs)
		require.Contains(t, out, "pipeline p: "+verb+" field 2, column units (long in the table, string in schema id 7)")
		last := d.asked[len(d.asked)-1]
		require.Equal(t, []any{action, "shop.orders", "p", "schema id 7"}, []any{last.GetAction(), last.GetTable(), last.GetPipeline(), last.GetSourceSchema()})
	}
	code, _, errs := icestream(t, "schema", "accept", "--addr", addr, "shop.orders", "--column", "nothing")
	require.Equal(t, run.CannotTell, code)
	require.Contains(t, errs, "nothing that waits matches")
	code, out, _ := icestream(t, "schema", "waiting", "--addr", addr)
	require.Equal(t, run.OK, code)
	require.Contains(t, out, "column units, field 2: the table has long, the records bring string: because")
	s.Stop()
	code, _, errs = icestream(t, "schema", "accept", "--addr", addr, "shop.orders")
	require.Equal(t, run.Dependency, code, "refused while no committer runs")
	require.Contains(t, errs, "nothing answers")
}
