package committer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// QuarantineFilter selects quarantined records: every field that is set must
// match.
type QuarantineFilter struct {
	Pipeline  string
	Topic     string
	Partition *int32
	From, To  *int64 // offsets [From, To)
	Reason    string
	SchemaID  *int32
	Waiting   bool // leave out what was replayed
}

func (f QuarantineFilter) lake() lake.QuarantineFilter {
	return lake.QuarantineFilter{
		Pipeline: f.Pipeline, Topic: f.Topic, Partition: f.Partition, From: f.From, To: f.To, Reason: f.Reason, SchemaID: f.SchemaID, Waiting: f.Waiting,
	}
}

// QuarantineCount is the number of quarantined records that have the same
// pipeline, topic partition, reason and schema id.
type QuarantineCount struct {
	Pipeline  string    `json:"pipeline"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Reason    string    `json:"reason"`
	SchemaID  *int32    `json:"schema_id"`
	Records   int64     `json:"records"`
	Replayed  int64     `json:"replayed"` // of those, rows of the table by now
	First     int64     `json:"first_offset"`
	Last      int64     `json:"last_offset"`
	Newest    time.Time `json:"newest"` // record time, zero where unknown
}

// QuarantineSummary counts the quarantined records of a table.
type QuarantineSummary struct {
	Table string `json:"table"`
	// Pending are records that a commit decided about and that are not in the
	// quarantine table yet. They are in no count.
	Pending int64             `json:"pending"`
	Counts  []QuarantineCount `json:"counts"`
}

// QuarantinedRecord is a quarantined record for people and programs.
type QuarantinedRecord struct {
	Pipeline   string             `json:"pipeline"`
	Topic      string             `json:"topic"`
	TopicID    string             `json:"topic_id,omitempty"`
	Partition  int32              `json:"partition"`
	Offset     int64              `json:"offset"`
	LSN        *int64             `json:"lsn"`
	Time       *time.Time         `json:"timestamp"`
	SchemaID   *int32             `json:"schema_id"`
	Reason     string             `json:"reason"`
	Error      string             `json:"error"`
	Key        []byte             `json:"key"`
	Value      []byte             `json:"value"`
	Headers    []QuarantineHeader `json:"headers"`
	CommitID   string             `json:"commit_id"`
	ReplayedIn string             `json:"replayed_in,omitempty"`
}

// QuarantineHeader is a header of a quarantined record.
type QuarantineHeader struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// withTable opens a table of ours with the catalog section of the settings, for
// reading. One that is none, or the quarantine of another, is refused: it has
// nothing to tell, which would pass for good news.
func withTable(ctx context.Context, settings *config.Config, table string, read func(*lake.Table) error) error {
	l, err := lake.Open(ctx, lakeConfig(settings.Catalog), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	t, err := loadTable(ctx, l, table)
	if err == nil {
		err = t.Refuse()
	}
	if err == nil {
		err = read(t)
	}
	return errors.Join(err, l.Close())
}

// loadTable loads a table for somebody who may have mistyped its name.
func loadTable(ctx context.Context, l *lake.Lake, name string) (*lake.Table, error) {
	t, err := l.Load(ctx, name)
	return t, meant(ctx, l, name, err)
}

// meant adds to the error that there is no such table which one was meant perhaps.
func meant(ctx context.Context, l *lake.Lake, name string, err error) error {
	if !Missing(err) {
		return err
	}
	if hint := near.Table(name, l.Main(ctx, name)); hint != "" {
		return fault.New(fault.UnknownTable, "%w%s", err, hint)
	}
	return err
}

// CountQuarantine counts the quarantined records of a main table. It only reads,
// and needs no running service.
func CountQuarantine(ctx context.Context, settings *config.Config, table string, f QuarantineFilter) (QuarantineSummary, error) {
	out := QuarantineSummary{Table: table, Counts: []QuarantineCount{}}
	type key struct {
		part     ident.Partition
		reason   string
		schemaID int32
		hasID    bool
	}
	counts := map[key]*QuarantineCount{}
	err := withTable(ctx, settings, table, func(t *lake.Table) (err error) {
		if out.Pending, err = t.PendingRecords(ctx); err != nil {
			return err
		}
		return t.ReadQuarantine(ctx, f.lake(), true, func(q lake.Quarantined) error {
			k := key{part: q.Partition, reason: q.Reason}
			if q.SchemaID != nil {
				k.schemaID, k.hasID = *q.SchemaID, true
			}
			c := counts[k]
			if c == nil {
				c = &QuarantineCount{
					Pipeline: q.Partition.Pipeline, Topic: q.Partition.Topic, Partition: q.Partition.Number,
					Reason: q.Reason, SchemaID: q.SchemaID, First: q.Offset, Last: q.Offset,
				}
				counts[k] = c
			}
			c.add(q)
			return nil
		})
	})
	for _, c := range counts {
		out.Counts = append(out.Counts, *c)
	}
	slices.SortFunc(out.Counts, compareCounts)
	return out, err
}

func (c *QuarantineCount) add(q lake.Quarantined) {
	c.Records++
	if q.ReplayedIn != "" {
		c.Replayed++
	}
	c.First, c.Last = min(c.First, q.Offset), max(c.Last, q.Offset)
	if q.Time.After(c.Newest) {
		c.Newest = q.Time
	}
}

func compareCounts(a, b QuarantineCount) int {
	if c := strings.Compare(a.Pipeline, b.Pipeline); c != 0 {
		return c
	}
	if c := strings.Compare(a.Topic, b.Topic); c != 0 {
		return c
	}
	if a.Partition != b.Partition {
		return int(a.Partition - b.Partition)
	}
	if c := strings.Compare(a.Reason, b.Reason); c != 0 {
		return c
	}
	return int(a.First - b.First)
}

// ShowQuarantine calls visit with the first limit quarantined records that match,
// in the order of partition and offset; 0 is no limit. Those are held in memory,
// beside the positions of all that match.
func ShowQuarantine(ctx context.Context, settings *config.Config, table string, f QuarantineFilter, limit int, visit func(QuarantinedRecord) error) error {
	return withTable(ctx, settings, table, func(t *lake.Table) error {
		wanted, err := firstRecords(ctx, t, f.lake(), limit)
		if err != nil || len(wanted) == 0 {
			return err
		}
		found := make(map[recordPlace]QuarantinedRecord, len(wanted))
		narrow := f.lake()
		low, high := wanted[0].offset, wanted[0].offset
		for _, p := range wanted {
			low, high = min(low, p.offset), max(high, p.offset)
			found[p] = QuarantinedRecord{}
		}
		high++
		narrow.From, narrow.To = &low, &high
		err = t.ReadQuarantine(ctx, narrow, false, func(q lake.Quarantined) error {
			p := recordPlace{q.Partition, q.Offset}
			if _, ok := found[p]; ok {
				found[p] = recordOf(q)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, p := range wanted {
			if found[p].Topic == "" {
				continue // somebody removed it meanwhile
			}
			if err := visit(found[p]); err != nil {
				return err
			}
		}
		return nil
	})
}

// recordPlace is where a record came from.
type recordPlace struct {
	part   ident.Partition
	offset int64
}

// firstRecords are the first limit records that match, in order.
func firstRecords(ctx context.Context, t *lake.Table, f lake.QuarantineFilter, limit int) ([]recordPlace, error) {
	var out []recordPlace
	err := t.ReadQuarantine(ctx, f, true, func(q lake.Quarantined) error {
		out = append(out, recordPlace{q.Partition, q.Offset})
		return nil
	})
	slices.SortFunc(out, func(a, b recordPlace) int {
		if c := a.part.Compare(b.part); c != 0 {
			return c
		}
		return int(a.offset - b.offset)
	})
	out = slices.Compact(out)
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, err
}

func recordOf(q lake.Quarantined) QuarantinedRecord {
	out := QuarantinedRecord{
		Pipeline: q.Partition.Pipeline, Topic: q.Partition.Topic, TopicID: q.Partition.TopicID.OrEmpty(), Partition: q.Partition.Number, Offset: q.Offset,
		SchemaID: q.SchemaID, Reason: q.Reason, Error: q.Error, Key: q.Key, Value: q.Value, CommitID: q.CommitID, ReplayedIn: q.ReplayedIn,
		Headers: []QuarantineHeader{},
	}
	if !q.Time.IsZero() {
		out.Time = &q.Time
	}
	if q.LSN != nil {
		lsn := int64(*q.LSN)
		out.LSN = &lsn
	}
	for _, h := range q.Headers {
		out.Headers = append(out.Headers, QuarantineHeader(h))
	}
	return out
}
