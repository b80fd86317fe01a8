package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"

	"google.golang.org/grpc"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/file"
)

// socketBuffer is asked for on both ends of a socket of the machine: half a batch waits in it, so that the sender does
// not wake the receiver for every few frames. The kernel may grant less.
const socketBuffer = 1 << 20

// socketListener is a socket of the machine. Its lock says that it is in use, for as long as the process lives.
type socketListener struct {
	*net.UnixListener

	lock io.Closer
	once sync.Once
}

// listenSocket opens a socket at path. What a process that is gone has left there is removed: whether it is gone is told
// by a lock beside it, because a socket that nobody answers may belong to one that is about to.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	lock, err := file.OS{}.Lock(path + ".lock")
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, fmt.Errorf("the socket is in use by another process, which holds %s.lock: end that, or name another path", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the folder of the socket is missing: make it, for the user of the service: %w", err)
	case err != nil:
		return nil, err
	}
	l, err := openSocket(ctx, path)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &socketListener{UnixListener: l, lock: lock}, nil
}

func openSocket(ctx context.Context, path string) (*net.UnixListener, error) {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case st.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and no socket: name another path", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("removing the socket that another process left: %w", err)
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

func (l *socketListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	widen(conn)
	return conn, nil
}

// Close removes the socket, and then the right to it.
func (l *socketListener) Close() error {
	err := l.UnixListener.Close()
	l.once.Do(func() { err = errors.Join(err, l.lock.Close()) })
	return err
}

// dialSocket is the way of a client to the socket at path.
func dialSocket(path string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		widen(conn.(*net.UnixConn))
		return conn, nil
	})
}

// widen is a wish: a connection with the buffers of the system works too.
func widen(conn *net.UnixConn) {
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
}

// addressOf is the address by which clients reach l.
func addressOf(l net.Listener) string {
	if a := l.Addr(); a.Network() == "unix" {
		return config.SocketAddress(a.String())
	}
	return l.Addr().String()
}
