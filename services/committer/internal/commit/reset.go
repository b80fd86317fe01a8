package commit

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// ResetBase says which positions hold when an operator resets a table.
type ResetBase string

// The bases.
const (
	BaseNone  ResetBase = ""      // the table is in order
	BaseTable ResetBase = "table" // what its history says; what was rolled back is read again
	BaseCopy  ResetBase = "copy"  // what the property says; what was rolled back is given up
)

// Forward moves a partition on. Pipeline and topic may be empty where there is one.
type Forward struct {
	Pipeline, Topic string
	Number          int32
	Offset          int64
}

// Order is the decision of an operator about positions.
type Order struct {
	Base    ResetBase
	Forward []Forward
	Reason  string
	DryRun  bool
	// Log is what Kafka holds, as far as somebody has looked; Unchecked moves
	// partitions forward wherever nobody has.
	Log       []Extent
	Unchecked bool
}

// Resetting is the answer to Reset.
type Resetting struct {
	Partitions []lake.ResetPartition
	Remarks    []string // on each of them, mostly empty
	Snapshot   int64    // 0 in a dry run
	LogEpoch   ident.LogEpoch
}

// Reset carries out what an operator decided about a table that was rolled back,
// or whose state was lost, or moves partitions of a healthy one forward. It ends
// the log epoch: what is hot is read again from the new positions. Offsets that
// are given up are counted as lost, so that the audit accounts for them, and the
// decision is kept in the summary of the snapshot. Positions never go back below
// what the history of the table says: its rows would land twice.
func (t *Table) Reset(ctx context.Context, o Order) (Resetting, error) {
	return askLoop(ctx, t, true, func(ctx context.Context) (Resetting, error) {
		stopped := t.epoch == 0
		if stopped {
			head, err := t.lake.Reload(ctx)
			if err != nil {
				return Resetting{}, err
			}
			t.head = head
		} else if !o.DryRun {
			if err := t.commitHeld(ctx, cut.Asked); err != nil {
				return Resetting{}, err
			}
		}
		if _, _, err := reset(t.o.Name, t.head, ident.UUID{}, o, t.epoch, t.applied); err != nil || o.DryRun {
			return t.resetting(o, err)
		}
		if err := t.outbox.VoidQuarantine(ctx); err != nil {
			return Resetting{}, err
		}
		var done Resetting
		head, err := t.land(ctx, lake.KindReset, stopped, func(head lake.Head) (lake.Change, error) {
			id := NewID()
			s, record, err := reset(t.o.Name, head, id, o, t.epoch, t.applied)
			done = o.resetting(s, record)
			return lake.Change{CommitID: id, State: s, Reset: &record}, err
		})
		if err != nil {
			return Resetting{}, err
		}
		done.Snapshot = head.StateSnapshot
		t.log.Warn("an operator reset positions", "base", string(o.Base), "reason", o.Reason, "snapshot", done.Snapshot,
			"log_epoch", int64(done.LogEpoch), "positions", positions(head.State))
		if !stopped {
			t.source.Rebase(t.head.Event(), true)
			t.Reopen()
		}
		return done, nil
	})
}

func (t *Table) resetting(o Order, err error) (Resetting, error) {
	if err != nil {
		return Resetting{}, err
	}
	s, record, err := reset(t.o.Name, t.head, ident.UUID{}, o, t.epoch, t.applied)
	return o.resetting(s, record), err
}

// resetting is the answer about a state after the decision.
func (o Order) resetting(s lake.State, record lake.Reset) Resetting {
	out := Resetting{Partitions: record.Partitions, LogEpoch: s.LogEpoch}
	for _, p := range record.Partitions {
		part := ident.Partition{Pipeline: p.Pipeline, Topic: p.Topic, TopicID: p.TopicID, Number: p.Partition}
		out.Remarks = append(out.Remarks, o.remark(part, s.Pipelines[p.Pipeline].Owner, p.Next))
	}
	return out
}

// reset is the state after an operator's decision, and the record of it. epoch is
// the writer epoch of this committer, 0 while it writes nothing.
func reset(name string, head lake.Head, id ident.UUID, o Order, epoch ident.WriterEpoch, applied map[ident.UUID]bool) (lake.State, lake.Reset, error) {
	base, to, err := bases(name, head, o)
	if err != nil {
		return lake.State{}, lake.Reset{}, err
	}
	s := anchored(base, id, applied)
	high := head.High
	if high.WriterEpoch == 0 { // the state is all there is
		high = lake.High{WriterEpoch: base.WriterEpoch, LogEpoch: base.LogEpoch, Reserved: base.LSN.Reserved}
	}
	s.WriterEpoch, s.LogEpoch = high.WriterEpoch, high.LogEpoch+1
	if epoch == 0 {
		s.WriterEpoch++
	}
	s.LSN = reserve(ident.LSNState{Start: high.Reserved, Next: high.Reserved, Reserved: high.Reserved})

	record := lake.Reset{At: now(), Base: string(o.Base), Reason: o.Reason}
	if head.RolledBack != nil || head.StateLost != nil {
		record.Over = head.Copy.Snapshot
	}
	told := head.State.Positions()
	var copied ident.Positions
	if head.Copy != nil {
		copied = head.Copy.State.Positions()
	}
	all := s.Positions()
	for _, part := range all.Vector().Partitions() {
		pos := all[part]
		lost := max(0, to[part]-pos.Next)
		if lost > 0 {
			given := ident.Range{First: pos.Next, Next: to[part]}
			advance(s.Pipelines[part.Pipeline], part, pos, &Advance{
				Range: given, LeaderEpoch: -1, Lost: []ident.Range{given},
				Count: lake.Totals{Skipped: map[event.SkipReason]int64{event.SkipLost: lost}},
			}, lake.LossGivenUp)
		}
		record.Partitions = append(record.Partitions, lake.ResetPartition{
			Pipeline: part.Pipeline, Topic: part.Topic, TopicID: part.TopicID, Partition: part.Number,
			Table: nextOf(told, part), Copy: nextOf(copied, part), Next: pos.Next + lost, Lost: lost,
		})
	}
	return s, record, nil
}

