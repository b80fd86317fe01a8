package file

import (
	"errors"
	"syscall"
)

// Sync flushes data and length, not times: fdatasync.
func (f osFile) Sync() error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
