package file_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/file"
)

// Both file systems must behave alike where a log depends on it.
func TestFileSystemsBehaveAlike(t *testing.T) {
	for name, make := range map[string]func(t *testing.T) (file.FS, string){
		"os":  func(t *testing.T) (file.FS, string) { return file.OS{}, t.TempDir() },
		"mem": func(*testing.T) (file.FS, string) { return file.NewMem(), "dir" },
	} {
		t.Run(name, func(t *testing.T) {
			f, dir := make(t)
			a := filepath.Join(dir, "a")
			require.NoError(t, f.MkdirAll(dir))
			h, err := f.Create(a)
			require.NoError(t, err)
			_, err = f.Create(a)
			require.ErrorIs(t, err, fs.ErrExist)
			_, err = h.WriteAt([]byte("hello"), 3)
			require.NoError(t, err)
			require.NoError(t, h.Sync())
			require.NoError(t, f.SyncDir(dir))
			size, err := h.Size()
			require.NoError(t, err)
			require.Equal(t, int64(8), size)
			require.NoError(t, h.Truncate(4))
			b := []byte("....")
			n, err := h.ReadAt(b, 0)
			require.NoError(t, err)
			require.Equal(t, "\x00\x00\x00h", string(b[:n]))
			require.NoError(t, h.Close())
			require.NoError(t, f.Rename(a, filepath.Join(dir, "b")))
			names, err := f.List(dir)
			require.NoError(t, err)
			require.Equal(t, []string{"b"}, names)
			_, err = f.Open(a)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.NoError(t, f.Remove(filepath.Join(dir, "b")))

			lock, err := f.Lock(filepath.Join(dir, "lock"))
			require.NoError(t, err)
			_, err = f.Lock(filepath.Join(dir, "lock"))
			require.Error(t, err)
			require.NoError(t, lock.Close())
			lock, err = f.Lock(filepath.Join(dir, "lock"))
			require.NoError(t, err)
			require.NoError(t, lock.Close())
		})
	}
}

func TestACrashKeepsOnlyWhatWasSynced(t *testing.T) {
	m := file.NewMem()
	h, err := m.Create("d/a")
	require.NoError(t, err)
	_, err = h.WriteAt([]byte("one"), 0)
	require.NoError(t, err)
	require.NoError(t, h.Sync())
	_, err = m.Crash(false, nil).Open("d/a")
	require.ErrorIs(t, err, fs.ErrNotExist, "the name was not synced")
	require.NoError(t, m.SyncDir("d"))
	_, err = h.WriteAt([]byte("two"), 3)
	require.NoError(t, err)
	read := func(m *file.Mem) string {
		f, err := m.Open("d/a")
		require.NoError(t, err)
		n, _ := f.Size()
		b := make([]byte, n)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, "one", read(m.Crash(false, nil)))
	require.Equal(t, "onet", read(m.Crash(false, func(_ string, _, w []byte) []byte { return w[:4] })))
	m.Before(func(op file.Op, _ string) error {
		if op == file.OpWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	_, err = h.WriteAt([]byte("x"), 6)
	require.True(t, file.NoSpace(err))
	require.False(t, file.NoSpace(errors.New("other")))
	require.Equal(t, "onetwo", read(m.Crash(true, func(_ string, _, w []byte) []byte { return w })))
}

// A crash may keep any of the names that were changed since the last SyncDir, and a rename whole or not at all.
func TestACrashKeepsAnyOfTheNamesThatWereNotSynced(t *testing.T) {
	m := file.NewMem()
	make := func(name string) {
		h, err := m.Create(name)
		require.NoError(t, err)
		_, err = h.WriteAt([]byte("x"), 0)
		require.NoError(t, err)
		require.NoError(t, h.Sync())
	}
	make("d/old")
	make("d/was")
	require.NoError(t, m.SyncDir("d"))
	make("d/new")
	make("d/newer")
	make("d/ghost")
	require.NoError(t, m.Remove("d/ghost"))
	require.NoError(t, m.Remove("d/old"))
	require.NoError(t, m.Rename("d/was", "d/is"))
	list := func(survivors ...string) []string {
		names, err := m.CrashNames(func(name string) bool { return name == "d/ghost" || slices.Contains(survivors, name) }, nil).List("d")
		require.NoError(t, err)
		return names
	}
	require.Equal(t, []string{"old", "was"}, list())
	require.Equal(t, []string{"newer", "old", "was"}, list("d/newer"))
	require.Equal(t, []string{"was"}, list("d/old"))
	require.Equal(t, []string{"is", "old"}, list("d/was"))
	require.Equal(t, []string{"is", "new", "newer"}, list("d/old", "d/was", "d/new", "d/newer"))
	back, err := m.Crash(false, nil).List("d")
	require.NoError(t, err)
	require.Equal(t, []string{"ghost", "old", "was"}, back, "made and removed again: the removal may be lost alone")
	require.NoError(t, m.SyncDir("d"))
	require.Equal(t, []string{"is", "new", "newer"}, list())
}
