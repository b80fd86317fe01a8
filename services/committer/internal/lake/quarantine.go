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
	"github.com/icestream/icestream/internal/schema"
)

// quarantineSuffix is what the name of a quarantine table adds to that of its
// table.
const quarantineSuffix = "__quarantine"

// keyApplied is the sequence number of the newest main commit whose quarantine
// files a snapshot of the quarantine table holds; every lower one is held too.
const keyApplied = prefix + "applied-sequence"

// quarantine loads the table's quarantine table; create makes it when missing.
func (t *Table) quarantine(ctx context.Context, create bool) (*Table, error) {
	name := t.name + quarantineSuffix
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
func (t *Table) WriteQuarantine(ctx context.Context, o WriterOptions, recs ...arrow.RecordBatch) ([]QuarantineFile, error) {
	rows := int64(0)
	for _, r := range recs {
		rows += r.NumRows()
	}
	if rows == 0 {
		return nil, nil
	}
	q, err := t.quarantine(ctx, true)
	if err != nil {
		return nil, err
	}
	intents, err := t.Intents(ctx)
	if err != nil {
		return nil, err
	}
	intent := Intent{Attempt: o.Attempt, Epoch: o.Epoch}
	for _, i := range intents {
		if i.Attempt == o.Attempt {
			intent = i
		}
	}
	intent.Quarantine = 1
	if err := t.WriteIntent(ctx, intent); err != nil {
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
	if err := out.Close(); err != nil {
		return QuarantineFile{}, err
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
// marks there what was replayed, one snapshot per main commit and each exactly
// once, in the order of the main commits: a commit whose id is among the
// ancestors, or whose sequence number is at or below the one applied last, is
// there already. It may be called again after any error; entries that it applied
// stay in the state until the next commit leaves them out.
func (t *Table) ApplyQuarantine(ctx context.Context, pending []PendingQuarantine) error {
	entries := mergeByCommit(pending)
	if len(entries) == 0 {
		return nil
	}
	q, err := t.quarantine(ctx, true)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := q.applyEntry(ctx, e); err != nil {
			return err
		}
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

func (t *Table) applyEntry(ctx context.Context, e PendingQuarantine) error {
	var last error
	for range attemptsPerEntry {
		if _, err := t.Reload(ctx); err != nil {
			return err
		}
		if t.applied(e) {
			t.settleMarks(ctx, e)
			return nil
		}
		// Any error leaves the outcome open: the next round looks first. All tries
		// assert the head they were built on, so one at most can land.
		if last = t.carryOut(ctx, e); last == nil {
			continue
		}
		if r := fault.ReasonOf(last); ctx.Err() != nil || r == fault.Corrupt || r == fault.Unauthorized || r == fault.NotFound {
			return last
		}
	}
	if _, err := t.Reload(ctx); err == nil && t.applied(e) {
		t.settleMarks(ctx, e)
		return nil
	}
	return fault.New(fault.Unavailable, "applying quarantined records of commit %s to table %s: %w", e.CommitID, t.name, last)
}

// applied reports whether the loaded table holds the entry's files.
func (t *Table) applied(e PendingQuarantine) bool {
	if t.Find(e.CommitID) {
		return true
	}
	return e.Sequence > 0 && t.appliedSequence() >= e.Sequence
}

func (t *Table) appliedSequence() int64 {
	var newest int64
	read := func(v string) {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			newest = max(newest, n)
		}
	}
	tbl := t.handle()
	read(tbl.Properties()[keyApplied])
	for s := range ancestors(tbl.Metadata()) {
		if s.Summary != nil {
			read(s.Summary.Properties[keyApplied])
		}
	}
	return newest
}

// carryOut sends one snapshot that carries the entry out.
func (t *Table) carryOut(ctx context.Context, e PendingQuarantine) error {
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), t.lake.cfg.Timeouts.Stage+t.lake.cfg.Timeouts.Commit+t.markTime(e))
	defer cancel()
	before := t.handle()
	tbl := t.rehandle(before.Metadata())
	tx := tbl.NewTransaction()
	if err := tx.AssertRefSnapshotID(""); err != nil {
		return err
	}
	sequence := strconv.FormatInt(e.Sequence, 10)
	if !t.noCopies.Load() {
		if err := tx.SetProperties(iceberg.Properties{keyApplied: sequence}); err != nil {
			return err
		}
	}
	summary := iceberg.Properties{keyCommitID: e.CommitID.String(), keyApplied: sequence}
	var err error
	if len(e.Replayed) > 0 {
		err = t.mark(ctx, tx, tbl, e, summary)
	} else {
		err = t.append(ctx, tx, e, summary)
	}
	if err != nil {
		return classify(err, "staging quarantined records of commit %s", e.CommitID)
	}
	commit, err := tx.TableCommit()
	if err != nil {
		return err
	}
	meta, _, err := t.cat.CommitTable(ctx, t.ident, commit.Requirements, commit.Updates)
	if err != nil {
		if badRequest(err) || unauthorized(err) {
			t.noCopies.Store(true)
			return fault.New(fault.Unavailable, "committing quarantined records of commit %s: %w", e.CommitID, err)
		}
		return classify(err, "committing quarantined records of commit %s", e.CommitID)
	}
	t.dropOldMetadata(ctx, before.Metadata(), meta)
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
		return nil, fault.New(fault.NotFound, "applying quarantined records: %s is gone: put it back, or accept the loss with `icestream offsets reset`", f.Path)
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
