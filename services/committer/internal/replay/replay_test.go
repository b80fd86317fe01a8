package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

func part(n int32) ident.Partition {
	return ident.Partition{Pipeline: "p", Topic: "orders", Number: n}
}

// shape is value string and the metadata columns, with more columns behind.
func shape(more ...string) *schema.Schema {
	s := &schema.Schema{Columns: append([]*schema.Node{{Name: "value", Type: schema.Of(schema.String)}}, schema.MetadataColumns(true, true)...)}
	s.AssignIDs()
	for _, name := range more {
		s.Columns = append(s.Columns, &schema.Node{Name: name, Type: schema.Of(schema.Long)})
		s.AssignIDs()
	}
	return s
}

// world is a table with quarantined records, its committer, and ingest.
type world struct {
	t       *testing.T
	records []lake.Quarantined
	schema  *schema.Schema

	landed  []commit.Replay
	rows    []string // "partition offset lsn value" of landed files
	written map[string][]string
	aborted int
	calls   []int // records of each call to ingest

	limit  int                                          // records of one call
	bad    func(q lake.Quarantined) (reason string)     // what ingest refuses
	answer func(d *Decoded)                             // spoils an answer
	decode func() error                                 // fails a call
	begin  func() error                                 // fails the begin
	land   func(commit.Replay) (commit.Replayed, error) // replaces the landing
}

func newWorld(t *testing.T) *world {
	return &world{t: t, schema: shape("later"), written: map[string][]string{}, limit: 1 << 20}
}

func (w *world) quarantine(p ident.Partition, from, to int64) {
	for o := from; o < to; o++ {
		lsn := ident.LSN(1000*int64(p.Number) + o)
		w.records = append(w.records, lake.Quarantined{Partition: p, Offset: o, Value: fmt.Append(nil, "v", o), Reason: "schema_unknown", LSN: &lsn})
	}
}

func (w *world) run(o Options) (Result, error) {
	o.Name, o.Table, o.Lake, o.Decoder, o.Log = "shop.orders", w, w, w, slog.New(slog.DiscardHandler)
	return Run(w.t.Context(), o)
}

func (w *world) ReadQuarantine(_ context.Context, f lake.QuarantineFilter, light bool, visit func(lake.Quarantined) error) error {
	require.True(w.t, f.Waiting, "what was replayed is never replayed again")
	require.True(w.t, f.Whole, "nor from a table that somebody rolled back")
	for _, q := range slices.Backward(w.records) { // in no order that helps
		if q.ReplayedIn != "" || (f.Partition != nil && *f.Partition != q.Partition.Number) || (f.From != nil && q.Offset < *f.From) || (f.To != nil && q.Offset >= *f.To) {
			continue
		}
		if light {
			q.Value = nil
		}
		if err := visit(q); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) Shape() *schema.Schema { return w.schema }

func (w *world) NewFiles(_ context.Context, s *schema.Schema, id ident.UUID, _ ident.WriterEpoch) (Files, error) {
	return &fakeFiles{w: w, path: id.String(), schema: s}, nil
}

type fakeFiles struct {
	w      *world
	path   string
	schema *schema.Schema
	closed bool
}

func (f *fakeFiles) Write(rec arrow.RecordBatch) error {
	require.True(f.w.t, rec.Schema().Equal(f.schema.Arrow()), "the newest shape of the table")
	column := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
	kafka := column("_kafka").(*array.Struct)
	for i := range int(rec.NumRows()) {
		f.w.written[f.path] = append(f.w.written[f.path], fmt.Sprint(
			kafka.Field(1).ValueStr(i), " ", kafka.Field(2).ValueStr(i), " ", column("_lsn").ValueStr(i), " ", column("value").ValueStr(i)))
	}
	return nil
}

func (f *fakeFiles) Close(context.Context) ([]lake.File, error) {
	f.closed = true
	return []lake.File{{Path: f.path, Rows: int64(len(f.w.written[f.path]))}}, nil
}

func (f *fakeFiles) Abort(context.Context) {
	if !f.closed {
		f.w.aborted++
	}
}

func (w *world) Decode(_ context.Context, table string, p ident.Partition, records []lake.Quarantined, dry bool) (Decoded, error) {
	require.Equal(w.t, "shop.orders", table)
	if w.decode != nil {
		if err := w.decode(); err != nil {
			return Decoded{}, err
		}
	}
	if len(records) > w.limit {
		return Decoded{}, fault.New(fault.OverLimit, "%d records are too many", len(records))
	}
	w.calls = append(w.calls, len(records))
	var d Decoded
	var rows []string
	last := int64(-1)
	for _, q := range records {
		require.Equal(w.t, p, q.Partition)
		require.Greater(w.t, q.Offset, last)
		last = q.Offset
		if w.bad != nil {
			if reason := w.bad(q); reason != "" {
				d.Refusals = append(d.Refusals, Refused{Offset: q.Offset, Reason: reason, Text: "still " + reason})
				continue
			}
		}
		rows = append(rows, fmt.Sprintf(`{"value":%q,"offset":%d,"headers":[]}`, q.Value[:min(len(q.Value), 8)], q.Offset))
	}
	if len(rows) > 0 {
		target := shape() // older than the table
		b := Batch{Schema: target, Count: int64(len(rows))}
		rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, arrowx.RowSchema(target), strings.NewReader("["+strings.Join(rows, ",")+"]"))
		require.NoError(w.t, err)
		if !dry {
			b.Rows, err = arrowx.EncodeBytes(rec)
			require.NoError(w.t, err)
		}
		d.Batches = append(d.Batches, b)
	}
	if w.answer != nil {
		w.answer(&d)
	}
	return d, nil
}

