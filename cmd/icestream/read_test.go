package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/icestream/icestream/cmd/icestream/internal/dev"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

func TestPositionsOfAReadAreUnderstoodOrExplained(t *testing.T) {
	for text, check := range map[string]func(*readstatev1.At) bool{
		"":                          func(a *readstatev1.At) bool { return a == nil },
		"latest":                    func(a *readstatev1.At) bool { return a == nil },
		"token:ist1.abc":            func(a *readstatev1.At) bool { return a.GetToken() == "ist1.abc" },
		"lsn:12":                    func(a *readstatev1.At) bool { return a.GetLsn() == 12 },
		"snapshot:8744736658442914": func(a *readstatev1.At) bool { return a.GetSnapshotId() == 8744736658442914 },
		"time:2026-01-31T12:00:00Z": func(a *readstatev1.At) bool { return a.GetTime().AsTime().Month() == time.January },
		"time:2026-01-31T12:00:00+02:00": func(a *readstatev1.At) bool {
			return a.GetTime().AsTime().Equal(time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC))
		},
	} {
		at, err := parseAt(text)
		require.NoError(t, err, text)
		require.True(t, check(at), text)
	}
	for _, text := range []string{"now", "lsn:", "lsn:x", "snapshot:1.5", "time:yesterday", "lsn"} {
		_, err := parseAt(text)
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument), text)
		require.ErrorContains(t, err, "--at", text)
	}
}

// tails answers Tail by a script, one entry a call, and keeps what was asked for.
type tails struct {
	readstatev1.UnimplementedReadStateServiceServer

	script []func(readstatev1.ReadStateService_TailServer) error
	asked  []*readstatev1.TailRequest
}

func (s *tails) Tail(req *readstatev1.TailRequest, stream readstatev1.ReadStateService_TailServer) error {
	call := len(s.asked)
	s.asked = append(s.asked, req)
	return s.script[call](stream)
}

// serve serves s and returns a client of it.
func serve(t *testing.T, s readstatev1.ReadStateServiceServer) readstatev1.ReadStateServiceClient {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	readstatev1.RegisterReadStateServiceServer(server, s)
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	conn, err := boot.Dial(ln.Addr().String(), config.Default().Limits.MaxMessage())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return readstatev1.NewReadStateServiceClient(conn)
}

func position(next int64) *readstatev1.OffsetVector {
	return &readstatev1.OffsetVector{Offsets: []*typesv1.PartitionOffset{{Partition: &typesv1.Partition{Topic: "t"}, Next: next}}}
}

// G4: a broken tail goes on exactly where it stood.
func TestATailResumesWhereItBroke(t *testing.T) {
	rows := func(next int64, ids ...int64) *readstatev1.TailResponse {
		return &readstatev1.TailResponse{
			Message:  &readstatev1.TailResponse_Rows{Rows: &readstatev1.TailRows{Data: rowsOf(t, ids), Rows: int64(len(ids))}},
			Position: position(next),
		}
	}
	away := wire.ToStatus(fault.New(fault.Unavailable, "the buffer is away"))
	s := &tails{script: []func(readstatev1.ReadStateService_TailServer) error{
		func(st readstatev1.ReadStateService_TailServer) error { return errors.Join(st.Send(rows(2, 2))) },
		func(readstatev1.ReadStateService_TailServer) error { return away },
		func(st readstatev1.ReadStateService_TailServer) error { return st.Send(rows(9, 4, 6, 8)) },
	}}
	first := s.script[0]
	s.script[0] = func(st readstatev1.ReadStateService_TailServer) error {
		if err := first(st); err != nil {
			return err
		}
		return away
	}
	var out, errs bytes.Buffer
	tail := &tailer{api: serve(t, s), rows: rowPrinter{format: "csv", limit: 3, out: &out}, errs: &errs}
	require.NoError(t, tail.run(t.Context(), &readstatev1.TailRequest{Table: "a.b", FromStart: true}))
	require.Equal(t, "id,note\n2,\n4,\n6,\n", out.String(), "one head, nothing twice, nothing beyond the limit")
	require.Contains(t, errs.String(), "the buffer is away")
	require.Len(t, s.asked, 3)
	require.True(t, s.asked[0].GetFromStart())
	for _, again := range s.asked[1:] {
		require.False(t, again.GetFromStart())
		require.EqualValues(t, 2, again.GetFrom().GetOffsets()[0].GetNext())
	}
}

func TestATailEndsAtAnErrorThatNoRetryHelps(t *testing.T) {
	s := &tails{script: []func(readstatev1.ReadStateService_TailServer) error{
		func(readstatev1.ReadStateService_TailServer) error {
			return wire.ToStatus(fault.New(fault.UnknownTable, "no such table"))
		},
	}}
	var out, errs bytes.Buffer
	tail := &tailer{api: serve(t, s), rows: rowPrinter{format: "csv", out: &out}, errs: &errs}
	err := tail.run(t.Context(), &readstatev1.TailRequest{Table: "a.b"})
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
	require.Empty(t, errs.String())
}

func TestATailEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &tails{script: []func(readstatev1.ReadStateService_TailServer) error{
		func(readstatev1.ReadStateService_TailServer) error {
			cancel()
			return wire.ToStatus(fault.New(fault.NotReady, "recovering"))
		},
	}}
	var out, errs bytes.Buffer
	tail := &tailer{api: serve(t, s), rows: rowPrinter{format: "csv", out: &out}, errs: &errs, pause: time.Hour}
	require.ErrorIs(t, tail.run(ctx, &readstatev1.TailRequest{Table: "a.b"}), context.Canceled)
}

func TestAFolderOfNoRunIsExplained(t *testing.T) {
	code, _, errs := icestream(t, "read", "--dir", filepath.Join(t.TempDir(), "nothing"), "a.b")
	require.EqualValues(t, 2, code)
	require.Contains(t, errs, "no folder of `icestream dev`")
}

// A dev folder in which nothing runs still shows what was committed.
func TestAFolderInWhichNothingRunsIsReadFromItsCatalog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	var out bytes.Buffer
	require.NoError(t, dev.Run(t.Context(), dev.Options{Dir: dir, Records: 2000, Seed: 1, Program: "icestream", Out: &out}), "%s", &out)
	require.Contains(t, out.String(), "icestream read --dir "+dir)

	code, rows, errs := icestream(t, "read", "--dir", dir, "shop.orders", "--limit", "3", "--columns", "order_id,_lsn", "-o", "csv")
	require.EqualValues(t, 0, code, errs)
	require.Equal(t, 4, strings.Count(rows, "\n"), "%s", rows)
	require.Contains(t, errs, "committed rows only")

	code, _, errs = icestream(t, "audit", "--dir", dir, "shop.orders", "--deep")
	require.EqualValues(t, 0, code, errs)
	code, rows, errs = icestream(t, "offsets", "show", "--dir", dir, "shop.orders")
	require.EqualValues(t, 0, code, errs)
	require.Contains(t, rows, "orders/orders[0]")
	const quarantine, sayMain = "shop.orders__quarantine", "is the quarantine table of shop.orders: say shop.orders"
	for _, c := range []struct {
		args []string
		code run.Code
		says string
	}{
		{[]string{"read", "shop.nope"}, run.CannotTell, "holds no table shop.nope"},
		{[]string{"read", "shop.order"}, run.CannotTell, "did you mean shop.orders?"},
		{[]string{"read", "shop.order__quarantine"}, run.CannotTell, "did you mean shop.orders__quarantine?"},
		{[]string{"read", "shop.orders", "--columns", "nope"}, run.CannotTell, `no column "nope"`},
		{[]string{"read", "shop.orders", "--at", "lsn:1"}, run.Dependency, "nothing is running"},
		{[]string{"tail", "shop.orders"}, run.Dependency, "nothing is running"},
		{[]string{"audit", "shop.order"}, run.CannotTell, "there is no such table"},
		{[]string{"audit", "shop.order"}, run.CannotTell, "did you mean shop.orders?"},
		{[]string{"audit", "shp.orders"}, run.CannotTell, "did you mean shop.orders?"},
		{[]string{"offsets", "show", "shop.order"}, run.CannotTell, "did you mean shop.orders?"},
		{[]string{"schema", "show", "shop.order"}, run.CannotTell, "did you mean shop.orders?"},
		{[]string{"audit", "shop.orders", "--against", "kafka"}, run.Dependency, "nothing is running"},
		{[]string{"commit", "shop.orders"}, run.Dependency, "read, audit (not --against kafka), offsets show, quarantine list and show"},
		{[]string{"audit", quarantine}, run.CannotTell, sayMain},
		{[]string{"offsets", "show", quarantine}, run.CannotTell, sayMain},
		{[]string{"quarantine", "list", quarantine}, run.CannotTell, sayMain},
		{[]string{"quarantine", "show", quarantine}, run.CannotTell, sayMain},
		{[]string{"schema", "show", quarantine}, run.CannotTell, sayMain},
		{[]string{"schema", "history", quarantine}, run.CannotTell, sayMain},
		{[]string{"quarantine", "show", "shop.orders", "--reason", "bad_magic"}, run.OK, "no quarantined record of shop.orders has the reason bad_magic; it has "},
		{[]string{"quarantine", "show", "shop.orders", "--partition", "77"}, run.OK, "quarantined records of shop.orders matches"},
		{[]string{"offsets", "reset", "shop.orders", "--to", "table"}, run.Dependency, "nothing is running"},
	} {
		code, rows, errs = icestream(t, append(c.args, "--dir", dir)...)
		require.Equal(t, c.code, code, "%v: %s", c.args, errs)
		require.Contains(t, rows+errs, c.says, "%v", c.args)
		if c.code != run.OK {
			require.Empty(t, rows, "%v: a refusal is no report", c.args)
		}
	}
}
