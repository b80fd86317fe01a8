package commit

import (
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Batch is what one data commit brings into the table: closed files and, per
// topic partition, the one contiguous range of offsets that they and the skipped
// and quarantined offsets account for.
type Batch struct {
	// ID is the commit id. It stays the same through every attempt to land the
	// batch, so whichever lands is recognised.
	ID ident.UUID
	// Epoch is the log epoch of the rows. They land only on a base of the same.
	Epoch ident.LogEpoch
	// Parts are the ranges, one per partition that moved.
	Parts map[ident.Partition]*Advance
	// NextLSN is one past the highest LSN of the ranges; 0 when they took none.
	NextLSN ident.LSN
	// Files are the closed data files.
	Files []lake.File
	// Quarantine holds the quarantined records in the quarantine table's schema,
	// each batch with the pipeline it belongs to.
	Quarantine []Poison
	// Hot is what the entries of the batch count in the hot budget.
	Hot int64
	// Cut says why the batch was closed.
	Cut cut.Reason
	// More says that rows wait which did not fit into the batch's files.
	More bool
	// Free takes the batch out of the hot budget; nil does nothing.
	Free func()
	// Opened is when the first entry of the batch arrived.
	Opened time.Time
}

// Poison is a batch of quarantined records of one pipeline.
type Poison struct {
	Pipeline string
	Records  arrow.RecordBatch
}

// Advance is the progress of one topic partition within a batch.
type Advance struct {
	Range       ident.Range
	LeaderEpoch int32 // of the last record, -1 unknown
	Count       lake.Totals
	Lost        []ident.Range // of Count, those that are lost
	NewestTime  time.Time     // of the newest record, zero when there was none
	CaughtUp    bool          // the range ends at the partition's stable end
}

// Add extends the advance by a range that begins where it ends, with what became
// of the range's offsets.
func (a *Advance) Add(within ident.Range, rows, quarantined int64, skips []event.Skip) {
	a.Range.Next = within.Next
	a.Count.Rows += rows
	a.Count.Quarantined += quarantined
	for _, s := range skips {
		n := min(s.Next, within.Next) - max(s.First, within.First)
		if n <= 0 {
			continue
		}
		if a.Count.Skipped == nil {
			a.Count.Skipped = make(map[event.SkipReason]int64)
		}
		a.Count.Skipped[s.Reason] += n
		if s.Reason == event.SkipLost {
			a.Lost = append(a.Lost, ident.Range{First: max(s.First, within.First), Next: min(s.Next, within.Next)})
		}
	}
}

// Rows is the number of rows in the batch's files.
func (b *Batch) Rows() int64 {
	var n int64
	for _, a := range b.Parts {
		n += a.Count.Rows
	}
	return n
}

// Release frees what the batch holds: Arrow memory and its place in the hot
// budget. Its files stay.
func (b *Batch) Release() {
	if b.Free != nil {
		b.Free()
		b.Free = nil
	}
	for _, q := range b.Quarantine {
		q.Records.Release()
	}
	b.Quarantine = nil
}
