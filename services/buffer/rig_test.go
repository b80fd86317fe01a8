package buffer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer"
)

var (
	tableID = ident.UUID{1, 2}
	p0      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 0}
	p1      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 1}
)

// rowSchema is one binary column beside _lsn.
func rowSchema(t testing.TB) (*schema.Schema, event.Schema) {
	t.Helper()
	s := &schema.Schema{Columns: append([]*schema.Node{{Name: "v", Type: schema.Of(schema.Binary)}}, schema.MetadataColumns(true, false)...)}
	s.AssignIDs()
	b, err := json.Marshal(s)
	require.NoError(t, err)
	return s, event.Schema{Fingerprint: "fp1", TableSchemaID: 1, Columns: b}
}

// entry makes an append of rows whose values have size bytes.
func entry(t testing.TB, p ident.Partition, first, next int64, size int) *event.Append {
	t.Helper()
	s, sch := rowSchema(t)
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrowx.RowSchema(s))
	defer b.Release()
	for o := first; o < next; o++ {
		b.Field(0).(*array.BinaryBuilder).Append(bytes.Repeat([]byte{byte(o)}, size))
		b.Field(1).(*array.Int64Builder).Append(o)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	raw, err := arrowx.EncodeBytes(rec)
	require.NoError(t, err)
	return &event.Append{Header: event.Header{
		Partition: p, Range: ident.Range{First: first, Next: next}, LeaderEpoch: 1, Revision: 7, Fingerprint: sch.Fingerprint,
		Rows: next - first, Digest: ident.Digest{byte(first), byte(next), byte(size)}, MinTime: 1, MaxTime: next,
	}, RowBatch: raw}
}

func state(seq int64, epoch ident.LogEpoch, v ident.Vector, lsn ident.LSNState) event.Commit {
	ps := ident.Positions{}
	for p, next := range v {
		ps[p] = ident.Position{Next: next, LeaderEpoch: -1}
	}
	return event.Commit{
		Table: tableID, SnapshotID: 1000 + seq, SequenceNumber: seq, CommitTime: time.UnixMicro(seq).UTC(), LogEpoch: epoch, WriterEpoch: 1,
		Positions: ps, LSN: lsn, MetadataLocation: "file:///t/metadata.json",
	}
}

// bed is a running buffer with a client.
type bed struct {
	t       testing.TB
	fs      *file.Mem
	svc     *buffer.Service
	log     bufferv1.TableLogServiceClient
	read    readstatev1.ReadStateServiceClient
	conn    *grpc.ClientConn
	metrics *obs.Metrics
	health  *obs.Health
	stop    func() error
}

// settings is a configuration with these paths and values over the defaults.
func settings(t testing.TB, values ...string) *config.Config {
	t.Helper()
	overrides := []config.Override{{Path: "node.data_dir", Value: "data"}}
	for i := 0; i < len(values); i += 2 {
		overrides = append(overrides, config.Override{Path: values[i], Value: values[i+1]})
	}
	cfg, _, err := config.Load("", nil, overrides)
	require.NoError(t, err)
	return cfg
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

func start(t testing.TB, fs *file.Mem, values ...string) *bed {
	t.Helper()
	b := startOn(t, fs, settings(t, values...))
	b.fs = fs
	return b
}

func startOn(t testing.TB, fs file.FS, cfg *config.Config) *bed {
	t.Helper()
	var err error
	b := &bed{t: t, metrics: obs.NewMetrics(nil)}
	b.health = obs.NewHealth(b.metrics)
	b.svc, err = buffer.New(t.Context(), buffer.Config{Settings: cfg, Heartbeat: 50 * time.Millisecond, Drain: 2 * time.Second},
		buffer.Deps{Network: onto(listen(t)), FS: fs, Metrics: b.metrics, Health: b.health})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.svc.Run(ctx) }()
	b.conn, err = rpc.Dial(b.svc.Addr(), rpc.Options{Service: "test", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus})
	require.NoError(t, err)
	b.log, b.read = bufferv1.NewTableLogServiceClient(b.conn), readstatev1.NewReadStateServiceClient(b.conn)
	b.stop = sync.OnceValue(func() error { cancel(); err := <-ended; _ = b.conn.Close(); return err })
	t.Cleanup(func() { _ = b.stop() })
	return b
}

// crash ends the buffer and starts another one from what the disk holds.
func (b *bed) crash(settings ...string) *bed {
	b.t.Helper()
	disk := b.fs.Crash(false, nil)
	_ = b.stop()
	return start(b.t, disk, settings...)
}

func (b *bed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *bed) openTable(name string, c event.Commit) *bufferv1.OpenTableResponse {
	b.t.Helper()
	_, sch := rowSchema(b.t)
	out, err := b.log.OpenTable(b.ctx(), &bufferv1.OpenTableRequest{Table: name, Commit: wire.CommitToProto(&c), Schemas: wire.SchemasToProto([]event.Schema{sch})})
	require.NoError(b.t, err)
	return out
}

