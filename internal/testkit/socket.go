package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// SocketPath is where a socket can be made; nothing is there. It is short: the
// folder of a test may be longer than the path of a socket can be.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // t.TempDir is too long
	if err != nil {
		t.Fatalf("making a folder for a socket: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "x.sock")
}
