package commit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// The functions in this file are pure: each derives the state of the next
// snapshot from the state of the very snapshot that it is going to assert. They
// never change their arguments.

// Misfit errors say that a batch does not continue the state it was to land on.
var (
	// errEpoch: the rows belong to another log epoch than the table (row_epoch).
	errEpoch = errors.New("the rows belong to another log epoch than the table")
	// errRange: a range does not begin at the table's position (com_check).
	errRange = errors.New("the rows do not begin where the table ends")
)

// first is the state of a table that never held one. LSN 0 means "none" in the
// read API, so the first is 1; nothing is reserved before the first log epoch.
func first() lake.State {
	return lake.State{Format: lake.Format, LSN: ident.LSNState{Start: 1, Next: 1, Reserved: 1}, Pipelines: map[string]*lake.Pipeline{}}
}

// carry copies a state for the next snapshot.
func carry(base lake.State) lake.State {
	if base.Format == 0 {
		base = first()
	}
	return base.Carry()
}

// reserve keeps the reservation a fixed way ahead of the next LSN; it never
// moves back.
func reserve(l ident.LSNState) ident.LSNState {
	l.Reserved = max(l.Reserved, l.Next+ident.Reservation)
	return l
}

// anchored is the state of an empty snapshot: nothing moves but the reservation,
// and quarantine files that are in their table are no longer pending.
func anchored(base lake.State, id ident.UUID, applied map[ident.UUID]bool) lake.State {
	s := carry(base)
	s.CommitID = id
	if s.LogEpoch > 0 {
		s.LSN = reserve(s.LSN)
	}
	for _, p := range s.Pipelines {
		p.Pending = slices.DeleteFunc(p.Pending, func(q lake.PendingQuarantine) bool { return applied[q.CommitID] })
	}
	return s
}

// fenced is the state of the snapshot with which a committer takes a table over.
func fenced(base lake.State, id ident.UUID) lake.State {
	s := anchored(base, id, nil)
	s.WriterEpoch++
	return s
}

// newEpoch is the state of the snapshot that starts a log epoch: it begins at
// the old reservation, so that no LSN is ever given twice (G5).
func newEpoch(base lake.State, id ident.UUID, applied map[ident.UUID]bool) lake.State {
	s := anchored(base, id, applied)
	start := carry(base).LSN.Reserved
	s.LogEpoch++
	s.LSN = reserve(ident.LSNState{Start: start, Next: start, Reserved: start})
	return s
}

// started is the state after the starts of new partitions of a pipeline were
// fixed, and whether that changed anything. Partitions that are known keep their
// positions.
func started(base lake.State, id ident.UUID, applied map[ident.UUID]bool, owner, pipeline string, starts ident.Vector) (lake.State, bool) {
	s := anchored(base, id, applied)
	return s, fixStarts(&s, owner, pipeline, starts)
}

// fixStarts adds the partitions that a state does not know, and their pipeline, and
// reports whether that changed anything.
func fixStarts(s *lake.State, owner, pipeline string, starts ident.Vector) bool {
	p, known := s.Pipelines[pipeline]
	if !known {
		p = &lake.Pipeline{Owner: owner}
		s.Pipelines[pipeline] = p
	}
	if p.Positions == nil {
		p.Positions = ident.Positions{}
	}
	if p.Totals == nil {
		p.Totals = map[ident.Partition]lake.Totals{}
	}
	changed := !known
	for part, start := range starts {
		if _, ok := p.Positions[part]; !ok {
			p.Positions[part] = ident.Position{Start: start, Next: start, LeaderEpoch: -1}
			p.Totals[part] = lake.Totals{}
			changed = true
		}
	}
	return changed
}

// replaced is the state after a part of the log below a position was noted as
// replaced, and whether that changed anything. What of r lies outside of what the
// table accounts for is left out. A partition that the state does not know is an error.
func replaced(base lake.State, id ident.UUID, applied map[ident.UUID]bool, part ident.Partition, r ident.Range) (lake.State, bool, error) {
	s := anchored(base, id, applied)
	p := s.Pipelines[part.Pipeline]
	if p == nil {
		return s, false, fault.New(fault.UnknownPartition, "noting that Kafka replaced offsets %v of %v: the table does not know the pipeline", r, part)
	}
	pos, known := p.Positions[part]
	if !known {
		return s, false, fault.New(fault.UnknownPartition, "noting that Kafka replaced offsets %v of %v: the table does not know the partition", r, part)
	}
	l := lake.Lost{Partition: part, Range: ident.Range{First: max(r.First, pos.Start), Next: min(r.Next, pos.Next)}, Why: lake.LossReplaced}
	if l.Empty() || p.Remembers(l) {
		return s, false, nil
	}
	p.Lose(l)
	return s, true, nil
}

