package lake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// AuditOptions say how far an audit goes.
type AuditOptions struct {
	// Deep reads the _kafka columns of the whole table: a row too many or too few
	// shows with its offset. Memory is bounded by what is out of order, not by the
	// size of the table.
	Deep bool
}

// Audit proves G1 from the table alone: that every offset of every pipeline from
// its start to its committed position is a row, quarantined, or skipped for a
// stated reason, exactly once. An error means that it could not be carried out
// at all; whatever it finds out is in the report.
func Audit(ctx context.Context, l *Lake, name string, o AuditOptions) (Report, error) {
	t, err := l.Load(ctx, name)
	if err != nil {
		return Report{}, err
	}
	files, err := t.files(l.storage(ctx))
	if err != nil {
		return Report{}, err
	}
	a := &auditor{t: t, files: files, head: t.Head(), r: &Report{Table: name, Deep: o.Deep}}
	if err := a.run(ctx, o); err != nil {
		return *a.r, err
	}
	return *a.r, nil
}

type auditor struct {
	t     *Table
	files iceio.IO
	head  Head
	r     *Report
	chain []link // ancestors of the head, oldest first
	lost  bool   // others removed rows, so counts prove nothing by themselves
	// waiting are offsets that were replayed and that the quarantine table does
	// not say so of yet.
	waiting map[place][]ident.Range
}

// link is one ancestor of the head.
type link struct {
	snapshot *table.Snapshot
	own      bool
	state    State // of own ones
	content
}

// content is what a snapshot holds by its manifests.
type content struct {
	live    int64 // rows of live data files
	added   int64 // rows of files that this very snapshot added
	deletes int   // live delete files
}

func (l link) name() string { return fmt.Sprintf("snapshot %d", l.snapshot.SnapshotID) }

func (l link) who() string {
	p := l.snapshot.Summary.Properties
	for _, key := range []string{"engine-name", "app-id", "spark.app.id"} {
		if p[key] != "" {
			return p[key]
		}
	}
	return "another writer"
}

func (a *auditor) run(ctx context.Context, o AuditOptions) error {
	a.headings()
	if err := a.load(ctx); err != nil {
		return err
	}
	a.checkStates()
	a.checkRows()
	pathsOK, err := a.checkFiles(ctx, a.t, a.files, "")
	if err != nil {
		return err
	}
	q, err := a.checkQuarantine(ctx)
	if err != nil {
		return err
	}
	if !o.Deep {
		return nil
	}
	if !pathsOK {
		a.r.find(Unknown, "deep scan", "not done: data files are missing")
		return nil
	}
	return a.deep(ctx, q)
}

// headings fills in what the state says.
func (a *auditor) headings() {
	h := a.head
	a.r.SnapshotID, a.r.Sequence = h.SnapshotID, h.Sequence
	if h.RolledBack != nil {
		a.r.find(Violated, "table", "%s", fault.Describe(h.RolledBack))
	}
	if h.StateLost != nil {
		a.r.find(Unknown, "table", "%s", fault.Describe(h.StateLost))
	}
	if h.State.Format == 0 {
		a.r.find(Unknown, "table", "no snapshot of ours: there is nothing to prove")
		return
	}
	a.r.CommitID = h.State.CommitID.String()
	for _, name := range slices.Sorted(maps.Keys(h.State.Pipelines)) {
		p := h.State.Pipelines[name]
		for _, part := range p.Positions.Vector().Partitions() {
			a.r.Partitions = append(a.r.Partitions, partitionReport(part, p.Positions[part], p.Totals[part]))
			a.r.Rows += p.Totals[part].Rows
		}
	}
}

func partitionReport(part ident.Partition, pos ident.Position, t Totals) PartitionReport {
	out := PartitionReport{
		Pipeline: part.Pipeline, Topic: part.Topic, Partition: part.Number, Start: pos.Start, Next: pos.Next,
		Rows: t.Rows, Quarantined: t.Quarantined, Skipped: totalsOf(t).Skipped,
	}
	if !part.TopicID.IsZero() {
		out.TopicID = part.TopicID.String()
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
		if l.content, err = a.contentOf(ctx, s, cache); err != nil {
			a.r.find(lostOrUnknown(err), l.name(), "%v", err)
		}
		a.chain = append(a.chain, l)
	}
	slices.Reverse(a.chain)
	a.r.Snapshots = len(a.chain)
	if n := len(a.chain); n > 0 {
		a.r.Complete = a.chain[0].snapshot.ParentSnapshotID == nil
		a.r.Live = a.chain[n-1].live
	}
	return ctx.Err()
}

// manifestContent is what a manifest adds to a snapshot that names it.
type manifestContent struct {
	live    int64
	added   map[int64]int64 // rows by the snapshot that added them
	deletes int
}

