package lake

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	iceio "github.com/apache/iceberg-go/io"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
)

// Intent is the record of an attempt at <table>/metadata/icestream/<attempt>.json:
// which files may exist because of it. It is written before the first of them.
type Intent struct {
	Attempt ident.UUID        `json:"attempt"`
	Epoch   ident.WriterEpoch `json:"writer_epoch"`
	// Files and Quarantine are how many names are set aside; not every name need
	// have become a file.
	Files      int `json:"files"`
	Quarantine int `json:"quarantine"`
	// Marks is the commit whose replayed records the files mark, in a quarantine
	// table; not the attempt, since each try has a name of its own.
	Marks ident.UUID `json:"marks,omitzero"`
	// After is the table's sequence number when the record was first written: that of
	// a snapshot with the files is greater. 0 where an older release wrote the record.
	After int64 `json:"after_sequence,omitempty"`

	used, written int
}

// namesAtOnce is how many names are set aside in one write of the record.
const namesAtOnce = 64

// next takes a name.
func (i *Intent) next() int {
	i.used++
	return i.used - 1
}

// reserve writes the record when the names taken go beyond those set aside.
func (t *Table) reserve(ctx context.Context, i *Intent) error {
	if i.used <= i.written {
		return nil
	}
	i.Files = (i.used + namesAtOnce - 1) / namesAtOnce * namesAtOnce
	if err := t.WriteIntent(ctx, *i); err != nil {
		return err
	}
	i.written = i.Files
	return nil
}

// WriteIntent writes or replaces the record of an attempt. A Writer does it by
// itself.
func (t *Table) WriteIntent(ctx context.Context, i Intent) error {
	location, err := t.metadataLocation("icestream/" + i.Attempt.String() + ".json")
	if err != nil {
		return err
	}
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return err
	}
	t.mu.Lock()
	if before, again := t.records[i.Attempt]; again {
		i.After = before.After
	} else {
		i.After = t.tbl.Metadata().LastSequenceNumber()
	}
	t.mu.Unlock()
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := files.WriteFile(location, text); err != nil {
		return classify(err, "writing the intent record %s", location)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.records == nil {
		t.records = map[ident.UUID]Intent{}
	}
	t.records[i.Attempt] = i
	return nil
}

// reservePoison sets the name of a quarantine file aside, where the record of the
// attempt does not do so yet: one that a Writer wrote does.
func (t *Table) reservePoison(ctx context.Context, o WriterOptions) error {
	t.mu.Lock()
	i, written := t.records[o.Attempt]
	t.mu.Unlock()
	if written && i.Quarantine > 0 {
		return nil
	}
	if !written {
		i = Intent{Attempt: o.Attempt, Epoch: o.Epoch}
	}
	i.Quarantine = 1
	return t.WriteIntent(ctx, i)
}

// RemoveIntent removes the record of an attempt that is settled. One that stays
// is settled again at the next start.
func (t *Table) RemoveIntent(ctx context.Context, attempt ident.UUID) {
	t.mu.Lock()
	delete(t.records, attempt)
	t.mu.Unlock()
	location, err := t.metadataLocation("icestream/" + attempt.String() + ".json")
	if err == nil {
		_ = t.deletePaths(ctx, []string{location}) // it is logged
	}
}

