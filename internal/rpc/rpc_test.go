package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/icestream/icestream/internal/obs"
)

var errBusy = errors.New("busy")

// echo is a service by hand: the request's text says what happens.
type echo struct {
	server  *Server
	started chan struct{} // one token when a stream has begun
}

func (e *echo) unary(ctx context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	switch in.GetValue() {
	case "busy":
		return nil, errBusy
	case "panic":
		panic("bad index")
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return in, nil
}

// watch sends one message and then waits for the drain ("polite") or for its context.
func (e *echo) watch(ss grpc.ServerStream) error {
	var in wrapperspb.StringValue
	if err := ss.RecvMsg(&in); err != nil {
		return err
	}
	if err := ss.SendMsg(&in); err != nil {
		return err
	}
	e.started <- struct{}{}
	switch in.GetValue() {
	case "busy":
		return errBusy
	case "panic":
		panic("bad index")
	case "polite":
		<-e.server.Draining()
		return nil
	}
	<-ss.Context().Done()
	return ss.Context().Err()
}

func (e *echo) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := dec(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, func(ctx context.Context, req any) (any, error) {
				return e.unary(ctx, req.(*wrapperspb.StringValue))
			})
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(_ any, ss grpc.ServerStream) error { return e.watch(ss) }}},
	}
}

const (
	unaryMethod  = "/test.Echo/Unary"
	streamMethod = "/test.Echo/Watch"
)

type bed struct {
	*echo

	conn    *grpc.ClientConn
	metrics *obs.Metrics
	stop    context.CancelFunc
	ended   chan error
}

func toStatus(err error) error {
	if errors.Is(err, errBusy) {
		return status.Error(codes.ResourceExhausted, "busy")
	}
	return err
}

func fromStatus(err error) error {
	if status.Code(err) == codes.ResourceExhausted && status.Convert(err).Message() == "busy" {
		return errBusy
	}
	return err
}

func newBed(t *testing.T, maxMessage int) *bed {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	m := obs.NewMetrics(nil)
	o := Options{Service: "test", ToStatus: toStatus, FromStatus: fromStatus, MaxMessage: maxMessage, Metrics: m}
	b := &bed{echo: &echo{server: NewServer(l, o), started: make(chan struct{}, 1)}, metrics: m, ended: make(chan error, 1)}
	b.server.Registrar().RegisterService(b.desc(), b.echo)
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = cancel
	go func() { b.ended <- b.server.Run(ctx) }()
	conn, err := Dial("passthrough:///memory", o, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	b.conn = conn
	t.Cleanup(func() {
		cancel()
		require.NoError(t, conn.Close())
		require.NoError(t, <-b.ended)
	})
	return b
}

func (b *bed) call(t *testing.T, text string) (string, error) {
	t.Helper()
	out := new(wrapperspb.StringValue)
	err := b.conn.Invoke(t.Context(), unaryMethod, wrapperspb.String(text), out)
	return out.GetValue(), err
}

func (b *bed) open(t *testing.T, text string) grpc.ClientStream {
	t.Helper()
	s, err := b.conn.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Watch", ServerStreams: true}, streamMethod)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(wrapperspb.String(text)))
	require.NoError(t, s.CloseSend())
	require.NoError(t, s.RecvMsg(new(wrapperspb.StringValue)))
	<-b.started
	return s
}

func TestErrorsCrossTheWireAsTheyWereGiven(t *testing.T) {
	b := newBed(t, 0)
	got, err := b.call(t, "hello")
	require.NoError(t, err)
	require.Equal(t, "hello", got)
	_, err = b.call(t, "busy")
	require.Equal(t, errBusy, err)
	require.Equal(t, errBusy, b.open(t, "busy").RecvMsg(new(wrapperspb.StringValue)))
	v, ok := b.metrics.Value("icestream_rpc_server_calls_total", "test", unaryMethod, "ResourceExhausted")
	require.True(t, ok)
	require.InDelta(t, 1, v, 0)
	v, _ = b.metrics.Value("icestream_rpc_client_calls_total", "test", unaryMethod, "OK")
	require.InDelta(t, 1, v, 0)
}

func TestAPanicEndsTheCallAndNotTheServer(t *testing.T) {
	b := newBed(t, 0)
	_, err := b.call(t, "panic")
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "bad index")
	require.Equal(t, codes.Internal, status.Code(b.open(t, "panic").RecvMsg(new(wrapperspb.StringValue))))
	_, err = b.call(t, "still there")
	require.NoError(t, err)
	v, _ := b.metrics.Value("icestream_rpc_server_open", "test", unaryMethod)
	require.InDelta(t, 0, v, 0)
}

