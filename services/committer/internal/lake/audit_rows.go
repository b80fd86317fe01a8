package lake

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// deed is what a snapshot of another writer did to the rows of a table.
type deed struct {
	link  *link
	rows  int64 // change of live rows
	named int64 // change of rows that name Kafka records
	taken int64 // rows that name Kafka records, in files that it took out
}

// checkRows compares what commits say they added with what manifests hold, over
// foreign snapshots too.
func (a *auditor) checkRows() {
	if len(a.chain) == 0 {
		return
	}
	a.told = a.statisticsTell()
	deeds, extra := a.follow()
	a.judge(deeds)
	head := &a.chain[len(a.chain)-1]
	switch {
	case a.told:
		off := head.named - a.r.Rows
		for _, d := range deeds {
			off -= d.named
		}
		if off -= a.r.Before; off != 0 {
			a.r.find(Violated, head.name(), "the table holds %d rows that name Kafka records, %d were counted", head.named, a.r.Rows)
		}
	case head.live != a.r.Rows+extra:
		a.r.find(Violated, head.name(), "the table holds %d rows: we count %d and others account for %d", head.live, a.r.Rows, extra)
	}
}

// statisticsTell reports whether the rows of ours can be told by the statistics
// of all files.
func (a *auditor) statisticsTell() bool {
	if a.columns.offset == 0 {
		return false
	}
	for i := range a.chain {
		l := &a.chain[i]
		if l.blind > 0 || l.own && l.added.named != l.added.live {
			return false
		}
	}
	return true
}

// follow walks the chain, checks what our commits brought, and gathers what the
// others did. extra are the rows of others that the head holds, where statistics
// do not tell.
func (a *auditor) follow() (deeds []deed, extra int64) {
	known := a.r.Complete
	var prev *link
	var counted int64
	for i := range a.chain {
		l := &a.chain[i]
		var rows int64
		if l.own {
			rows = a.checkAdded(l)
			a.checkBounds(l)
		}
		var was tally
		if prev != nil {
			was = prev.tally
		}
		switch {
		case !known && !l.own:
		case !known:
			known = true
			extra = a.begins(l, totalRows(l.state))
		case l.own && l.live-was.live != rows:
			a.r.find(Violated, l.name(), "the table grew by %d rows, the commit counts %d", l.live-was.live, rows)
		case l.own && totalRows(l.state)-counted != rows:
			a.r.find(Violated, l.name(), "the totals grew by %d rows, the commit counts %d", totalRows(l.state)-counted, rows)
		case !l.own:
			d := deed{link: l, rows: l.live - was.live, named: l.named - was.named, taken: was.named + l.added.named - l.named}
			deeds = append(deeds, d)
			a.foreign(d, extra, a.maybeBroughtBack(a.chain[i+1:]))
			extra += d.rows
		}
		if l.own {
			counted = totalRows(l.state)
		}
		if had := prev != nil && prev.deletes >= l.deletes; l.deletes > 0 && !had {
			a.doubt(l.name(), "%d delete files of %s remove rows", l.deletes, l.who())
		}
		prev = l
	}
	if !known {
		extra = a.begins(prev, a.r.Rows)
	}
	return deeds, extra
}

