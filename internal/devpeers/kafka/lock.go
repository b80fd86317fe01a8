package kafka

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrDirInUse is wrapped by Start when another process holds the folder.
var ErrDirInUse = errors.New("folder is in use")

// dirLock keeps a second process out of the folder: the broker library itself opens a folder twice without a word.
// The kernel drops the lock with the process, so a kill leaves nothing to clean up.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("creating folder %s: %w", dir, err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening lock file %s: %w", path, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w by process %s: stop it, or use another folder",
				dir, ErrDirInUse, pidText(holder))
		}
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	if err := writePID(file); err != nil {
		return nil, errors.Join(fmt.Errorf("writing lock file %s: %w", path, err), file.Close())
	}
	return &dirLock{file: file}, nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func pidText(content []byte) string {
	if pid := strings.TrimSpace(string(content)); pid != "" {
		return pid
	}
	return "(unknown)"
}

// release gives the folder free. The file stays: removing it would let two processes lock two different files.
func (l *dirLock) release() error { return l.file.Close() }
