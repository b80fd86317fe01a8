package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Dial returns a client for the server at address (host:port, or a socket of the machine). It does not connect yet:
// calls fail at once while the server is away (with what FromStatus makes of codes.Unavailable), and the connection
// comes back by itself. Retries are the caller's, who knows what may be repeated. Close it after use.
func Dial(address string, o Options, extra ...grpc.DialOption) (*grpc.ClientConn, error) {
	o = o.normal()
	c := &client{o: o}
	call := []grpc.CallOption{grpc.MaxCallRecvMsgSize(o.MaxMessage), grpc.MaxCallSendMsgSize(o.MaxMessage)}
	if o.Codec != nil {
		call = append(call, grpc.ForceCodecV2(o.Codec))
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(kept{o.Credentials}),
		grpc.WithDefaultCallOptions(call...),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithDisableServiceConfig(), // nothing but this code decides about retries and balancing
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(), // services are near each other; a proxy of the environment is for the world outside
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(c.stream),
	}, extra...)
	target, own := o.Network.client(address)
	conn, err := grpc.NewClient(target, append(options, own...)...)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", address, err)
	}
	return conn, nil
}

type client struct{ o Options }

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.Timeout)
		defer cancel()
	}
	started := time.Now()
	err := invoke(ctx, method, req, reply, cc, opts...)
	c.o.Metrics.Counter(clientCalls(), c.o.Service, method, status.Code(err).String()).Inc()
	c.o.Metrics.Histogram(clientSeconds(), c.o.Service, method).Observe(time.Since(started).Seconds())
	return c.from(err)
}

func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		c.o.Metrics.Counter(clientCalls(), c.o.Service, method, status.Code(err).String()).Inc()
		return nil, c.from(err)
	}
	return &clientStream{s, c}, nil
}

// from maps an error, but never the end of a stream, which is no failure.
func (c *client) from(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return c.o.FromStatus(err)
}

// clientStream maps the errors of a stream.
type clientStream struct {
	grpc.ClientStream

	client *client
}

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.client.from(err)
}

func (s *clientStream) SendMsg(m any) error { return s.client.from(s.ClientStream.SendMsg(m)) }
func (s *clientStream) RecvMsg(m any) error { return s.client.from(s.ClientStream.RecvMsg(m)) }
func (s *clientStream) CloseSend() error    { return s.client.from(s.ClientStream.CloseSend()) }
