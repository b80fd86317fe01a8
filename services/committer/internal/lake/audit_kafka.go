package lake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// KafkaLog is the log that a table is compared with.
type KafkaLog interface {
	// Topic says what the cluster knows of a topic; NotFound when there is none.
	Topic(ctx context.Context, name string) (LogTopic, error)
	// Read visits what a consumer that reads committed records gets of the offsets
	// of r, in their order: records and control records. It returns when it has
	// seen all of them.
	Read(ctx context.Context, topic string, partition int32, r ident.Range, visit func(LogRecord) error) error
}

// LogTopic is a topic as its cluster describes it.
type LogTopic struct {
	Cluster string
	ID      ident.UUID // zero where the brokers have no topic ids
	// Compacted topics may lose records that were read before.
	Compacted bool
	// Partitions are the offsets that can be read: from the log start to the end of
	// what is committed.
	Partitions map[int32]ident.Range
}

// LogRecord is a record of the log, as far as an audit looks at it.
type LogRecord struct {
	Offset    int64
	Millis    int64 // timestamp
	Control   bool
	Tombstone bool // no value
}

// logAudit compares what was read of a table with the log.
type logAudit struct {
	a      *auditor
	log    KafkaLog
	topics map[string]*LogTopic
	away   map[string]error // topics that could not be looked up
	parts  map[*PartitionReport]*logPart
	order  []*logPart
}

// logPart is one partition under comparison. Its offsets come in ascending order,
// pass by pass.
type logPart struct {
	a         *auditor
	p         *PartitionReport
	compacted bool
	covers    ident.Range
	segments  []segment
	seg       int // the one that is being compared
	now       logCounts
	odd       struct{ vanished, control []int64 } // examples

	rows, poison *offsetSet // of this pass
	cell         int64
	sums         [2]uint64 // of the records of the cell that are rows, and quarantined
	gone         [2]bool   // some of them have no record any more
}

// segment is what one commit of ours accounted for.
type segment struct {
	ident.Range
	counts Totals
	where  string
}

// logCounts is what the log says of a segment.
type logCounts struct {
	control, absent, unplaced, tombstones int64
	examples                              []int64 // of unplaced ones
}

func newLogAudit(a *auditor, log KafkaLog) *logAudit {
	return &logAudit{a: a, log: log, topics: map[string]*LogTopic{}, away: map[string]error{}, parts: map[*PartitionReport]*logPart{}}
}

