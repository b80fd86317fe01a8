// Package replay turns quarantined records into rows after all
// (docs/design/quarantine.md): it reads them from the quarantine table, has ingest
// decode them, writes data files and has the committer of the table land them, in
// portions of one snapshot each. Who calls it sees to it that a table has one
// replay at a time.
package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Bounds of a portion: what one snapshot of a replay holds at most. The offsets of
// a portion stand in the state of the table until they are marked, so they must
// stay few kilobytes.
const (
	portionRecords = 4096
	portionBytes   = 32 << 20 // of raw records; one record is always taken
)

// landing bounds the landing of a portion for its caller. The committer goes on.
const landing = 10 * time.Minute

// Until a portion is marked the next one waits: patience in all, asking every pause.
const (
	patience = 20 * time.Minute
	pause    = 2 * time.Second
)

// reasonOversized are records whose value was cut when they were quarantined.
const reasonOversized = "oversized"

// Decoder decodes raw records; ingest does.
type Decoder interface {
	// Decode makes rows of records of one topic partition in the order of their
	// offsets. fault.OverLimit asks for fewer of them.
	Decode(ctx context.Context, table string, part ident.Partition, records []lake.Quarantined, dry bool) (Decoded, error)
}

// Decoded says what became of records: each is in a batch or refused.
type Decoded struct {
	Batches  []Batch
	Refusals []Refused
}

// Batch is rows of one target schema.
type Batch struct {
	Schema *schema.Schema
	Rows   []byte // Arrow IPC batch of arrowx.RowSchema; none in a dry run
	Count  int64
}

// Refused is a record that still cannot be a row.
type Refused struct {
	Offset       int64
	Reason, Text string
}

// Table is the committer of the table.
type Table interface {
	BeginReplay(ctx context.Context) (commit.Ticket, error)
	LandReplay(ctx context.Context, r commit.Replay) (commit.Replayed, error)
}

// Lake is the table in the lake.
type Lake interface {
	ReadQuarantine(ctx context.Context, f lake.QuarantineFilter, light bool, visit func(lake.Quarantined) error) error
	Shape() *schema.Schema
	NewFiles(ctx context.Context, s *schema.Schema, id ident.UUID, epoch ident.WriterEpoch) (Files, error)
}

// Files takes rows into data files; lake.Writer does.
type Files interface {
	writer
	Close(ctx context.Context) ([]lake.File, error)
	Abort(ctx context.Context)
}

// Options of a replay.
type Options struct {
	Name    string // of the main table
	Filter  lake.QuarantineFilter
	DryRun  bool
	Table   Table
	Lake    Lake
	Decoder Decoder
	Log     *slog.Logger
}

// Result says what became of the records.
type Result struct {
	Selected  int64
	Replayed  int64 // in a dry run, that would be
	Snapshots []Snapshot
	Refusals  []Refusal // most frequent first
	Marked    bool      // the quarantine table says so of all
}

// Snapshot is one that the replay made.
type Snapshot struct {
	ID       int64
	CommitID ident.UUID
	Rows     int64
}

// Refusal counts the records that stay for one reason; First and Text are of the
// first of them.
type Refusal struct {
	Reason string
	Count  int64
	First  string
	Text   string
}

// Run replays what the filter selects. After an error the result says what landed
// before it.
func Run(ctx context.Context, o Options) (Result, error) {
	r := &replay{o: o, result: Result{Marked: true}, refused: map[string]*Refusal{}}
	err := r.run(ctx)
	for _, f := range r.refused {
		r.result.Refusals = append(r.result.Refusals, *f)
	}
	slices.SortFunc(r.result.Refusals, func(a, b Refusal) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return slices.Compare([]byte(a.Reason), []byte(b.Reason))
	})
	if err != nil && r.result.Replayed > 0 && !o.DryRun {
		err = fmt.Errorf("%d records were replayed before: %w", r.result.Replayed, err)
	}
	return r.result, err
}

