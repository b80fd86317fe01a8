package lake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
)

// foreignSinks are marks that other streaming writers leave in a table that they
// keep their own positions in. Two of them in one table would each be right
// alone and wrong together.
var foreignSinks = []struct{ key, who string }{
	{"kafka.connect.", "the Kafka Connect sink"},
	{"flink.", "Flink"},
	{"spark.sql.streaming.", "Spark structured streaming"},
	{"redpanda.", "Redpanda Iceberg topics"},
	{"risingwave.", "RisingWave"},
}

func refuseForeignSink(name string, tbl *table.Table) error {
	check := func(keys map[string]string, where string) error {
		for key := range keys {
			for _, sink := range foreignSinks {
				if strings.HasPrefix(key, sink.key) {
					return fault.New(fault.Unsupported,
						"loading table %s: %s has the key %s, so the table is fed by %s: use another table (taking one over is not supported yet)",
						name, where, key, sink.who)
				}
			}
		}
		return nil
	}
	if err := check(tbl.Properties(), "its properties"); err != nil {
		return err
	}
	for s := range ancestors(tbl.Metadata()) {
		if s.Summary == nil {
			continue
		}
		if err := check(s.Summary.Properties, fmt.Sprintf("snapshot %d", s.SnapshotID)); err != nil {
			return err
		}
	}
	return nil
}

// history is what is known about the ancestors of a head, newest first. cut is
// the parent that is missing, 0 when the first snapshot was reached.
type history struct {
	own []*table.Snapshot
	cut int64
}

func isOwn(s *table.Snapshot) bool {
	return s.Summary != nil && s.Summary.Properties[keyFormat] != "" && s.Summary.Properties[keyCommitID] != ""
}

func historyOf(meta table.Metadata) history {
	var h history
	for s := range ancestors(meta) {
		if isOwn(s) {
			h.own = append(h.own, s)
		}
		h.cut = 0
		if s.ParentSnapshotID != nil && meta.SnapshotByID(*s.ParentSnapshotID) == nil {
			h.cut = *s.ParentSnapshotID
		}
	}
	return h
}

// recover finds the state that the head stands for (design section 4): the
// newest own ancestor says it, the table property says whether that is all. The
// cases are T1 (own snapshots expired by another engine), T2 (foreign head) and
// a roll-back.
func (t *Table) recover(ctx context.Context, tbl *table.Table) (Head, error) {
	head, err := t.plainHead(tbl)
	if err != nil {
		return Head{}, err
	}
	if isQuarantine(t.name) {
		return head, nil // it has no state of its own
	}
	meta := tbl.Metadata()
	h := historyOf(meta)
	head.Own = len(h.own)
	var m mark
	var marked State
	if v := tbl.Properties()[propertyMark]; v != "" {
		if m, marked, err = decodeMark(v); err != nil {
			return Head{}, err
		}
		head.Copy = &Copy{State: marked, Snapshot: m.Snapshot, Sequence: m.Sequence}
	}
	newest, err := t.newestOwn(ctx, tbl, h)
	if err != nil {
		return Head{}, err
	}
	switch {
	case newest != nil:
		state, _, err := decodeState(newest.Summary.Properties)
		if err != nil {
			return Head{}, fmt.Errorf("loading table %s, snapshot %d: %w", t.name, newest.SnapshotID, err)
		}
		head.State, head.StateSnapshot = state, newest.SnapshotID
		if m.Sequence > newest.SequenceNumber {
			head.RolledBack = t.rolledBack(head, state, marked, m)
		}
	case m.Keys != nil:
		head.StateLost = fault.New(fault.Stopped,
			"loading table %s: no snapshot of ours is left below snapshot %d and nothing proves that it descends from snapshot %d, whose positions the table property %s remembers: `icestream offsets show %s` shows them; if the table holds what they say, run `icestream offsets reset %s --to copy`",
			t.name, head.SnapshotID, m.Snapshot, propertyMark, t.name, t.name)
	case h.cut != 0 && tbl.Properties()[propertyOwner] != "":
		head.StateLost = fault.New(fault.Stopped,
			"loading table %s: the history below snapshot %d is gone and no state of ours is left, nor a copy of it: which offsets the table holds is not known any more. Put the table property %s back, or write to a new table", t.name, h.cut, propertyMark)
	}
	if head.RolledBack != nil || head.StateLost != nil {
		head.High = highest(meta, head)
	}
	head.Ended, err = endedEpochs(h.own)
	return head, err
}

// highest is what was given by snapshots of ours, those that were rolled back
// included.
func highest(meta table.Metadata, head Head) High {
	var out High
	out.raise(head.State)
	if head.Copy != nil {
		out.raise(head.Copy.State)
	}
	for _, s := range meta.Snapshots() {
		var state State
		if isOwn(&s) && decodeNumbers(&state, s.Summary.Properties) == nil {
			out.raise(state)
		}
	}
	return out
}

func (t *Table) rolledBack(head Head, have, marked State, m mark) error {
	where := have.behind(marked)
	if where == "" {
		where = fmt.Sprintf("lower in no partition, but commit %s is gone", marked.CommitID)
	}
	return fault.New(fault.Stopped,
		"loading table %s: somebody rolled it back: it had committed snapshot %d (sequence number %d), its history now ends at snapshot %d of ours below head %d. It stands at %s. Roll it forward again, or decide: `icestream offsets reset %s --to table` reads the lost rows again, `--to copy` gives them up",
		t.name, m.Snapshot, m.Sequence, head.StateSnapshot, head.SnapshotID, where, t.name)
}

// newestOwn is the newest own ancestor of the head, nil when none is known. Where an
// expiry has cut the chain, older metadata files prove the descent.
func (t *Table) newestOwn(ctx context.Context, tbl *table.Table, h history) (*table.Snapshot, error) {
	if len(h.own) > 0 {
		return h.own[0], nil
	}
	for s, err := range t.lineage(ctx, tbl) {
		if err != nil {
			return nil, err
		}
		if isOwn(s) {
			return s, nil
		}
	}
	return nil, nil
}

// endedEpochs finds the fences among own snapshots, newest first, and gives the
// ended epochs oldest first with the vector that the table covered then.
func endedEpochs(own []*table.Snapshot) ([]event.EndedEpoch, error) {
	var out []event.EndedEpoch
	for i := 0; i+1 < len(own); i++ {
		if own[i].Summary.Properties[keyLogEpoch] == own[i+1].Summary.Properties[keyLogEpoch] {
			continue
		}
		before, _, err := decodeState(own[i+1].Summary.Properties)
		if err != nil {
			return nil, err
		}
		if before.LogEpoch > 0 {
			out = append(out, event.EndedEpoch{Epoch: before.LogEpoch, Base: before.Vector()})
		}
	}
	slices.Reverse(out)
	return out, nil
}
