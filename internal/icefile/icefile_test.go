package icefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/stretchr/testify/require"
)

// Interop F1, W10: what the manifest names is what stands on the disk.
func TestLocationsAreNotDecoded(t *testing.T) {
	dir := t.TempDir()
	location := "file://" + dir + "/ts=00%3A00/a b.parquet"
	require.NoError(t, FS{}.WriteFile(location, []byte("x")))
	got, err := os.ReadFile(filepath.Join(dir, "ts=00%3A00", "a b.parquet"))
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
}

func TestEverySpellingOfAFileLocationNamesTheSameFile(t *testing.T) {
	for _, location := range []string{"file:///a/b", "file://localhost/a/b", "file:/a/b", "/a/b"} {
		path, err := Path(location)
		require.NoError(t, err)
		require.Equal(t, "/a/b", path)
	}
	for _, location := range []string{"s3://bucket/a", "file://elsewhere/a"} {
		_, err := Path(location)
		require.Error(t, err)
	}
}

func TestAFileAppearsOnlyWhenClosed(t *testing.T) {
	dir := t.TempDir()
	w, err := FS{}.Create(dir + "/new/f")
	require.NoError(t, err)
	_, err = w.Write([]byte("half"))
	require.NoError(t, err)
	require.NoFileExists(t, dir+"/new/f")
	require.NoError(t, w.Close())
	require.FileExists(t, dir+"/new/f")
	require.ErrorIs(t, w.Close(), fs.ErrClosed)
}

func TestAnAbortedFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w, err := FS{}.Create(dir + "/f")
	require.NoError(t, err)
	w.(interface{ Abort() }).Abort()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestCreateNeverReplacesAFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, FS{}.WriteFile(dir+"/f", []byte("first")))
	w, err := FS{}.Create(dir + "/f")
	require.NoError(t, err)
	_, err = w.ReadFrom(strings.NewReader("second"))
	require.NoError(t, err)
	require.ErrorIs(t, w.Close(), fs.ErrExist)
	got, err := FS{}.ReadFile(dir + "/f")
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestWalkHandsOutNamesAsLocations(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, FS{}.WriteFile(dir+"/a/f", nil))
	var names []string
	require.NoError(t, FS{}.WalkDir("file://"+dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, p)
		}
		return err
	}))
	require.Equal(t, []string{"file://" + dir + "/a/f"}, names)
}

func TestRegisteringTwiceIsHarmless(t *testing.T) {
	Register()
	Register()
	got, err := iceio.LoadFS(t.Context(), nil, "file:///a")
	require.NoError(t, err)
	require.IsType(t, FS{}, got)
}

// A process may open a second lake while the first one is at work.
func TestRegisteringAgainIsSeenByNobody(t *testing.T) {
	Register()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200_000 {
			Register()
		}
	}()
	for {
		_, err := iceio.LoadFS(t.Context(), nil, "file:///a")
		require.NoError(t, err)
		select {
		case <-done:
			return
		default:
		}
	}
}