// reopened is base with the partitions that only the copy knows, where they started:
// a table may be rolled back to before a pipeline, or a partition, was opened. Opened
// anew it could start elsewhere, and what lies between would be accounted for nowhere.
func reopened(base, copied lake.State) lake.State {
	s := base.Clone()
	for name, was := range copied.Pipelines {
		starts := ident.Vector{}
		for part, pos := range was.Positions {
			starts[part] = pos.Start
		}
		fixStarts(&s, was.Owner, name, starts)
	}
	return s
}

func nextOf(ps ident.Positions, part ident.Partition) int64 {
	if pos, ok := ps[part]; ok {
		return pos.Next
	}
	return -1
}

// bases are the state to go on from, and the positions to move it forward to.
func bases(name string, head lake.Head, o Order) (lake.State, ident.Vector, error) {
	base, to := head.State, ident.Vector{}
	refuse := func(format string, args ...any) (lake.State, ident.Vector, error) {
		return lake.State{}, nil, fault.New(fault.InvalidArgument, "resetting table "+name+": "+format, args...)
	}
	if head.RolledBack != nil {
		base = reopened(base, head.Copy.State)
	}
	switch {
	case head.StateLost != nil && head.Copy == nil:
		return lake.State{}, nil, head.StateLost
	case head.StateLost != nil && o.Base != BaseCopy:
		return refuse("its history knows no position any more: only --to copy can be, and only if the table holds what the copy says (`icestream offsets show`)")
	case head.StateLost != nil:
		base = head.Copy.State
	case head.RolledBack != nil && o.Base == BaseNone:
		return refuse("somebody rolled it back: say --to table to read again what was lost, or --to copy to give it up and count it as lost")
	case head.RolledBack != nil && o.Base == BaseCopy:
		for part, pos := range head.Copy.State.Positions() {
			to[part] = pos.Next
		}
	case head.RolledBack != nil:
	case o.Base != BaseNone:
		return lake.State{}, nil, fault.New(fault.Conflict, "resetting table %s: it is in order, there is nothing to decide between its history and the copy", name)
	case base.Format == 0:
		return refuse("nothing was committed to it yet")
	case len(o.Forward) == 0:
		return refuse("it is in order; say which partition is to go on where, with --partition pipeline/topic/partition=offset")
	}
	moved := map[ident.Partition]bool{}
	for _, f := range o.Forward {
		part, err := f.find(name, base)
		if err != nil {
			return lake.State{}, nil, err
		}
		if moved[part] {
			return refuse("%s is to go to %d, and to another offset too: name each partition once", part, f.Offset)
		}
		moved[part] = true
		have := max(base.Positions()[part].Next, to[part])
		if f.Offset <= have {
			return refuse("%s stands at %d and cannot go to %d: the table holds or accounts for everything below, and it would land twice", part, have, f.Offset)
		}
		if why := o.forbids(part, base.Pipelines[part.Pipeline].Owner, have, f.Offset); why != "" {
			return refuse("%s cannot go to %d: %s", part, f.Offset, why)
		}
		to[part] = f.Offset
	}
	return base, to, nil
}

// find finds the partition that is meant; it must be the only one.
func (f Forward) find(name string, s lake.State) (ident.Partition, error) {
	var fits []ident.Partition
	for _, part := range s.Vector().Partitions() {
		if part.Number == f.Number && (f.Pipeline == "" || f.Pipeline == part.Pipeline) && (f.Topic == "" || f.Topic == part.Topic) {
			fits = append(fits, part)
		}
	}
	if len(fits) == 1 {
		return fits[0], nil
	}
	var known []string
	for _, pipeline := range slices.Sorted(maps.Keys(s.Pipelines)) {
		for _, part := range s.Pipelines[pipeline].Positions.Vector().Partitions() {
			known = append(known, part.String())
		}
	}
	if len(fits) == 0 {
		return ident.Partition{}, fault.New(fault.UnknownPartition, "resetting table %s: it has no partition %s; it has %s",
			name, ident.Partition{Pipeline: f.Pipeline, Topic: f.Topic, Number: f.Number}, strings.Join(known, ", "))
	}
	return ident.Partition{}, fault.New(fault.InvalidArgument, "resetting table %s: partition %d may be any of %v: name pipeline and topic; of a topic that was created again neither life can be moved",
		name, f.Number, fits)
}