// compare compares a window of a partition. What cannot be read is a finding.
func (l *logAudit) compare(ctx context.Context, d *deepScan, p *PartitionReport, window ident.Range, rows, poison *offsetSet) error {
	part, known := l.parts[p]
	if !known {
		part = l.open(ctx, p)
		l.parts[p] = part
		if part != nil {
			l.order = append(l.order, part)
		}
	}
	if part == nil {
		return ctx.Err()
	}
	r := ident.Range{First: max(window.First, part.covers.First), Next: min(window.Next, part.covers.Next)}
	if r.Empty() {
		return nil
	}
	part.rows, part.poison = rows, poison
	part.enter(r.First >> cellBits)
	at := r.First
	err := l.log.Read(ctx, p.Topic, p.Partition, r, func(rec LogRecord) error {
		if rec.Offset < at || rec.Offset >= r.Next {
			return nil
		}
		part.absent(at, rec.Offset)
		part.record(rec)
		at = rec.Offset + 1
		d.say(Progress{What: "log of " + ident.TopicPartition(p.Topic, p.Partition), Pass: d.passes, Done: at - r.First, Total: r.Len()}, at == r.Next)
		return ctx.Err()
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.a.r.find(Unknown, place{p.Topic, p.Partition}.String(), "the log cannot be read at offset %d: %s", at, fault.Describe(err))
		l.parts[p] = nil
		l.order = slices.DeleteFunc(l.order, func(o *logPart) bool { return o == part })
		return nil
	}
	part.absent(at, r.Next)
	part.leave(r.Next)
	part.rows, part.poison = nil, nil
	return nil
}

// topic looks a topic up, once.
func (l *logAudit) topic(ctx context.Context, name string) (*LogTopic, error) {
	if err := l.away[name]; err != nil {
		return nil, err
	}
	if have := l.topics[name]; have != nil {
		return have, nil
	}
	t, err := l.log.Topic(ctx, name)
	if err != nil {
		l.away[name] = err
		return nil, err
	}
	l.topics[name] = &t
	return &t, nil
}

// open finds out what the log still has of a partition; nil when it cannot be
// compared, and a finding or a note says why.
func (l *logAudit) open(ctx context.Context, p *PartitionReport) *logPart {
	where, r := place{p.Topic, p.Partition}.String(), l.a.r
	topic, err := l.topic(ctx, p.Topic)
	if err != nil {
		r.find(Unknown, where, "the log cannot be compared: %s", fault.Describe(err))
		return nil
	}
	owner := l.a.head.State.Pipelines[p.Pipeline].Owner
	_, cluster, _ := strings.Cut(owner, "/")
	has, there := topic.Partitions[p.Partition]
	switch {
	case cluster != "" && topic.Cluster != "" && cluster != topic.Cluster:
		r.find(Unknown, where, "its records came from the Kafka cluster %s, this one is %s", cluster, topic.Cluster)
		return nil
	case !topic.ID.IsZero() && !p.part.TopicID.IsZero() && topic.ID != p.part.TopicID:
		r.find(Unknown, where, "the topic was created again (id %s, was %s): the log that its rows came from is gone", topic.ID, p.part.TopicID)
		return nil
	case !there:
		r.find(Unknown, where, "the topic has no such partition any more")
		return nil
	case has.Next < p.Next:
		r.find(Unknown, where, "the table stands at %d, but the log ends at %d: it was truncated, or this is another one", p.Next, has.Next)
	case has.First >= p.Next && p.Next > p.Start:
		r.note("%s: the log begins at %d, all of what was committed is gone from it", where, has.First)
	}
	part := &logPart{
		a: l.a, p: p, compacted: topic.Compacted, segments: l.a.segments(p),
		covers: ident.Range{First: max(p.Start, has.First), Next: min(p.Next, has.Next)},
	}
	if part.covers.Next < part.covers.First {
		part.covers.Next = part.covers.First
	}
	p.Log = &LogReport{First: part.covers.First, Next: part.covers.Next}
	if part.covers.First > p.Start {
		r.note("%s: offsets below %d are gone from the log: they are proven by the table alone", where, part.covers.First)
	}
	return part
}

// segments are the ranges that the snapshots of ours which are left account for,
// by the running totals: the first of them is all that was before.
func (a *auditor) segments(p *PartitionReport) []segment {
	at, had := p.Start, Totals{}
	var out []segment
	add := func(next int64, t Totals, where string) {
		if next > at {
			out = append(out, segment{ident.Range{First: at, Next: next}, t.Sub(had), where})
			at, had = next, t
		}
	}
	for i := range a.chain {
		l := &a.chain[i]
		if !l.own || l.state.Pipelines[p.Pipeline] == nil {
			continue
		}
		s := l.state.Pipelines[p.Pipeline]
		add(s.Positions[p.part].Next, s.Totals[p.part], l.name())
	}
	s := a.head.State.Pipelines[p.Pipeline]
	add(p.Next, s.Totals[p.part], fmt.Sprintf("snapshot %d", a.head.StateSnapshot))
	return out
}

// enter begins with a cell.
func (l *logPart) enter(key int64) { l.cell, l.sums, l.gone = key, [2]uint64{}, [2]bool{} }

// step makes an offset the next one: cells and segments that end before it are
// judged.
func (l *logPart) step(offset int64) {
	if key := offset >> cellBits; key != l.cell {
		l.judgeCell()
		l.enter(key)
	}
	for l.seg < len(l.segments) && l.segments[l.seg].Next <= offset {
		l.judgeSegment()
		l.seg++
	}
}

// leave ends a pass behind offset next.
func (l *logPart) leave(next int64) {
	if next&(chunkSize-1) == 0 || next == l.covers.Next {
		l.judgeCell()
	}
}

// replaced reports whether the table knows of any offset of r that the log has other
// records there now than were read. They are not compared.
func (l *logPart) replaced(r ident.Range) bool {
	for _, lost := range l.p.Lost {
		if lost.Why == LossReplaced && lost.Overlaps(r) {
			return true
		}
	}
	return false
}

// record takes in a record of the log.
func (l *logPart) record(rec LogRecord) {
	l.step(rec.Offset)
	if l.replaced(ident.Range{First: rec.Offset, Next: rec.Offset + 1}) {
		l.p.Log.Replaced++
		l.p.Log.Records++
		return
	}
	row, poison := l.rows.has(rec.Offset), l.poison.has(rec.Offset)
	sum := recordSum(rec.Offset, rec.Millis)
	if row {
		l.sums[0] += sum
	}
	if poison {
		l.sums[1] += sum
	}
	switch {
	case rec.Control:
		l.now.control++
		l.p.Log.Control++
		if row || poison {
			l.odd.control = some(l.odd.control, []int64{rec.Offset})
		}
		return
	case row:
		l.p.Log.Rows++
	case poison:
		l.p.Log.Poison++
	default:
		l.now.unplaced++
		l.p.Log.Skipped++
		if rec.Tombstone {
			l.now.tombstones++
		}
		l.now.examples = some(l.now.examples, []int64{rec.Offset})
	}
	l.p.Log.Records++
}

// absent takes in offsets at which the log has nothing.
func (l *logPart) absent(first, next int64) {
	for offset := first; offset < next; offset++ {
		l.step(offset)
		if l.replaced(ident.Range{First: offset, Next: offset + 1}) {
			l.p.Log.Absent++
			continue
		}
		row, poison := l.rows.has(offset), l.poison.has(offset)
		l.gone[0], l.gone[1] = l.gone[0] || row, l.gone[1] || poison
		if row || poison {
			l.p.Log.Vanished++
			l.odd.vanished = some(l.odd.vanished, []int64{offset})
			continue
		}
		l.now.absent++
		l.p.Log.Absent++
	}
}

// judgeCell compares what rows say of their records with the records: offset and
// timestamp. A cell of which the log has not all is not compared.
func (l *logPart) judgeCell() {
	r := ident.Range{First: l.cell << cellBits, Next: (l.cell + 1) << cellBits}
	for i, set := range []*offsetSet{l.rows, l.poison} {
		c := set.chunks[l.cell]
		switch {
		case c == nil || c.silent || l.gone[i] || l.replaced(r):
		case max(r.First, l.p.Start) < l.covers.First || min(r.Next, l.p.Next) > l.covers.Next:
		case c.sum != l.sums[i]:
			what := []string{"rows", "quarantined records"}[i]
			l.a.r.find(Violated, place{l.p.Topic, l.p.Partition}.String(), "%s of offsets %d to %d have other timestamps than the records of the log: they are not of these records",
				what, max(r.First, l.p.Start), min(r.Next, l.p.Next)-1)
		}
	}
}

// judgeSegment compares what a commit accounted for with the log. Where the two
// differ, one of them has more of something.
func (l *logPart) judgeSegment() {
	s, got := l.segments[l.seg], l.now
	l.now = logCounts{}
	if s.First >= l.covers.Next || s.Next <= l.covers.First {
		return
	}
	n := s.counts.Skipped
	lost := n[event.SkipLost]
	data := n[event.SkipFiltered] + n[event.SkipTombstone] + n[event.SkipInvalid] + n[event.SkipOversized]
	// Of offsets that were replaced nothing is in got: it may be less than was counted, not more.
	whole := s.First >= l.covers.First && s.Next <= l.covers.Next && !l.compacted
	where := place{l.p.Topic, l.p.Partition}.String()
	bad := func(format string, args ...any) {
		l.a.r.find(Violated, where, "%s, offsets %s: %s", s.where, s.Range, fmt.Sprintf(format, args...))
	}
	switch {
	case got.unplaced > data+lost:
		bad("%d records of the log are neither a row nor quarantined, %d were counted as skipped; they begin with %v", got.unplaced, data+lost, got.examples)
	case got.control > n[event.SkipControl]+lost:
		bad("the log has %d control records, %d were counted", got.control, n[event.SkipControl])
	case whole && got.absent > n[event.SkipAbsent]+lost:
		bad("the log has no record at %d offsets that are no rows, %d were counted as absent", got.absent, n[event.SkipAbsent])
	case whole && !l.replaced(s.Range) && n[event.SkipTombstone] > got.tombstones:
		bad("%d records were counted as tombstones, the log has %d among those that are no rows", n[event.SkipTombstone], got.tombstones)
	}
}

// finish judges what is left when all passes are over.
func (l *logAudit) finish() {
	for _, part := range l.order {
		where := place{part.p.Topic, part.p.Partition}.String()
		for ; part.seg < len(part.segments); part.seg++ {
			part.judgeSegment()
		}
		if n := part.p.Log.Replaced; n > 0 {
			l.a.r.note("%s: %d records of the log took the offsets of others that were read before: they are not in the table, and what it has there is not compared", where, n)
		}
		if len(part.odd.control) > 0 {
			l.a.r.find(Violated, where, "rows or quarantined records of offsets at which the log has control records: %v", part.odd.control)
		}
		switch n := part.p.Log.Vanished; {
		case n > 0 && part.compacted:
			l.a.r.note("%s: of %d rows the topic's compaction has removed the record since", where, n)
		case n > 0:
			l.a.r.find(Violated, where, "rows or quarantined records of %d offsets at which the log has no committed record, though the topic is not compacted: %v", n, part.odd.vanished)
		}
	}
}
