package lake

import (
	"context"
	"fmt"
	"maps"
	"slices"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// AuditOptions say how far an audit goes.
type AuditOptions struct {
	// Deep reads the _kafka columns of the whole table: a row too many or too few
	// shows with its offset.
	Deep bool
	// Memory bounds what a deep audit remembers of offsets, in bytes; 256 MiB when
	// zero. What does not fit is read in another pass over the table. Offsets that
	// follow each other without a gap need none.
	Memory int64
	// Log, when set, is what the table is compared with; it makes the audit deep.
	Log KafkaLog
	// Progress, when set, hears how far the reading is: at most a few times a
	// second, from one goroutine.
	Progress func(Progress)
}

// Progress is how far a deep audit is.
type Progress struct {
	What        string // what is being read
	Pass        int    // from 1
	Done, Total int64  // rows; Total is 0 where it is not known
}

// Audit proves G1 from the table alone: that every offset of every pipeline from
// its start to its committed position is a row, quarantined, or skipped for a
// stated reason, exactly once. An error means that it could not be carried out
// at all: there is no such table, or it is a quarantine table, which its main table
// accounts for. Whatever else it finds out is in the report, also that the table is
// none of ours.
func Audit(ctx context.Context, l *Lake, name string, o AuditOptions) (Report, error) {
	for again := 3; ; again-- {
		r, moved, err := auditOnce(ctx, l, name, o, again == 0)
		if err != nil || !moved || again == 0 {
			return r, err
		}
		// The table was committed to, or expired, meanwhile: what is missing may be
		// what that removed.
	}
}

// pairs is how often main table and quarantine table are read until both are of
// one moment.
const pairs = 10

// auditOnce audits a table as it is. moved says that something was found amiss,
// and that the table is another one by now; last, that it is not audited again then.
func auditOnce(ctx context.Context, l *Lake, name string, o AuditOptions, last bool) (_ Report, moved bool, _ error) {
	r := &Report{Table: name, Deep: o.Deep || o.Log != nil, Against: o.Log != nil, Partitions: []PartitionReport{}, Findings: []Finding{}, Notes: []string{}}
	t, q, err := loadPair(ctx, l, name)
	if err == nil {
		err = t.RefuseQuarantine()
	}
	switch fault.ReasonOf(err) {
	case fault.Unsupported, fault.Corrupt, fault.Stopped:
		r.find(Unknown, "table", "%s", fault.Describe(err))
		return *r, false, nil
	default:
		if err != nil {
			return *r, false, err
		}
	}
	files, err := t.files(l.storage(ctx))
	if err != nil {
		return *r, false, err
	}
	a := &auditor{t: t, q: q, files: files, head: t.Head(), r: r, columns: columnsOf(t.Head().Schema)}
	if err := a.run(ctx, o); err != nil {
		return *a.r, false, err
	}
	moved = (a.r.Verdict == Violated || a.unread) && a.moved(ctx)
	if moved && last {
		a.forgive(ctx)
	}
	return *a.r, moved, nil
}

// forgive takes back that something is gone, where the table has changed since and
// does not name it any more: that may be why.
func (a *auditor) forgive(ctx context.Context) {
	if len(a.r.Findings) == mostFindings {
		return // there are more than can be looked at
	}
	named := map[string]bool{}
	for _, t := range []*Table{a.t, a.q} {
		if t == nil {
			continue
		}
		files, err := t.files(t.lake.storage(ctx))
		if err == nil {
			err = walkEntries(ctx, files, t.handle().Metadata(), func(e entry) { named[e.file.FilePath()] = true })
		}
		if err != nil {
			a.r.note("what table %s names by now cannot be read: %v", t.name, err)
		}
	}
	for _, e := range a.t.Head().State.Pending() {
		for _, f := range e.Files {
			named[f.Path] = true
		}
	}
	a.r.Verdict = Proven
	for i := range a.r.Findings {
		f := &a.r.Findings[i]
		if f.gone && !named[f.Where] {
			f.Verdict = Unknown
			f.What += "; but the table has changed while it was read, which may be why: audit it again while nothing expires its snapshots"
		}
		a.r.judge(f.Verdict)
	}
}

// moved reports whether the table or its quarantine table has changed since the
// audit began. An expiry by others leaves the head where it is.
func (a *auditor) moved(ctx context.Context) bool {
	now, err := a.t.Reload(ctx)
	if err != nil || now.MetadataLocation != a.head.MetadataLocation || a.q == nil {
		return err == nil && now.MetadataLocation != a.head.MetadataLocation
	}
	was := a.q.Head().MetadataLocation
	now, err = a.q.Reload(ctx)
	return err == nil && now.MetadataLocation != was
}

// loadPair loads a table and its quarantine table, nil when there is none, as
// they were at one moment: a committer may be at work.
func loadPair(ctx context.Context, l *Lake, name string) (t, q *Table, err error) {
	if t, err = l.Load(ctx, name); err != nil {
		return nil, nil, err
	}
	for range pairs {
		before := t.Head().SnapshotID
		if q, err = t.quarantine(ctx, false); fault.ReasonOf(err) == fault.UnknownTable {
			q, err = nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		now, err := t.Reload(ctx)
		if err != nil {
			return nil, nil, err
		}
		if now.SnapshotID == before {
			break
		}
	}
	return t, q, nil
}

type auditor struct {
	t       *Table
	q       *Table // its quarantine table, nil when there is none
	files   iceio.IO
	head    Head
	r       *Report
	columns offsetColumns
	chain   []link // ancestors of the head, oldest first
	// told: the statistics of the files tell which rows are ours, so counts prove
	// what others did to them.
	told bool
	// doubts are what counts cannot tell and the rows themselves can.
	doubts []Finding
	// respelled: a file's format is not spelled as the Iceberg library does.
	respelled bool
	// waiting are offsets that were replayed and that the quarantine table does
	// not say so of yet; pending are the files of the outbox that it lacks.
	waiting map[place][]ident.Range
	pending []QuarantineFile
	unread  bool // something could not be read: it may have been removed meanwhile
}

// link is one ancestor of the head.
type link struct {
	snapshot *table.Snapshot
	own      bool
	state    State // of own ones
	content
}

func (l *link) name() string { return fmt.Sprintf("snapshot %d", l.snapshot.SnapshotID) }

// prop is a key of the summary.
func (l *link) prop(key string) string { return l.snapshot.Summary.Properties[key] }

// who names the writer of a snapshot as far as its summary does.
func (l *link) who() string {
	for _, key := range []string{"engine-name", "app-id", "spark.app.id", "writer"} {
		if v := l.prop(key); v != "" {
			return v
		}
	}
	return "another writer"
}

func (a *auditor) run(ctx context.Context, o AuditOptions) error {
	if !a.headings() {
		return nil
	}
	if err := a.load(ctx); err != nil {
		return err
	}
	a.checkStates()
	a.checkMark()
	a.checkRows()
	pathsOK, err := a.checkFiles(ctx, a.t, a.files, "")
	if err != nil {
		return err
	}
	poisonOK, err := a.checkQuarantine(ctx)
	if err != nil {
		return err
	}
	read := false
	switch {
	case !a.r.Deep:
	case !pathsOK || !poisonOK:
		a.r.find(Unknown, "deep scan", "not done: data files are missing")
	default:
		if read, err = a.deep(ctx, o); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			a.lost("deep scan", err)
		}
	}
	a.settleDoubts(read)
	return nil
}

// lost is the finding that something cannot be read: a violation where it is gone.
func (a *auditor) lost(where string, err error) {
	a.unread = true
	if isNotExist(err) {
		a.r.findGone(where, "%s", fault.Describe(err))
		return
	}
	a.r.find(Unknown, where, "%s", fault.Describe(err))
}

// settleDoubts makes what counts cannot tell into notes, where the rows told it,
// or says that it is not known.
func (a *auditor) settleDoubts(read bool) {
	for _, d := range a.doubts {
		if read {
			a.r.note("%s: %s", d.Where, d.What)
			continue
		}
		a.r.find(Unknown, d.Where, "%s: counts do not tell what is left of ours, --deep does", d.What)
	}
}

func (a *auditor) doubt(where, format string, args ...any) {
	a.doubts = append(a.doubts, Finding{Verdict: Unknown, Where: where, What: fmt.Sprintf(format, args...)})
}

// headings fills in what the state says, and reports whether there is one.
func (a *auditor) headings() bool {
	h := a.head
	a.r.SnapshotID, a.r.Sequence = h.SnapshotID, h.Sequence
	if h.RolledBack != nil {
		a.r.find(Violated, "table", "%s", fault.Describe(h.RolledBack))
	}
	if h.StateLost != nil {
		a.r.find(Unknown, "table", "%s", fault.Describe(h.StateLost))
	}
	owner := a.t.handle().Properties()[propertyOwner]
	switch {
	case h.State.Format != 0:
	case owner == "" && h.StateLost == nil:
		a.r.find(Unknown, "table", "it is not a table of Icestream: no snapshot and no property of it is ours, so there is nothing to prove")
		return false
	default:
		if h.StateLost == nil {
			a.r.find(Unknown, "table", "nothing was committed to it yet (no snapshot is ours): there is nothing to prove")
		}
		return false
	}
	a.r.CommitID = h.State.CommitID.String()
	for _, name := range slices.Sorted(maps.Keys(h.State.Pipelines)) {
		p := h.State.Pipelines[name]
		for _, part := range p.Positions.Vector().Partitions() {
			one := partitionReport(part, p.Positions[part], p.Totals[part])
			a.tellLost(p, &one)
			a.r.Partitions = append(a.r.Partitions, one)
			a.r.Rows += p.Totals[part].Rows
		}
		a.tellLives(name, p)
	}
	return true
}

func partitionReport(part ident.Partition, pos ident.Position, t Totals) PartitionReport {
	out := PartitionReport{
		Pipeline: part.Pipeline, Topic: part.Topic, Partition: part.Number, Start: pos.Start, Next: pos.Next,
		Rows: t.Rows, Quarantined: t.Quarantined, Skipped: totalsOf(t).Skipped, TopicID: part.TopicID.OrEmpty(), part: part,
	}
	return out
}

// load reads the chain and the manifests of each ancestor, each manifest once.
func (a *auditor) load(ctx context.Context) error {
	meta := a.t.handle().Metadata()
	cache := map[string]manifestContent{}
	for s := range ancestors(meta) {
		l := link{snapshot: s, own: isOwn(s)}
		if l.snapshot.Summary == nil {
			l.snapshot.Summary = &table.Summary{}
		}
		if l.own {
			state, _, err := decodeState(s.Summary.Properties)
			if err != nil {
				a.r.find(Violated, l.name(), "its state cannot be read: %v", err)
				l.own = false
			}
			l.state = state
			a.r.Own++
		}
		var err error
		if l.content, err = contentOf(ctx, a.files, s, a.columns, cache); err != nil {
			a.lost(l.name(), err)
		}
		a.chain = append(a.chain, l)
	}
	if n := len(a.chain); n > 0 {
		if first := a.chain[n-1]; first.snapshot.ParentSnapshotID != nil && meta.SnapshotByID(*first.snapshot.ParentSnapshotID) != nil {
			a.r.find(Violated, first.name(), "its parent is snapshot %d, which stands on it: the history runs in a circle", *first.snapshot.ParentSnapshotID)
		}
	}
	slices.Reverse(a.chain)
	a.r.Snapshots = len(a.chain)
	if n := len(a.chain); n > 0 {
		a.r.Complete = a.chain[0].snapshot.ParentSnapshotID == nil
		a.r.Live = a.chain[n-1].live
	}
	return ctx.Err()
}

// offsetColumns are the field ids of the columns that say where a row came from,
// 0 where the table has none.
type offsetColumns struct{ offset, partition, lsn int }

func columnsOf(s *schema.Schema) offsetColumns {
	var out offsetColumns
	if k := s.Column(schema.KafkaColumn); k != nil {
		if o := k.Kid("offset"); o != nil {
			out.offset = int(o.FieldID)
		}
		if p := k.Kid("partition"); p != nil {
			out.partition = int(p.FieldID)
		}
	}
	if l := s.Column(schema.LSNColumn); l != nil {
		out.lsn = int(l.FieldID)
	}
	return out
}