// Intents reads all records that are left. One that cannot be understood is an
// error: it may name files.
func (t *Table) Intents(ctx context.Context) ([]Intent, error) {
	root, err := t.metadataLocation("icestream")
	if err != nil {
		return nil, err
	}
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return nil, err
	}
	lister, ok := files.(iceio.ListableIO)
	if !ok {
		return nil, fault.New(fault.Unsupported, "listing the intent records of table %s: its storage cannot list", t.name)
	}
	var names []string
	err = lister.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d != nil && !d.IsDir() && strings.HasSuffix(base, ".json") && !strings.HasPrefix(base, ".") {
			names = append(names, base)
		}
		return ctx.Err()
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, classify(err, "listing the intent records of table %s", t.name)
	}
	slices.Sort(names)
	out := make([]Intent, 0, len(names))
	for _, name := range names {
		i, err := readIntent(files, root+"/"+name)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

func readIntent(files iceio.IO, location string) (Intent, error) {
	var text []byte
	var err error
	if r, ok := files.(iceio.ReadFileIO); ok {
		text, err = r.ReadFile(location)
	} else {
		err = fault.New(fault.Unsupported, "the storage cannot read whole files")
	}
	if err != nil {
		return Intent{}, classify(err, "reading the intent record %s", location)
	}
	var i Intent
	if err := json.Unmarshal(text, &i); err != nil {
		return Intent{}, fault.New(fault.Corrupt, "reading the intent record %s: %w", location, err)
	}
	return i, nil
}

// IntentFiles are the files that exist because of an attempt: data files, and
// quarantine files in the quarantine table's folder, those included that a killed
// process had begun on a local disk.
func (t *Table) IntentFiles(ctx context.Context, i Intent) ([]string, error) {
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return nil, err
	}
	o := WriterOptions{Attempt: i.Attempt, Epoch: i.Epoch}
	var out []string
	add := func(kind string, n int, place func(string) (string, error)) error {
		names := make([]string, n)
		for k := range n {
			location, err := place(fileName(o, kind, k))
			if err != nil {
				return err
			}
			names[k] = location
			there, err := exists(files, location)
			if err != nil {
				return classify(err, "looking for %s", location)
			}
			if there {
				out = append(out, location)
			}
		}
		begun, err := icefile.Unfinished(files, names)
		if err != nil {
			return classify(err, "looking for files of table %s that were begun", t.name)
		}
		out = append(out, begun...)
		return ctx.Err()
	}
	if err := add("", i.Files, t.dataLocation); err != nil {
		return nil, err
	}
	if i.Quarantine > 0 {
		q, err := t.quarantine(ctx, false)
		if err != nil {
			if fault.ReasonOf(err) == fault.UnknownTable {
				return out, nil
			}
			return nil, err
		}
		if err := add("q", i.Quarantine, q.dataLocation); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Undo settles an attempt that can land no more: if it has not landed it removes its
// files, and then its record. The history decides whether it has landed, since other
// engines may have expired its snapshot; where that is cut off, its quarantine file
// stays. References are looked at once more: a file that a reachable snapshot or the
// outbox names is never removed (G6).
func (t *Table) Undo(ctx context.Context, i Intent) error {
	fate, err := t.fateOf(ctx, i)
	if err != nil {
		return err
	}
	if fate == Landed {
		t.log.Info("attempt had landed", "attempt", i.Attempt)
		t.RemoveIntent(ctx, i.Attempt)
		return nil
	}
	t.log.Info("attempt never landed: removing its files", "attempt", i.Attempt, "names", i.Files)
	if fate == Unproven {
		i.Quarantine = 0 // the copy of the quarantine table may be too old to name it
	}
	paths, err := t.IntentFiles(ctx, i)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		named, err := t.referenced(ctx)
		if err != nil {
			return err
		}
		paths = slices.DeleteFunc(paths, func(p string) bool { return named[p] })
	}
	if err := t.deletePaths(ctx, paths); err != nil {
		return err // the record stays, or nobody would know of the files
	}
	t.RemoveIntent(ctx, i.Attempt)
	return nil
}

// referenced are all data files that a snapshot of the table or of its
// quarantine table names, and those of the outbox.
func (t *Table) referenced(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, e := range t.Head().State.Pending() {
		for _, f := range e.Files {
			out[f.Path] = true
		}
	}
	tables := []*Table{t}
	switch q, err := t.quarantine(ctx, false); {
	case err == nil:
		tables = append(tables, q)
	case fault.ReasonOf(err) != fault.UnknownTable:
		return nil, err
	}
	for _, tt := range tables {
		files, err := tt.files(t.lake.storage(ctx))
		if err != nil {
			return nil, err
		}
		err = walkEntries(ctx, files, tt.handle().Metadata(), func(e entry) { out[e.file.FilePath()] = true })
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