// advanced is the state after a batch landed, or errEpoch or errRange when the
// batch does not continue base. pending are the quarantine files of the batch
// per pipeline.
func advanced(base lake.State, b *Batch, applied map[ident.UUID]bool, pending map[string]lake.PendingQuarantine) (lake.State, error) {
	if base.LogEpoch != b.Epoch {
		return lake.State{}, fmt.Errorf("%w: theirs is %d, the table's %d", errEpoch, b.Epoch, base.LogEpoch)
	}
	s := anchored(base, b.ID, applied)
	for part, a := range b.Parts {
		p := s.Pipelines[part.Pipeline]
		if p == nil {
			return lake.State{}, fmt.Errorf("%w: the table does not know pipeline %q", errRange, part.Pipeline)
		}
		pos, ok := p.Positions[part]
		if !ok {
			return lake.State{}, fmt.Errorf("%w: the table does not know %v", errRange, part)
		}
		if pos.Next != a.Range.First {
			return lake.State{}, fmt.Errorf("%w: %v is at %d, the rows are %v", errRange, part, pos.Next, a.Range)
		}
		if got := a.Count.Len(); got != a.Range.Len() {
			return lake.State{}, fault.New(fault.Internal,
				"counting %v of %v: %d offsets are accounted for, %d are in the range", a.Range, part, got, a.Range.Len())
		}
		advance(p, part, pos, a, lake.LossGone)
	}
	for name, q := range pending {
		p := s.Pipelines[name]
		p.Pending = append(p.Pending, q)
	}
	for name, p := range s.Pipelines {
		p.Watermark = watermark(name, p.Watermark, b)
	}
	s.LSN.Next = max(s.LSN.Next, b.NextLSN)
	s.LSN = reserve(s.LSN)
	return s, nil
}

// advance moves a partition on; why is the reason for what is lost of the range.
func advance(p *lake.Pipeline, part ident.Partition, pos ident.Position, a *Advance, why lake.Loss) {
	if p.First == nil {
		p.First = make(map[ident.Partition]int64)
	}
	p.First[part] = pos.Next
	if !a.Range.Empty() {
		// Unknown where the range ends with offsets that have no record: of an earlier record's epoch Kafka may say that it
		// ended before, and the log would seem to be replaced.
		pos.LeaderEpoch = a.LeaderEpoch
	}
	pos.Next = a.Range.Next
	p.Positions[part] = pos
	if p.Totals == nil {
		p.Totals = make(map[ident.Partition]lake.Totals)
	}
	p.Totals[part] = p.Totals[part].Add(a.Count)
	p.Delta = p.Delta.Add(a.Count)
	for _, r := range a.Lost {
		p.Lose(lake.Lost{Partition: part, Range: r, Why: why})
	}
}

// watermark is the time up to which all partitions of a pipeline that are not
// idle have landed: the least newest time of the partitions that still lag, or
// the greatest of all when none lags. It never moves back.
func watermark(pipeline string, old time.Time, b *Batch) time.Time {
	var lagging, newest time.Time
	for part, a := range b.Parts {
		if part.Pipeline != pipeline || a.NewestTime.IsZero() {
			continue
		}
		if a.NewestTime.After(newest) {
			newest = a.NewestTime
		}
		if !a.CaughtUp && (lagging.IsZero() || a.NewestTime.Before(lagging)) {
			lagging = a.NewestTime
		}
	}
	next := newest
	if !lagging.IsZero() {
		next = lagging
	}
	if next.After(old) {
		return next
	}
	return old
}

// pendingOf lists the quarantine files that are not known to be in their table.
func pendingOf(s lake.State, applied map[ident.UUID]bool) []lake.PendingQuarantine {
	return slices.DeleteFunc(s.Pending(), func(q lake.PendingQuarantine) bool { return applied[q.CommitID] })
}
