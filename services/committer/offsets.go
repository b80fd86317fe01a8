package committer

import (
	"context"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Offsets is what a table says about the positions of its pipelines.
type Offsets struct {
	Table      string `json:"table"`
	SnapshotID int64  `json:"snapshot"`
	// StateSnapshot is the snapshot of ours that says so, 0 for none.
	StateSnapshot int64 `json:"state_snapshot"`
	// Problem says why nothing is written to the table before an operator decides;
	// empty when all is well.
	Problem    string           `json:"problem,omitempty"`
	Partitions []OffsetPosition `json:"partitions"`
}

// OffsetPosition is a topic partition.
type OffsetPosition struct {
	Pipeline  string `json:"pipeline"`
	Topic     string `json:"topic"`
	TopicID   string `json:"topic_id,omitempty"`
	Partition int32  `json:"partition"`
	Start     int64  `json:"start"`
	// Table and Copy are the next offset by the history of the table and by the copy
	// in its property; -1 where that knows none.
	Table       int64 `json:"table"`
	Copy        int64 `json:"copy"`
	Rows        int64 `json:"rows"`
	Quarantined int64 `json:"quarantined"`
	Skipped     int64 `json:"skipped"`
}

// ShowOffsets reads the positions that a table holds. It only reads, and needs no
// running service.
func ShowOffsets(ctx context.Context, settings *config.Config, table string) (Offsets, error) {
	out := Offsets{Table: table, Partitions: []OffsetPosition{}}
	err := withTable(ctx, settings, table, func(t *lake.Table) error {
		h := t.Head()
		out.SnapshotID, out.StateSnapshot = h.SnapshotID, h.StateSnapshot
		for _, problem := range []error{h.RolledBack, h.StateLost} {
			if problem != nil {
				out.Problem = fault.Describe(problem)
			}
		}
		var copied lake.State
		if h.Copy != nil {
			copied = h.Copy.State
		}
		told, remembered := h.State.Positions(), copied.Positions()
		all := remembered.Vector()
		for part := range told {
			all[part] = 0
		}
		for _, part := range all.Partitions() {
			out.Partitions = append(out.Partitions, offsetPosition(part, h.State, copied))
		}
		return nil
	})
	return out, err
}

func offsetPosition(part ident.Partition, told, copied lake.State) OffsetPosition {
	p := OffsetPosition{Pipeline: part.Pipeline, Topic: part.Topic, Partition: part.Number, TopicID: part.TopicID.OrEmpty(), Table: -1, Copy: -1}
	counts := copied
	if pos, ok := copied.Positions()[part]; ok {
		p.Start, p.Copy = pos.Start, pos.Next
	}
	if pos, ok := told.Positions()[part]; ok {
		p.Start, p.Table = pos.Start, pos.Next
		counts = told
	}
	t := counts.Pipelines[part.Pipeline].Totals[part]
	p.Rows, p.Quarantined = t.Rows, t.Quarantined
	p.Skipped = t.Len() - t.Rows - t.Quarantined
	return p
}
