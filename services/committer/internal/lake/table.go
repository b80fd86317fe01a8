package lake

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go/catalog"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/s3file"
	"github.com/icestream/icestream/internal/schema"
)

// Table is one table of a Lake. One goroutine changes it; Head may be called by
// any.
type Table struct {
	lake  *Lake
	cat   catalog.Catalog
	name  string
	ident table.Identifier
	log   *slog.Logger

	// noCopies counts commits in a row that the catalog took only without table
	// properties or tags (case T11). Some catalogs answer a conflict or a bad moment
	// with 400 too, so only from enoughRefusals on commits go without them at once,
	// and recovery leans on the snapshots.
	noCopies atomic.Int32

	// What Clean has gathered, and how much before it acts.
	gone    gone
	cleanAt int

	// main is the table that this one is the quarantine table of.
	main ident.UUID
	// marks is the mark of a replay under way in the quarantine table, which has it
	// from its main table.
	marks *marking

	// tries are requests to a quarantine table, which has them from its main table,
	// whose outcome is not known.
	tries *tries
	// seen says how new the table was whenever it was loaded; a quarantine table has
	// it from its main table, since what tries and marks wait for outlives handles.
	seen *seen

	mu       sync.Mutex
	tbl      *table.Table
	head     Head
	answered *table.Table // what the last commit was answered with, until the table is loaded
	decoded  time.Time    // when an answer of the catalog was last read whole
	reach    table.FSysF  // how files are reached, as that answer said
	fs       iceio.IO
	outbox   *Table                // the quarantine table, once it was needed
	records  map[ident.UUID]Intent // intent records that this process wrote
}

// Head is a table as it was when it was last loaded.
type Head struct {
	Table            ident.UUID
	SnapshotID       int64 // 0: no snapshot yet
	Sequence         int64
	Time             time.Time
	MetadataLocation string
	FormatVersion    int
	SchemaID         int32
	NextSchemaID     int32                       // of the next change
	Schema           *schema.Schema              // without numbers
	Numbers          map[string]schema.NumberMap // by pipeline
	Evolution        Evolution                   // decisions about schemas, and what was changed
	Partition, Sort  string                      // settings that the table remembers

	// State is that of the newest own ancestor of the head, the zero State when
	// there is none; StateSnapshot is that ancestor.
	State         State
	StateSnapshot int64
	// Own is the number of own snapshots among the ancestors.
	Own int
	// RolledBack is set when somebody moved the table back below what it had
	// committed; StateLost when nothing proves which positions the head stands
	// for. In both cases nothing may be committed but a reset by an operator, and
	// State is what the chain itself says.
	RolledBack error
	StateLost  error
	// Copy is the state that the table property remembers, nil when it has none.
	Copy *Copy
	// High is the highest of everything that any snapshot of ours which the metadata
	// still knows, or the copy, has given: only where State is not all.
	High High
	// Ended are the log epochs that ended within the history that is left.
	Ended []event.EndedEpoch
}

// Copy is the copy of a state in the table property.
type Copy struct {
	State    State
	Snapshot int64
	Sequence int64
}

// High is what must never be given again.
type High struct {
	WriterEpoch ident.WriterEpoch
	LogEpoch    ident.LogEpoch
	Reserved    ident.LSN
}

func (h *High) raise(s State) {
	h.WriterEpoch, h.LogEpoch = max(h.WriterEpoch, s.WriterEpoch), max(h.LogEpoch, s.LogEpoch)
	h.Reserved = max(h.Reserved, s.LSN.Reserved)
}

// Foreign reports whether the newest snapshot is not ours: soon after, an empty
// one should carry the state forward.
func (h Head) Foreign() bool { return h.SnapshotID != h.StateSnapshot }

type tries struct{ list []*Staged }

// seen is the greatest sequence number that the catalog has shown of each table. It
// is safe for concurrent use.
type seen struct {
	mu       sync.Mutex
	sequence map[uuid.UUID]int64
}

