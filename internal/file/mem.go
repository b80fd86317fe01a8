package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"sync"
)

// Op is an operation of Mem, for injected errors and hooks.
type Op string

// Operations that Mem reports to its hook.
const (
	OpCreate   Op = "create"
	OpWrite    Op = "write"
	OpTruncate Op = "truncate"
	OpSync     Op = "sync"
	OpSyncDir  Op = "syncdir"
	OpRemove   Op = "remove"
	OpRename   Op = "rename"
)

// Mem is a file system in memory that knows what a crash would keep: the content
// of a file as of its last Sync, and the names as of the last SyncDir. It is
// safe for concurrent use.
type Mem struct {
	mu     sync.Mutex
	names  map[string]*node
	stable map[string]*node  // names as of the last SyncDir of their directory
	moved  map[string]string // where a name that was not synced was renamed from
	ghosts map[string]*node  // made and removed again since the last SyncDir: the disk may hold them all the same
	locked map[string]bool
	before func(op Op, name string) error
}

type node struct{ data, synced []byte }

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{names: map[string]*node{}, stable: map[string]*node{}, moved: map[string]string{}, ghosts: map[string]*node{}, locked: map[string]bool{}}
}

// Before calls f ahead of every operation that changes something; its error
// fails the operation, which then changes nothing. f may call Crash.
func (m *Mem) Before(f func(op Op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

func (m *Mem) check(op Op, name string) error {
	m.mu.Lock()
	f := m.before
	m.mu.Unlock()
	if f == nil {
		return nil
	}
	if err := f(op, name); err != nil {
		return &fs.PathError{Op: string(op), Path: name, Err: err}
	}
	return nil
}

// Crash returns the file system as a crash now could leave it. keep decides the
// content of each file from what was synced and what was written since; nil
// keeps what was synced. names says whether names that were not synced survive.
func (m *Mem) Crash(names bool, keep func(name string, synced, written []byte) []byte) *Mem {
	return m.CrashNames(func(string) bool { return names }, keep)
}

// CrashNames is Crash with a choice for each name that was made, removed or
// replaced since the last SyncDir: whether that survives. A rename survives whole
// or not at all, under the name it was renamed from. What was made and removed
// again is back where the removal does not survive.
func (m *Mem) CrashNames(survives func(name string) bool, keep func(name string, synced, written []byte) []byte) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	src := maps.Clone(m.stable)
	settle := func(name string) {
		if n := m.names[name]; n != nil {
			src[name] = n
		} else {
			delete(src, name)
		}
	}
	answers := map[string]bool{}
	ask := survives
	survives = func(name string) bool {
		if _, asked := answers[name]; !asked {
			answers[name] = ask(name)
		}
		return answers[name]
	}
	done := map[string]bool{}
	for to, from := range m.moved {
		done[to], done[from] = true, true
		if survives(from) {
			settle(from)
			settle(to)
		}
	}
	for _, names := range []map[string]*node{m.names, m.stable} {
		for name := range names {
			if !done[name] && m.names[name] != m.stable[name] && survives(name) {
				settle(name)
			}
			done[name] = true
		}
	}
	for name, n := range m.ghosts {
		if src[name] == nil && !survives(name) {
			src[name] = n
		}
	}
	out := NewMem()
	for name, n := range src {
		data := slices.Clone(n.synced)
		if keep != nil {
			data = slices.Clone(keep(name, n.synced, n.data))
		}
		nn := &node{data: data, synced: slices.Clone(data)}
		out.names[name], out.stable[name] = nn, nn
	}
	return out
}

// MkdirAll does nothing: directories are implied by names.
func (m *Mem) MkdirAll(string) error { return nil }

// Create makes a new file.
func (m *Mem) Create(name string) (File, error) {
	if err := m.check(OpCreate, name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	n := &node{}
	m.names[name] = n
	return &memFile{m: m, n: n, name: name}, nil
}

// Open opens an existing file.
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &memFile{m: m, n: n, name: name}, nil
}

// Remove deletes a file.
func (m *Mem) Remove(name string) error {
	if err := m.check(OpRemove, name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if m.stable[name] == nil {
		m.ghosts[name] = m.names[name]
	}
	delete(m.names, name)
	return nil
}

// Rename gives a file another name.
func (m *Mem) Rename(from, to string) error {
	if err := m.check(OpRename, from); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[from]
	if n == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(m.names, from)
	m.names[to], m.moved[to] = n, from
	return nil
}

// List returns the names in dir.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name := range m.names {
		if path.Dir(filepath.ToSlash(name)) == path.Clean(filepath.ToSlash(dir)) {
			out = append(out, path.Base(name))
		}
	}
	slices.Sort(out)
	return out, nil
}

// SyncDir makes the names of dir stable.
func (m *Mem) SyncDir(dir string) error {
	if err := m.check(OpSyncDir, dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	in := func(name string) bool { return path.Dir(filepath.ToSlash(name)) == path.Clean(filepath.ToSlash(dir)) }
	maps.DeleteFunc(m.ghosts, func(name string, _ *node) bool { return in(name) })
	maps.DeleteFunc(m.moved, func(to, _ string) bool { return in(to) })
	for name := range m.stable {
		if in(name) && m.names[name] == nil {
			delete(m.stable, name)
		}
	}
	for name, n := range m.names {
		if in(name) {
			m.stable[name] = n
		}
	}
	return nil
}

// Lock takes the lock name.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked[name] {
		return nil, fmt.Errorf("locking %s: another process uses this directory", name)
	}
	m.locked[name] = true
	return memLock{m, name}, nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locked, l.name)
	return nil
}

type memFile struct {
	m    *Mem
	n    *node
	name string
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if off < 0 || off > int64(len(f.n.data)) {
		return 0, io.EOF
	}
	return bytes.NewReader(f.n.data).ReadAt(p, off)
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.m.check(OpWrite, f.name); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if need := int(off) + len(p); need > len(f.n.data) {
		f.n.data = append(f.n.data, make([]byte, need-len(f.n.data))...)
	}
	return copy(f.n.data[off:], p), nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.m.check(OpTruncate, f.name); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if size < int64(len(f.n.data)) {
		f.n.data = slices.Clone(f.n.data[:size])
	}
	return nil
}

func (f *memFile) Sync() error {
	if err := f.m.check(OpSync, f.name); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.synced = slices.Clone(f.n.data)
	return nil
}

func (f *memFile) Close() error { return nil }
