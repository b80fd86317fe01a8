// Package file is the seam between what must survive a crash and the disk. The
// real file system is OS; Mem is one in memory that can be cloned as a crash
// would leave it and that fails on demand.
package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// FS is what a log needs of a file system. Names are paths; directories are flat.
type FS interface {
	// MkdirAll makes a directory with its parents.
	MkdirAll(dir string) error
	// Create makes a new file for writing and fails with fs.ErrExist when there is
	// one. The name survives a crash only after SyncDir.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Remove deletes a file.
	Remove(name string) error
	// Rename gives a file another name in the same directory.
	Rename(from, to string) error
	// List returns the names of the files in dir, sorted, without dir itself.
	List(dir string) ([]string, error)
	// SyncDir makes names made or removed in dir survive a crash.
	SyncDir(dir string) error
	// Lock takes an exclusive lock until Close. Its error says who may hold it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. One goroutine writes it.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the current length.
	Size() (int64, error)
	// Truncate cuts the file.
	Truncate(size int64) error
	// Sync makes content and length survive a crash. After an error nothing may be
	// assumed about what did, not even when a later call succeeds.
	Sync() error
}

// NoSpace reports whether err says that the disk is full (or a quota is), which
// passes when room is made.
func NoSpace(err error) bool {
	if f := (final{}); errors.As(err, &f) {
		return false
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Final returns err such that NoSpace no longer takes it for a full disk that
// passes, whatever it wraps.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return final{err}
}

type final struct{ error }

// Unwrap keeps what the error says reachable.
func (f final) Unwrap() error { return f.error }

// OS is the real file system.
type OS struct{}

// MkdirAll makes a directory with its parents.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

// Create makes a new file.
func (OS) Create(name string) (File, error) {
	return wrap(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644))
}

// Open opens an existing file, for reading only where it may not be written.
func (OS) Open(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		f, err = os.Open(name)
	}
	return wrap(f, err)
}

func wrap(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Remove deletes a file.
func (OS) Remove(name string) error { return os.Remove(name) }

// Rename gives a file another name.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// List returns the names of the regular files in dir.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// SyncDir flushes the directory itself.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock locks the file name, making it when missing. The lock ends with the
// process, however it ends.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w: another process uses this directory", name, err)
	}
	return f, nil
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