// begins judges the first state that is left of a history that was cut: what
// stood before it can only be compared. It returns the rows of others.
func (a *auditor) begins(l *link, counted int64) int64 {
	extra := l.live - counted
	if a.told {
		a.r.Before = l.named - counted
		switch {
		case a.r.Before < 0:
			a.r.find(Violated, l.name(), "%d rows of ours fewer than were counted up to here: somebody removed them, and the snapshot that did is expired", -a.r.Before)
		case a.r.Before > 0:
			a.r.find(Violated, l.name(), "%d rows more name Kafka records than were counted up to here; the snapshot that brought them is expired", a.r.Before)
		case extra > 0:
			a.r.note("%s: %d rows of others; the older history is expired", l.name(), extra)
		}
		return extra
	}
	switch {
	case extra < 0:
		a.r.find(Violated, l.name(), "%d rows fewer than were counted up to here: somebody removed them, and the snapshot that did is expired", -extra)
	case extra > 0:
		a.doubt(l.name(), "%d rows more than we wrote up to here, and the older history is expired", extra)
	}
	return extra
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
func (a *auditor) checkAdded(l *link) int64 {
	var rows int64
	for _, p := range l.state.Pipelines {
		rows += p.Delta.Rows
	}
	summary, _ := strconv.ParseInt(l.prop("added-records"), 10, 64)
	if summary != rows {
		a.r.find(Violated, l.name(), "the commit counts %d rows, its summary %d", rows, summary)
	}
	if l.added.live != rows {
		a.r.find(Violated, l.name(), "the commit counts %d rows, the files it added hold %d", rows, l.added.live)
	}
	return rows
}

// checkBounds compares the bounds of the files of a commit with its ranges.
func (a *auditor) checkBounds(l *link) {
	ranges := l.ranges()
	for _, f := range l.added.files {
		if f.lsn != nil && ident.LSN(*f.lsn) >= l.state.LSN.Next {
			a.r.find(Violated, f.path, "it holds the LSN %d, but %s had given none from %d on", *f.lsn, l.name(), l.state.LSN.Next)
		}
		if f.offsets == nil {
			continue
		}
		var fits []ident.Range
		for part, list := range ranges {
			if f.partitions == nil || int64(part.Number) >= f.partitions[0] && int64(part.Number) <= f.partitions[1] {
				fits = append(fits, list...)
			}
		}
		if len(fits) == 0 {
			a.r.find(Violated, f.path, "it holds rows of %s, of which %s commits nothing", f.where(), l.name())
			continue
		}
		low, high := fits[0].First, fits[0].Next
		for _, r := range fits {
			low, high = min(low, r.First), max(high, r.Next)
		}
		if f.offsets[0] < low || f.offsets[1] >= high {
			a.r.find(Violated, f.path, "it holds offsets %d to %d of %s, but %s commits [%d,%d) there", f.offsets[0], f.offsets[1], f.where(), l.name(), low, high)
		}
	}
}

// ranges are the offsets whose rows the files of a commit may hold.
func (l *link) ranges() map[ident.Partition][]ident.Range {
	out := map[ident.Partition][]ident.Range{}
	replay := l.prop(keyReplay) != ""
	for _, p := range l.state.Pipelines {
		for part, first := range p.First {
			out[part] = append(out[part], ident.Range{First: first, Next: p.Positions[part].Next})
		}
		for _, e := range p.Pending {
			if replay && e.CommitID == l.state.CommitID {
				for part, list := range e.Replayed {
					out[part] = append(out[part], list...)
				}
			}
		}
	}
	return out
}

func (f *bounds) where() string {
	switch {
	case f.partitions == nil:
		return "some partitions"
	case f.partitions[0] == f.partitions[1]:
		return fmt.Sprintf("partition %d", f.partitions[0])
	default:
		return fmt.Sprintf("partitions %d to %d", f.partitions[0], f.partitions[1])
	}
}

// foreign judges a snapshot of another writer where statistics do not tell whose
// rows it touched, and describes it in any case. others are the rows of others
// that stood before it, maybeBack is what maybeBroughtBack says of what came after.
func (a *auditor) foreign(d deed, others int64, maybeBack bool) {
	l := d.link
	operation := l.snapshot.Summary.Operation
	if a.told {
		if d.named == 0 && d.taken != 0 && operation != table.OpReplace {
			a.doubt(l.name(), "%s put files in the place of others (%s); as many rows of ours as before are left", l.who(), operation)
			return
		}
		a.r.note("%s: %s of %s, %+d rows", l.name(), operation, l.who(), d.rows)
		return
	}
	switch {
	case d.rows < 0 && others+d.rows < 0 && maybeBack:
		a.doubt(l.name(), "%s removed %d rows (%s), at least %d of them ours, and rows that came later may be those", l.who(), -d.rows, operation, -d.rows-max(0, others))
	case d.rows < 0 && others+d.rows < 0:
		a.r.find(Violated, l.name(), "%s removed %d rows (%s), at least %d of them ours", l.who(), -d.rows, operation, -d.rows-max(0, others))
	case operation == table.OpReplace && d.rows != 0 && l.deletes == 0:
		a.doubt(l.name(), "a compaction of %s changed the number of rows by %d", l.who(), d.rows)
	case d.rows < 0:
		a.doubt(l.name(), "%s removed %d rows (%s)", l.who(), -d.rows, operation)
	case operation == table.OpOverwrite:
		a.doubt(l.name(), "%s overwrote rows", l.who())
	case operation == table.OpAppend && a.columns.offset != 0 && l.added.named+int64(l.added.blind) > 0:
		a.doubt(l.name(), "%s appended %d rows whose statistics do not rule out that they name Kafka records", l.who(), d.rows)
	default:
		a.r.note("%s: %s of %s, %+d rows", l.name(), operation, l.who(), d.rows)
	}
}

// maybeBroughtBack reports whether a later snapshot of others brought rows that may
// be ours: an engine that writes a table anew may do it in two snapshots.
func (a *auditor) maybeBroughtBack(later []link) bool {
	return slices.ContainsFunc(later, func(l link) bool { return !l.own && a.mayBring(&l) })
}

// judge names the snapshots of others that took rows of ours, or brought rows
// that pass for ours. What one took another may have put back: then only the rows
// themselves tell.
func (a *auditor) judge(deeds []deed) {
	if !a.told {
		return
	}
	var net int64
	for _, d := range deeds {
		net += d.named
	}
	for _, d := range deeds {
		operation := d.link.snapshot.Summary.Operation
		switch {
		case d.named == 0:
		case net == 0:
			a.doubt(d.link.name(), "%s changed the number of rows that name Kafka records by %+d (%s), and others made up for it", d.link.who(), d.named, operation)
		case d.named < 0:
			a.r.find(Violated, d.link.name(), "%s removed %d rows of ours (%s)", d.link.who(), -d.named, operation)
		default:
			a.r.find(Violated, d.link.name(), "%s added %d rows that name Kafka records, which we did not write (%s)", d.link.who(), d.named, operation)
		}
	}
}

// takers names the snapshots of others that may have taken rows of ours, for a
// finding of the deep scan.
func (a *auditor) takers() string {
	return a.suspects("taken rows", func(l *link) bool { return l.snapshot.Summary.Operation != table.OpAppend })
}

// bringers names the snapshots of others that brought rows that may name Kafka
// records.
func (a *auditor) bringers() string {
	return a.suspects("brought rows", a.mayBring)
}

// mayBring reports whether a snapshot added rows that may name Kafka records.
func (a *auditor) mayBring(l *link) bool {
	return l.added.live > 0 && (a.columns.offset == 0 || l.added.named+int64(l.added.blind) > 0)
}

func (a *auditor) suspects(did string, may func(*link) bool) string {
	var out []string
	for i := range a.chain {
		l := &a.chain[i]
		if !l.own && may(l) {
			out = append(out, fmt.Sprintf("%s (%s of %s)", l.name(), l.snapshot.Summary.Operation, l.who()))
		}
	}
	if len(out) == 0 {
		return ""
	}
	slices.Reverse(out)
	return "; snapshots of others that may have " + did + ": " + strings.Join(fault.FirstOf(out, examples), ", ")
}
