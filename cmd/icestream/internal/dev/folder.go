package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/icestream/icestream/internal/fault"
)

// markerFile says that a folder belongs to `icestream dev` and may be cleared.
const markerFile = ".icestream-dev"

const markerText = "This folder belongs to `icestream dev`. Without --keep the next run deletes everything in it.\n"

// prepareFolder makes dir the folder of a run. A folder that holds something and
// lacks the marker file is never touched. With keep, what is there stays.
// It reports whether an earlier run left something to continue.
func prepareFolder(dir string, keep bool) (continued bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("opening the folder of the run: %w", err)
	}
	_, err = os.Stat(filepath.Join(dir, markerFile))
	marked := err == nil
	if len(entries) > 0 && !marked {
		return false, fault.New(fault.InvalidArgument,
			"folder %s holds files that `icestream dev` did not make, and will not clear: name another one with --dir", dir)
	}
	if keep && marked {
		return true, nil
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return false, fmt.Errorf("clearing the folder of the last run: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("making the folder of the run: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, markerFile), []byte(markerText), 0o600); err != nil {
		return false, fmt.Errorf("marking the folder of the run: %w", err)
	}
	return false, nil
}