func TestACallWithoutADeadlineIsRefusedAndOurClientAlwaysSetsOne(t *testing.T) {
	b := newBed(t, 0)
	_, err := b.server.unary(context.WithoutCancel(t.Context()), nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod},
		func(context.Context, any) (any, error) { return nil, nil })
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "has no deadline")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = b.conn.Invoke(ctx, unaryMethod, wrapperspb.String("wait"), new(wrapperspb.StringValue))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

// TestMessagesUpToTheLimitPass (issue point 10): at the limit, and one byte above it.
func TestMessagesUpToTheLimitPass(t *testing.T) {
	const limit = 8 << 20 // above gRPC's own default of 4 MiB
	b := newBed(t, limit)
	frame := len("\x0a\x00\x00\x00\x00") // tag and four length bytes of a string of this size
	got, err := b.call(t, string(make([]byte, limit-frame)))
	require.NoError(t, err)
	require.Len(t, got, limit-frame)
	_, err = b.call(t, string(make([]byte, limit-frame+1)))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestDrainLetsPoliteStreamsEndAndRefusesNewCalls(t *testing.T) {
	b := newBed(t, 0)
	s := b.open(t, "polite")
	require.NoError(t, b.server.Drain(t.Context()))
	require.ErrorIs(t, s.RecvMsg(new(wrapperspb.StringValue)), io.EOF)
	_, err := b.call(t, "hello")
	require.Equal(t, codes.Unavailable, status.Code(err))
	select {
	case err := <-b.ended:
		t.Fatalf("the server ended by itself after its drain: %v", err)
	default:
	}
}

func TestDrainCutsStubbornStreamsAtItsDeadline(t *testing.T) {
	b := newBed(t, 0)
	s := b.open(t, "stubborn")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.server.Drain(ctx), context.DeadlineExceeded)
	require.Error(t, s.RecvMsg(new(wrapperspb.StringValue)))
}

func TestAServerThatIsAwayFailsAtOnceAsUnavailable(t *testing.T) {
	l := bufconn.Listen(1)
	require.NoError(t, l.Close())
	conn, err := Dial("passthrough:///memory", Options{}, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	err = conn.Invoke(t.Context(), unaryMethod, wrapperspb.String("x"), new(wrapperspb.StringValue))
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestHealthFollowsReadinessBothWays(t *testing.T) {
	b := newBed(t, 0)
	h := obs.NewHealth(nil)
	c := h.Component("buffer/journal")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.server.FollowHealth(ctx, h, "buffer", "test.Echo") }()
	client := healthpb.NewHealthClient(b.conn)
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	next := func() healthpb.HealthCheckResponse_ServingStatus {
		resp, err := watch.Recv()
		require.NoError(t, err)
		return resp.GetStatus()
	}
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, next())
	c.Ready()
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, next())
	c.NotReady("epoch wanted")
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, next())
	cancel()
	require.NoError(t, <-done)
}

func TestATakenPortIsNamed(t *testing.T) {
	s, err := Listen(t.Context(), "127.0.0.1:0", Options{Service: "buffer"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.listener.Close()) }()
	_, err = Listen(t.Context(), s.Address(), Options{Service: "buffer"})
	require.ErrorContains(t, err, s.Address())
	require.ErrorContains(t, err, "buffer")
}

func TestDeclaredMetricsFollowTheRules(t *testing.T) {
	require.NoError(t, obs.Check([]obs.Group{{Title: "RPC", Defs: Defs()}}))
}
