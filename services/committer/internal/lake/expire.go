package lake

import (
	"context"
	"slices"
	"time"

	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

// ExpirePolicy says which own snapshots stay. Snapshots of others, and whatever
// a branch or tag names, always stay.
type ExpirePolicy struct {
	// Keep is how many of the newest ancestors of the head stay, whoever made
	// them; 50 when zero.
	Keep int
	// NotBelow is the lowest sequence number that a reader may still need:
	// snapshots at or above it stay. 0 means that no reader is known to need any.
	NotBelow int64
}

// Expirable reports how many snapshots a commit with that policy would remove.
func (t *Table) Expirable(p ExpirePolicy) int {
	return len(expirable(t.handle().Metadata(), t.Head().State, p))
}

// expirable lists the own snapshots that the policy gives up.
func expirable(meta table.Metadata, state State, p ExpirePolicy) []int64 {
	if p.Keep <= 0 {
		p.Keep = 50
	}
	named := map[int64]bool{}
	for name, ref := range meta.Refs() {
		if name != tag {
			named[ref.SnapshotID] = true
		}
	}
	pending := map[string]bool{}
	for _, e := range state.Pending() {
		pending[e.CommitID.String()] = true
	}
	var out []int64
	n := 0
	for s := range ancestors(meta) {
		n++
		switch {
		case n <= p.Keep, named[s.SnapshotID], !isOwn(s):
		case p.NotBelow > 0 && s.SequenceNumber >= p.NotBelow:
		case pending[s.Summary.Properties[keyCommitID]]:
		default:
			out = append(out, s.SnapshotID)
		}
	}
	return out
}

// stageExpiry adds the removal to the request. The staged snapshot itself is the
// newest ancestor by then, so one fewer of the old ones needs to stay.
func (t *Table) stageExpiry(st *Staged, meta table.Metadata, state State, p ExpirePolicy) {
	if st.expired = expirable(meta, state, p); len(st.expired) > 0 {
		st.removal = []table.Update{table.NewRemoveSnapshotsUpdate(st.expired, false)}
	}
}

// cleanBatch is the number of expired snapshots after whose gathering their files
// are removed: each time the manifest lists of all snapshots that stay are read.
// What has gathered when the process ends stays behind.
const cleanBatch = 50

// gone are expired snapshots whose files are still there.
type gone struct {
	before *table.Table // as it was before the first of them was removed: it knows all
	ids    []int64
}

// Clean does at once what Freed leaves to do.
func (t *Table) Clean(ctx context.Context, st *Staged) error {
	if work := t.Freed(st); work != nil {
		return work(ctx)
	}
	return nil
}

// Freed takes note of an expiring commit that has landed, after the table was
// reloaded. When the snapshots of several such commits have gathered it returns the
// work of removing the files that only they named, nil before. The work compares
// what was with what is now, so snapshots that are still there (the request that
// landed did not carry the removal, or the catalog does not do it) and files that a
// snapshot still names stay (G6). It may be done later and beside other commits:
// they name new files and such that are named now. An error leaves files behind,
// nothing else.
func (t *Table) Freed(st *Staged) (work func(context.Context) error) {
	if len(st.expired) == 0 || !t.Find(st.CommitID) {
		return nil
	}
	for _, id := range st.expired {
		if t.gone.before == nil || t.gone.before.Metadata().SnapshotByID(id) == nil {
			t.gone = gone{before: st.before} // what had gathered before stays: not all of it is known any more
		}
		t.gone.ids = append(t.gone.ids, id)
	}
	if len(t.gone.ids) < t.cleanAt {
		return nil
	}
	all := t.gone
	t.gone = gone{}
	now := t.handle().Metadata()
	all.ids = slices.DeleteFunc(all.ids, func(id int64) bool { return now.SnapshotByID(id) != nil })
	slices.Sort(all.ids)
	if all.ids = slices.Compact(all.ids); len(all.ids) == 0 {
		return nil
	}
	before := table.New(t.ident, all.before.Metadata(), all.before.MetadataLocation(),
		func(ctx context.Context) (iceio.IO, error) { return t.files(ctx) }, t.cat)
	after := t.rehandle(now)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(t.lake.storage(ctx), cleanFor)
		defer cancel()
		if err := table.NewRemoveSnapshotsUpdate(all.ids, true).PostCommit(ctx, before, after); err != nil {
			return classify(err, "removing the files of expired snapshots of table %s", t.name)
		}
		return nil
	}
}

// cleanFor bounds one removal of files; nobody waits for it.
const cleanFor = 5 * time.Minute

// entry is a data file in a manifest, with the snapshot that added it.
type entry struct {
	file    iceberg.DataFile
	added   int64
	status  iceberg.ManifestEntryStatus
	deletes bool // of a delete manifest
}

// walkEntries visits the live entries of all manifests that any snapshot of the
// metadata names, each manifest once.
func walkEntries(ctx context.Context, files iceio.IO, meta table.Metadata, visit func(entry)) error {
	seen := map[string]bool{}
	for _, s := range meta.Snapshots() {
		manifests, err := s.Manifests(files)
		if err != nil {
			return classify(err, "reading the manifest list of snapshot %d", s.SnapshotID)
		}
		for _, m := range manifests {
			if seen[m.FilePath()] {
				continue
			}
			seen[m.FilePath()] = true
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := walkManifest(files, m, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

func walkManifest(files iceio.IO, m iceberg.ManifestFile, visit func(entry)) error {
	for e, err := range m.Entries(files, true) {
		if err != nil {
			return classify(err, "reading manifest %s", m.FilePath())
		}
		visit(entry{
			file: e.DataFile(), added: e.SnapshotID(), status: e.Status(),
			deletes: m.ManifestContent() == iceberg.ManifestContentDeletes,
		})
	}
	return nil
}
