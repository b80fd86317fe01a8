package lake

import (
	"context"
	"maps"
	"slices"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/icestream/icestream/internal/icefile"
)

// known is a file as the table names it.
type known struct {
	added int64 // by that snapshot, 0 for one of the outbox
	bytes int64
}

// checkFiles checks that no file is added twice and that every file of a
// reachable snapshot is there, as long as it was written.
func (a *auditor) checkFiles(ctx context.Context, t *Table, files iceio.IO, kind string) (bool, error) {
	meta := t.handle().Metadata()
	counts := standing(meta)
	added := map[string]known{}
	err := walkEntries(ctx, files, meta, func(e entry) {
		path := e.file.FilePath()
		a.respelled = a.respelled || !icefile.Known(e.file)
		by, ok := added[path]
		switch {
		case !ok || by.added == e.added || !counts[by.added]:
			added[path] = known{e.added, e.file.FileSizeBytes()}
		case counts[e.added]: // else it is a branch, or a snapshot that was picked or rolled back
			a.r.find(Violated, path, "%sfile was added by snapshot %d and again by snapshot %d", kind, by.added, e.added)
		}
	})
	if err != nil {
		a.lost(t.name, err)
	}
	a.checkTwice(t, files, kind)
	a.r.Files += len(added)
	return a.checkThere(ctx, t, files, kind, added), ctx.Err()
}

// checkTwice looks for a data file that stands twice in the current snapshot.
// Deletion vectors of several data files share one file.
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
			if e.deletes {
				return
			}
			if seen[e.file.FilePath()] {
				a.r.find(Violated, e.file.FilePath(), "%sfile stands twice in snapshot %d", kind, s.SnapshotID)
			}
			seen[e.file.FilePath()] = true
		})
	}
}

// checkThere looks for each file of a table; 16 at a time, since a store is far
// away. It reports whether all can be read.
func (a *auditor) checkThere(ctx context.Context, t *Table, files iceio.IO, kind string, list map[string]known) bool {
	var mu sync.Mutex
	ok := true
	meta := t.handle().Metadata()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, path := range slices.Sorted(maps.Keys(list)) {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			size, there, err := sizeOf(files, path)
			mu.Lock()
			defer mu.Unlock()
			k := list[path]
			switch {
			case err != nil:
				ok, a.unread = false, true
				a.r.find(Unknown, path, "%sfile cannot be looked for: %v", kind, err)
			case !there:
				ok = false
				a.r.findGone(path, "%sfile is gone", kind)
			case size == k.bytes:
			case k.added != 0 && foreignSnapshot(meta, k.added):
				a.r.note("%s: %sfile has %d bytes, snapshot %d, which is not ours, says %d", path, kind, size, k.added, k.bytes)
			default:
				ok = false
				a.r.find(Violated, path, "%sfile has %d bytes, but %d were written: it was cut off or overwritten; put it back", kind, size, k.bytes)
			}
			return nil
		})
	}
	return group.Wait() == nil && ok
}

// foreignSnapshot reports whether a snapshot is known not to be ours.
func foreignSnapshot(meta table.Metadata, id int64) bool {
	s := meta.SnapshotByID(id)
	return s != nil && !isOwn(s) && !isQuarantineOwn(s)
}