// replay is one run.
type replay struct {
	o       Options
	ticket  commit.Ticket
	result  Result
	refused map[string]*Refusal
}

func (r *replay) run(ctx context.Context) error {
	if !r.o.DryRun {
		var err error
		if r.ticket, err = r.o.Table.BeginReplay(ctx); err != nil {
			return err
		}
	}
	todo, err := r.choose(ctx)
	if err != nil {
		return err
	}
	for _, part := range slices.SortedFunc(maps.Keys(todo), ident.Partition.Compare) {
		for offsets := range slices.Chunk(todo[part], portionRecords) {
			if err := r.portions(ctx, part, offsets); err != nil {
				return err
			}
		}
	}
	return nil
}

// choose lists the offsets that are to be replayed, in order. Only small columns
// are read.
func (r *replay) choose(ctx context.Context) (map[ident.Partition][]int64, error) {
	filter := r.o.Filter
	filter.Waiting, filter.Whole = true, true
	out := map[ident.Partition][]int64{}
	err := r.o.Lake.ReadQuarantine(ctx, filter, true, func(q lake.Quarantined) error {
		r.result.Selected++
		if q.Reason == reasonOversized {
			r.refuse(q.Partition, q.Offset, reasonOversized, "only the first bytes of its value were kept")
			return nil
		}
		out[q.Partition] = append(out[q.Partition], q.Offset)
		return nil
	})
	for part, offsets := range out {
		slices.Sort(offsets)
		out[part] = slices.Compact(offsets)
	}
	return out, err
}

func (r *replay) refuse(part ident.Partition, offset int64, reason, text string) {
	f := r.refused[reason]
	if f == nil {
		f = &Refusal{Reason: reason, First: fmt.Sprintf("%s offset %d", part, offset), Text: text}
		r.refused[reason] = f
	}
	f.Count++
}

// errEnough ends a scan when a portion is full.
var errEnough = errors.New("enough records")

// portions replays the given offsets of a partition, as many portions as their
// bytes need.
func (r *replay) portions(ctx context.Context, part ident.Partition, offsets []int64) error {
	wanted := make(map[int64]bool, len(offsets))
	for _, o := range offsets {
		wanted[o] = true
	}
	for len(wanted) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.awaitMark(ctx); err != nil {
			return err
		}
		records, err := r.load(ctx, part, offsets[0], offsets[len(offsets)-1]+1, wanted)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return nil // somebody removed them meanwhile
		}
		if err := r.portion(ctx, part, records); err != nil {
			return err
		}
	}
	return nil
}

