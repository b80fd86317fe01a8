// Package icefile is the local file system as Iceberg tables need it. It differs
// from the one that comes with the Iceberg library in two ways that matter:
//
//   - It decodes nothing. A location is a name, never a URL to unescape, so the
//     file that a manifest names is the file that every other engine opens.
//   - A file appears whole or not at all: it is written under another name, synced,
//     given its name without replacing an existing file, and its directory is
//     synced, so that a catalog never points at a file that a power loss emptied.
//
// Register puts it in the place of the library's own. FS is stateless and safe
// for concurrent use.
package icefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
)

var registering sync.Once

// Register makes FS the file system of the scheme "file" and of bare paths for
// the whole process. It may be called any number of times, by anybody.
func Register() {
	registering.Do(func() { // again, somebody might find neither
		for _, scheme := range []string{"file", ""} {
			iceio.Unregister(scheme)
			iceio.Register(scheme, func(context.Context, *url.URL, map[string]string) (iceio.IO, error) {
				return FS{}, nil
			})
		}
	})
}

// FS implements the Iceberg library's file interfaces over the local disk.
type FS struct{}

var (
	_ iceio.WriteFileIO = FS{}
	_ iceio.ReadFileIO  = FS{}
	_ iceio.ListableIO  = FS{}
	_ iceio.StatIO      = FS{}
	_ iceio.RemoveAllIO = FS{}
	_ iceio.MkdirAllIO  = FS{}
)

// Path returns the path that a location names: "file:///a", "file://localhost/a",
// "file:/a" (as Java engines write it) and "/a" are all "/a".
func Path(location string) (string, error) {
	rest, ok := strings.CutPrefix(location, "file:")
	if !ok {
		if strings.Contains(location, "://") {
			return "", fmt.Errorf("opening %q on the local disk: not a file location", location)
		}
		return location, nil
	}
	rest, ok = strings.CutPrefix(rest, "//")
	if ok && !strings.HasPrefix(rest, "/") {
		local, found := strings.CutPrefix(rest, "localhost/")
		if !found {
			return "", fmt.Errorf("opening %q on the local disk: the location names another host", location)
		}
		rest = "/" + local
	}
	return rest, nil
}

// Open opens a file for reading.
func (FS) Open(name string) (iceio.File, error) {
	path, err := Path(name)
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}

// ReadFile returns the whole content of a file.
func (FS) ReadFile(name string) ([]byte, error) {
	path, err := Path(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Create returns a writer for a file that does not exist yet. The file has its
// name once Close returned nil; if a write or Close fails there is none.
func (FS) Create(name string) (iceio.FileWriter, error) { return create(name, false) }

// WriteFile writes a file as a whole and replaces one of the same name.
func (FS) WriteFile(name string, content []byte) error {
	w, err := create(name, true)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return errors.Join(err, w.Close())
}

// Remove removes a file.
func (FS) Remove(name string) error {
	path, err := Path(name)
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// RemoveAll removes a directory with everything below it.
func (FS) RemoveAll(name string) error {
	path, err := Path(name)
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// MkdirAll makes a directory and its parents.
func (FS) MkdirAll(name string) error {
	path, err := Path(name)
	if err != nil {
		return err
	}
	return mkdirAll(path)
}

// Stat describes a file.
func (FS) Stat(name string) (fs.FileInfo, error) {
	path, err := Path(name)
	if err != nil {
		return nil, err
	}
	return os.Stat(path)
}

// WalkDir walks the tree below root. The names it hands out begin with root as
// it was given, so that they can be compared with the locations in a manifest.
func (FS) WalkDir(root string, fn fs.WalkDirFunc) error {
	path, err := Path(root)
	if err != nil {
		return err
	}
	clean := filepath.Clean(path)
	return filepath.WalkDir(clean, func(p string, d fs.DirEntry, err error) error {
		return fn(strings.TrimSuffix(root, "/")+strings.TrimPrefix(p, clean), d, err)
	})
}

// begunPrefix begins the temporary name of a file: a number, a dash and the name
// follow.
const begunPrefix = ".tmp-"

// file is a file under a temporary name.
type file struct {
	f       *os.File
	final   string
	replace bool
	failed  error
	closed  bool
}

func create(name string, replace bool) (*file, error) {
	path, err := Path(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := mkdirAll(dir); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, begunPrefix+"*-"+filepath.Base(path))
	if err != nil {
		return nil, err
	}
	return &file{f: f, final: path, replace: replace}, nil
}

// Write appends to the file.
func (w *file) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.note(err)
	return n, err
}

// ReadFrom appends all of r to the file.
func (w *file) ReadFrom(r io.Reader) (int64, error) {
	n, err := w.f.ReadFrom(r)
	w.note(err)
	return n, err
}

func (w *file) note(err error) {
	if err != nil && w.failed == nil {
		w.failed = err
	}
}

// Abort gives the file up: no file appears. It may be called after Close, where
// it does nothing.
func (w *file) Abort() {
	if w.closed {
		return
	}
	w.note(errors.New("given up"))
	_ = w.Close()
}

// Close makes the file durable and gives it its name.
func (w *file) Close() error {
	if w.closed {
		return fs.ErrClosed
	}
	w.closed = true
	tmp := w.f.Name()
	if w.failed == nil {
		w.note(w.f.Chmod(0o644))
	}
	if w.failed == nil {
		w.note(w.f.Sync())
	}
	w.note(w.f.Close())
	if w.failed == nil {
		w.note(w.publish(tmp))
	}
	if w.failed != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("writing %s: %w", w.final, w.failed)
	}
	return syncDir(filepath.Dir(w.final))
}

// publish gives the file its name. A hard link refuses a name that is taken; a
// file system without hard links gets a look before the rename instead.
func (w *file) publish(tmp string) error {
	if w.replace {
		return os.Rename(tmp, w.final)
	}
	err := os.Link(tmp, w.final)
	switch {
	case err == nil:
		return os.Remove(tmp)
	case errors.Is(err, fs.ErrExist):
		return err
	}
	if _, err := os.Lstat(w.final); err == nil {
		return &fs.PathError{Op: "create", Path: w.final, Err: fs.ErrExist}
	}
	return os.Rename(tmp, w.final)
}

// Unfinished lists what processes that were killed had begun to write under names, in
// whatever file system is not a local disk: nothing. It must not be asked about names
// that somebody may still write.
func Unfinished(files iceio.IO, names []string) ([]string, error) {
	if _, local := files.(FS); !local {
		return nil, nil
	}
	wanted := map[string]map[string]bool{} // by folder
	for _, name := range names {
		at := strings.LastIndexByte(name, '/') + 1
		dir, base := name[:at], name[at:]
		if wanted[dir] == nil {
			wanted[dir] = map[string]bool{}
		}
		wanted[dir][base] = true
	}
	var out []string
	for dir, bases := range wanted {
		local, err := Path(dir)
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(local)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			rest, begun := strings.CutPrefix(e.Name(), begunPrefix)
			if _, base, ok := strings.Cut(rest, "-"); begun && ok && bases[base] {
				out = append(out, dir+e.Name())
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// mkdirAll makes dir and syncs the directories in which it made an entry.
func mkdirAll(dir string) error {
	var made []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		made = append(made, filepath.Dir(d))
	}
	if len(made) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range made {
		if err := syncDir(d); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
