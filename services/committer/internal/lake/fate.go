package lake

import (
	"context"
	"iter"
	"slices"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
)

// Fate is what the loaded table proves about a commit.
type Fate uint8

// The fates.
const (
	// Unproven: the head is the commit's base still, or was rolled back to before it, or
	// the history that is left does not reach back far enough to tell.
	Unproven Fate = iota
	// Landed: the commit is an ancestor of the head, or the head itself.
	Landed
	// Absent: the history reaches back to before the commit and does not hold it, and
	// nobody can make its base the head again without taking back what is there instead.
	Absent
)

// lineage yields the head and what it was built on, newest first. Where an expiry
// has cut the history that the metadata knows, older metadata files go on with it:
// snapshots of ours may be gone while a newer one of others stands on them. With an
// error, which ends it, nobody knows how it goes on.
func (t *Table) lineage(ctx context.Context, tbl *table.Table) iter.Seq2[*table.Snapshot, error] {
	return func(yield func(*table.Snapshot, error) bool) {
		var oldest *table.Snapshot
		for s := range ancestors(tbl.Metadata()) {
			if oldest = s; !yield(s, nil) {
				return
			}
		}
		if oldest == nil || oldest.ParentSnapshotID == nil || tbl.Metadata().SnapshotByID(*oldest.ParentSnapshotID) != nil {
			return
		}
		t.olderLineage(ctx, tbl, *oldest.ParentSnapshotID, yield)
	}
}

// olderLineage yields the snapshot want and what it was built on, as far as older
// metadata files know them.
func (t *Table) olderLineage(ctx context.Context, tbl *table.Table, want int64, yield func(*table.Snapshot, error) bool) {
	var older []string
	for entry := range tbl.Metadata().PreviousFiles() {
		older = append(older, entry.MetadataFile)
	}
	slices.Reverse(older)
	known := map[int64]*table.Snapshot{}
	var unread error
	for _, location := range older {
		old, err := t.olderMetadata(ctx, tbl, location)
		switch {
		case err != nil && ctx.Err() != nil:
			yield(nil, err)
			return
		case err != nil:
			t.log.Warn("an older metadata file cannot be read", "file", location, "error", err)
			if unread == nil && fault.ReasonOf(err) == fault.Unavailable {
				unread = err
			}
			continue
		case old == nil:
			continue
		}
		for _, s := range old.Snapshots() {
			known[s.SnapshotID] = &s
		}
		for s := known[want]; s != nil; s = known[want] {
			delete(known, want) // each comes once
			if !yield(s, nil) || s.ParentSnapshotID == nil {
				return
			}
			want = *s.ParentSnapshotID
		}
	}
	if unread != nil {
		yield(nil, unread)
	}
}

// olderMetadata reads a metadata file of before, nil where it was removed. Unavailable
// says that it may be read later, Corrupt that it will not.
func (t *Table) olderMetadata(ctx context.Context, tbl *table.Table, location string) (table.Metadata, error) {
	ctx = t.lake.storage(ctx)
	fsF := func(ctx context.Context) (iceio.IO, error) { return tbl.FS(ctx) }
	old, err := table.NewFromLocation(ctx, t.ident, location, fsF, t.cat)
	if err == nil {
		return old.Metadata(), nil
	}
	files, ferr := tbl.FS(ctx)
	if ferr != nil {
		return nil, classify(ferr, "opening the storage of table %s", t.name)
	}
	switch there, serr := exists(files, location); {
	case serr != nil:
		return nil, classify(err, "reading older metadata of table %s", t.name)
	case !there:
		return nil, nil
	}
	if old, err = table.NewFromLocation(ctx, t.ident, location, fsF, t.cat); err == nil {
		return old.Metadata(), nil
	}
	return nil, fault.New(fault.Corrupt, "reading older metadata of table %s: %w", t.name, err)
}

// Fate says what became of a staged commit, after a reload. Its id counts, so that
// it is Landed too where it was staged more than once and another snapshot of it is
// in the table. An error says that nobody knows now.
func (t *Table) Fate(ctx context.Context, st *Staged) (Fate, error) {
	id := st.CommitID.String()
	return t.fate(ctx, st, func(s *table.Snapshot) bool {
		return s.SnapshotID == st.SnapshotID || s.Summary != nil && s.Summary.Properties[keyCommitID] == id
	})
}