func (w *world) BeginReplay(context.Context) (commit.Ticket, error) {
	if w.begin != nil {
		return commit.Ticket{}, w.begin()
	}
	return commit.Ticket{}, nil
}

func (w *world) LandReplay(_ context.Context, r commit.Replay) (commit.Replayed, error) {
	if w.land != nil {
		return w.land(r)
	}
	w.landed = append(w.landed, r)
	for _, f := range r.Files {
		w.rows = append(w.rows, w.written[f.Path]...)
	}
	for i, q := range w.records {
		for _, o := range r.Offsets[q.Partition] {
			if o.Contains(q.Offset) {
				w.records[i].ReplayedIn = r.ID.String()
			}
		}
	}
	return commit.Replayed{SnapshotID: int64(len(w.landed)), Marked: true}, nil
}

func TestWhatDecodesNowLandsAndTheRestStaysWithItsReason(t *testing.T) {
	w := newWorld(t)
	w.quarantine(part(1), 5, 10)
	w.quarantine(part(0), 3, 4)
	w.records[0].LSN = nil // quarantined by an older release
	w.records = append(w.records, lake.Quarantined{Partition: part(0), Offset: 9, Reason: "oversized"})
	w.bad = func(q lake.Quarantined) string {
		if q.Offset == 7 {
			return "bad_magic"
		}
		return ""
	}
	r, err := w.run(Options{})
	require.NoError(t, err)
	require.Equal(t, int64(7), r.Selected)
	require.Equal(t, int64(5), r.Replayed)
	require.True(t, r.Marked)
	require.Equal(t, []string{"0 3 3 v3", "1 5 (null) v5", "1 6 1006 v6", "1 8 1008 v8", "1 9 1009 v9"}, w.rows)
	require.Equal(t, map[ident.Partition][]ident.Range{part(1): {{First: 5, Next: 7}, {First: 8, Next: 10}}}, w.landed[1].Offsets)
	require.Equal(t, w.landed[1].ID, r.Snapshots[1].CommitID)
	require.Len(t, r.Refusals, 2)
	require.Equal(t, Refusal{Reason: "bad_magic", Count: 1, First: "p/orders[1] offset 7", Text: "still bad_magic"}, r.Refusals[0])
	require.Equal(t, "oversized", r.Refusals[1].Reason)
	require.NotContains(t, w.calls, 0)

	again, err := w.run(Options{})
	require.NoError(t, err)
	require.Zero(t, again.Replayed)
	require.Equal(t, int64(2), again.Selected)
	require.Len(t, w.landed, 2)
}

func TestADryRunChangesNothing(t *testing.T) {
	w := newWorld(t)
	w.quarantine(part(0), 0, 10)
	w.begin = func() error { return errors.New("not in a dry run") }
	w.bad = func(q lake.Quarantined) string {
		if q.Offset > 6 {
			return "r"
		}
		return ""
	}
	r, err := w.run(Options{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, int64(7), r.Replayed)
	require.Equal(t, int64(3), r.Refusals[0].Count)
	require.Empty(t, w.landed)
	require.Empty(t, w.written)
}

func TestPortionsAreBoundedAndCallsAreHalvedWhereTheyAreTooLarge(t *testing.T) {
	w := newWorld(t)
	w.quarantine(part(0), 0, portionRecords+100)
	w.limit = 3000
	r, err := w.run(Options{})
	require.NoError(t, err)
	require.Len(t, r.Snapshots, 2)
	require.Equal(t, []int{portionRecords / 2, portionRecords / 2, 100}, w.calls)
	require.Len(t, w.rows, portionRecords+100)

	w = newWorld(t)
	w.quarantine(part(0), 0, 3)
	for i := range w.records {
		w.records[i].Value = bytes.Repeat([]byte("v"), portionBytes/2)
	}
	r, err = w.run(Options{})
	require.NoError(t, err)
	require.Len(t, r.Snapshots, 3, "bytes bound a portion too")

	w = newWorld(t)
	w.quarantine(part(0), 0, 3)
	w.decode = func() error { return fault.New(fault.OverLimit, "too large") }
	r, err = w.run(Options{})
	require.NoError(t, err)
	require.Equal(t, int64(3), r.Refusals[0].Count)
	require.Equal(t, "oversized", r.Refusals[0].Reason)
	require.Empty(t, w.landed)
}

// G8: a dependency that is away says nothing about records.
func TestADependencyThatIsAwayEndsTheReplayAndLandsNothing(t *testing.T) {
	w := newWorld(t)
	w.quarantine(part(0), 0, 3)
	w.decode = func() error { return fault.New(fault.Unavailable, "the registry is away") }
	_, err := w.run(Options{})
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))
	require.Empty(t, w.landed)
	w.decode, w.begin = nil, func() error { return fault.New(fault.Unavailable, "the outbox waits") }
	_, err = w.run(Options{})
	require.ErrorContains(t, err, "the outbox waits")
	require.Empty(t, w.calls, "nothing is read before the outbox is empty")
}

