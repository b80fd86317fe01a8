package lake

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/schema"
)

// QuarantineName is the name of a table's quarantine table.
func QuarantineName(table string) string { return table + ident.QuarantineSuffix }

// Refuse says why the table is none that has positions, or records in quarantine, of
// its own: it is somebody else's, or the quarantine of another. It is nil for a
// table of ours, also before anything is committed to it.
func (t *Table) Refuse() error {
	if err := t.RefuseQuarantine(); err != nil {
		return err
	}
	if h := t.Head(); h.State.Format == 0 && h.StateLost == nil && t.handle().Properties()[propertyOwner] == "" {
		return fault.New(fault.Unsupported, "%s is not a table of Icestream: no snapshot and no property of it is ours", t.name)
	}
	return nil
}

// RefuseQuarantine says that the table is the quarantine of another.
func (t *Table) RefuseQuarantine() error {
	main, ok := ident.MainTable(t.name)
	if !ok || t.Head().State.Format != 0 || t.handle().Properties()[propertyOwner] == "" {
		return nil
	}
	return fault.New(fault.InvalidArgument, "%s", near.Quarantine(t.name, main))
}

// keyApplied is the sequence number of the newest main commit whose quarantine
// files a snapshot of the quarantine table holds; every lower one is held too.
const keyApplied = prefix + "applied-sequence"

// keyAppliedTo is the id of the main table that keyApplied counts the commits of:
// a table that is made anew counts from one again.
const keyAppliedTo = prefix + "applied-table"

// keyGap is a property of a quarantine table that was put to use again after
// somebody had rolled it back: marks of replays, or records, may be missing.
const keyGap = prefix + "rolled-back"

// outboxTable is the quarantine table as it is kept between commits: to write a
// file only its schema and its place are needed, and whoever applies loads the
// head anyway. Nothing is kept after an error.
func (t *Table) outboxTable(ctx context.Context) (q *Table, forget func(error), err error) {
	forget = func(err error) {
		if err != nil && !errors.Is(err, ErrMarking) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.outbox = nil
		}
	}
	t.mu.Lock()
	q = t.outbox
	t.mu.Unlock()
	if q != nil {
		return q, forget, nil
	}
	if q, err = t.quarantine(ctx, true); err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outbox = q
	return q, forget, nil
}

// quarantine loads the table's quarantine table; create makes it when missing.
func (t *Table) quarantine(ctx context.Context, create bool) (*Table, error) {
	q, err := t.loadQuarantine(ctx, create)
	if q == nil || err != nil {
		return nil, err
	}
	q.main, q.marks, q.tries, q.seen = ident.UUID(t.handle().Metadata().TableUUID()), t.marks, t.tries, t.seen
	return q, q.seen.look(q.name, q.handle().Metadata())
}

func (t *Table) loadQuarantine(ctx context.Context, create bool) (*Table, error) {
	name := t.name + ident.QuarantineSuffix
	q, err := t.lake.Load(ctx, name)
	if err == nil && create {
		return q, q.addLSN(ctx)
	}
	if fault.ReasonOf(err) != fault.UnknownTable || !create {
		return q, err
	}
	props := defaults()
	props[propertyOwner] = t.handle().Properties()[propertyOwner]
	if err := t.lake.create(ctx, name, schema.QuarantineSchema(), props); err != nil {
		return nil, err
	}
	return t.lake.Load(ctx, name)
}

