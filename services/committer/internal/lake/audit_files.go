package lake

import (
	"context"
	"maps"
	"slices"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
	"golang.org/x/sync/errgroup"
)

// checkFiles checks that no file is added twice and that every file of a
// reachable snapshot is there.
func (a *auditor) checkFiles(ctx context.Context, t *Table, files iceio.IO, kind string) (bool, error) {
	meta := t.handle().Metadata()
	counts := map[int64]bool{} // snapshots that the head stands on
	for s := range ancestors(meta) {
		counts[s.SnapshotID] = true
	}
	added := map[string]int64{}
	err := walkEntries(ctx, files, meta, func(e entry) {
		path := e.file.FilePath()
		by, ok := added[path]
		switch {
		case !ok || by == e.added || !counts[by]:
			added[path] = e.added
		case counts[e.added]: // else it is a branch, or a snapshot that was picked or rolled back
			a.r.find(Violated, path, "%sfile was added by snapshot %d and again by snapshot %d", kind, by, e.added)
		}
	})
	if err != nil {
		a.r.find(lostOrUnknown(err), t.name, "%v", err)
	}
	a.checkTwice(t, files, kind)
	a.r.Files += len(added)
	return a.checkThere(ctx, files, kind, slices.Sorted(maps.Keys(added))), ctx.Err()
}

// checkTwice looks for a path that stands twice in the current snapshot.
func (a *auditor) checkTwice(t *Table, files iceio.IO, kind string) {
	s := t.handle().Metadata().CurrentSnapshot()
	if s == nil {
		return
	}
	manifests, err := s.Manifests(files)
	if err != nil {
		return // found by checkFiles already
	}
	seen := map[string]bool{}
	for _, m := range manifests {
		_ = walkManifest(files, m, func(e entry) {
			if seen[e.file.FilePath()] {
				a.r.find(Violated, e.file.FilePath(), "%sfile stands twice in snapshot %d", kind, s.SnapshotID)
			}
			seen[e.file.FilePath()] = true
		})
	}
}

// checkThere looks for each file; 16 at a time, since a store is far away.
func (a *auditor) checkThere(ctx context.Context, files iceio.IO, kind string, paths []string) bool {
	var mu sync.Mutex
	ok := true
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, path := range paths {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			there, err := exists(files, path)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				ok = false
				a.r.find(Unknown, path, "%sfile cannot be looked for: %v", kind, err)
			case !there:
				ok = false
				a.r.find(Violated, path, "%sfile is gone", kind)
			}
			return nil
		})
	}
	return group.Wait() == nil && ok
}
