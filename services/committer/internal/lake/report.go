package lake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/ident"
)

// Verdict is the outcome of an audit, and the exit code of the command.
type Verdict int

// Verdicts. Of several findings the worst counts, and a violation is worse than
// not knowing.
const (
	Proven   Verdict = 0
	Violated Verdict = 1
	Unknown  Verdict = 2
)

// String is the verdict in words.
func (v Verdict) String() string {
	switch v {
	case Proven:
		return "proven"
	case Violated:
		return "violated"
	default:
		return "cannot tell"
	}
}

// MarshalText writes the words.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Finding is one thing that the audit found wrong, or could not find out.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Where   string  `json:"where"` // snapshot, partition or file
	What    string  `json:"what"`

	gone bool // of something that is not there
}

// PartitionReport is what became of the offsets of one topic partition.
type PartitionReport struct {
	Pipeline    string           `json:"pipeline"`
	Topic       string           `json:"topic"`
	TopicID     string           `json:"topic_id,omitempty"`
	Partition   int32            `json:"partition"`
	Start       int64            `json:"start"`
	Next        int64            `json:"next"`
	Rows        int64            `json:"rows"`
	Quarantined int64            `json:"quarantined"`
	Skipped     map[string]int64 `json:"skipped,omitempty"`
	// Lost are the offsets that Skipped counts as lost, as far as the table remembers
	// which ones and why; and those that are rows of records which Kafka's log has
	// replaced by others since.
	Lost []LostReport `json:"lost,omitempty"`
	// Scanned is the number of distinct offsets that the deep scan found.
	Scanned *int64 `json:"scanned,omitempty"`
	// Log is what the Kafka log said, when the audit was against it.
	Log *LogReport `json:"log,omitempty"`

	part ident.Partition
}

// LogReport is what the log still holds of a partition, up to the committed
// position, and what became of it.
type LogReport struct {
	First    int64 `json:"first"` // the comparison covers offsets [first,next)
	Next     int64 `json:"next"`
	Records  int64 `json:"records"`
	Control  int64 `json:"control"`
	Absent   int64 `json:"absent"` // no record: aborted, or compacted away
	Rows     int64 `json:"rows"`   // records that are rows
	Poison   int64 `json:"quarantined"`
	Skipped  int64 `json:"skipped"`  // records that are neither
	Vanished int64 `json:"vanished"` // rows and quarantined ones whose record a compaction removed since
	Replaced int64 `json:"replaced"` // records that took the offsets of others which were read before
}

// Report is the result of an audit.
type Report struct {
	Table      string  `json:"table"`
	Verdict    Verdict `json:"verdict"`
	Deep       bool    `json:"deep"`
	Against    bool    `json:"against_kafka"`
	SnapshotID int64   `json:"snapshot"`
	Sequence   int64   `json:"sequence"`
	CommitID   string  `json:"commit,omitempty"`
	Snapshots  int     `json:"snapshots"` // reachable ancestors of the head
	Own        int     `json:"own_snapshots"`
	Complete   bool    `json:"complete"` // the history goes back to the first snapshot
	Files      int     `json:"files"`    // of all reachable snapshots
	Rows       int64   `json:"rows"`     // counted by us
	Live       int64   `json:"live_rows"`
	// Before is by how many rows the first snapshot that is left of the history was
	// off from what had been counted up to it.
	Before     int64             `json:"before,omitempty"`
	Quarantine int64             `json:"quarantine_rows"`
	Replayed   int64             `json:"replayed_rows"` // of those, rows of the main table by now
	Pending    int64             `json:"pending_rows"`
	Partitions []PartitionReport `json:"partitions"`
	Findings   []Finding         `json:"findings"`
	Notes      []string          `json:"notes"`
}

// mostFindings is how many a report tells: beyond a hundred nobody reads on.
const mostFindings = 100

// find adds a finding.
func (r *Report) find(v Verdict, where, format string, args ...any) {
	r.add(Finding{Verdict: v, Where: where, What: fmt.Sprintf(format, args...)})
}

// findGone adds the finding that something is not there.
func (r *Report) findGone(where, format string, args ...any) {
	r.add(Finding{Verdict: Violated, Where: where, What: fmt.Sprintf(format, args...), gone: true})
}

func (r *Report) add(f Finding) {
	r.judge(f.Verdict)
	if len(r.Findings) < mostFindings {
		r.Findings = append(r.Findings, f)
	}
}

// judge makes a verdict count.
func (r *Report) judge(v Verdict) {
	if v == Violated || r.Verdict == Proven {
		r.Verdict = v
	}
}

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) < mostFindings {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

// JSON is the report for programs.
func (r *Report) JSON() ([]byte, error) { return json.MarshalIndent(r, "", "  ") }

// skipped sums up the skipped offsets of all partitions by reason.
func (r *Report) skipped() string {
	sum := map[string]int64{}
	for _, p := range r.Partitions {
		for reason, n := range p.Skipped {
			sum[reason] += n
		}
	}
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(sum)) {
		out = append(out, fmt.Sprintf("%d %s", sum[reason], reason))
	}
	return strings.Join(out, ", ")
}

// Text is the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s at snapshot %d (sequence number %d)\n", r.Table, r.SnapshotID, r.Sequence)
	if r.Snapshots > 0 || len(r.Partitions) > 0 { // else nothing was looked at, and zeros would say that it was
		r.numbers(&b)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s: %s\n", strings.ToUpper(f.Verdict.String()), f.Where, f.What)
	}
	switch r.Verdict {
	case Proven:
		fmt.Fprintln(&b, "PROVEN: every offset up to the committed positions is accounted for exactly once")
	case Violated:
		fmt.Fprintln(&b, "VIOLATED: see above")
	default:
		fmt.Fprintln(&b, "CANNOT TELL: see above")
	}
	return b.String()
}

// numbers writes what was looked at and counted.
func (r *Report) numbers(b *strings.Builder) {
	history := "to the first snapshot"
	if !r.Complete {
		history = "older ones are expired"
	}
	fmt.Fprintf(b, "looked at %d snapshots, %d of them ours (%s), and %d files", r.Snapshots, r.Own, history, r.Files)
	if r.Deep {
		fmt.Fprint(b, "; every offset was read")
	}
	if r.Against {
		fmt.Fprint(b, " and compared with the Kafka log")
	}
	fmt.Fprintf(b, "\n\n%-40s %14s %14s %14s %12s %12s\n", "partition", "start", "next", "rows", "quarantined", "skipped")
	for _, p := range r.Partitions {
		var skipped int64
		for _, n := range p.Skipped {
			skipped += n
		}
		fmt.Fprintf(b, "%-40s %14d %14d %14d %12d %12d\n",
			ident.Partition{Pipeline: p.Pipeline, Topic: p.Topic, Number: p.Partition}, p.Start, p.Next, p.Rows, p.Quarantined, skipped)
	}
	for _, p := range r.Partitions {
		if l := p.Log; l != nil {
			fmt.Fprintf(b, "log of %s, offsets [%d,%d): %d records (%d rows, %d quarantined, %d skipped), %d control, %d absent\n",
				ident.TopicPartition(p.Topic, p.Partition), l.First, l.Next, l.Records, l.Rows, l.Poison, l.Skipped, l.Control, l.Absent)
		}
	}
	if skipped := r.skipped(); skipped != "" {
		fmt.Fprintf(b, "skipped: %s\n", skipped)
	}
	fmt.Fprintf(b, "\nrows counted %d, in the table %d; quarantine table %d (%d replayed), pending %d\n", r.Rows, r.Live, r.Quarantine, r.Replayed, r.Pending)
}