// addLSN gives a quarantine table of an older release the column for LSNs.
func (t *Table) addLSN(ctx context.Context) error {
	if t.Head().Schema.Column(schema.LSNName) != nil {
		return nil
	}
	tx := t.handle().NewTransaction()
	err := tx.UpdateSchema(true, false).AddColumn([]string{schema.LSNName}, iceberg.PrimitiveTypes.Int64, "LSN of the record", false, nil).Commit()
	if err != nil {
		return classify(err, "adding column %s to table %s", schema.LSNName, t.name)
	}
	commit, err := tx.TableCommit()
	if err != nil {
		return classify(err, "adding column %s to table %s", schema.LSNName, t.name)
	}
	send, cancel := context.WithTimeout(ctx, t.lake.cfg.Timeouts.Commit)
	defer cancel()
	_, _, sent := t.cat.CommitTable(send, t.ident, commit.Requirements, commit.Updates)
	head, err := t.Reload(ctx) // only the table says whether it landed
	if err == nil && head.Schema.Column(schema.LSNName) == nil {
		err = classify(sent, "adding column %s to table %s", schema.LSNName, t.name)
	}
	return err
}

// WriteQuarantine writes rows of the quarantine table's schema into files of the
// attempt, in the quarantine table's folder. Nothing names them until a commit of
// this table puts them into its outbox. It may be called once per attempt.
func (t *Table) WriteQuarantine(ctx context.Context, o WriterOptions, recs ...arrow.RecordBatch) (_ []QuarantineFile, err error) {
	rows := int64(0)
	for _, r := range recs {
		rows += r.NumRows()
	}
	if rows == 0 {
		return nil, nil
	}
	q, forget, err := t.outboxTable(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { forget(err) }()
	if err := t.reservePoison(ctx, o); err != nil {
		return nil, err
	}
	f, err := q.writeOne(ctx, fileName(o, "q", 0), recs)
	if err != nil {
		return nil, classify(err, "writing quarantined records of table %s", t.name)
	}
	return []QuarantineFile{f}, nil
}

// writeOne writes batches into one file of the quarantine table. Quarantined
// records are few, so a file has no size limit.
func (t *Table) writeOne(ctx context.Context, name string, recs []arrow.RecordBatch) (QuarantineFile, error) {
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return QuarantineFile{}, err
	}
	l, err := newLayout(t.Head().Schema.Arrow())
	if err != nil {
		return QuarantineFile{}, err
	}
	path, err := t.dataLocation(name)
	if err != nil {
		return QuarantineFile{}, err
	}
	out, err := files.Create(path)
	if err != nil {
		return QuarantineFile{}, err
	}
	rows, size, err := l.writeAll(out, recs)
	if err != nil {
		abort(out)
		return QuarantineFile{}, errors.Join(err, remove(files, path))
	}
	if err := out.Close(); err != nil { // it may be there all the same, and would be in the way of the next try
		return QuarantineFile{}, errors.Join(err, remove(files, path))
	}
	return QuarantineFile{Path: path, Rows: rows, Bytes: size}, nil
}

func (l *layout) writeAll(out iceio.FileWriter, recs []arrow.RecordBatch) (rows, size int64, err error) {
	pq, err := l.open(out)
	if err != nil {
		return 0, 0, err
	}
	for _, rec := range recs {
		rec, err := l.conform(rec)
		if err != nil {
			return 0, 0, err
		}
		err = pq.write(rec)
		rec.Release()
		if err != nil {
			return 0, 0, err
		}
	}
	_, err = pq.close()
	return pq.rows, pq.out.n, err
}

