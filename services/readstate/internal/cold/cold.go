// Package cold reads the files of the lake for the union of hot and cold rows. It
// only reads: the metadata location comes with each Commit event, so a scan asks
// no catalog for the state of a table. It implements readapi.Cold.
package cold

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/s3file"
)

// loadTimeout bounds the reading of one metadata file.
const loadTimeout = 15 * time.Second

// keepTables bounds how many parsed metadata files are kept.
const keepTables = 16

// Config says how files are reached.
type Config struct {
	// Type, Name, URI, Warehouse and Properties are those of the catalog. A REST
	// catalog is asked for credentials to files when Properties hold none.
	Type, Name, URI, Warehouse string
	Properties                 map[string]string
	// Concurrency is how many files one scan reads at once; zero means 2.
	Concurrency int
}

// Lake reads tables. Safe for concurrent use.
type Lake struct {
	cfg     Config
	files   *files
	footers footers
	log     *slog.Logger

	mu     sync.Mutex
	tables []parsed // newest last
}

// parsed is a metadata file; it is immutable, as the file is.
type parsed struct {
	location string
	table    *table.Table
}

var _ readapi.Cold = (*Lake)(nil)

// New returns a reader. Nothing is contacted yet. A nil log discards.
func New(cfg Config, log *slog.Logger) *Lake {
	s3file.Register()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = 2
	}
	return &Lake{cfg: cfg, files: newFiles(cfg), footers: footers{kept: map[string][]span{}}, log: log}
}

// load returns the table as the metadata file at location describes it.
func (l *Lake) load(ctx context.Context, name, location string) (*table.Table, error) {
	if t := l.cached(location); t != nil {
		return t, nil
	}
	if location == "" {
		return nil, fault.New(fault.SnapshotGone, "table %s has no metadata file yet: it has no cold rows", name)
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	id := identifier(name)
	t, err := table.NewFromLocation(ctx, id, location, l.files.opener(id, location), nil)
	if err != nil {
		return nil, explain(err, "reading the metadata of table %s at %s", name, location)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tables = append(l.tables, parsed{location, t})
	if n := len(l.tables) - keepTables; n > 0 {
		l.tables = slices.Delete(l.tables, 0, n)
	}
	return t, nil
}

func (l *Lake) cached(location string) *table.Table {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.tables {
		if p.location == location {
			return p.table
		}
	}
	return nil
}

// identifier splits "namespace.name".
func identifier(name string) table.Identifier { return strings.Split(name, ".") }

// explain types what the Iceberg library returns: a file that is not there any
// more was expired, everything else may pass.
func explain(err error, format string, args ...any) error {
	var known *fault.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	what := fmt.Sprintf(format, args...)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.SnapshotGone, "%s: a file is gone, most likely expired: begin the read again: %w", what, err)
	}
	return fault.New(fault.Unavailable, "%s: %w", what, err)
}

// Snapshot implements readapi.Cold.
func (l *Lake) Snapshot(ctx context.Context, name, location string, id int64) (readapi.Snapshot, error) {
	t, err := l.load(ctx, name, location)
	if err != nil {
		return readapi.Snapshot{}, err
	}
	s := t.SnapshotByID(id)
	if s == nil {
		return readapi.Snapshot{}, gone(name, id)
	}
	return describe(t, s), nil
}

func gone(name string, id int64) error {
	return fault.New(fault.SnapshotGone, "snapshot %d of table %s is expired, or never was: begin the read again", id, name)
}

func describe(t *table.Table, s *table.Snapshot) readapi.Snapshot {
	out := readapi.Snapshot{ID: s.SnapshotID, Sequence: s.SequenceNumber, Time: time.UnixMilli(s.TimestampMs).UTC()}
	if s.SchemaID != nil {
		out.SchemaID = int32(*s.SchemaID) //nolint:gosec // schema ids are small
	} else {
		out.SchemaID = int32(t.Schema().ID) //nolint:gosec // schema ids are small
	}
	return out
}

// SnapshotAt implements readapi.Cold. Only the history of the current head
// counts: what somebody rolled back is no past of the table.
func (l *Lake) SnapshotAt(ctx context.Context, name, location string, at time.Time) (readapi.Snapshot, error) {
	t, err := l.load(ctx, name, location)
	if err != nil {
		return readapi.Snapshot{}, err
	}
	head := t.CurrentSnapshot()
	if head != nil {
		for _, s := range table.AncestorsOf(head.SnapshotID, t.SnapshotByID) {
			if s.TimestampMs <= at.UnixMilli() {
				return describe(t, &s), nil
			}
		}
	}
	return readapi.Snapshot{}, fault.New(fault.SnapshotGone, "table %s has no snapshot that was committed at or before %s and is kept",
		name, at.UTC().Format(time.RFC3339))
}
