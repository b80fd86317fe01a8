package rpc

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/testkit"
)

// serveAt serves echo at address until the returned function runs.
func serveAt(t *testing.T, address string) (s *Server, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Listen(ctx, address, Options{Service: "test"})
	require.NoError(t, err)
	e := &echo{server: s}
	s.Registrar().RegisterService(e.desc(), e)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() { cancel(); require.NoError(t, <-ended) }
}

func requireEcho(t *testing.T, address string) {
	t.Helper()
	conn, err := Dial(address, Options{Service: "test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	var out wrapperspb.StringValue
	require.NoError(t, conn.Invoke(t.Context(), unaryMethod, wrapperspb.String("hello"), &out))
	require.Equal(t, "hello", out.GetValue())
}

func TestASocketCarriesCallsAndIsGoneAfterwards(t *testing.T) {
	path := testkit.SocketPath(t)
	s, stop := serveAt(t, config.SocketAddress(path))
	require.Equal(t, config.SocketAddress(path), s.Address())
	requireEcho(t, s.Address())
	require.NoError(t, Reach(t.Context(), s.Address()))
	stop()
	require.ErrorIs(t, Reach(t.Context(), s.Address()), fs.ErrNotExist)
	_, err := os.Lstat(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestASocketThatAKilledProcessLeftIsTakenOver(t *testing.T) {
	path := testkit.SocketPath(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	_, err = os.Lstat(path)
	require.NoError(t, err)

	s, stop := serveAt(t, config.SocketAddress(path))
	requireEcho(t, s.Address())
	stop()
}

func TestASocketInUseIsRefusedToOthersAndGoesOnServing(t *testing.T) {
	path := testkit.SocketPath(t)
	s, stop := serveAt(t, config.SocketAddress(path))
	_, err := Listen(t.Context(), s.Address(), Options{Service: "other"})
	require.ErrorContains(t, err, "in use by another process")
	require.ErrorContains(t, err, s.Address())
	requireEcho(t, s.Address())
	stop()
	_, stop = serveAt(t, s.Address())
	requireEcho(t, s.Address())
	stop()
}

func TestAFileThatIsNoSocketIsLeftAlone(t *testing.T) {
	path := testkit.SocketPath(t)
	require.NoError(t, os.WriteFile(path, []byte("notes"), 0o600))
	_, err := Listen(t.Context(), config.SocketAddress(path), Options{Service: "test"})
	require.ErrorContains(t, err, "no socket")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "notes", string(b))
}

func TestAFolderThatIsMissingIsNamed(t *testing.T) {
	path := filepath.Join(filepath.Dir(testkit.SocketPath(t)), "none", "x.sock")
	_, err := Listen(t.Context(), config.SocketAddress(path), Options{Service: "test"})
	require.ErrorContains(t, err, "the folder of the socket is missing")
	require.ErrorContains(t, err, path)
}
