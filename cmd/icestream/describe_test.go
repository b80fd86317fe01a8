package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/internal/wire"
)

// serving is a readstate that serves two tables, whatever their committer does.
type serving struct {
	readstatev1.UnimplementedReadStateServiceServer
}

func (serving) DescribeTable(_ context.Context, r *readstatev1.DescribeTableRequest) (*readstatev1.DescribeTableResponse, error) {
	return &readstatev1.DescribeTableResponse{Summary: &readstatev1.TableSummary{Table: r.GetTable(), State: "serving", TableUuid: make([]byte, 16)}}, nil
}

func (serving) ListTables(context.Context, *readstatev1.ListTablesRequest) (*readstatev1.ListTablesResponse, error) {
	return &readstatev1.ListTablesResponse{Tables: []*readstatev1.TableSummary{{Table: "a.b", State: "serving"}, {Table: "a.c", State: "serving"}, {Table: "a.d", State: "serving"}}}, nil
}

// committing is a committer that stopped one of them.
type committing struct {
	adminv1.UnimplementedAdminServiceServer
}

func (committing) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Service: "committer", Components: []*adminv1.Component{
		{Name: "committer/table a.b", Reason: "stopped: loading table a.b: somebody rolled it back"},
		{Name: "committer/table a.c", Ready: true},
		{Name: "committer/table a.d", Reason: "33 quarantine files wait for their table: no route"},
	}}, nil
}

// G9: readers are served what the log holds of a table that was rolled back; who
// looks at it must see that nothing is committed to it any more, and why.
func TestATableWhoseCommitsStoppedIsNotShownAsServingAlone(t *testing.T) {
	start := func(network, address string, register func(*grpc.Server)) string {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
		require.NoError(t, err)
		server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
		register(server)
		go func() { _ = server.Serve(ln) }()
		t.Cleanup(server.Stop)
		return ln.Addr().String()
	}
	socket := testkit.SocketPath(t)
	start("unix", socket, func(s *grpc.Server) { readstatev1.RegisterReadStateServiceServer(s, serving{}) })
	readstate := config.SocketAddress(socket)
	committer := start("tcp", "127.0.0.1:0", func(s *grpc.Server) { adminv1.RegisterAdminServiceServer(s, committing{}) })
	settings := func(committer string) string {
		path := filepath.Join(t.TempDir(), "icestream.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "discovery: { readstate: %q, committer: %q }\n", readstate, committer), 0o600))
		return path
	}
	both := settings(committer)
	code, out, errs := icestream(t, "describe", "a.b", "-c", both)
	require.Equal(t, run.OK, code, errs)
	require.Contains(t, out, "commits stopped: loading table a.b: somebody rolled it back")
	_, out, _ = icestream(t, "describe", "a.c", "-c", both)
	require.NotContains(t, out, "commits")
	_, out, _ = icestream(t, "describe", "a.b", "-o", "json", "-c", both)
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &fields))
	require.Equal(t, "stopped: loading table a.b: somebody rolled it back", fields["commits"])
	require.Contains(t, fields, "summary")
	_, out, _ = icestream(t, "tables", "-c", both)
	require.Regexp(t, `a\.b .*serving, commits stopped\s`, out)
	require.Regexp(t, `a\.c .*serving\s`, out)

	require.Regexp(t, `a\.d .*serving, committer not ready\s`, out, "its commits go on")
	_, out, _ = icestream(t, "describe", "a.d", "-c", both)
	require.Contains(t, out, "\ncommitter not ready: 33 quarantine files wait for their table: no route\n")
	_, out, errs = icestream(t, "tables", "-o", "json", "-c", both)
	var list struct {
		Tables []map[string]any `json:"tables"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &list), errs)
	require.Len(t, list.Tables, 3)
	require.Equal(t, "a.b", list.Tables[0]["table"])
	require.Equal(t, "serving", list.Tables[0]["state"])
	require.Equal(t, "stopped: loading table a.b: somebody rolled it back", list.Tables[0]["commits"])
	require.NotContains(t, list.Tables[1], "commits")

	code, out, errs = icestream(t, "describe", "a.b", "-c", settings(nowhere(t)))
	require.Equal(t, run.OK, code, "the answer of readstate stands for itself")
	require.Contains(t, out, "serving")
	require.Contains(t, errs, "warning: the committer does not say how its tables are")
}