// ApplyQuarantine appends the files of the outbox to the quarantine table, and
// marks there what was replayed, each exactly once, in the order of the main
// commits: a commit whose id is among the ancestors, or whose sequence number is
// at or below the one applied last, is there already. Commits that follow each
// other and replayed nothing come in one snapshot, that of the last of them. A mark
// that takes several snapshots gets one per call, and ErrMarking asks for the next.
// It may be called again after any error; entries that it applied stay in the
// state until the next commit leaves them out.
func (t *Table) ApplyQuarantine(ctx context.Context, pending []PendingQuarantine) error {
	entries := mergeByCommit(pending)
	if len(entries) == 0 {
		return nil
	}
	q, forget, err := t.outboxTable(ctx)
	if err != nil {
		return err
	}
	for len(entries) > 0 {
		n, err := q.applyFirst(ctx, entries)
		if err != nil {
			forget(err)
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// mergeByCommit joins the entries that several pipelines have for one commit and
// orders them by sequence number.
func mergeByCommit(pending []PendingQuarantine) []PendingQuarantine {
	byID := map[ident.UUID]*PendingQuarantine{}
	for _, e := range pending {
		if len(e.Files) == 0 && len(e.Replayed) == 0 {
			continue
		}
		have := byID[e.CommitID]
		if have == nil {
			c := e.clone()
			byID[e.CommitID] = &c
			continue
		}
		have.Files = append(have.Files, e.Files...)
		if have.Replayed == nil {
			have.Replayed = e.Replayed
		} else {
			maps.Copy(have.Replayed, e.Replayed) // other pipelines: other partitions
		}
	}
	out := make([]PendingQuarantine, 0, len(byID))
	for e := range maps.Values(byID) {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b PendingQuarantine) int { return int(a.Sequence - b.Sequence) })
	return out
}

// attemptsPerEntry bounds the tries within one call: the caller comes back.
const attemptsPerEntry = 4

// applyFirst applies the first of the entries, with those that can come along,
// and returns how many are known to be applied.
func (t *Table) applyFirst(ctx context.Context, entries []PendingQuarantine) (int, error) {
	var last error
	marks := len(entries[0].Replayed) > 0
	for range attemptsPerEntry {
		if _, err := t.Reload(ctx); err != nil {
			return 0, err
		}
		t.settleTry(ctx)
		t.discardTries(ctx)
		if n, err := t.settled(ctx, entries); n > 0 || err != nil {
			return n, err
		}
		// Any error leaves the outcome open: the next round looks first. All tries
		// assert the head they were built on, so one at most can land.
		if last = t.carryOut(ctx, t.together(entries)); last == nil {
			continue
		}
		if errors.Is(last, ErrMarking) {
			return 0, ErrMarking
		}
		if marks {
			break // a try may take long, and the caller has other work
		}
		if r := fault.ReasonOf(last); ctx.Err() != nil || r == fault.Corrupt || r == fault.Unauthorized || r == fault.NotFound {
			return 0, last
		}
	}
	if _, err := t.Reload(ctx); err == nil {
		t.discardTries(ctx)
		if n, err := t.settled(ctx, entries); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, fault.New(fault.Unavailable, "applying quarantined records of commit %s to table %s: %w", entries[0].CommitID, t.name, last)
}

// discardTries removes the manifests of tries that did not land, once that is proven,
// and forgets those that did.
func (t *Table) discardTries(ctx context.Context) {
	head := snapshotID(t.handle().Metadata())
	t.tries.list = slices.DeleteFunc(t.tries.list, func(st *Staged) bool { return t.Discard(ctx, st) || st.Base != head })
}

// settled counts the leading entries that the loaded table holds.
func (t *Table) settled(ctx context.Context, entries []PendingQuarantine) (int, error) {
	upTo, err := t.appliedSequence(ctx)
	if err != nil {
		return 0, err
	}
	for n, e := range entries {
		if !t.applied(e, upTo) {
			return n, nil
		}
		t.settleMarks(ctx, e)
	}
	return len(entries), nil
}

// together joins the first entry with those behind it that bring files alone and
// that the loaded table, which is going to be asserted, does not hold. Under the
// sequence number of the last all of them count as applied.
func (t *Table) together(entries []PendingQuarantine) PendingQuarantine {
	all := entries[0].clone()
	if len(all.Replayed) > 0 || all.Sequence == 0 {
		return all
	}
	for _, e := range entries[1:] {
		if len(e.Replayed) > 0 || e.Sequence <= all.Sequence || t.Find(e.CommitID) {
			break
		}
		all.CommitID, all.Sequence = e.CommitID, e.Sequence
		all.Files = append(all.Files, e.Files...)
	}
	return all
}

// applied reports whether the loaded table holds the entry's files; upTo is its
// applied sequence number.
func (t *Table) applied(e PendingQuarantine, upTo int64) bool {
	return t.Find(e.CommitID) || e.Sequence > 0 && upTo >= e.Sequence
}

// appliedSequence is the sequence number of the newest main commit whose records the
// loaded table holds. The property says it; where the catalog takes none, the newest
// snapshot that we put there, which may be gone from the metadata.
func (t *Table) appliedSequence(ctx context.Context) (int64, error) {
	tbl := t.handle()
	newest, there := t.sequenceIn(tbl.Properties()), false
	for s := range ancestors(tbl.Metadata()) {
		if s.Summary != nil {
			n := t.sequenceIn(s.Summary.Properties)
			newest, there = max(newest, n), there || n > 0
		}
	}
	if there {
		return newest, nil
	}
	for s, err := range t.lineage(ctx, tbl) {
		if err != nil {
			return 0, err
		}
		if s.Summary == nil {
			continue
		}
		if n := t.sequenceIn(s.Summary.Properties); n > 0 {
			return max(newest, n), nil
		}
	}
	return newest, nil
}

// sequenceIn is the sequence number that properties of the table or of a snapshot
// give, 0 for none.
func (t *Table) sequenceIn(props iceberg.Properties) int64 {
	if props[keyAppliedTo] != t.main.String() {
		return 0
	}
	n, err := strconv.ParseInt(props[keyApplied], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// lacks is the sequence number of a main commit whose records, or marks, somebody
// took out of the loaded table by rolling it back, 0 for none: property and
// snapshot are set by one request. A history that others cut proves nothing.
func (t *Table) lacks() int64 {
	tbl := t.handle()
	want := t.sequenceIn(tbl.Properties())
	for s := range ancestors(tbl.Metadata()) {
		if s.Summary != nil && t.sequenceIn(s.Summary.Properties) > 0 {
			if t.sequenceIn(s.Summary.Properties) >= want {
				return 0
			}
			return want // its snapshot would be nearer to the head
		}
		if s.ParentSnapshotID != nil && tbl.Metadata().SnapshotByID(*s.ParentSnapshotID) == nil {
			return 0
		}
	}
	return want
}

// whole refuses a quarantine table that was rolled back: what was replayed cannot be
// told from what waits (G1, G9).
func (t *Table) whole() error {
	if n := t.lacks(); n > 0 {
		return fault.New(fault.Stopped, "reading table %s: somebody rolled it back below what commit %d of its main table put there, "+
			"so what was replayed cannot be told from what waits: roll it forward", t.name, n)
	}
	if gap := t.handle().Properties()[keyGap]; gap != "" {
		return fault.New(fault.Stopped, "reading table %s: somebody rolled it back below what commit %s of its main table put there, and records were added since, "+
			"so what was replayed cannot be told from what waits: repair replayed_in, see that `icestream audit --deep` proves the table, and remove the table property %s",
			t.name, gap, keyGap)
	}
	return nil
}

// carryOut sends one snapshot that carries the entry out, or, for one with many
// records to mark, a part of it; ErrMarking says so.
func (t *Table) carryOut(ctx context.Context, e PendingQuarantine) error {
	ctx = t.lake.storage(ctx)
	before := t.handle()
	tbl := t.rehandle(before.Metadata())
	m := &marking{whole: true}
	if len(e.Replayed) > 0 {
		var err error
		switch m, err = t.mark(ctx, tbl, e); {
		case errors.Is(err, ErrMarking):
			return ErrMarking
		case err != nil:
			return classify(err, "marking what commit %s replayed", e.CommitID)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.lake.cfg.Timeouts.Stage+t.lake.cfg.Timeouts.Commit)
	defer cancel()
	tx := tbl.NewTransaction()
	if err := tx.AssertRefSnapshotID(""); err != nil {
		return err
	}
	summary := iceberg.Properties{}
	if m.whole {
		summary = iceberg.Properties{keyApplied: strconv.FormatInt(e.Sequence, 10), keyAppliedTo: t.main.String()}
		if !t.plain() {
			props := maps.Clone(summary)
			if n := t.lacks(); n > 0 {
				props[keyGap] = strconv.FormatInt(n, 10)
			}
			if err := tx.SetProperties(props); err != nil {
				return err
			}
		}
		summary[keyCommitID] = e.CommitID.String()
	}
	var err error
	switch {
	case m.open():
		summary[keyTry] = m.intent.Attempt.String()
		err = m.replace(ctx, tx, summary)
	case len(e.Replayed) > 0:
		err = addFiles(ctx, tx, tbl, nil, summary)
	default:
		err = t.append(ctx, tx, e, summary)
	}
	if err != nil {
		return classify(err, "staging quarantined records of commit %s", e.CommitID)
	}
	commit, err := tx.TableCommit()
	if err != nil {
		return err
	}
	staged, err := tx.StagedTable()
	if err != nil {
		return err
	}
	t.tries.list = append(t.tries.list, stagedOf(staged.CurrentSnapshot())) // whatever the answer, a look settles it
	meta, _, err := t.cat.CommitTable(ctx, t.ident, commit.Requirements, commit.Updates)
	if err != nil {
		if badRequest(err) || unauthorized(err) {
			if !t.plain() {
				t.refusedCopies(err)
			}
			return fault.New(fault.Unavailable, "committing quarantined records of commit %s: %w", e.CommitID, err)
		}
		return classify(err, "committing quarantined records of commit %s", e.CommitID)
	}
	t.dropOldMetadata(ctx, before.Metadata(), meta)
	if !m.whole {
		return ErrMarking
	}
	return nil
}

// append adds the files of an entry.
func (t *Table) append(ctx context.Context, tx *table.Transaction, e PendingQuarantine, summary iceberg.Properties) error {
	data := make([]iceberg.DataFile, len(e.Files))
	for i, f := range e.Files {
		var err error
		if data[i], err = t.describe(ctx, f); err != nil {
			return err
		}
	}
	return tx.AddDataFiles(ctx, data, summary, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
}

// describe reads the statistics of a quarantine file from its footer: a process
// that did not write it can apply it.
func (t *Table) describe(ctx context.Context, f QuarantineFile) (iceberg.DataFile, error) {
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return nil, err
	}
	if there, err := exists(files, f.Path); err == nil && !there {
		return nil, fault.New(fault.NotFound, "applying quarantined records: %s is gone: put it back; until then `icestream audit` names the records that are missing", f.Path)
	}
	footer, err := readFileFooter(files, f)
	if err != nil {
		return nil, err
	}
	meta := t.handle().Metadata()
	data, err := table.DataFileFromMetadata(table.DataFileArgs{
		Schema: meta.CurrentSchema(), Spec: *iceberg.UnpartitionedSpec, Format: iceberg.ParquetFile, Metadata: footer,
		FilePath: f.Path, FileSize: f.Bytes, Content: iceberg.EntryContentData, FormatVersion: meta.Version(), Properties: meta.Properties(),
	})
	if err != nil {
		return nil, fault.New(fault.Corrupt, "describing %s: %w", f.Path, err)
	}
	return data, nil
}

func readFileFooter(files iceio.IO, f QuarantineFile) (meta *metadata.FileMetaData, err error) {
	in, err := files.Open(f.Path)
	if err != nil {
		return nil, classify(err, "opening %s", f.Path)
	}
	r, err := file.NewParquetReader(in)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "reading %s: %w", f.Path, errors.Join(err, in.Close()))
	}
	if r.NumRows() != f.Rows {
		err = fault.New(fault.Corrupt, "reading %s: it has %d rows, the outbox says %d", f.Path, r.NumRows(), f.Rows)
	}
	return r.MetaData(), errors.Join(err, r.Close())
}