// awaitMark waits until what landed is marked: many files take a while. The records
// of the next portion are read under the new ticket alone.
func (r *replay) awaitMark(ctx context.Context) error {
	for deadline := time.Now().Add(patience); !r.result.Marked; {
		ticket, err := r.o.Table.BeginReplay(ctx)
		if err == nil {
			r.ticket, r.result.Marked = ticket, true
			return nil
		}
		if fault.ReasonOf(err) != fault.Unavailable || time.Now().After(deadline) {
			return fault.New(fault.Unavailable, "replaying into table %s: the quarantine table cannot be marked at the moment; the committer tries again by itself: begin another replay when it is done: %w", r.o.Name, err)
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// load reads wanted records, up to the bytes of a portion, takes them out of
// wanted, and returns them in the order of their offsets.
func (r *replay) load(ctx context.Context, part ident.Partition, from, to int64, wanted map[int64]bool) ([]lake.Quarantined, error) {
	filter := lake.QuarantineFilter{Pipeline: part.Pipeline, Topic: part.Topic, Partition: &part.Number, From: &from, To: &to, Waiting: true, Whole: true}
	var out []lake.Quarantined
	var bytes int64
	err := r.o.Lake.ReadQuarantine(ctx, filter, false, func(q lake.Quarantined) error {
		if q.Partition != part || !wanted[q.Offset] {
			return nil
		}
		if bytes += q.Bytes(); bytes > portionBytes && len(out) > 0 {
			return errEnough
		}
		delete(wanted, q.Offset)
		out = append(out, q)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	slices.SortFunc(out, func(a, b lake.Quarantined) int { return int(a.Offset - b.Offset) })
	return out, nil
}

// portion decodes records and lands those that are rows now.
func (r *replay) portion(ctx context.Context, part ident.Partition, records []lake.Quarantined) error {
	w := &rows{o: r.o, part: part, id: commit.NewID(), epoch: r.ticket.Epoch()}
	landed, err := r.decode(ctx, w, part, records)
	if err == nil && len(landed) > 0 && !r.o.DryRun {
		err = r.land(ctx, w, part, landed)
	}
	if err != nil {
		w.abort(ctx)
		return err
	}
	if r.o.DryRun {
		r.result.Replayed += int64(len(landed))
	}
	return nil
}

// decode has records decoded, fewer at a time where they are too many for one
// call, and returns the offsets that are rows, in order.
func (r *replay) decode(ctx context.Context, w *rows, part ident.Partition, records []lake.Quarantined) ([]int64, error) {
	d, err := r.o.Decoder.Decode(ctx, r.o.Name, part, records, r.o.DryRun)
	switch {
	case fault.ReasonOf(err) == fault.OverLimit && len(records) > 1:
		half := len(records) / 2
		left, err := r.decode(ctx, w, part, records[:half])
		if err != nil {
			return nil, err
		}
		right, err := r.decode(ctx, w, part, records[half:])
		return append(left, right...), err
	case fault.ReasonOf(err) == fault.OverLimit:
		r.refuse(part, records[0].Offset, reasonOversized, fault.Describe(err))
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("decoding quarantined records of %s from offset %d: %w", part, records[0].Offset, err)
	}
	open := make(map[int64]lake.Quarantined, len(records))
	for _, q := range records {
		open[q.Offset] = q
	}
	for _, f := range d.Refusals {
		if _, ok := open[f.Offset]; !ok {
			return nil, stray(part, f.Offset)
		}
		delete(open, f.Offset)
		r.refuse(part, f.Offset, f.Reason, f.Text)
	}
	landed, err := w.take(ctx, d.Batches, open, r.o.DryRun)
	if err != nil {
		return nil, err
	}
	if len(open) > 0 {
		return nil, fault.New(fault.Corrupt, "decoding quarantined records of %s: %d of %d were neither decoded nor refused", part, len(open), len(records))
	}
	slices.Sort(landed)
	return landed, nil
}

func stray(part ident.Partition, offset int64) error {
	return fault.New(fault.Corrupt, "decoding quarantined records of %s: the answer names offset %d, which was not asked for or comes twice", part, offset)
}

// land hands the files to the committer. What it began it finishes, so a caller
// that goes away does not leave a portion half done.
func (r *replay) land(ctx context.Context, w *rows, part ident.Partition, offsets []int64) error {
	files, err := w.close(ctx)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), landing)
	defer cancel()
	done, err := r.o.Table.LandReplay(call, commit.Replay{
		ID: w.id, Ticket: r.ticket, Files: files, Offsets: map[ident.Partition][]ident.Range{part: ranges(offsets)},
	})
	if err != nil {
		return err
	}
	n := int64(len(offsets))
	r.result.Replayed += n
	r.result.Snapshots = append(r.result.Snapshots, Snapshot{ID: done.SnapshotID, CommitID: w.id, Rows: n})
	r.result.Marked = r.result.Marked && done.Marked
	r.o.Log.Info("quarantined records replayed", "table", r.o.Name, "partition", part.String(), "rows", n, "snapshot", done.SnapshotID, "marked", done.Marked)
	return nil
}

// ranges are ascending offsets as ranges without gaps.
func ranges(offsets []int64) []ident.Range {
	var out []ident.Range
	for _, o := range offsets {
		if n := len(out); n > 0 && out[n-1].Next == o {
			out[n-1].Next++
			continue
		}
		out = append(out, ident.Range{First: o, Next: o + 1})
	}
	return out
}
