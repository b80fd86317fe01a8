// Package readapi serves icestream.readstate.v1: hot rows and the Iceberg
// snapshot as one consistent table. The buffer and readstate serve it with the
// same answers; they differ in the ports they give to it. A server without a
// Cold port answers WRONG_DOOR to what needs files of the lake.
//
// The rule of the union (design section 6): cold rows of the named snapshot,
// plus hot rows at or above that snapshot's vector, up to the token's. Offsets
// decide, never LSNs. Everything a read needs is taken from one immutable
// readview.Position, so commits that happen meanwhile cannot tear it (G4).
package readapi

import (
	"context"
	"iter"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/schema"
)

// Tables finds the tables that a server knows. Safe for concurrent use.
type Tables interface {
	// Names lists the identifiers of all tables, sorted.
	Names() []string
	// Table returns the source of a table, or fault.UnknownTable.
	Table(name string) (Source, error)
}

// Source is one table of a server. Safe for concurrent use. Positions and
// everything they point to are immutable.
type Source interface {
	// Position is the newest consistent position, or fault.NotReady with what
	// is waited for.
	Position() (readview.Position, error)
	// Resolve finds the parts of an earlier position, or fails with NOT_YET,
	// EPOCH_CHANGED, TOO_OLD, NOT_READY or FENCED (another table uuid).
	Resolve(tok readview.Token) (readview.Resolved, error)
	// SchemaByID returns the schema with this Iceberg schema id, if the log knows it.
	SchemaByID(id int32) (event.Schema, bool)
	// Status is what operators ask for; it works while the table is not ready.
	Status() Status
	// Changed returns a channel that is closed at the next change of the table.
	// Take it before Position, wait on it after.
	Changed() <-chan struct{}
}

// Status of a table for people.
type Status struct {
	Table    ident.UUID
	Rows     int64  // hot rows
	Bytes    int64  // hot bytes
	State    string // "serving", or why not
	Progress map[ident.Partition]Progress
}

// StateServing is the State of a table that answers reads.
const StateServing = "serving"

// Progress is what ingest last said of a partition, and when it was heard.
type Progress struct {
	event.Progress
	Heard time.Time
}

// Cold reads files of the lake. Only readstate has it. Safe for concurrent use.
type Cold interface {
	// Snapshot finds a snapshot by id in the metadata at location; one that is
	// not there is fault.SnapshotGone.
	Snapshot(ctx context.Context, table, location string, id int64) (Snapshot, error)
	// SnapshotAt finds the newest snapshot of the current history that was
	// committed at or before t; none is fault.SnapshotGone.
	SnapshotAt(ctx context.Context, table, location string, t time.Time) (Snapshot, error)
	// Scan yields rows in no order, each batch in the shape of s.Target. The
	// caller releases the batches; breaking off early is safe.
	Scan(ctx context.Context, s ColdScan) iter.Seq2[arrow.RecordBatch, error]
	// Window returns the rows of s as at most one batch per topic partition, in
	// offset order. The caller bounds it by s.From and s.Below, which it must
	// set, and releases the batches.
	Window(ctx context.Context, s ColdScan) ([]ColdRows, error)
}

// Snapshot is what a read needs to know of a snapshot.
type Snapshot struct {
	ID       int64
	Sequence int64
	Time     time.Time
	SchemaID int32
}

// ColdScan says which rows of the lake are wanted: those of Snapshot, or with
// Since those that snapshots of ours after Since added, up to and including
// Snapshot (replays apart); then TOO_OLD means that the history between the two
// is gone.
type ColdScan struct {
	Table    string         // identifier, "namespace.name"
	Location string         // metadata file
	Snapshot int64          // snapshot id
	Since    int64          // zero: all rows of Snapshot
	Target   *schema.Schema // shape of the rows: the columns wanted, with field ids
	// Below, when set, keeps only rows of the partitions it names whose offset
	// is below its position, by the column _kafka; From likewise sets where a
	// partition begins, 0 where it does not name it.
	From  ident.Vector
	Below ident.Vector
}

// ColdRows are rows of one topic partition in offset order.
type ColdRows struct {
	Partition ident.Partition
	Rows      arrow.RecordBatch
}
