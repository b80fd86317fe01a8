package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	icebergio "github.com/apache/iceberg-go/io"
)

const fileScheme = "file://"

// FileIO reads and writes local files named by file:// locations.
//
// Two things differ from the library's own. It decodes nothing: what follows the scheme is the path, byte for byte, as
// every other engine reads it, so a name with a percent sign is found by all. And a file appears under its name only when
// it is whole and synced (temporary file, fsync, rename, fsync of the folder), so that a power loss never leaves a
// committed pointer to an empty file. It has no state and is safe for concurrent use.
type FileIO struct{}

var (
	_ icebergio.WriteFileIO     = FileIO{}
	_ icebergio.ReadFileIO      = FileIO{}
	_ icebergio.ListableIO      = FileIO{}
	_ icebergio.StatIO          = FileIO{}
	_ icebergio.RemoveAllIO     = FileIO{}
	_ icebergio.MkdirAllIO      = FileIO{}
	_ icebergio.BulkRemovableIO = FileIO{}
)

// registerFileIO makes FileIO the library's handler of file: and scheme-less locations. The library keeps one registry
// per process and panics on a second registration, hence once, and hence the removal first.
var registerFileIO = sync.OnceFunc(func() {
	factory := func(context.Context, *url.URL, map[string]string) (icebergio.IO, error) { return FileIO{}, nil }
	for _, scheme := range []string{"file", ""} {
		icebergio.Unregister(scheme)
		icebergio.Register(scheme, factory)
	}
})

// RegisterFileIO makes FileIO the library's handler of file: and scheme-less locations in this process. It may be called
// any number of times, also concurrently.
func RegisterFileIO() { registerFileIO() }

// localPath strips the scheme. "file:/x" and "file:///x" name the same file.
func localPath(location string) (string, error) {
	rest, isFile := strings.CutPrefix(location, "file:")
	if !isFile {
		if strings.Contains(location, "://") {
			return "", fmt.Errorf("local file %q: only file:// locations are supported", location)
		}
		return location, nil
	}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		if rest = strings.TrimPrefix(after, "localhost"); !strings.HasPrefix(rest, "/") {
			return "", fmt.Errorf("local file %q: a host is not supported in a file location", location)
		}
	}
	return rest, nil
}

// Open opens the file for reading.
func (FileIO) Open(name string) (icebergio.File, error) {
	path, err := localPath(name)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

// ReadFile returns the file's content.
func (FileIO) ReadFile(name string) ([]byte, error) {
	path, err := localPath(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Create returns a writer whose content appears under the name when it is closed, and only if every write succeeded.
// Missing folders are made.
func (FileIO) Create(name string) (icebergio.FileWriter, error) {
	path, err := localPath(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return nil, err
	}
	return &atomicFile{file: file, path: path}, nil
}

// WriteFile writes the file as a whole.
func (f FileIO) WriteFile(name string, content []byte) error {
	w, err := f.Create(name)
	if err != nil {
		return err
	}
	_, writeErr := w.ReadFrom(bytes.NewReader(content))
	return errors.Join(writeErr, w.Close())
}

// Remove deletes the file or empty folder.
func (FileIO) Remove(name string) error {
	path, err := localPath(name)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// RemoveAll deletes the file or folder with all it holds.
func (FileIO) RemoveAll(name string) error {
	path, err := localPath(name)
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// MkdirAll makes the folder and its parents.
func (FileIO) MkdirAll(name string) error {
	path, err := localPath(name)
	if err != nil {
		return err
	}
	return os.MkdirAll(path, 0o755)
}

// Stat describes the file.
func (FileIO) Stat(name string) (fs.FileInfo, error) {
	path, err := localPath(name)
	if err != nil {
		return nil, err
	}
	return os.Stat(path)
}

// DeleteFiles deletes the files and returns those that are gone now; a missing file counts as deleted.
func (f FileIO) DeleteFiles(ctx context.Context, names []string) ([]string, error) {
	var failed []error
	deleted := make([]string, 0, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return deleted, errors.Join(append(failed, err)...)
		}
		if err := f.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
			continue
		}
		deleted = append(deleted, name)
	}
	return deleted, errors.Join(failed...)
}

// WalkDir walks the tree below root; paths keep the scheme of root.
func (FileIO) WalkDir(root string, fn fs.WalkDirFunc) error {
	path, err := localPath(root)
	if err != nil {
		return err
	}
	prefix := ""
	if strings.HasPrefix(root, "file:") {
		prefix = fileScheme
	}
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		return fn(prefix+p, d, err)
	})
}

// atomicFile is a file that gets its name at Close.
type atomicFile struct {
	file *os.File
	path string
	err  error // the first failed write: such a file never appears
	done bool
}

func (a *atomicFile) Write(p []byte) (int, error) {
	n, err := a.file.Write(p)
	a.keep(err)
	return n, err
}

func (a *atomicFile) ReadFrom(r io.Reader) (int64, error) {
	n, err := a.file.ReadFrom(r)
	a.keep(err)
	return n, err
}

func (a *atomicFile) keep(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *atomicFile) Close() error {
	if a.done {
		return os.ErrClosed
	}
	a.done = true
	if a.err == nil {
		a.err = a.file.Chmod(0o644)
	}
	if a.err == nil {
		a.err = a.file.Sync()
	}
	a.keep(a.file.Close())
	if a.err == nil {
		a.err = os.Rename(a.file.Name(), a.path)
	}
	if a.err != nil {
		_ = os.Remove(a.file.Name())
		return fmt.Errorf("writing %s: %w", a.path, a.err)
	}
	return syncDir(filepath.Dir(a.path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing folder %s: %w", dir, err)
	}
	return errors.Join(d.Sync(), d.Close())
}
