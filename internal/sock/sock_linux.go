//go:build linux && !race

package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

func keep(conn net.Conn) net.Conn {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn: // others may be wrappers whose descriptor carries something else
	default:
		return conn
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return conn
	}
	return &kept{Conn: conn, raw: raw}
}

// kept hides what else its connection can do, such as being copied to, which would go the other way.
type kept struct {
	net.Conn

	raw syscall.RawConn
}

func (c *kept) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return c.ReadReady(func() []byte { return p }, func() {})
}

// ReadReady reads what is there.
func (c *kept) ReadReady(get func() []byte, give func()) (n int, err error) {
	var errno syscall.Errno
	err = c.raw.Read(func(fd uintptr) bool {
		if n, errno = transfer(syscall.SYS_READ, fd, get()); n == 0 {
			give()
		}
		return errno != syscall.EAGAIN
	})
	if err = c.failed("read", err, errno); err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (c *kept) Write(p []byte) (n int, err error) {
	var errno syscall.Errno
	err = c.raw.Write(func(fd uintptr) bool {
		for errno = 0; n < len(p) && errno == 0; {
			var m int
			m, errno = transfer(syscall.SYS_WRITE, fd, p[n:])
			n += m
		}
		return errno != syscall.EAGAIN
	})
	return n, c.failed("write", err, errno)
}

// failed words an error as net does.
func (c *kept) failed(op string, err error, errno syscall.Errno) error {
	switch {
	case err != nil: // closed, or past its deadline
		if e := (*net.OpError)(nil); errors.As(err, &e) {
			e.Op = op
		}
		return err
	case errno != 0:
		return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
	}
	return nil
}

// most is moved by one call of the kernel, some tens of µs: a collection that begins meanwhile waits for its end.
const most = 256 << 10

// transfer reads into p, or writes it, or the beginning of it, without a word to the scheduler. It must not be empty. fd
// does not block: its owner is a connection of net.
func transfer(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	p = p[:min(len(p), most)]
	for {
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
