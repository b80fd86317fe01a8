package lake

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Format is the version of the state that this build writes and the highest it
// reads.
const Format = 1

// State is what a table remembers about its pipelines and its log (design
// section 4). The zero State is that of a table that no committer has touched.
type State struct {
	Format      int
	WriterEpoch ident.WriterEpoch
	LogEpoch    ident.LogEpoch
	LSN         ident.LSNState
	CommitID    ident.UUID // of the snapshot that carries the state
	Pipelines   map[string]*Pipeline
}

// Pipeline is the part of a State that belongs to one pipeline.
type Pipeline struct {
	// Owner is "<deployment>/<Kafka cluster id>".
	Owner string
	// Positions are those of all partitions of the pipeline, committed.
	Positions ident.Positions
	// First says where this commit begins in each partition that it advances. A
	// partition that is absent was not advanced.
	First map[ident.Partition]int64
	// Totals are running totals per partition since its start:
	// Rows + Quarantined + all of Skipped = Next − Start, always.
	Totals map[ident.Partition]Totals
	// Delta is what this commit added to the totals.
	Delta Totals
	// Pending are quarantine files that this or an earlier commit decided about
	// and that are not yet known to be in the quarantine table.
	Pending []PendingQuarantine
	// Lost are ranges that the totals count as lost, oldest first; Lose adds to them.
	Lost []Lost
	// Watermark is the record time up to which all partitions that are not idle
	// have landed, in milliseconds; zero when unknown.
	Watermark time.Time
}

// mostLost is how many lost ranges are remembered.
func (p *Pipeline) mostLost() int { return max(64, 2*len(p.Positions)) }

// Totals count offsets by what became of them.
type Totals struct {
	Rows        int64
	Quarantined int64
	Skipped     map[event.SkipReason]int64
}

// PendingQuarantine is an entry of the outbox: what one commit of the main table
// has for the quarantine table.
type PendingQuarantine struct {
	CommitID ident.UUID
	// Sequence is the sequence number of the main snapshot. Stage fills it in for
	// the entries of its own commit.
	Sequence int64
	// Files hold records that the commit decided to quarantine.
	Files []QuarantineFile
	// Replayed are offsets whose quarantined records the commit landed as rows,
	// each range without a gap: replayed_in is to be set.
	Replayed map[ident.Partition][]ident.Range
}

// QuarantineFile is a Parquet file in the data folder of the quarantine table.
type QuarantineFile struct {
	Path  string
	Rows  int64
	Bytes int64
}

// Rows is the number of quarantined records of the entry.
func (p PendingQuarantine) Rows() int64 {
	var n int64
	for _, f := range p.Files {
		n += f.Rows
	}
	return n
}

// ReplayedRows is the number of records that the entry says are rows now.
func (p PendingQuarantine) ReplayedRows() int64 {
	var n int64
	for _, ranges := range p.Replayed {
		for _, r := range ranges {
			n += r.Len()
		}
	}
	return n
}

// clone returns an independent copy.
func (p PendingQuarantine) clone() PendingQuarantine {
	p.Files = slices.Clone(p.Files)
	p.Replayed = maps.Clone(p.Replayed)
	for part, ranges := range p.Replayed {
		p.Replayed[part] = slices.Clone(ranges)
	}
	return p
}

// Len is the number of offsets counted.
func (t Totals) Len() int64 {
	n := t.Rows + t.Quarantined
	for _, s := range t.Skipped {
		n += s
	}
	return n
}

// Add returns t + o; neither is changed.
func (t Totals) Add(o Totals) Totals {
	out := t.Clone()
	out.Rows += o.Rows
	out.Quarantined += o.Quarantined
	for r, n := range o.Skipped {
		if out.Skipped == nil {
			out.Skipped = map[event.SkipReason]int64{}
		}
		out.Skipped[r] += n
	}
	return out
}

// Sub returns t - o; neither is changed.
func (t Totals) Sub(o Totals) Totals {
	neg := Totals{Rows: -o.Rows, Quarantined: -o.Quarantined, Skipped: map[event.SkipReason]int64{}}
	for r, n := range o.Skipped {
		neg.Skipped[r] = -n
	}
	return t.Add(neg)
}

// same reports whether t and o count the same.
func (t Totals) same(o Totals) bool {
	d := t.Sub(o)
	for _, n := range d.Skipped {
		if n != 0 {
			return false
		}
	}
	return d.Rows == 0 && d.Quarantined == 0
}

// shrinks reports whether a count is below zero that never may be.
func (t Totals) shrinks() bool {
	for _, n := range t.Skipped {
		if n < 0 {
			return true
		}
	}
	return t.Rows < 0
}

// String is the counts for people.
func (t Totals) String() string {
	out := []string{fmt.Sprintf("%d rows, %d quarantined", t.Rows, t.Quarantined)}
	for _, r := range event.SkipReasons() {
		if n := t.Skipped[r]; n != 0 {
			out = append(out, fmt.Sprintf("%d %s", n, r))
		}
	}
	return strings.Join(out, ", ")
}

// Clone returns an independent copy.
func (t Totals) Clone() Totals {
	t.Skipped = maps.Clone(t.Skipped)
	return t
}

