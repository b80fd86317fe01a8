package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
)

// role is held by one buffer at a time.
type role struct {
	mu    sync.Mutex
	owner string
}

func (r *role) give(owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = owner
}

func (r *role) Owner(context.Context, string, discovery.Role) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owner, nil
}

func (*role) Instances(context.Context, discovery.Role) ([]string, error) { return nil, nil }

// buffers are two table logs, a and b, that note what they are called for.
type buffers struct {
	conns map[string]*grpc.ClientConn
	heard chan string
}

func (b *buffers) Conn(address string) (*grpc.ClientConn, error) { return b.conns[address], nil }

type noting struct {
	bufferv1.UnimplementedTableLogServiceServer

	name  string
	heard chan string
}

func (n *noting) Follow(_ *bufferv1.FollowRequest, s grpc.ServerStreamingServer[bufferv1.FollowResponse]) error {
	if err := s.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	n.heard <- "follow " + n.name
	beat := time.NewTicker(5 * time.Second)
	defer beat.Stop()
	for {
		if err := s.Send(&bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Heartbeat{Heartbeat: &bufferv1.Heartbeat{}}}); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-beat.C:
		}
	}
}

func (n *noting) OpenTable(context.Context, *bufferv1.OpenTableRequest) (*bufferv1.OpenTableResponse, error) {
	n.heard <- "open " + n.name
	return &bufferv1.OpenTableResponse{}, nil
}

func (n *noting) PublishSchema(context.Context, *bufferv1.PublishSchemaRequest) (*bufferv1.PublishSchemaResponse, error) {
	n.heard <- "schema " + n.name
	return &bufferv1.PublishSchemaResponse{}, nil
}

func (n *noting) GrantEpoch(context.Context, *bufferv1.GrantEpochRequest) (*bufferv1.GrantEpochResponse, error) {
	n.heard <- "grant " + n.name
	return &bufferv1.GrantEpochResponse{}, nil
}

func (n *noting) ReportCommit(context.Context, *bufferv1.ReportCommitRequest) (*bufferv1.ReportCommitResponse, error) {
	n.heard <- "report " + n.name
	return &bufferv1.ReportCommitResponse{}, nil
}

// twoBuffers runs a test in virtual time with a follower that has begun at a.
func twoBuffers(t *testing.T, test func(t *testing.T, r *role, log *bufferClient, heard chan string)) {
	synctest.Test(t, func(t *testing.T) {
		b := &buffers{conns: map[string]*grpc.ClientConn{}, heard: make(chan string, 100)}
		for _, name := range []string{"a:1", "b:1"} {
			l := bufconn.Listen(1 << 20)
			srv := grpc.NewServer()
			bufferv1.RegisterTableLogServiceServer(srv, &noting{name: name, heard: b.heard})
			go func() { _ = srv.Serve(l) }() // ends with Stop
			defer srv.Stop()
			conn, err := grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			b.conns[name] = conn
		}
		r := &role{owner: "a:1"}
		log := &bufferClient{table: "shop.orders", resolve: r, dial: b, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = follow.Run(ctx, follow.Options{Conn: log, Table: "shop.orders", Role: bufferv1.FollowerRole_FOLLOWER_ROLE_COMMITTER}, deaf{})
		}()
		defer func() { cancel(); <-ended }()
		require.Equal(t, "follow a:1", <-b.heard)
		test(t, r, log, b.heard)
	})
}

// deaf takes in nothing.
type deaf struct{}

func (deaf) Image(event.Image) error { return nil }
func (deaf) Event(event.Event) error { return nil }
func (deaf) Notice(follow.Notice)    {}

func call(t *testing.T, log *bufferClient) {
	t.Helper()
	_, err := log.OpenTable(t.Context(), event.Commit{}, nil, nil)
	require.NoError(t, err)
	require.NoError(t, log.PublishSchema(t.Context(), ident.UUID{}, 1, event.Schema{}))
	require.NoError(t, log.GrantEpoch(t.Context(), 1, event.Commit{}))
	require.NoError(t, log.ReportCommit(t.Context(), event.Commit{}))
}

func next(heard chan string, n int) (out []string) {
	for range n {
		out = append(out, <-heard)
	}
	return out
}

// G11: while the role moves, what is opened and granted is the log that is followed: a log that nobody opened would wait
// for ever, and so would one whose grant went to another.
func TestCallsReachTheBufferThatIsFollowed(t *testing.T) {
	twoBuffers(t, func(t *testing.T, r *role, log *bufferClient, heard chan string) {
		r.give("b:1")
		call(t, log)
		require.Equal(t, []string{"open a:1", "schema a:1", "grant a:1", "report a:1"}, next(heard, 4))
		at, err := log.address(t.Context())
		require.NoError(t, err)
		require.Equal(t, "a:1", at, "ingest is sent there, too")
	})
}

// G11: a table moves to another buffer, and the one before lives on and ends no stream: the next one goes to the owner,
// and so do calls from then on.
func TestAStreamIsEndedWhenAnotherBufferOwnsTheTable(t *testing.T) {
	twoBuffers(t, func(t *testing.T, r *role, log *bufferClient, heard chan string) {
		r.give("b:1")
		select {
		case now := <-heard:
			require.Equal(t, "follow b:1", now)
		case <-time.After(20 * time.Second):
			require.Fail(t, "the stream stays where it is")
		}
		call(t, log)
		require.Equal(t, []string{"open b:1", "schema b:1", "grant b:1", "report b:1"}, next(heard, 4))
	})
}