func (a *auditor) contentOf(ctx context.Context, s *table.Snapshot, cache map[string]manifestContent) (content, error) {
	var out content
	if err := ctx.Err(); err != nil {
		return out, err
	}
	manifests, err := s.Manifests(a.files)
	if err != nil {
		return out, fmt.Errorf("reading its manifest list: %w", err)
	}
	for _, m := range manifests {
		c, ok := cache[m.FilePath()]
		if !ok {
			c.added = map[int64]int64{}
			err := walkManifest(a.files, m, func(e entry) {
				if e.deletes {
					c.deletes++
					return
				}
				c.live += e.file.Count()
				c.added[e.added] += e.file.Count()
			})
			if err != nil {
				return out, err
			}
			cache[m.FilePath()] = c
		}
		out.live += c.live
		out.added += c.added[s.SnapshotID]
		out.deletes += c.deletes
	}
	return out, nil
}

// checkStates checks that the ranges of the commits tile the offsets and that
// the running totals add up.
func (a *auditor) checkStates() {
	var prev *link
	for i := range a.chain {
		l := &a.chain[i]
		if !l.own {
			continue
		}
		a.checkSums(l)
		a.checkReplay(l)
		if prev != nil {
			a.checkStep(prev, l)
		}
		prev = l
	}
}

func (a *auditor) checkSums(l *link) {
	for name, p := range l.state.Pipelines {
		for part, pos := range p.Positions {
			if got, want := p.Totals[part].Len(), pos.Next-pos.Start; got != want {
				a.r.find(Violated, l.name(), "%s: rows, quarantined and skipped add up to %d, but [%d,%d) holds %d offsets",
					part, got, pos.Start, pos.Next, want)
			}
		}
		var advanced int64
		for part, first := range p.First {
			advanced += p.Positions[part].Next - first
		}
		if l.snapshot.Summary.Properties[keyKind] != KindReset && p.Delta.Len() != advanced {
			a.r.find(Violated, l.name(), "pipeline %s advances by %d offsets but counts %d", name, advanced, p.Delta.Len())
		}
	}
}

// checkReplay checks that a commit which takes records out of quarantine is
// marked, and moves nothing else: its rows lie outside of its ranges.
func (a *auditor) checkReplay(l *link) {
	var delta Totals
	advanced := 0
	for _, p := range l.state.Pipelines {
		delta = delta.Add(p.Delta)
		advanced += len(p.First)
	}
	mark, marked := l.snapshot.Summary.Properties[keyReplay]
	switch {
	case !marked && delta.Quarantined < 0:
		a.r.find(Violated, l.name(), "%d records left the quarantine, but the commit is no replay", -delta.Quarantined)
	case marked && (advanced > 0 || delta.Rows != -delta.Quarantined || mark != strconv.FormatInt(delta.Rows, 10)):
		a.r.find(Violated, l.name(), "a replay of %s rows counts %d rows, %d out of quarantine, and moves %d partitions", mark, delta.Rows, -delta.Quarantined, advanced)
	case marked:
		a.r.note("%s: a replay of %d quarantined records", l.name(), delta.Rows)
	}
}

func (a *auditor) checkStep(prev, l *link) {
	if l.snapshot.Summary.Properties[keyKind] == KindReset {
		a.r.note("%s: an operator reset positions here; ranges are proven from there on", l.name())
		return
	}
	before := prev.state.Positions()
	after := l.state.Positions()
	for part, old := range before {
		pos, ok := after[part]
		switch {
		case !ok:
			a.r.find(Violated, l.name(), "%s is forgotten", part)
		case pos.Start != old.Start:
			a.r.find(Violated, l.name(), "%s: its start moved from %d to %d", part, old.Start, pos.Start)
		}
	}
	for _, p := range l.state.Pipelines {
		for part, pos := range p.Positions {
			begins := pos.Start
			var had Totals
			if old, known := before[part]; known {
				begins, had = old.Next, prev.state.Pipelines[part.Pipeline].Totals[part]
			}
			first, advanced := p.First[part]
			if !advanced {
				first = pos.Next
			}
			switch {
			case first > begins:
				a.r.find(Violated, l.name(), "%s: offsets [%d,%d) are in no commit", part, begins, first)
			case first < begins:
				a.r.find(Violated, l.name(), "%s: offsets [%d,%d) were committed twice", part, first, begins)
			case p.Totals[part].Quarantined < had.Quarantined && l.snapshot.Summary.Properties[keyReplay] == "":
				a.r.find(Violated, l.name(), "%s: %d records left the quarantine, but the commit is no replay", part, had.Quarantined-p.Totals[part].Quarantined)
			case p.Totals[part].Len()-had.Len() != pos.Next-begins:
				a.r.find(Violated, l.name(), "%s: the totals grew by %d over [%d,%d)", part, p.Totals[part].Len()-had.Len(), begins, pos.Next)
			}
		}
	}
	if l.state.LSN.Next < prev.state.LSN.Next || l.state.LSN.Reserved < prev.state.LSN.Reserved || l.state.LogEpoch < prev.state.LogEpoch {
		a.r.find(Violated, l.name(), "log epoch or LSNs went back: an LSN may name two rows")
	}
}