// G1: an answer of ingest that does not account for every record once lands nothing.
func TestAnAnswerThatDoesNotAccountForEveryRecordOnceIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(d *Decoded){
		"one is missing":     func(d *Decoded) { d.Refusals = d.Refusals[:0] },
		"one comes twice":    func(d *Decoded) { d.Refusals = append(d.Refusals, d.Refusals[0]) },
		"a row comes twice":  func(d *Decoded) { d.Batches = append(d.Batches, d.Batches[0]) },
		"a stranger":         func(d *Decoded) { d.Refusals[0].Offset = 99 },
		"a row and refused":  func(d *Decoded) { d.Refusals = append(d.Refusals, Refused{Offset: 0}) },
		"another count":      func(d *Decoded) { d.Batches[0].Count++ },
		"rows that are none": func(d *Decoded) { d.Batches[0].Rows = []byte("x") },
		"columns of nobody":  func(d *Decoded) { d.Batches[0].Schema.Columns[0].FieldID = 77 },
	} {
		w := newWorld(t)
		w.quarantine(part(0), 0, 3)
		w.bad = func(q lake.Quarantined) string {
			if q.Offset == 1 {
				return "r"
			}
			return ""
		}
		w.answer = spoil
		_, err := w.run(Options{})
		require.Error(t, err, name)
		require.Empty(t, w.landed, name)
	}
}

func TestAReplayStopsWhereItCannotBeMarkedAndSaysWhatLanded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.quarantine(part(0), 0, 2)
		w.quarantine(part(1), 0, 2)
		w.land = func(r commit.Replay) (commit.Replayed, error) {
			w.landed = append(w.landed, r)
			w.begin = func() error { return fault.New(fault.Unavailable, "an entry waits") }
			return commit.Replayed{SnapshotID: 7}, nil
		}
		r, err := w.run(Options{})
		require.ErrorIs(t, err, fault.Of(fault.Unavailable))
		require.ErrorContains(t, err, "2 records were replayed before")
		require.Len(t, w.landed, 1)
		require.False(t, r.Marked)
		w.records, w.begin = w.records[:2], nil
		r, err = w.run(Options{})
		require.NoError(t, err, "there is nothing behind it")
		require.False(t, r.Marked)
	})
}

// The mark of many files takes a while; the next portion waits for it.
func TestAReplayGoesOnWhenItsMarkTookAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.quarantine(part(0), 0, 2)
		w.quarantine(part(1), 0, 2)
		w.land = func(r commit.Replay) (commit.Replayed, error) {
			w.landed = append(w.landed, r)
			done := time.Now().Add(3 * time.Minute)
			w.begin = func() error {
				if time.Now().Before(done) {
					return fault.New(fault.Unavailable, "an entry waits")
				}
				w.begin = nil
				return nil
			}
			return commit.Replayed{SnapshotID: 7, Marked: len(w.landed) == 2}, nil
		}
		r, err := w.run(Options{})
		require.NoError(t, err)
		require.Len(t, w.landed, 2)
		require.Equal(t, int64(4), r.Replayed)
		require.True(t, r.Marked)
	})
}

func TestFilesOfAPortionThatFailsAreRemoved(t *testing.T) {
	w := newWorld(t)
	w.quarantine(part(0), 0, 4)
	w.limit = 2
	calls := 0
	w.decode = func() error {
		if calls++; calls == 3 { // too many, the first half, the second half
			return errors.New("connection reset")
		}
		return nil
	}
	_, err := w.run(Options{})
	require.ErrorContains(t, err, "connection reset")
	require.Equal(t, 1, w.aborted)
}
