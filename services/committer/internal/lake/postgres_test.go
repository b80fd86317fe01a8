package lake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
)

// G2: the sql catalog on a database server refuses a commit whose base is not the
// head any more, and takes the next one.
func TestASQLCatalogOnPostgresCommitsAndRefusesAStaleBase(t *testing.T) {
	uri := startPostgres(t)
	dir := t.TempDir()
	open := func(credential string) *Lake {
		l, err := Open(t.Context(), Config{
			Type: "sql", URI: uri, Warehouse: "file://" + dir, Properties: map[string]string{"credential": credential},
		}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		return l
	}

	stranger, err := open("icestream:wrong-secret"), error(nil)
	require.Eventually(t, func() bool { // a server that is starting up is away, not final
		_, err = stranger.Load(t.Context(), tableName)
		return !errors.Is(err, fault.Of(fault.Unavailable))
	}, 60*time.Second, 20*time.Millisecond)
	require.ErrorIs(t, err, fault.Of(fault.Unauthorized))
	require.NotContains(t, err.Error(), "wrong-secret")

	l := open("icestream:secret")
	_, err = l.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test"})
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl, dir: dir}
	b.setSchema()
	b.commitRows(part(0), 10)

	zombie, err := open("icestream:secret").Load(t.Context(), tableName)
	require.NoError(t, err)
	stale := &bench{TB: t, lake: zombie.lake, Table: zombie, dir: dir}
	change := stale.change(KindProgress)
	staged := stale.stage(change)
	b.commitRows(part(0), 10)
	require.Error(t, zombie.Send(t.Context(), staged))

	stale.reload()
	require.False(t, zombie.Find(change.CommitID))
	stale.commitRows(part(0), 5)
	require.EqualValues(t, 25, stale.rows(tableName))
}

// startPostgres runs a server of its own for the test and returns its URI. The
// test is skipped where PostgreSQL is not installed.
func startPostgres(t *testing.T) string {
	t.Helper()
	bin := postgresFolder(t)
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(password, []byte("secret"), 0o644))
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o700))
	as := postgresUser(t, dir, data)
	run := func(name string, args ...string) *exec.Cmd {
		// The context of a test ends before its clean-up, which is to end the server.
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(bin, name), args...)
		cmd.SysProcAttr, cmd.Dir = as, data
		return cmd
	}
	out, err := run("initdb", "-D", data, "-U", "icestream", "--auth=scram-sha-256", "--pwfile="+password, "--no-sync").CombinedOutput()
	require.NoError(t, err, string(out))
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, free.Close())
	server := run("postgres", "-D", data, "-p", port, "-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		require.NoError(t, server.Process.Signal(syscall.SIGQUIT))
		var exit *exec.ExitError
		if err := server.Wait(); err != nil {
			require.ErrorAs(t, err, &exit)
		}
	})
	return fmt.Sprintf("postgres://%s/postgres?sslmode=disable", address)
}

// postgresFolder is where the programs of PostgreSQL are.
func postgresFolder(t *testing.T) string {
	t.Helper()
	if found, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(found); err == nil {
			return filepath.Dir(real)
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	require.NoError(t, err)
	if len(found) == 0 {
		t.Skip("PostgreSQL (initdb) is not installed")
	}
	return filepath.Dir(found[len(found)-1])
}

// postgresUser is whom the server runs as: it refuses to run as root, who hands
// the folders to somebody else.
func postgresUser(t *testing.T, parent, data string) *syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(u.Gid)
		require.NoError(t, err)
		require.NoError(t, os.Chown(data, uid, gid))
		for _, dir := range []string{parent, filepath.Dir(parent)} { // a test's folder is two deep
			require.NoError(t, os.Chmod(dir, 0o755))
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	t.Skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
	return nil
}