// checkRows compares what commits say they added with what manifests hold, over
// foreign snapshots too.
func (a *auditor) checkRows() {
	var live, counted, extra int64 // of the link before; rows of others
	known := a.r.Complete
	for _, l := range a.chain {
		var rows int64
		if l.own {
			rows = a.checkAdded(l)
		}
		switch {
		case !known && !l.own:
			continue
		case !known:
			// The first state we have: what stood before it can only be compared.
			known = true
			extra = l.live - totalRows(l.state)
			if extra < 0 {
				a.lost = true
				a.r.find(Unknown, l.name(), "%d rows fewer than were counted up to here, and the older history is expired: removed by others, or lost", -extra)
			} else if extra > 0 {
				a.r.note("%s: %d rows more than we wrote up to here; the older history is expired", l.name(), extra)
			}
		case l.own && l.live-live != rows:
			a.r.find(Violated, l.name(), "the table grew by %d rows, the commit counts %d", l.live-live, rows)
		case l.own && totalRows(l.state)-counted != rows:
			a.r.find(Violated, l.name(), "the totals grew by %d rows, the commit counts %d", totalRows(l.state)-counted, rows)
		case !l.own:
			extra += a.foreign(l, l.live-live)
		}
		live = l.live
		if l.own {
			counted = totalRows(l.state)
		}
		if l.deletes > 0 && !a.lost {
			a.lost = true
			a.r.find(Unknown, l.name(), "%d delete files of %s: which rows they remove cannot be told from counts", l.deletes, l.who())
		}
	}
	if n := len(a.chain); n > 0 && known && !a.lost && a.chain[n-1].live != a.r.Rows+extra {
		a.r.find(Violated, a.chain[n-1].name(), "the table holds %d rows: we count %d and others account for %d", a.chain[n-1].live, a.r.Rows, extra)
	}
}

func totalRows(s State) int64 {
	var n int64
	for _, p := range s.Pipelines {
		for _, t := range p.Totals {
			n += t.Rows
		}
	}
	return n
}

// checkAdded compares the three places in which a commit of ours says how many
// rows it brought, and returns its own count.
func (a *auditor) checkAdded(l link) int64 {
	var rows int64
	for _, p := range l.state.Pipelines {
		rows += p.Delta.Rows
	}
	summary, _ := strconv.ParseInt(l.snapshot.Summary.Properties["added-records"], 10, 64)
	if summary != rows {
		a.r.find(Violated, l.name(), "the commit counts %d rows, its summary %d", rows, summary)
	}
	if l.added != rows {
		a.r.find(Violated, l.name(), "the commit counts %d rows, the files it added hold %d", rows, l.added)
	}
	return rows
}

// foreign judges a snapshot of another writer and returns the rows it brought.
func (a *auditor) foreign(l link, delta int64) int64 {
	operation := l.snapshot.Summary.Operation
	switch {
	case operation == table.OpReplace && delta != 0:
		a.r.find(Violated, l.name(), "a compaction of %s changed the number of rows by %d", l.who(), delta)
	case delta < 0:
		a.lost = true
		a.r.find(Unknown, l.name(), "%s removed %d rows (%s): whether they were ours cannot be told", l.who(), -delta, operation)
	case operation == table.OpOverwrite && delta >= 0:
		a.lost = true
		a.r.find(Unknown, l.name(), "%s overwrote rows: which ones cannot be told", l.who())
	default:
		a.r.note("%s: %s of %s, %+d rows", l.name(), operation, l.who(), delta)
	}
	return delta
}

func lostOrUnknown(err error) Verdict {
	if isNotExist(err) {
		return Violated
	}
	return Unknown
}

