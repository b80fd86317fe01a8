package lake

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// fakeLog is a log of the topic "orders".
type fakeLog struct {
	topic LogTopic
	parts map[int32][]LogRecord
	err   error
}

// Topic implements KafkaLog.
func (f *fakeLog) Topic(_ context.Context, name string) (LogTopic, error) {
	if name != "orders" {
		return LogTopic{}, fault.New(fault.NotFound, "looking up topic %s: the topic does not exist", name)
	}
	return f.topic, nil
}

// Read implements KafkaLog.
func (f *fakeLog) Read(_ context.Context, _ string, partition int32, r ident.Range, visit func(LogRecord) error) error {
	for _, rec := range f.parts[partition] {
		if r.Contains(rec.Offset) {
			if err := visit(rec); err != nil {
				return err
			}
		}
	}
	return f.err
}

// change alters the record at an offset; an empty one takes it away.
func (f *fakeLog) change(partition int32, offset int64, alter func(*LogRecord)) {
	list := f.parts[partition]
	for i := range list {
		if list[i].Offset != offset {
			continue
		}
		if alter == nil {
			f.parts[partition] = append(list[:i:i], list[i+1:]...)
			return
		}
		alter(&list[i])
		return
	}
}

// plainRecords are records with a value at every offset of r.
func plainRecords(r ident.Range) []LogRecord {
	var out []LogRecord
	for o := r.First; o < r.Next; o++ {
		out = append(out, LogRecord{Offset: o, Millis: day0.UnixMilli()})
	}
	return out
}

// plainLog is a log of nothing else.
func plainLog(r ident.Range) *fakeLog {
	return &fakeLog{parts: map[int32][]LogRecord{0: plainRecords(r)}, topic: LogTopic{Partitions: map[int32]ident.Range{0: r}}}
}

// compared is a table with rows, quarantined records, tombstones, a transaction
// marker and an aborted record, over two commits and two partitions, and its log.
func compared(t *testing.T) (*bench, *fakeLog) {
	b := newBench(t, Settings{})
	log := &fakeLog{parts: map[int32][]LogRecord{}, topic: LogTopic{
		Cluster: "kafka", ID: ident.UUID{1}, Partitions: map[int32]ident.Range{0: {}, 1: {}},
	}}
	for range 2 {
		c := b.change(KindData)
		// Of each ten offsets 5 are rows, 2 are poison, then come a tombstone, a
		// marker, and one that was aborted.
		r := c.advance(part(0), Totals{Rows: 5, Quarantined: 2, Skipped: map[event.SkipReason]int64{
			event.SkipTombstone: 1, event.SkipControl: 1, event.SkipAbsent: 1,
		}})
		s := c.advance(part(1), Totals{Rows: 4})
		c.Files = b.write(b.batch(part(0), ident.Range{First: r.First, Next: r.First + 5}), b.batch(part(1), s))
		b.poison(&c, quarantined(part(0), ident.Range{First: r.First + 5, Next: r.First + 7}))
		b.commit(c)
		for o := r.First; o < r.First+9; o++ {
			log.parts[0] = append(log.parts[0], LogRecord{Offset: o, Millis: day0.UnixMilli(), Tombstone: o == r.First+7, Control: o == r.First+8})
		}
		log.parts[1] = append(log.parts[1], plainRecords(s)...)
	}
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	log.topic.Partitions[0], log.topic.Partitions[1] = ident.Range{Next: 25}, ident.Range{Next: 8}
	return b, log
}

func (b *bench) against(log KafkaLog, memory int64) Report {
	b.Helper()
	r, err := Audit(b.Context(), b.lake, tableName, AuditOptions{Log: log, Memory: memory})
	require.NoError(b, err)
	return r
}

func TestAuditAgainstTheLogAccountsForEveryOffsetOfIt(t *testing.T) {
	b, log := compared(t)
	r := b.against(log, 0)
	requireVerdict(t, Proven, r)
	require.True(t, r.Deep)
	require.Equal(t, &LogReport{Next: 20, Records: 16, Control: 2, Absent: 2, Rows: 10, Poison: 4, Skipped: 2}, r.Partitions[0].Log)
	require.Equal(t, &LogReport{Next: 8, Records: 8, Rows: 8}, r.Partitions[1].Log)
	require.Contains(t, r.Text(), "compared with the Kafka log")
	requireVerdict(t, Proven, b.against(log, 1))
}

func TestAuditAgainstTheLogFindsWhatTheTableCannotKnow(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeLog)
		want   string
	}{
		"a record that was never read": {func(f *fakeLog) {
			f.parts[0] = append(f.parts[0][:9:9], append([]LogRecord{{Offset: 9, Millis: 1}}, f.parts[0][9:]...)...)
		}, "offsets [0,10): 2 records of the log are neither a row nor quarantined, 1 were counted as skipped; they begin with [7 9]"},
		"a row without a record": {
			func(f *fakeLog) { f.change(0, 2, nil) },
			"rows or quarantined records of 1 offsets at which the log has no committed record, though the topic is not compacted: [2]",
		},
		"a row of a marker": {
			func(f *fakeLog) { f.change(0, 3, func(r *LogRecord) { r.Control = true }) },
			"rows or quarantined records of offsets at which the log has control records: [3]",
		},
		"a row of another record": {
			func(f *fakeLog) { f.change(1, 3, func(r *LogRecord) { r.Millis++ }) },
			"orders[1]: rows of offsets 0 to 7 have other timestamps",
		},
		"a value that was counted as a tombstone": {
			func(f *fakeLog) { f.change(0, 17, func(r *LogRecord) { r.Tombstone = false }) },
			"offsets [10,20): 1 records were counted as tombstones, the log has 0",
		},
		"an offset that was counted as a marker": {
			func(f *fakeLog) { f.change(0, 18, nil) },
			"offsets [10,20): the log has no record at 2 offsets that are no rows, 1 were counted as absent",
		},
		"a marker too many": {
			func(f *fakeLog) { f.change(0, 17, func(r *LogRecord) { r.Control = true }) },
			"the log has 2 control records, 1 were counted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, log := compared(t)
			c.change(log)
			requireViolation(t, b.against(log, 0), c.want)
		})
	}
}

