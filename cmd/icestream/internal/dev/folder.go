package dev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
)

// markerFile says that a folder belongs to `icestream dev` and may be cleared.
// A run holds its lock, so that no second run clears the folder under it.
const markerFile = ".icestream-dev"

const markerText = "This folder belongs to `icestream dev`. Without --keep the next run deletes everything in it.\n"

// prepareFolder makes dir the folder of a run, and of no other until the lock is
// closed. A folder that holds something and lacks the marker file is never
// touched. With keep, what is there stays.
func prepareFolder(dir string, keep bool) (lock io.Closer, err error) {
	if err := catalog.CheckFolder(dir); err != nil {
		return nil, unfit(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, unfit(fmt.Errorf("opening the folder of the run: %w", err))
	}
	marker := filepath.Join(dir, markerFile)
	if _, err := os.Stat(marker); len(entries) > 0 && err != nil {
		return nil, fault.New(fault.InvalidArgument,
			"folder %s holds files that `icestream dev` did not make, and will not clear: name another one with --dir", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, unfit(fmt.Errorf("making the folder of the run: %w", err))
	}
	lock, err = file.OS{}.Lock(marker)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fault.New(fault.InvalidArgument,
			"another `icestream dev` is running in %s: stop it, or name another folder with --dir", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("marking the folder of the run: %w", err)
	}
	if err := fill(dir, keep); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// unfit tells what to do about a folder that a run cannot have.
func unfit(err error) error {
	return fault.New(fault.InvalidArgument, "%w: name another folder with --dir", err)
}

// GoOn is the command that goes on with the folder of a run, for people: with the
// generator, or where it never produced with the pipelines of the user.
func GoOn(dir string) string {
	own := ""
	if _, err := os.Stat(filepath.Join(dir, ledgerFile)); err != nil {
		own = " --no-generator --config FILE"
	}
	return fmt.Sprintf("icestream dev --dir %s --keep --follow%s", dir, own)
}

// fill clears a locked folder, unless told to keep it, and marks it.
func fill(dir string, keep bool) error {
	entries, err := os.ReadDir(dir) // again: until now another run may have been at work
	if err != nil {
		return fmt.Errorf("opening the folder of the run: %w", err)
	}
	for _, e := range entries {
		if keep || e.Name() == markerFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clearing the folder of the last run: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, markerFile), []byte(markerText), 0o600); err != nil {
		return fmt.Errorf("marking the folder of the run: %w", err)
	}
	return nil
}
