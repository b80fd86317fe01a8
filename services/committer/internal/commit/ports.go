package commit

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Lake is one table in the lake, as lake.Table has it. Each call bounds itself
// by a deadline of its own.
type Lake interface {
	Heads
	Sender
	Cleaner
}

// Heads reads a table.
type Heads interface {
	// Reload loads the table from the catalog; what the other methods mean by
	// "head" is what it returned last.
	Reload(ctx context.Context) (lake.Head, error)
	// Fate is what the history of the head proves about a staged commit.
	Fate(ctx context.Context, s *lake.Staged) (lake.Fate, error)
}

// Sender changes a table.
type Sender interface {
	// Stage makes a snapshot on the head, ready to be sent.
	Stage(ctx context.Context, c lake.Change) (*lake.Staged, error)
	// Send offers a staged snapshot to the catalog. It may be called again with
	// the same one. fault.Conflict is a typed refusal; any other error says
	// nothing about whether it landed.
	Send(ctx context.Context, s *lake.Staged) error
}

// Cleaner removes metadata that nothing needs.
type Cleaner interface {
	// Discard removes the manifests of a staged snapshot if it is proven absent, and
	// reports whether nothing more can become of it.
	Discard(ctx context.Context, s *lake.Staged) bool
	// Freed takes note of a landed expiry and returns the work of removing what it
	// freed, nil when nothing is to be done yet. The work may be done beside the loop.
	Freed(s *lake.Staged) func(ctx context.Context) error
}

// Outbox is the way of quarantined records into their table.
type Outbox interface {
	// WriteQuarantine writes records in the quarantine table's schema into a file
	// of the attempt.
	WriteQuarantine(ctx context.Context, o lake.WriterOptions, recs ...arrow.RecordBatch) ([]lake.QuarantineFile, error)
	// ApplyQuarantine appends pending files to the quarantine table, each once
	// however often it is called.
	ApplyQuarantine(ctx context.Context, pending []lake.PendingQuarantine) error
	// VoidQuarantine takes out what commits put there that somebody rolled back.
	VoidQuarantine(ctx context.Context) error
}

// Intents are the records of attempts under way. Whoever writes the first file
// of an attempt writes its record before.
type Intents interface {
	Intents(ctx context.Context) ([]lake.Intent, error)
	// Undo settles an attempt that can land no more: its files go unless it has landed,
	// and then its record.
	Undo(ctx context.Context, in lake.Intent) error
	// RemoveIntent removes the record of an attempt that landed.
	RemoveIntent(ctx context.Context, id ident.UUID)
}

// Buffer is the table log. Every call is idempotent and bounded by its context.
type Buffer interface {
	// OpenTable tells the state of the table. A non-nil Wanted asks for a fence.
	OpenTable(ctx context.Context, c event.Commit, schemas []event.Schema, ended []event.EndedEpoch) (*Wanted, error)
	// PublishSchema makes a schema known.
	PublishSchema(ctx context.Context, table ident.UUID, epoch ident.WriterEpoch, s event.Schema) error
	// GrantEpoch answers one wish for a fence.
	GrantEpoch(ctx context.Context, nonce uint64, c event.Commit) error
	// ReportCommit tells of a new snapshot, ours or foreign.
	ReportCommit(ctx context.Context, c event.Commit) error
	// Visible is the vector below which readers see rows; nil when the buffer serves no reads.
	Visible(ctx context.Context) (ident.Vector, error)
}

// Wanted is the buffer's wish for an epoch fence.
type Wanted struct {
	Nonce          uint64
	Reason         string
	AppendsWaiting bool
}

// Source turns the events of the table log into files.
type Source interface {
	// Load says what is held and not yet sealed.
	Load() cut.Load
	// Seal closes the files and hands over what is held, nil when nothing is.
	// Unless upTo is nil it takes in first what had arrived when it was called, and
	// what is still to come up to there, as long as it comes. An error means that the
	// files could not be closed; what was held is dropped then, its files are deleted,
	// and it comes again by an image.
	Seal(ctx context.Context, upTo ident.Vector) (*Batch, error)
	// Rebase says what the table holds. When the source holds rows of another log
	// epoch, or when force is set, it drops everything and starts again from an
	// image. It never follows before the first Rebase.
	Rebase(at event.Commit, force bool)
	// HoldPoison makes partitions wait that bring quarantined records, and no
	// others, while the outbox is full.
	HoldPoison(hold bool)
}

// Maintainer decides about the upkeep that belongs into the commit slot.
type Maintainer interface {
	// Upkeep returns the expiry that is due with the commit that follows the given
	// head, or false when none is.
	Upkeep(head lake.Head) (lake.ExpirePolicy, bool)
}

// Step names a step of a commit, for metrics; the steps stand in their order.
type Step string

// The steps of a commit (design section 3).
const (
	StepClose  Step = "close"  // data files are closed
	StepPoison Step = "poison" // the quarantine file is written
	StepStage  Step = "stage"  // manifests are written
	StepSend   Step = "send"   // the catalog is asked
	StepLook   Step = "look"   // the table is loaded again
	StepClean  Step = "clean"  // files of expired snapshots are removed
	StepApply  Step = "apply"  // quarantine files are put into their table
	StepReport Step = "report" // the buffer is told
)

// Observer hears what happened, for metrics. Its methods must not block.
type Observer interface {
	// Attempted is one finished attempt: kind of the change, outcome (landed,
	// rejected, ambiguous once it was settled, restaged, fenced), time since its
	// first request.
	Attempted(kind, outcome string, took time.Duration)
	// Stepped is one step of a commit, whether it went well or not.
	Stepped(step Step, took time.Duration)
	// Landed is a data commit with what it brought.
	Landed(b *Batch, bytes int64)
}