// fateOfSnapshot is what became of the very snapshot that was staged. One that the
// metadata knows counts as landed though it is no ancestor of the head: somebody may
// have rolled it back, and can bring it back.
func (t *Table) fateOfSnapshot(ctx context.Context, st *Staged) (Fate, error) {
	if t.handle().Metadata().SnapshotByID(st.SnapshotID) != nil {
		return Landed, nil
	}
	return t.fate(ctx, st, func(s *table.Snapshot) bool { return s.SnapshotID == st.SnapshotID })
}

func (t *Table) fate(ctx context.Context, st *Staged, is func(*table.Snapshot) bool) (Fate, error) {
	tbl := t.handle()
	if snapshotID(tbl.Metadata()) == st.Base {
		return Unproven, nil
	}
	replaced := false // another snapshot has the place that the commit would have
	fate, err := t.trace(ctx, tbl, st.Sequence-1, func(s *table.Snapshot) Fate {
		replaced = s.ParentSnapshotID != nil && *s.ParentSnapshotID == st.Base
		switch {
		case is(s):
			return Landed
		case replaced:
			return Absent
		default:
			return Unproven
		}
	})
	if fate == Absent && !replaced && tbl.Metadata().SnapshotByID(st.Base) != nil {
		return Unproven, nil // the head went back to before the base: once it is the head again, a late request lands
	}
	return fate, err
}

// fateOf is what became of an attempt of which only the record is known. Absent
// says that it has not landed; whether it still can is for the caller to know.
func (t *Table) fateOf(ctx context.Context, i Intent) (Fate, error) {
	id := i.Attempt.String()
	return t.trace(ctx, t.handle(), i.After, func(s *table.Snapshot) Fate {
		if s.Summary != nil && (s.Summary.Properties[keyCommitID] == id || s.Summary.Properties[keyTry] == id) {
			return Landed
		}
		return Unproven
	})
}

// trace goes back through the history until judge has an opinion. Sequence numbers
// only grow, so a snapshot at or below the sequence number after, which was the
// table's before the commit was sent, or the very first snapshot, prove that the
// commit is not there.
func (t *Table) trace(ctx context.Context, tbl *table.Table, after int64, judge func(*table.Snapshot) Fate) (Fate, error) {
	for s, err := range t.lineage(ctx, tbl) {
		if err != nil {
			return Unproven, err
		}
		if f := judge(s); f != Unproven {
			return f, nil
		}
		if s.SequenceNumber <= after || s.ParentSnapshotID == nil {
			return Absent, nil
		}
	}
	return Unproven, nil
}

// Discard removes the manifests of a staged commit, if the loaded table proves that
// it has not landed and will not (G6); else it leaves them. What it cannot remove is
// logged and left. It reports whether nothing more can become of the commit.
func (t *Table) Discard(ctx context.Context, st *Staged) (settled bool) {
	ctx = t.lake.storage(ctx)
	fate, err := t.fateOfSnapshot(ctx, st)
	switch fate {
	case Landed:
		return true
	case Unproven:
		if snapshotID(t.handle().Metadata()) != st.Base {
			t.log.Warn("the manifests of a commit stay: the history of the head does not prove that it is absent", "commit", st.CommitID, "snapshot", st.SnapshotID, "error", err)
		}
		return false
	case Absent:
	}
	files, err := t.files(ctx)
	if err != nil {
		t.log.Warn("the manifests of a lost commit stay", "commit", st.CommitID, "error", err)
		return true
	}
	paths := []string{st.snapshot.ManifestList}
	manifests, err := st.snapshot.Manifests(files)
	if err != nil {
		t.log.Warn("the manifests of a lost commit stay", "commit", st.CommitID, "error", err)
		return true
	}
	for _, m := range manifests {
		if m.SnapshotID() == st.SnapshotID {
			paths = append(paths, m.FilePath())
		}
	}
	_ = t.deletePaths(ctx, paths) // it is logged
	return true
}
