package lake

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/icestream/icestream/internal/ident"
)

// checkStates checks that the ranges of the commits tile the offsets and that
// the running totals add up.
func (a *auditor) checkStates() {
	var prev *link
	by := map[ident.UUID]*link{}
	for i := range a.chain {
		l := &a.chain[i]
		if !l.own {
			continue
		}
		if first := by[l.state.CommitID]; first != nil {
			a.r.find(Violated, l.name(), "commit %s landed in %s before: it stands in the history twice", l.state.CommitID, first.name())
		}
		by[l.state.CommitID] = l
		a.checkSums(l)
		a.checkReplay(l)
		a.noteReset(l)
		switch {
		case prev != nil:
			a.checkStep(prev, l)
		case a.r.Complete:
			a.checkStep(&link{}, l)
		}
		prev = l
	}
}

// checkSums checks that a state adds up by itself.
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
		if p.Delta.Len() != advanced {
			a.r.find(Violated, l.name(), "pipeline %s advances by %d offsets but counts %d", name, advanced, p.Delta.Len())
		}
	}
}

// noteReset says what an operator decided: it is no loss that nobody knows of. The
// ranges are proven across it, since what was given up is counted as lost.
func (a *auditor) noteReset(l *link) {
	v := l.prop(keyReset)
	if v == "" {
		return
	}
	r, err := decodeReset(v)
	if err != nil {
		a.r.find(Violated, l.name(), "the decision of an operator that it records cannot be read: %v", err)
		return
	}
	var lost, again int64
	for _, p := range r.Partitions {
		part := ident.Partition{Pipeline: p.Pipeline, Topic: p.Topic, TopicID: p.TopicID, Number: p.Partition}
		lost += p.Lost
		again += max(0, p.Copy-p.Next)
		if have := l.state.Positions()[part].Next; have != p.Next {
			a.r.find(Violated, l.name(), "an operator set %s to %d, but the commit has it at %d", part, p.Next, have)
		}
	}
	why := ""
	if r.Reason != "" {
		why = fmt.Sprintf(" (%s)", r.Reason)
	}
	a.r.note("%s: an operator reset positions at %s%s: %d offsets to be read again, %d given up and counted as lost",
		l.name(), r.At.UTC().Format(time.RFC3339), why, again, lost)
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

// checkStep checks that a commit goes on where the one before it ended.
func (a *auditor) checkStep(prev, l *link) {
	before := prev.state.Positions()
	after := l.state.Positions()
	for _, part := range before.Vector().Partitions() {
		old := before[part]
		pos, ok := after[part]
		switch {
		case !ok:
			a.r.find(Violated, l.name(), "%s is forgotten", part)
		case pos.Start != old.Start:
			a.r.find(Violated, l.name(), "%s: its start moved from %d to %d", part, old.Start, pos.Start)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.state.Pipelines)) {
		a.checkPipeline(prev, l, name)
	}
	if l.state.LSN.Next < prev.state.LSN.Next || l.state.LSN.Reserved < prev.state.LSN.Reserved || l.state.LogEpoch < prev.state.LogEpoch {
		a.r.find(Violated, l.name(), "log epoch or LSNs went back: an LSN may name two rows")
	}
	if l.state.WriterEpoch < prev.state.WriterEpoch {
		a.r.find(Violated, l.name(), "it was committed with writer epoch %d after %d: by a committer that was fenced", l.state.WriterEpoch, prev.state.WriterEpoch)
	}
}

// checkPipeline checks the ranges of a pipeline in a commit, and that its totals
// grew by what the commit counts, reason by reason.
func (a *auditor) checkPipeline(prev, l *link, name string) {
	p := l.state.Pipelines[name]
	old := prev.state.Pipelines[name]
	if old == nil {
		old = &Pipeline{}
	}
	var grew Totals
	for _, part := range p.Positions.Vector().Partitions() {
		pos, had := p.Positions[part], old.Totals[part]
		begins := pos.Start
		if was, known := old.Positions[part]; known {
			begins = was.Next
		}
		first, advanced := p.First[part]
		if !advanced {
			first = pos.Next
		}
		growth := p.Totals[part].Sub(had)
		grew = grew.Add(growth)
		switch {
		case first > begins:
			a.r.find(Violated, l.name(), "%s: offsets [%d,%d) are in no commit", part, begins, first)
		case first < begins:
			a.r.find(Violated, l.name(), "%s: offsets [%d,%d) were committed twice", part, first, begins)
		case growth.Quarantined < 0 && l.prop(keyReplay) == "":
			a.r.find(Violated, l.name(), "%s: %d records left the quarantine, but the commit is no replay", part, -growth.Quarantined)
		case growth.Len() != pos.Next-begins:
			a.r.find(Violated, l.name(), "%s: the totals grew by %d over [%d,%d)", part, growth.Len(), begins, pos.Next)
		case growth.shrinks():
			a.r.find(Violated, l.name(), "%s: the totals of some outcome went back", part)
		}
	}
	a.checkLost(prev, l, old, p)
	if !grew.same(p.Delta) {
		a.r.find(Violated, l.name(), "pipeline %s: the totals grew by %s, the commit counts %s", name, grew, p.Delta)
	}
}

// checkLost checks that a commit still remembers as lost what the one before it did.
// Only where there are too many ranges the oldest go. Where there may have been, it
// says nothing: ranges that meet become one, so there may be fewer again.
func (a *auditor) checkLost(prev, l *link, old, p *Pipeline) {
	if len(p.Lost) >= old.mostLost()/2 {
		return
	}
	for _, lost := range old.Lost {
		if !p.Remembers(lost) {
			a.r.find(Violated, l.name(), "%s: offsets [%d,%d), which %s remembers as lost, are not remembered any more: the list was edited, or a release that does not know it has committed",
				lost.Partition, lost.First, lost.Next, prev.name())
		}
	}
}

// checkMark compares the copy of the state in the table property with the
// snapshot that it was taken of: one of them may have been edited.
func (a *auditor) checkMark() {
	v := a.t.handle().Properties()[propertyMark]
	if v == "" {
		return
	}
	m, _, err := decodeMark(v)
	if err != nil {
		a.r.find(Violated, "table property "+propertyMark, "%v", err)
		return
	}
	s := a.t.handle().Metadata().SnapshotByID(m.Snapshot)
	if s == nil || s.Summary == nil {
		return
	}
	keys := maps.Clone(m.Keys) // and those of a state that only the summary has
	for key := range s.Summary.Properties {
		if isStateKey(key) {
			keys[key] = m.Keys[key]
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if have, err := unpack(s.Summary.Properties[key]); err != nil || have != m.Keys[key] {
			a.r.find(Violated, fmt.Sprintf("snapshot %d", m.Snapshot), "its summary and the copy in the table property %s differ in %s: one of them was edited", propertyMark, key)
		}
	}
}