// Where the table knows that Kafka replaced what was read, its rows are no worse for
// that: other records there, or none, are named and not compared. Everything else is.
func TestAuditAgainstALogThatWasReplacedBelowWhatWasRead(t *testing.T) {
	b, log := compared(t)
	log.change(0, 12, func(r *LogRecord) { r.Millis++ })
	log.change(0, 13, nil)
	log.change(0, 15, func(r *LogRecord) { r.Control = true })
	log.change(0, 17, func(r *LogRecord) { r.Tombstone = false })
	requireVerdict(t, Violated, b.against(log, 0))
	c := b.change(KindProgress)
	c.State.Pipelines["p"].Lose(Lost{Partition: part(0), Range: ident.Range{First: 12, Next: 18}, Why: LossReplaced})
	b.commit(c)
	r := b.against(log, 0)
	requireVerdict(t, Proven, r)
	require.Equal(t, []LostReport{{ident.Range{First: 12, Next: 18}, LossReplaced}}, r.Partitions[0].Lost)
	require.Contains(t, r.Text(), "note: p/orders[0]: offsets 12 to 17, 6 of them, are others in Kafka now: Kafka's log was replaced below what was read")
	require.Contains(t, r.Text(), "orders[0]: 5 records of the log took the offsets of others that were read before")
	require.Equal(t, int64(5), r.Partitions[0].Log.Replaced)
	log.change(1, 5, func(r *LogRecord) { r.Millis++ })
	requireViolation(t, b.against(log, 0), "orders[1]: rows of offsets 0 to 7 have other timestamps")

	c = b.change(KindProgress)
	c.State.Pipelines["p"].Lose(Lost{Partition: part(0), Range: ident.Range{First: 12, Next: 99}, Why: LossReplaced})
	b.commit(c)
	requireViolation(t, b.audit(false), "offsets [12,99) are remembered as lost, but the table accounts for")
}

// An offset that the table skips although its record is there, while everything in
// the table agrees: only the log tells.
func TestAuditAgainstTheLogFindsARecordThatWasCountedAway(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 5, Skipped: map[event.SkipReason]int64{event.SkipAbsent: 1}})
	c.Files = b.write(b.batch(part(0), ident.Range{First: 0, Next: 5}))
	b.commit(c)
	requireVerdict(t, Proven, b.audit(true))
	requireViolation(t, b.against(plainLog(r), 0), "1 records of the log are neither a row nor quarantined, 0 were counted as skipped; they begin with [5]")
}

// G1: a range that was replaced excuses no offset outside of it, whatever the commit also accounts for.
func TestAReplacedRangeExcusesNothingOutsideOfIt(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindData)
	r := c.advance(part(0), Totals{Rows: 5, Skipped: map[event.SkipReason]int64{event.SkipAbsent: 1}})
	c.Files = b.write(b.batch(part(0), ident.Range{First: 0, Next: 5}))
	b.commit(c)
	c = b.change(KindProgress)
	c.State.Pipelines["p"].Lose(Lost{Partition: part(0), Range: ident.Range{First: 0, Next: 1}, Why: LossReplaced})
	b.commit(c)
	requireViolation(t, b.against(plainLog(r), 0), "1 records of the log are neither a row nor quarantined, 0 were counted as skipped; they begin with [5]")
}

// What retention took is proven by the table alone; a compaction takes records one
// by one.
func TestAuditAgainstALogThatHasLostItsBeginning(t *testing.T) {
	b, log := compared(t)
	log.parts[0] = log.parts[0][11:] // from offset 12
	log.topic.Partitions[0] = ident.Range{First: 12, Next: 25}
	r := b.against(log, 0)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "offsets below 12 are gone from the log")
	require.Equal(t, int64(3), r.Partitions[0].Log.Rows)

	log.topic.Partitions[0] = ident.Range{First: 22, Next: 25}
	r = b.against(log, 0)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "all of what was committed is gone from it")

	b, log = compared(t)
	log.topic.Compacted = true
	log.change(0, 2, nil)
	log.change(0, 7, nil)
	r = b.against(log, 0)
	requireVerdict(t, Proven, r)
	require.Contains(t, r.Text(), "of 1 rows the topic's compaction has removed the record since")
}

func TestAuditAgainstAnotherLogCannotTell(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeLog)
		want   string
	}{
		"cluster":   {func(f *fakeLog) { f.topic.Cluster = "other" }, "its records came from the Kafka cluster kafka, this one is other"},
		"topic":     {func(f *fakeLog) { f.topic.ID = ident.UUID{9} }, "the topic was created again"},
		"partition": {func(f *fakeLog) { delete(f.topic.Partitions, 1) }, "the topic has no such partition any more"},
		"truncated": {func(f *fakeLog) { f.topic.Partitions[0] = ident.Range{Next: 15} }, "the table stands at 20, but the log ends at 15"},
		"away":      {func(f *fakeLog) { f.err = os.ErrDeadlineExceeded }, "the log cannot be read at offset"},
	} {
		t.Run(name, func(t *testing.T) {
			b, log := compared(t)
			c.change(log)
			r := b.against(log, 0)
			requireVerdict(t, Unknown, r)
			require.Contains(t, r.Text(), c.want)
		})
	}
}
