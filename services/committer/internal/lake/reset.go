package lake

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// keyReset of a snapshot is the decision of an operator that it records.
const keyReset = prefix + "reset"

// keyVoided of a snapshot of the quarantine table is the sequence number of the
// main snapshot above which it took out what commits had put there that somebody
// rolled back.
const keyVoided = prefix + "voided-above"

// Reset is the decision of an operator about positions, as the table keeps it.
type Reset struct {
	At     time.Time `json:"at"`
	Base   string    `json:"base"` // table, copy, or empty
	Reason string    `json:"reason,omitempty"`
	// Over is the snapshot that the positions were known from before, where it is
	// no ancestor any more; 0 when the table was in order.
	Over       int64            `json:"over,omitempty"`
	Partitions []ResetPartition `json:"partitions"`
}

// ResetPartition is a partition that a reset moved, or took back.
type ResetPartition struct {
	Pipeline  string     `json:"pipeline"`
	Topic     string     `json:"topic"`
	TopicID   ident.UUID `json:"topic_id,omitzero"`
	Partition int32      `json:"partition"`
	// Table and Copy are the positions by the history and by the table property; -1
	// for none.
	Table int64 `json:"table"`
	Copy  int64 `json:"copy"`
	Next  int64 `json:"next"`
	Lost  int64 `json:"lost,omitempty"` // counted as lost
}

func encodeReset(r Reset) (string, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return pack(string(text))
}

func decodeReset(v string) (r Reset, err error) {
	err = decodeProperty(keyReset, v, &r)
	return r, err
}

// VoidQuarantine takes out of the quarantine table what commits put there that
// somebody rolled back: the records at and above the positions of the head. They
// are read again, and must not be there twice. Records that were replayed by such
// commits wait again. It does nothing where there is none, or where the head was
// not rolled back.
func (t *Table) VoidQuarantine(ctx context.Context) error {
	head := t.Head()
	if head.RolledBack == nil {
		return nil
	}
	q, err := t.quarantine(ctx, false)
	if fault.ReasonOf(err) == fault.UnknownTable {
		return nil
	}
	if err != nil {
		return err
	}
	if err := q.undoMarks(ctx, t.undoneReplays(q, head), sequenceOf(t.handle().Metadata(), head.StateSnapshot)); err != nil {
		return err
	}
	positions := ident.Vector{}
	if head.Copy != nil {
		for part := range head.Copy.State.Positions() {
			positions[part] = 0 // unless the history knows it
		}
	}
	maps.Copy(positions, head.State.Vector())
	n, err := t.above(ctx, positions)
	if n == 0 || err != nil {
		return err
	}
	if err := q.refuseDeleteFiles(ctx); err != nil {
		return err
	}
	sequence := sequenceOf(t.handle().Metadata(), head.StateSnapshot)
	t.log.Warn("records that were quarantined by commits that were rolled back are taken out: they are read again",
		"quarantine", q.name, "records", n, "above_sequence", sequence)
	sent := q.deleteAbove(ctx, positions, sequence)
	// Only the table says whether it landed.
	switch n, err := t.above(ctx, positions); {
	case err != nil:
		return err
	case n > 0 && sent == nil:
		return fault.New(fault.Conflict, "taking records out of table %s: somebody else changed it; try again", q.name)
	case n > 0:
		return sent
	default:
		return nil
	}
}

func sequenceOf(meta table.Metadata, snapshot int64) int64 {
	if s := meta.SnapshotByID(snapshot); s != nil {
		return s.SequenceNumber
	}
	return 0
}

// above counts the records of the quarantine table at and above positions.
func (t *Table) above(ctx context.Context, positions ident.Vector) (n int64, err error) {
	err = t.ReadQuarantine(ctx, QuarantineFilter{}, true, func(r Quarantined) error {
		if next, ok := positions[r.Partition]; ok && r.Offset >= next {
			n++
		}
		return nil
	})
	return n, err
}

// refuseDeleteFiles refuses a table with delete files of others: the library would
// bring back what they remove.
func (t *Table) refuseDeleteFiles(ctx context.Context) error {
	files, err := t.files(t.lake.storage(ctx))
	if err != nil {
		return err
	}
	s := t.handle().Metadata().CurrentSnapshot()
	if s == nil {
		return nil
	}
	c, err := contentOf(ctx, files, s, offsetColumns{}, map[string]manifestContent{})
	if err == nil && c.deletes > 0 {
		err = fault.New(fault.Stopped, "taking records out of table %s: it has %d delete files of another engine: compact it with that engine first", t.name, c.deletes)
	}
	return err
}

func (t *Table) deleteAbove(ctx context.Context, positions ident.Vector, sequence int64) error {
	var which iceberg.BooleanExpression = iceberg.AlwaysFalse{}
	for _, part := range positions.Partitions() {
		which = iceberg.NewOr(which, iceberg.NewAnd(
			iceberg.EqualTo(iceberg.Reference("pipeline"), part.Pipeline),
			iceberg.EqualTo(iceberg.Reference("topic"), part.Topic),
			iceberg.EqualTo(iceberg.Reference("topic_id"), part.TopicID.OrEmpty()),
			iceberg.EqualTo(iceberg.Reference("partition"), part.Number),
			iceberg.GreaterThanEqual(iceberg.Reference("offset"), positions[part]),
		))
	}
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), 2*t.lake.cfg.Timeouts.Stage+t.lake.cfg.Timeouts.Commit)
	defer cancel()
	return classify(t.void(ctx, sequence, func(tx *table.Transaction, summary iceberg.Properties) error {
		return tx.Delete(ctx, which, summary)
	}), "taking records out of table %s", t.name)
}

// void sends one snapshot on the loaded head that undoes what main commits above a
// sequence number did. Only the table says whether it landed.
func (t *Table) void(ctx context.Context, sequence int64, stage func(*table.Transaction, iceberg.Properties) error) error {
	tx := t.rehandle(t.handle().Metadata()).NewTransaction()
	if err := tx.AssertRefSnapshotID(""); err != nil {
		return err
	}
	if err := stage(tx, iceberg.Properties{keyVoided: strconv.FormatInt(sequence, 10)}); err != nil {
		return err
	}
	commit, err := tx.TableCommit()
	if err != nil {
		return err
	}
	_, _, err = t.cat.CommitTable(ctx, t.ident, commit.Requirements, commit.Updates)
	return err
}