// checkFiles checks that no file is added twice and that every file of a
// reachable snapshot is there.
func (a *auditor) checkFiles(ctx context.Context, t *Table, files iceio.IO, kind string) (bool, error) {
	added := map[string]int64{}
	err := walkEntries(ctx, files, t.handle().Metadata(), func(e entry) {
		path := e.file.FilePath()
		if by, ok := added[path]; ok && by != e.added {
			a.r.find(Violated, path, "%sfile was added by snapshot %d and again by snapshot %d", kind, by, e.added)
		}
		added[path] = e.added
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

// checkQuarantine compares the counts with the quarantine table and the outbox.
func (a *auditor) checkQuarantine(ctx context.Context) (*Table, error) {
	var counted int64
	for _, p := range a.r.Partitions {
		counted += p.Quarantined
	}
	var waiting []string
	q, err := a.t.quarantine(ctx, false)
	switch {
	case fault.ReasonOf(err) == fault.UnknownTable:
		q = nil
	case err != nil:
		return nil, err
	default:
		if err := a.quarantineRows(ctx, q); err != nil {
			return nil, err
		}
	}
	for _, e := range a.head.State.Pending() {
		if q != nil && q.applied(e) {
			continue
		}
		a.r.Pending += e.Rows()
		for _, f := range e.Files {
			waiting = append(waiting, f.Path)
		}
		marked, err := a.markedBy(ctx, e)
		if err != nil {
			return nil, err
		}
		a.r.Replayed += e.ReplayedRows() - marked
		for part, ranges := range e.Replayed {
			if a.waiting == nil {
				a.waiting = map[place][]ident.Range{}
			}
			at := place{part.Topic, part.Number}
			a.waiting[at] = append(a.waiting[at], ranges...)
			slices.SortFunc(a.waiting[at], func(x, y ident.Range) int { return cmp.Compare(x.First, y.First) })
		}
	}
	a.checkThere(ctx, a.files, "pending quarantine ", waiting)
	if a.r.Quarantine-a.r.Replayed+a.r.Pending != counted {
		a.r.find(Violated, a.t.name+quarantineSuffix, "%d records are counted as quarantined; the table holds %d, of which %d were replayed, and %d are pending",
			counted, a.r.Quarantine, a.r.Replayed, a.r.Pending)
	}
	a.compareReplays()
	return q, nil
}

// markedBy counts the records that an entry has marked already, where its mark
// takes several snapshots.
func (a *auditor) markedBy(ctx context.Context, e PendingQuarantine) (n int64, err error) {
	if len(e.Replayed) == 0 {
		return 0, nil
	}
	low, high := span(e.Replayed)
	err = a.t.ReadQuarantine(ctx, QuarantineFilter{From: &low, To: &high}, true, func(r Quarantined) error {
		if r.ReplayedIn == e.CommitID.String() {
			n++
		}
		return nil
	})
	return n, err
}

// compareReplays compares what commits say they replayed with what the quarantine
// table says, where the history is whole.
func (a *auditor) compareReplays() {
	var landed int64
	for _, l := range a.chain {
		n, err := strconv.ParseInt(l.snapshot.Summary.Properties[keyReplay], 10, 64)
		if err == nil && l.own {
			landed += n
		}
	}
	if a.r.Complete && landed != a.r.Replayed {
		a.r.find(Violated, a.t.name+quarantineSuffix, "commits replayed %d records, the table says so of %d", landed, a.r.Replayed)
	}
}

func (a *auditor) quarantineRows(ctx context.Context, q *Table) error {
	files, err := q.files(a.t.lake.storage(ctx))
	if err != nil {
		return err
	}
	if _, err := a.checkFiles(ctx, q, files, "quarantine "); err != nil {
		return err
	}
	if s := q.handle().Metadata().CurrentSnapshot(); s != nil {
		c, err := a.contentOf(ctx, s, map[string]manifestContent{})
		if err != nil {
			a.r.find(lostOrUnknown(err), q.name, "%v", err)
		}
		a.r.Quarantine = c.live
		if a.r.Replayed, err = a.replayed(ctx, q, files, s); err != nil {
			a.r.find(lostOrUnknown(err), q.name, "%v", err)
		}
	}
	return nil
}

// replayed counts the marked records of a quarantine table: by the statistics of
// its files, or by reading the column of those that have none.
func (a *auditor) replayed(ctx context.Context, q *Table, files iceio.IO, s *table.Snapshot) (int64, error) {
	column := q.Head().Schema.Column(replayedColumn)
	if column == nil {
		return 0, nil
	}
	manifests, err := s.Manifests(files)
	if err != nil {
		return 0, fmt.Errorf("reading its manifest list: %w", err)
	}
	var n int64
	whole := true
	for _, m := range manifests {
		err := walkManifest(files, m, func(e entry) {
			nulls, ok := e.file.NullValueCounts()[int(column.FieldID)]
			whole = whole && ok && !e.deletes
			if !e.deletes {
				n += e.file.Count() - nulls
			}
		})
		if err != nil {
			return 0, err
		}
	}
	if whole {
		return n, nil
	}
	n = 0
	err = a.t.ReadQuarantine(ctx, QuarantineFilter{}, true, func(r Quarantined) error {
		if r.ReplayedIn != "" {
			n++
		}
		return nil
	})
	return n, err
}
