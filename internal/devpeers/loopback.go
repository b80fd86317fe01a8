// Package devpeers holds what the embedded peers of `icestream dev` share: a loopback listener whose errors a user can
// act on, and the life of a small HTTP server. The peers themselves are the packages below it: kafka, registry,
// catalog, and the order generator. Only cmd/icestream and tests import them.
package devpeers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// ErrPortInUse is wrapped by Listen when the wanted port is taken. The error text names the address; a caller that has
// a flag for the port adds the flag's name.
var ErrPortInUse = errors.New("port is in use")

// Listen opens a TCP listener on 127.0.0.1; port 0 takes a free one.
func Listen(port int) (net.Listener, error) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listening on %s: %w", address, ErrPortInUse)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return ln, nil
}

// HTTPServer is an HTTP server on loopback that runs until Close.
type HTTPServer struct {
	addr   string
	server *http.Server
	done   chan struct{}
}

// ServeHTTP serves the handler on 127.0.0.1:port (0: a free one) until Close.
func ServeHTTP(port int, handler http.Handler) (*HTTPServer, error) {
	ln, err := Listen(port)
	if err != nil {
		return nil, err
	}
	s := &HTTPServer{
		addr:   ln.Addr().String(),
		server: &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second},
		done:   make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(ln) // always ErrServerClosed: the listener is ours and only Close ends it
	}()
	return s, nil
}

// Addr is the listening address, host:port.
func (s *HTTPServer) Addr() string { return s.addr }

// URL is the address as http://host:port.
func (s *HTTPServer) URL() string { return "http://" + s.addr }

// Close takes no new requests, lets running ones finish for at most five seconds, then cuts them.
func (s *HTTPServer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.server.Close()
	}
	<-s.done
	return err
}
