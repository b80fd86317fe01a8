package sock_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/icestream/icestream/internal/sock"
	"github.com/icestream/icestream/internal/testkit"
)

// pair is both ends of a connection.
func pair(t testing.TB, network string) (a, b net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = testkit.SocketPath(t)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	a, err = new(net.Dialer).DialContext(t.Context(), network, l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// Deadlines, ends, closing in the midst of a call, all at once: what connections of net do.
func TestAKeptConnectionIsOneOfNet(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
				a, b = pair(t, network)
				return sock.Keep(a), sock.Keep(b), func() { _, _ = a.Close(), b.Close() }, nil
			})
		})
	}
}

func TestWhatIsWrittenArrivesWhateverTheBuffersHold(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			a, b := pair(t, network)
			sent := bytes.Repeat([]byte("0123456789abcdef-"), 1<<19) // more than buffers of the kernel take
			go func() {
				_, _ = sock.Keep(a).Write(sent)
				_ = a.Close()
			}()
			var got bytes.Buffer
			_, err := io.CopyBuffer(&got, struct{ io.Reader }{sock.Keep(b)}, make([]byte, 70_001))
			require.NoError(t, err)
			require.True(t, bytes.Equal(sent, got.Bytes()))
		})
	}
}

func TestErrorsAreThoseOfNet(t *testing.T) {
	a, b := pair(t, "tcp")
	kept := sock.Keep(a)
	p := make([]byte, 1)

	require.NoError(t, kept.SetReadDeadline(time.Unix(1, 0)))
	_, err := kept.Read(p)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, theirs := a.Read(p)
	require.EqualError(t, err, theirs.Error())
	require.NoError(t, kept.SetReadDeadline(time.Time{}))

	require.NoError(t, b.(*net.TCPConn).SetLinger(0))
	require.NoError(t, b.Close())
	_, err = kept.Read(p)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "read tcp "+a.LocalAddr().String()+"->"+a.RemoteAddr().String()+": read: connection reset by peer", err.Error())
	_, err = kept.Write(p)
	require.ErrorIs(t, err, syscall.EPIPE)

	require.NoError(t, kept.Close())
	_, err = kept.Read(p)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = kept.Write(p)
	require.ErrorIs(t, err, net.ErrClosed)
}

// Who waits for something to read holds no memory for it.
func TestMemoryIsAskedForWhenThereIsSomethingToRead(t *testing.T) {
	a, b := pair(t, "unix")
	reader, ok := sock.Keep(a).(sock.ReadyReader)
	if !ok {
		t.Skip("this system or build reads as net does")
	}
	held, waits := 0, make(chan struct{}, 1)
	get := func() []byte { held++; return make([]byte, 16) }
	give := func() {
		held--
		select {
		case waits <- struct{}{}:
		default:
		}
	}
	go func() {
		<-waits // nothing was there
		_, _ = b.Write([]byte("hello"))
	}()
	n, err := reader.ReadReady(get, give)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, 1, held)

	held = 0
	require.NoError(t, b.Close())
	n, err = reader.ReadReady(get, give)
	require.Equal(t, io.EOF, err)
	require.Zero(t, n)
	require.Zero(t, held)
}

// A wrapper's descriptor carries something else than the wrapper does.
func TestWrappersStayAsTheyAre(t *testing.T) {
	a, _ := pair(t, "tcp")
	secret := tls.Client(a, &tls.Config{MinVersion: tls.VersionTLS13})
	require.Same(t, secret, sock.Keep(secret))
	twice := sock.Keep(a)
	require.Same(t, twice, sock.Keep(twice))
}
