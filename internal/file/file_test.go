package file_test

import (
	"errors"
	"io/fs"
	"path/filepath"
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
