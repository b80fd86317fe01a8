package lake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/apache/iceberg-go/catalog"
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
		case err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)):
			yield(nil, err)
			return
		case err != nil:
			t.log.Warn("an older metadata file cannot be read", "file", location, "error", err)
			if unread == nil && fault.ReasonOf(err) != fault.Corrupt {
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

// olderMetadata reads a metadata file of before, nil where it was removed. Corrupt
// says that it never will be read, any other error that it may be later.
func (t *Table) olderMetadata(ctx context.Context, tbl *table.Table, location string) (table.Metadata, error) {
	data, err := t.olderFile(ctx, tbl, location)
	if data == nil || err != nil {
		return nil, err
	}
	// How it is compressed only the library knows, by its name.
	files := func(context.Context) (iceio.IO, error) { return wholeFile{data: data}, nil }
	old, err := table.NewFromLocation(ctx, t.ident, location, files, t.cat)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "reading older metadata file %s of table %s: %w", location, t.name, err)
	}
	return old.Metadata(), nil
}

// wholeFile is a file that was read.
type wholeFile struct {
	iceio.ReadFileIO // nothing else is asked for

	data []byte
}

func (f wholeFile) ReadFile(string) ([]byte, error) { return f.data, nil }

// olderFile is the content of an older metadata file, nil where it was removed. It
// takes no longer than a load of the table may: the commit loop waits for it, and a
// client of an object store knows no context but that which it was opened with. What
// is left of a read that was given up ends by the client's own bounds.
func (t *Table) olderFile(ctx context.Context, tbl *table.Table, location string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), t.lake.cfg.Timeouts.Load)
	defer cancel()
	opened := ctx
	if t.cat.CatalogType() == catalog.REST {
		opened = context.WithoutCancel(ctx) // its client is kept, and lives on
	}
	type content struct {
		data []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		var c content
		c.data, c.err = contentIfThere(opened, tbl, location)
		read <- c
	}()
	what := fmt.Sprintf("reading older metadata file %s of table %s", location, t.name)
	var c content
	select {
	case c = <-read:
	case <-ctx.Done():
		c.err = ctx.Err()
	}
	switch {
	case c.err == nil:
		return c.data, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, classify(ctx.Err(), "%s: the store has not answered in time", what)
	case ctx.Err() != nil:
		return nil, classify(ctx.Err(), "%s", what)
	case denied(c.err):
		return nil, fault.New(fault.Unavailable, "%s: access to it was denied, and without it nothing tells what the table holds: grant the right to read it, "+
			"and to list its folder (where that may not be listed, an object store denies a file that is gone too): %w", what, c.err)
	default:
		return nil, classify(c.err, "%s", what)
	}
}

// contentIfThere is the content of a file, nil where there is none.
func contentIfThere(ctx context.Context, tbl *table.Table, location string) ([]byte, error) {
	files, err := tbl.FS(ctx)
	if err != nil {
		return nil, err
	}
	var data []byte
	if whole, ok := files.(iceio.ReadFileIO); ok {
		data, err = whole.ReadFile(location)
	} else {
		var f iceio.File
		if f, err = files.Open(location); err == nil {
			data, err = io.ReadAll(f)
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		if there, serr := exists(files, location); serr == nil && !there {
			return nil, nil
		}
		return nil, err
	}
	return data, nil
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