// Clone returns an independent copy.
func (p *Pipeline) Clone() *Pipeline {
	c := *p
	c.Positions = p.Positions.Clone()
	c.First = maps.Clone(p.First)
	c.Totals = make(map[ident.Partition]Totals, len(p.Totals))
	for k, t := range p.Totals {
		c.Totals[k] = t.Clone()
	}
	c.Delta = p.Delta.Clone()
	c.Lost = slices.Clone(p.Lost)
	c.Pending = make([]PendingQuarantine, len(p.Pending))
	for i, e := range p.Pending {
		c.Pending[i] = e.clone()
	}
	return &c
}

// Clone returns an independent copy.
func (s State) Clone() State {
	pipelines := make(map[string]*Pipeline, len(s.Pipelines))
	for name, p := range s.Pipelines {
		pipelines[name] = p.Clone()
	}
	s.Pipelines = pipelines
	return s
}

// Carry returns a copy for a commit that advances nothing: all that counts for a
// single commit (First, Delta) is empty, everything else is as it was. A commit
// that does advance starts from it.
func (s State) Carry() State {
	c := s.Clone()
	c.Format = Format
	for _, p := range c.Pipelines {
		p.First, p.Delta = nil, Totals{}
	}
	return c
}

// Positions are the positions of all partitions of all pipelines.
func (s State) Positions() ident.Positions {
	out := ident.Positions{}
	for _, p := range s.Pipelines {
		maps.Copy(out, p.Positions)
	}
	return out
}

// Vector is the committed vector of all pipelines.
func (s State) Vector() ident.Vector { return s.Positions().Vector() }

// Pending is the outbox of all pipelines in the order of the main commits.
func (s State) Pending() []PendingQuarantine {
	var out []PendingQuarantine
	for _, name := range slices.Sorted(maps.Keys(s.Pipelines)) {
		out = append(out, s.Pipelines[name].Pending...)
	}
	slices.SortStableFunc(out, func(a, b PendingQuarantine) int { return int(a.Sequence - b.Sequence) })
	return out
}

// Event is the state at a snapshot in the words of the table log.
func (h Head) Event() event.Commit {
	return event.Commit{
		Table: h.Table, SnapshotID: h.SnapshotID, SequenceNumber: h.Sequence, CommitTime: h.Time,
		MetadataLocation: h.MetadataLocation, Positions: h.State.Positions(),
		LogEpoch: h.State.LogEpoch, WriterEpoch: h.State.WriterEpoch, LSN: h.State.LSN,
	}
}

// check refuses a state that must never be written: one whose totals do not add
// up to its positions, or whose ranges run backwards.
func (s State) check() error {
	if s.CommitID.IsZero() {
		return fault.New(fault.Internal, "checking the state before a commit: no commit id")
	}
	if s.LSN.Next < s.LSN.Start || s.LSN.Reserved < s.LSN.Next {
		return fault.New(fault.Internal, "checking the state before a commit: LSN start %d, next %d, reserved %d are not in order",
			s.LSN.Start, s.LSN.Next, s.LSN.Reserved)
	}
	for name, p := range s.Pipelines {
		if err := p.check(name); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pipeline) check(name string) error {
	var advanced int64
	for part, pos := range p.Positions {
		if part.Pipeline != name {
			return fault.New(fault.Internal, "checking the state before a commit: partition %s stands under pipeline %q", part, name)
		}
		if p.Totals[part].Quarantined < 0 {
			return fault.New(fault.Internal, "checking the state before a commit: %s has %d quarantined records", part, p.Totals[part].Quarantined)
		}
		if got, want := p.Totals[part].Len(), pos.Next-pos.Start; got != want {
			return fault.New(fault.Internal,
				"checking the state before a commit: %s covers [%d,%d) but rows, quarantined and skipped add up to %d, not %d",
				part, pos.Start, pos.Next, got, want)
		}
		if first, ok := p.First[part]; ok {
			if first < pos.Start || first > pos.Next {
				return fault.New(fault.Internal, "checking the state before a commit: %s begins at %d, outside of [%d,%d]",
					part, first, pos.Start, pos.Next)
			}
			advanced += pos.Next - first
		}
	}
	if p.Delta.Len() != advanced {
		return fault.New(fault.Internal,
			"checking the state before a commit: pipeline %q advances by %d offsets but counts %d", name, advanced, p.Delta.Len())
	}
	return nil
}

// mostNamed is how many partitions a message names.
const mostNamed = 16

// behind names the partitions in which s stands lower than o, with both positions;
// "" for none.
func (s State) behind(o State) string {
	have := s.Positions()
	want := o.Positions()
	var out []string
	for _, part := range want.Vector().Partitions() {
		switch pos, ok := have[part]; {
		case !ok:
			out = append(out, fmt.Sprintf("%s nothing, was %d", part, want[part].Next))
		case pos.Next < want[part].Next:
			out = append(out, fmt.Sprintf("%s %d, was %d", part, pos.Next, want[part].Next))
		}
	}
	return strings.Join(fault.FirstOf(out, mostNamed), "; ")
}