// look refuses a copy of a table that is older than one that was shown before.
func (s *seen) look(name string, meta table.Metadata) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, now := meta.TableUUID(), meta.LastSequenceNumber()
	if before := s.sequence[id]; now < before {
		return fault.New(fault.Unavailable,
			"loading table %s: the catalog answers with the table as it was at sequence number %d, although it has shown %d: an old copy proves nothing; "+
				"waiting for the present one. If the catalog was put back to an older state on purpose, restart the committer",
			name, now, before)
	}
	if s.sequence == nil {
		s.sequence = map[uuid.UUID]int64{}
	}
	s.sequence[id] = now
	return nil
}

// enoughRefusals is how many commits in a row show that a catalog takes no table
// properties or tags.
const enoughRefusals = 3

// plain reports whether commits go without the copies of the state.
func (t *Table) plain() bool { return t.noCopies.Load() >= enoughRefusals }

// Name is "namespace.table".
func (t *Table) Name() string { return t.name }

// Head is what the last Reload found. It is not a copy: do not change it.
func (t *Table) Head() Head {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}

// Reload loads the table anew. Only what it returns proves anything about a
// commit. It fails with UnknownTable when the table is gone (dropped or
// renamed), with Fenced when another table has its name now, and with Unavailable
// when the catalog shows an older table than before: sequence numbers of a table
// never fall, not even when it is rolled back, so that is a stale copy, in which a
// commit that landed is not to be seen and the head seems to have left its base.
func (t *Table) Reload(ctx context.Context) (Head, error) {
	ctx, cancel := context.WithTimeout(t.lake.storage(ctx), t.lake.cfg.Timeouts.Load)
	defer cancel()
	tbl, decoded, err := t.load(ctx)
	if err != nil {
		return Head{}, t.lake.manners.hint(classify(err, "loading table %s", t.name))
	}
	if err := s3file.Check(tbl.MetadataLocation()); err != nil {
		return Head{}, classify(err, "loading table %s", t.name)
	}
	was := t.handle()
	if was != nil && was.Metadata().TableUUID() != tbl.Metadata().TableUUID() {
		return Head{}, fault.New(fault.Fenced,
			"loading table %s: another table has the name now (id %s, was %s): it was dropped and made again; restart the pipeline to start over into the new one",
			t.name, tbl.Metadata().TableUUID(), was.Metadata().TableUUID())
	}
	if err := t.seen.look(t.name, tbl.Metadata()); err != nil {
		return Head{}, err
	}
	if tbl == was {
		return t.Head(), nil
	}
	if err := refuseForeignSink(t.name, tbl); err != nil {
		return Head{}, err
	}
	head, err := t.recover(ctx, tbl)
	if err != nil {
		return Head{}, err
	}
	t.loaded(tbl, decoded, head)
	return head, nil
}

func (t *Table) handle() *table.Table {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tbl
}

// files is the table's file access. SQL catalogs make a new client on every
// call, so theirs is kept; a REST catalog keeps its own and renews credentials.
func (t *Table) files(ctx context.Context) (iceio.WriteFileIO, error) {
	tbl := t.handle()
	t.mu.Lock()
	kept := t.fs
	t.mu.Unlock()
	if kept == nil {
		var err error
		if kept, err = tbl.FS(context.WithoutCancel(ctx)); err != nil {
			return nil, classify(err, "opening the storage of table %s", t.name)
		}
		if t.cat.CatalogType() != catalog.REST {
			t.mu.Lock()
			t.fs = kept
			t.mu.Unlock()
		}
	}
	w, ok := kept.(iceio.WriteFileIO)
	if !ok {
		return nil, fault.New(fault.Unsupported, "opening the storage of table %s: it cannot be written to", t.name)
	}
	return w, nil
}

// rehandle is the table with other metadata, for staging.
func (t *Table) rehandle(meta table.Metadata) *table.Table {
	tbl := t.handle()
	return table.New(t.ident, meta, tbl.MetadataLocation(), func(ctx context.Context) (iceio.IO, error) { return t.files(ctx) }, t.cat)
}

