package rpc

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
)

// Pool keeps one client connection per address. It is safe for concurrent use.
type Pool struct {
	o Options

	mu   sync.Mutex
	open map[string]*grpc.ClientConn
}

// NewPool returns an empty pool whose connections have the given options.
func NewPool(o Options) *Pool { return &Pool{o: o, open: map[string]*grpc.ClientConn{}} }

// Conn returns the connection to address, made at the first call. It is the pool's to
// close.
func (p *Pool) Conn(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn := p.open[address]; conn != nil {
		return conn, nil
	}
	conn, err := Dial(address, p.o)
	if err != nil {
		return nil, err
	}
	p.open[address] = conn
	return conn, nil
}

// Close closes all connections. The pool may be used again.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for address, conn := range p.open {
		errs = append(errs, conn.Close())
		delete(p.open, address)
	}
	return errors.Join(errs...)
}
