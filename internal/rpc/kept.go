package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"

	"github.com/icestream/icestream/internal/sock"
)

// kept are credentials over connections that keep the processor. The handshake is where a connection of either side, of any
// network, passes after gRPC has set it up.
type kept struct {
	credentials.TransportCredentials
}

func (k kept) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return k.TransportCredentials.ClientHandshake(ctx, authority, keep(conn))
}

func (k kept) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return k.TransportCredentials.ServerHandshake(keep(conn))
}

// Clone keeps what these are.
func (k kept) Clone() credentials.TransportCredentials { return kept{k.TransportCredentials.Clone()} }

func keep(conn net.Conn) net.Conn {
	conn = sock.Keep(conn)
	if r, ok := conn.(sock.ReadyReader); ok {
		return readyConn{conn, r}
	}
	return conn
}

// readyConn takes memory from gRPC's pool when there is something to read, as gRPC does by itself with connections that it
// knows: half a MiB that waits for nothing would else belong to each.
type readyConn struct {
	net.Conn

	reader sock.ReadyReader
}

// ReadOnReady is what gRPC looks for.
func (c readyConn) ReadOnReady(size int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
	n, err = c.reader.ReadReady(func() []byte {
		buf = pool.Get(size)
		return *buf
	}, func() {
		pool.Put(buf)
		buf = nil
	})
	return buf, n, err
}
