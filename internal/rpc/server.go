package rpc

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/icestream/icestream/internal/obs"
)

// Server is a gRPC server on one listener. Register services before Run.
type Server struct {
	o        Options
	listener net.Listener
	grpc     *grpc.Server
	health   *health.Server

	drainOnce sync.Once
	draining  chan struct{}
}

// Listen opens the address (host:port, or a socket of the machine) and returns a server on it. An address that is taken
// is an error that names it; the caller adds which setting it came from.
func Listen(ctx context.Context, address string, o Options) (*Server, error) {
	l, err := o.Network.listen(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("opening the gRPC address %s of %s: %w", address, o.Service, err)
	}
	return NewServer(l, o), nil
}

// NewServer returns a server on a listener that is open, such as one in memory.
func NewServer(l net.Listener, o Options) *Server {
	s := &Server{o: o.normal(), listener: l, health: health.NewServer(), draining: make(chan struct{})}
	options := []grpc.ServerOption{
		grpc.Creds(kept{s.o.Credentials}),
		grpc.MaxRecvMsgSize(s.o.MaxMessage),
		grpc.MaxSendMsgSize(s.o.MaxMessage),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
	}
	if s.o.Codec != nil {
		options = append(options, grpc.ForceServerCodecV2(s.o.Codec))
	}
	s.grpc = grpc.NewServer(options...)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	return s
}

// Registrar is where the generated code registers services.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// Address returns the address in use, with the port that was chosen where it was 0.
func (s *Server) Address() string { return addressOf(s.listener) }

// Draining is closed when the server has begun to drain. Handlers of endless streams end then, so that the drain
// does not have to cut them.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Run serves until the context ends, and then cuts what is left. Drain before that for an orderly end.
func (s *Server) Run(ctx context.Context) error {
	reflection.Register(s.grpc)
	stop := context.AfterFunc(ctx, s.grpc.Stop)
	defer stop()
	if err := s.grpc.Serve(s.listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving gRPC at %s: %w", s.Address(), err)
	}
	<-ctx.Done() // drained: the life cycle decides when it is over
	return nil
}

// Drain refuses new calls, shows NOT_SERVING, closes Draining and waits for the calls in progress; those that are
// still there when the context ends are cut, and reported.
func (s *Server) Drain(ctx context.Context) error {
	s.drainOnce.Do(func() { close(s.draining) })
	s.health.Shutdown()
	done := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
		return fmt.Errorf("draining the gRPC server of %s: calls were cut after the deadline: %w", s.o.Service, context.Cause(ctx))
	}
}

// FollowHealth shows the readiness of a service (see obs.Health.Report) in gRPC's health service, under the empty
// name and under the given gRPC service names, until the context ends.
func (s *Server) FollowHealth(ctx context.Context, h *obs.Health, service string, names ...string) error {
	changed, stop := h.Watch()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			state := healthpb.HealthCheckResponse_NOT_SERVING
			if h.Report(service).Ready {
				state = healthpb.HealthCheckResponse_SERVING
			}
			s.health.SetServingStatus("", state)
			for _, name := range names {
				s.health.SetServingStatus(name, state)
			}
		}
	}
}

// ours tells calls of our own services from gRPC's health and reflection, which tools call without a deadline.
func ours(method string) bool { return !strings.HasPrefix(method, "/grpc.") }

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer s.measure(info.FullMethod, true, &err)()
	if _, ok := ctx.Deadline(); !ok && ours(info.FullMethod) {
		return nil, status.Errorf(codes.InvalidArgument, "calling %s: the call has no deadline; set one, such as 30s", info.FullMethod)
	}
	defer s.settle(info.FullMethod, &err)
	return handler(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer s.measure(info.FullMethod, false, &err)()
	defer s.settle(info.FullMethod, &err)
	return handler(srv, ss)
}

// settle turns a panic into codes.Internal and an error into its status. It is deferred, so that recover works.
func (s *Server) settle(method string, err *error) {
	if p := recover(); p != nil {
		s.o.Log.Error("call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "calling %s: panic: %v; this is a fault of the server, see its log", method, p)
		return
	}
	if *err != nil {
		*err = s.o.ToStatus(*err)
	}
}

// measure counts a call from now until the returned function runs.
func (s *Server) measure(method string, unary bool, err *error) func() {
	open := s.o.Metrics.Gauge(serverOpen(), s.o.Service, method)
	open.Add(1)
	started := time.Now()
	return func() {
		open.Add(-1)
		s.o.Metrics.Counter(serverCalls(), s.o.Service, method, status.Code(*err).String()).Inc()
		if unary {
			s.o.Metrics.Histogram(serverSeconds(), s.o.Service, method).Observe(time.Since(started).Seconds())
		}
	}
}
