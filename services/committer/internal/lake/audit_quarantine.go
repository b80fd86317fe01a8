package lake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/ident"
)

// checkQuarantine compares the counts with the quarantine table and the outbox.
// It reports whether all of its files are there.
func (a *auditor) checkQuarantine(ctx context.Context) (whole bool, err error) {
	var counted int64
	for _, p := range a.r.Partitions {
		counted += p.Quarantined
	}
	q := a.q
	whole = true
	var upTo int64
	if q != nil {
		if upTo, err = q.appliedSequence(ctx); err != nil {
			return false, err
		}
		if whole, err = a.quarantineRows(ctx, q); err != nil {
			return false, err
		}
	}
	for _, e := range a.head.State.Pending() {
		if q != nil && q.applied(e, upTo) {
			continue
		}
		a.r.Pending += e.Rows()
		a.pending = append(a.pending, e.Files...)
		var marked int64
		if whole { // else it cannot be read
			if marked, err = a.markedBy(ctx, e); err != nil {
				return false, err
			}
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
	waiting := map[string]known{}
	for _, f := range a.pending {
		waiting[f.Path] = known{bytes: f.Bytes}
	}
	if !a.checkThere(ctx, a.t, a.files, "pending quarantine ", waiting) {
		whole = false
	}
	switch name := a.t.name + ident.QuarantineSuffix; {
	case a.r.Quarantine-a.r.Replayed+a.r.Pending == counted:
	case q == nil:
		a.r.find(Violated, name, "the quarantine table is missing: %d records are counted as quarantined, %d of them are pending; put it back", counted, a.r.Pending)
	default:
		a.r.find(Violated, name, "%d records are counted as quarantined; the table holds %d, of which %d were replayed, and %d are pending%s",
			counted, a.r.Quarantine, a.r.Replayed, a.r.Pending, a.culprits(q))
	}
	a.compareReplays()
	return whole, nil
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
		a.r.find(Violated, a.t.name+ident.QuarantineSuffix, "commits replayed %d records, the table says so of %d", landed, a.r.Replayed)
	}
}

func (a *auditor) quarantineRows(ctx context.Context, q *Table) (whole bool, err error) {
	files, err := q.files(a.t.lake.storage(ctx))
	if err != nil {
		return false, err
	}
	if whole, err = a.checkFiles(ctx, q, files, "quarantine "); err != nil {
		return false, err
	}
	if s := q.handle().Metadata().CurrentSnapshot(); s != nil {
		c, err := contentOf(ctx, files, s, offsetColumns{}, map[string]manifestContent{})
		if err != nil {
			a.lost(q.name, err)
		}
		a.r.Quarantine = c.live
		if c.deletes > 0 {
			a.doubt(q.name, "%d delete files of others remove records", c.deletes)
		}
		a.doubtQuarantine(q)
		if a.r.Replayed, err = a.replayed(ctx, q, files, s); err != nil {
			a.lost(q.name, err)
		}
	}
	return whole, nil
}

// doubtQuarantine notes what others did to quarantined records: as many may be
// left, and not the same.
func (a *auditor) doubtQuarantine(q *Table) {
	for s := range ancestors(q.handle().Metadata()) {
		if s.Summary == nil || isQuarantineOwn(s) {
			continue
		}
		l := link{snapshot: s}
		switch s.Summary.Operation {
		case table.OpDelete, table.OpOverwrite:
			a.doubt(q.name, "%s (%s of %s) removed or changed records", l.name(), s.Summary.Operation, l.who())
		case table.OpAppend, table.OpReplace: // counts tell
		}
	}
}

// culprits names snapshots of others in the quarantine table that took records
// out, or brought some.
func (a *auditor) culprits(q *Table) string {
	var out []string
	if n := q.lacks(); n > 0 {
		out = append(out, fmt.Sprintf("it was rolled back below what commit %d put there", n))
	}
	for s := range ancestors(q.handle().Metadata()) {
		if s.Summary == nil || isQuarantineOwn(s) || len(out) == examples {
			continue
		}
		l := link{snapshot: s}
		if d, i := l.prop("deleted-records"), l.prop("added-records"); d != "" || i != "" {
			out = append(out, fmt.Sprintf("%s (%s of %s) removed %s and added %s records", l.name(), s.Summary.Operation, l.who(), cmp.Or(d, "0"), cmp.Or(i, "0")))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; " + strings.Join(out, "; ")
}

// isQuarantineOwn reports whether a snapshot of a quarantine table is ours.
func isQuarantineOwn(s *table.Snapshot) bool {
	if s.Summary == nil {
		return false
	}
	for key := range s.Summary.Properties {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
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