func (b *bed) grant(name string, nonce uint64, c event.Commit) error {
	_, err := b.log.GrantEpoch(b.ctx(), &bufferv1.GrantEpochRequest{Table: name, Nonce: nonce, Commit: wire.CommitToProto(&c)})
	return err
}

func (b *bed) report(c event.Commit) error {
	_, err := b.log.ReportCommit(b.ctx(), &bufferv1.ReportCommitRequest{Table: orders, Commit: wire.CommitToProto(&c)})
	return err
}

var firstLSN = ident.LSNState{Start: 100, Next: 100, Reserved: 100 + ident.Reservation}

// serve opens a new table and grants it log epoch 1.
func (b *bed) serve(name string) {
	b.t.Helper()
	zero := ident.Vector{p0: 0, p1: 0}
	out := b.openTable(name, state(1, 0, zero, ident.LSNState{}))
	require.False(b.t, out.GetServing())
	require.NoError(b.t, b.grant(name, out.GetEpochWanted().GetNonce(), state(2, 1, zero, firstLSN)))
}

// sender is an append stream with the answers it got.
type sender struct {
	t       testing.TB
	stream  grpc.BidiStreamingClient[bufferv1.AppendRequest, bufferv1.AppendResponse]
	cancel  context.CancelFunc
	welcome *bufferv1.AppendWelcome
}

func (b *bed) hello(name string) (*sender, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	b.t.Cleanup(cancel)
	stream, err := b.log.Append(ctx)
	require.NoError(b.t, err)
	s := &sender{t: b.t, stream: stream, cancel: cancel}
	require.NoError(b.t, stream.SendMsg(&wire.AppendFrame{Msg: &bufferv1.AppendRequest{Message: &bufferv1.AppendRequest_Hello{
		Hello: &bufferv1.AppendHello{Table: name, Pipeline: "orders", Ingest: "test"},
	}}}))
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	s.welcome = m.GetWelcome()
	require.NotNil(b.t, s.welcome, "the welcome is the first answer")
	return s, nil
}

func (b *bed) sender(name string) *sender {
	b.t.Helper()
	s, err := b.hello(name)
	require.NoError(b.t, err)
	return s
}

func (s *sender) send(a *event.Append) {
	s.t.Helper()
	require.NoError(s.t, s.stream.SendMsg(&wire.AppendFrame{Entry: a}))
}

// until receives until want takes a message.
func (s *sender) until(want func(*bufferv1.AppendResponse) bool) *bufferv1.AppendResponse {
	s.t.Helper()
	for {
		m, err := s.stream.Recv()
		require.NoError(s.t, err)
		if want(m) {
			return m
		}
	}
}

func (s *sender) result() *bufferv1.AppendResult {
	s.t.Helper()
	return s.until(func(m *bufferv1.AppendResponse) bool { return m.GetResult() != nil }).GetResult()
}

func (s *sender) put(a *event.Append) *bufferv1.AppendResult {
	s.t.Helper()
	s.send(a)
	return s.result()
}

func (s *sender) accept(a *event.Append) {
	s.t.Helper()
	r := s.put(a)
	require.Equal(s.t, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, r.GetOutcome(), r.GetText())
}

// follower is a follow stream.
type follower struct {
	t      testing.TB
	stream grpc.ServerStreamingClient[bufferv1.FollowResponse]
	cancel context.CancelFunc
}

func (b *bed) follow(role bufferv1.FollowerRole, boot []byte, seq uint64) *follower {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	b.t.Cleanup(cancel)
	stream, err := b.log.Follow(ctx, &bufferv1.FollowRequest{Table: orders, Role: role, Follower: "f", Boot: boot, Seq: seq})
	require.NoError(b.t, err)
	return &follower{b.t, stream, cancel}
}

// next returns the next message that is no heartbeat, pin or progress.
func (f *follower) next() *wire.FollowFrame {
	f.t.Helper()
	for {
		m := &wire.FollowFrame{}
		require.NoError(f.t, f.stream.RecvMsg(m))
		if m.Entry != nil || m.Msg.GetHeartbeat() == nil && m.Msg.GetPins() == nil && m.Msg.GetProgress() == nil {
			return m
		}
	}
}

// image reads a whole image.
func (f *follower) image() (*bufferv1.FollowResponse, []*event.Append) {
	f.t.Helper()
	begin := f.next()
	require.NotNil(f.t, begin.Msg.GetImageBegin())
	var hot []*event.Append
	for range begin.Msg.GetImageBegin().GetHot() {
		m := f.next()
		require.NotNil(f.t, m.Entry)
		hot = append(hot, m.Entry)
	}
	require.NotNil(f.t, f.next().Msg.GetImageEnd())
	return begin.Msg, hot
}

// onto is a network whose only address is l.
func onto(l net.Listener) rpc.Network {
	return rpc.Network{Listen: func(context.Context, string) (net.Listener, error) { return l, nil }}
}