// Find reports whether a snapshot of that commit is an ancestor of the loaded
// head. false proves nothing: an expiry may have removed the snapshot. Fate looks
// deeper.
func (t *Table) Find(commitID ident.UUID) bool {
	for s := range ancestors(t.handle().Metadata()) {
		if s.Summary != nil && s.Summary.Properties[keyCommitID] == commitID.String() {
			return true
		}
	}
	return false
}

// ancestors yields the head and what it was built on, newest first, as far as
// the metadata goes. Each comes once: metadata that somebody edited may name a
// descendant as a parent.
func ancestors(meta table.Metadata) iter.Seq[*table.Snapshot] {
	return func(yield func(*table.Snapshot) bool) {
		seen := map[int64]bool{}
		for s := meta.CurrentSnapshot(); s != nil && !seen[s.SnapshotID]; {
			seen[s.SnapshotID] = true
			if !yield(s) || s.ParentSnapshotID == nil {
				return
			}
			s = meta.SnapshotByID(*s.ParentSnapshotID)
		}
	}
}

// standing are the ids of the head and of what it stands on.
func standing(meta table.Metadata) map[int64]bool {
	out := map[int64]bool{}
	for s := range ancestors(meta) {
		out[s.SnapshotID] = true
	}
	return out
}

// head reads all of Head that does not depend on history.
func (t *Table) plainHead(tbl *table.Table) (Head, error) {
	meta := tbl.Metadata()
	if meta.Version() < 2 {
		return Head{}, fault.New(fault.Unsupported,
			"loading table %s: it has format version %d, Icestream writes 2 and 3: set format-version to 2", t.name, meta.Version())
	}
	sch, err := fromIceberg(meta.CurrentSchema(), meta.LastColumnID())
	if err != nil {
		return Head{}, err
	}
	props := meta.Properties()
	h := Head{
		Table: ident.UUID(meta.TableUUID()), MetadataLocation: tbl.MetadataLocation(),
		FormatVersion: meta.Version(), SchemaID: int32(meta.CurrentSchema().ID), NextSchemaID: int32(nextSchemaID(meta)), Schema: sch,
		Partition: props[propertyPartition], Sort: props[propertySort],
	}
	if h.Numbers, err = decodeNumberMaps(props[propertyNumbers]); err != nil {
		return Head{}, err
	}
	if h.Evolution, err = decodeEvolution(props[propertyEvolution]); err != nil {
		return Head{}, err
	}
	if s := meta.CurrentSnapshot(); s != nil {
		h.SnapshotID, h.Sequence, h.Time = s.SnapshotID, s.SequenceNumber, time.UnixMilli(s.TimestampMs).UTC()
	}
	return h, nil
}

func decodeNumberMaps(v string) (map[string]schema.NumberMap, error) {
	out := map[string]schema.NumberMap{}
	if err := decodeProperty(propertyNumbers, v, &out); err != nil {
		return nil, err
	}
	return out, nil
}

// decodeProperty reads the packed JSON of a table property into out, which stays
// as it is where the property is absent.
func decodeProperty(name, v string, out any) error {
	if v == "" {
		return nil
	}
	text, err := unpack(v)
	if err == nil {
		err = json.Unmarshal([]byte(text), out)
	}
	if err != nil {
		return fault.New(fault.Corrupt, "reading table property %s: %w", name, err)
	}
	return nil
}

func encodeNumberMaps(numbers map[string]schema.NumberMap) (string, error) {
	text, err := json.Marshal(numbers)
	if err != nil {
		return "", err
	}
	return pack(string(text))
}

// withNumbers is the maps of have with those of change over them.
func withNumbers(have, change map[string]schema.NumberMap) map[string]schema.NumberMap {
	out := maps.Clone(have)
	if out == nil {
		out = map[string]schema.NumberMap{}
	}
	maps.Copy(out, change)
	return out
}
