// Package event holds the events of a table log (design section 2): what the
// buffer orders, journals and sends to followers, and what the pure state
// machines take in. The types are values without behaviour; byte slices in them
// are shared and must never be written to after the event was made.
package event

import (
	"time"

	"github.com/icestream/icestream/internal/ident"
)

// SkipReason says why an offset became neither a row nor a quarantined record.
type SkipReason uint8

// The reasons an offset may be skipped for. They are stored in tables and
// journals: never renumber.
const (
	SkipUnspecified SkipReason = iota
	SkipAbsent                 // compacted away or aborted: the log holds no record there
	SkipControl                // transaction marker
	SkipFiltered               // dropped by the pipeline's filter
	SkipTombstone              // null value, tombstones: skip
	SkipInvalid                // undecodable, on_invalid: skip
	SkipOversized              // above record.max, on_invalid: skip
	SkipLost                   // gone from Kafka before it was read
)

var skipNames = [...]string{"unspecified", "absent", "control", "filtered", "tombstone", "invalid", "oversized", "lost"}

// String returns the lower-case word used in tables, metrics and messages.
func (r SkipReason) String() string {
	if int(r) < len(skipNames) {
		return skipNames[r]
	}
	return skipNames[0]
}

// SkipReasons lists every reason that may be recorded.
func SkipReasons() []SkipReason {
	return []SkipReason{SkipAbsent, SkipControl, SkipFiltered, SkipTombstone, SkipInvalid, SkipOversized, SkipLost}
}

// ParseSkipReason returns the reason named s, or SkipUnspecified.
func ParseSkipReason(s string) SkipReason {
	for i, n := range skipNames {
		if n == s {
			return SkipReason(i)
		}
	}
	return SkipUnspecified
}

// Skip is a run of offsets skipped for one reason.
type Skip struct {
	ident.Range
	Reason SkipReason
}

// Header describes an Append without its rows: what the journal keeps.
// Rows + Quarantined + the lengths of Skips always equal Range.Len().
type Header struct {
	Partition   ident.Partition
	Range       ident.Range
	LeaderEpoch int32  // of the last record, -1 unknown
	Revision    uint64 // pipeline revision: mapping options and decoder version
	Fingerprint string // schema of the row batch, issued by the committer
	Rows        int64
	Quarantined int64
	Skips       []Skip
	Digest      ident.Digest
	MinTime     int64 // smallest record time, milliseconds since the epoch; 0 when no record
	MaxTime     int64
}

// Append is one accepted offset range with its rows. The row with offset o has
// the LSN LSN + (o - Range.First).
type Append struct {
	Header
	LSN        ident.LSN
	RowBatch   []byte // Arrow IPC record batch message (arrowx), nil when Rows == 0
	Quarantine []byte // same, fixed quarantine schema, nil when Quarantined == 0
}

// Bytes is the memory an Append stands for in every byte budget.
func (a *Append) Bytes() int64 {
	return int64(len(a.RowBatch)+len(a.Quarantine)) + 256 + int64(len(a.Skips))*24
}

// Lost reports whether the whole range is gone from Kafka. Such an entry owns no
// LSNs: a lost range may be longer than any reservation.
func (h *Header) Lost() bool {
	return len(h.Skips) == 1 && h.Skips[0].Reason == SkipLost && h.Skips[0].Range == h.Range
}

// LSNRange returns the half-open range of LSNs the entry owns.
func (a *Append) LSNRange() (first, next ident.LSN) {
	if a.Lost() {
		return a.LSN, a.LSN
	}
	return a.LSN, a.LSN + ident.LSN(a.Range.Len())
}

// Commit is the full state of a table at a snapshot, never a delta. It is sent
// for snapshots of others too: same vector, new snapshot.
type Commit struct {
	Table            ident.UUID
	SnapshotID       int64
	SequenceNumber   int64
	CommitTime       time.Time
	MetadataLocation string
	Positions        ident.Positions // committed vector with starts and leader epochs
	LogEpoch         ident.LogEpoch
	WriterEpoch      ident.WriterEpoch
	LSN              ident.LSNState
}

// Schema makes a row-batch schema known to the log.
type Schema struct {
	Fingerprint   string
	TableSchemaID int32
	Columns       []byte // JSON of internal/schema.Schema: mapped and metadata columns with field ids
}

// Epoch starts a log epoch: everything hot before it is void. Commit is the
// state of the fence snapshot.
type Epoch struct {
	Commit Commit
}

// PartitionState is a word for what a partition is doing.
type PartitionState uint8

// States of a partition as ingest reports them.
const (
	PartitionUnspecified PartitionState = iota
	PartitionRunning
	PartitionPaused  // by an operator
	PartitionWaiting // dependency away (registry, committer, credit)
	PartitionStopped // needs a decision: Reason says which
)

// Progress is what ingest reports each second and on change; it is forwarded to
// followers and never journaled.
type Progress struct {
	Partition   ident.Partition
	LogStart    int64
	StableEnd   int64 // last stable offset: read-committed end
	Fetch       int64 // next offset to be fetched
	Retention   time.Duration
	State       PartitionState
	Reason      string
	LeaderEpoch int32
	NewestTime  time.Time
}

// Seq numbers events within one boot of the buffer; the first event is 1.
type Seq uint64

// Event is one numbered entry of the table log: exactly one pointer is set.
type Event struct {
	Seq    Seq
	Append *Append
	Commit *Commit
	Schema *Schema
	Epoch  *Epoch
}

// Image is the atomic state of a table log: what a follower starts from.
type Image struct {
	Boot    ident.UUID // of the buffer process
	Seq     Seq        // events up to and including this one are contained
	Commit  Commit
	Schemas []Schema
	Hot     []*Append // ordered by partition, then offset
	Ended   []EndedEpoch
}

// EndedEpoch remembers what the table covered when a log epoch ended, so that
// tokens of that epoch are answered or refused, never answered wrongly.
type EndedEpoch struct {
	Epoch ident.LogEpoch
	Base  ident.Vector // committed vector at the fence that ended it
}
