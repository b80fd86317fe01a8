// Package lake is the committer's side of Apache Iceberg: catalogs, tables, the
// state that a table carries, the one function through which every commit of
// ours goes, the Parquet writer, the quarantine outbox, expiry and the audit.
//
// It decides nothing about when to commit or what an error means for an attempt;
// the commit machine does, from what Stage, Send, Reload and Find tell it. All
// calls have a deadline. A Table belongs to one goroutine that changes it; Head
// may be read by others.
package lake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/s3file"
	"github.com/icestream/icestream/internal/schema"
)

// Config says where the tables are. Properties are the catalog's own, under its
// usual names: credential, scope, oauth2-server-uri, token, header.X-Name,
// rest.sigv4-enabled, rest.signing-region, s3.endpoint, s3.region,
// s3.access-key-id, … They may hold secrets and are never logged.
type Config struct {
	Type       string // rest, sql; with the build tag cloud also glue, hive
	URI        string // REST: URL; sql: "sqlite:///path/catalog.db" or a bare path
	Name       string // name of a SQL catalog, "icestream" by default
	Warehouse  string // "s3://bucket/prefix", "file:///path"
	Properties map[string]string
	Timeouts   Timeouts
	HTTP       http.RoundTripper // to a REST catalog, in place of our own
}

// Timeouts bound the calls to the catalog, and the work on files that goes with them
// (s3file bounds each request to a store). Zero values get the defaults.
type Timeouts struct {
	Load   time.Duration // 15 s
	Commit time.Duration // 30 s
	Stage  time.Duration // 15 s, and as much again per 1,000 files
}

func (t Timeouts) withDefaults() Timeouts {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Load, 15*time.Second)
	def(&t.Commit, 30*time.Second)
	def(&t.Stage, 15*time.Second)
	return t
}

// Lake is a catalog with the tables in it. It is safe for concurrent use.
type Lake struct {
	cfg  Config
	log  *slog.Logger
	open opener
	s3   s3Config

	manners *manners

	turn run.Turn // of connecting
	cat  catalog.Catalog
}

// opener connects to a catalog. It may be called again after an error.
type opener func(ctx context.Context) (catalog.Catalog, error)

// Open checks cfg. It does not connect: the first call that needs the catalog
// does, and does again after an error, so that a service starts while its
// catalog is away (G11).
func Open(_ context.Context, cfg Config, log *slog.Logger) (*Lake, error) {
	icefile.Register()
	s3file.Register()
	cfg.Timeouts = cfg.Timeouts.withDefaults()
	cfg.Properties = maps.Clone(cfg.Properties)
	if cfg.Properties == nil {
		cfg.Properties = map[string]string{}
	}
	if cfg.Name == "" {
		cfg.Name = "icestream"
	}
	m := &manners{}
	open, err := openerOf(cfg, m)
	if err != nil {
		return nil, err
	}
	return &Lake{cfg: cfg, log: log, open: open, manners: m, turn: run.NewTurn()}, nil
}

// Close lets go of the catalog's connections.
func (l *Lake) Close() error {
	if !l.turn.TryTake() {
		return nil // somebody is connecting, and gives up by itself
	}
	defer l.turn.Give()
	cat := l.cat
	l.cat = nil
	if c, ok := cat.(catalog.Closer); ok {
		return c.Close()
	}
	return nil
}

// Ping asks the catalog for its namespaces: nil when it answers.
func (l *Lake) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeouts.Load)
	defer cancel()
	cat, err := l.catalog(ctx)
	if err != nil {
		return err
	}
	if _, err := cat.ListNamespaces(ctx, nil); err != nil {
		return classify(err, "asking the catalog for its namespaces")
	}
	return nil
}

func (l *Lake) catalog(ctx context.Context) (catalog.Catalog, error) {
	if err := l.turn.Take(ctx); err != nil {
		return nil, classify(err, "waiting for a connection to the %s catalog at %s", l.cfg.Type, l.cfg.URI)
	}
	defer l.turn.Give()
	if l.cat != nil {
		return l.cat, nil
	}
	cat, err := l.open(ctx)
	if err != nil {
		return nil, classify(err, "connecting to the %s catalog at %s", l.cfg.Type, l.cfg.URI)
	}
	l.cat = cat
	return cat, nil
}

// Load loads a table, "namespace.table". It fails with UnknownTable where there
// is none, and with Unsupported where another sink keeps its own positions in it
// or a newer release of Icestream wrote it.
func (l *Lake) Load(ctx context.Context, name string) (*Table, error) {
	ident, err := identifier(name)
	if err != nil {
		return nil, err
	}
	cat, err := l.catalog(ctx)
	if err != nil {
		return nil, err
	}
	t := &Table{lake: l, cat: cat, name: name, ident: ident, log: l.log.With("table", name), cleanAt: cleanBatch, marks: &marking{limit: markFiles}, tries: &tries{}, seen: &seen{}}
	if _, err := t.Reload(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// Settings are what a table is made with.
type Settings struct {
	// Partition and Sort are as in the configuration: "day(created_at),
	// bucket(16, customer_id)", "customer_id, created_at desc". They are remembered
	// and take effect with the first schema change that brings their columns.
	Partition  string
	Sort       string
	LSN, Kafka bool              // metadata columns
	Properties map[string]string // added to and stronger than our defaults
	Owner      string            // deployment, for Owned
}

// Properties of the tables that we make.
const (
	propertyOwner     = prefix + "owner"
	propertyPartition = prefix + "partition"
	propertySort      = prefix + "sort"
	propertyNumbers   = prefix + "numbers"
)

// defaults keep the cost of a commit flat over the age of a table (cases T13,
// T14): manifests are merged, old metadata files go.
func defaults() iceberg.Properties {
	return iceberg.Properties{
		"format-version":                                      "2",
		table.ManifestMergeEnabledKey:                         "true",
		table.ManifestMinMergeCountKey:                        "100",
		table.MetadataDeleteAfterCommitEnabledKey:             "true",
		table.MetadataPreviousVersionsMaxKey:                  "50",
		"write.parquet.compression-codec":                     "zstd",
		"write.parquet.compression-level":                     "1",
		"write.object-storage.partitioned-paths":              "false",
		"write.metadata.metrics.max-inferred-column-defaults": "1000",
	}
}

// Create makes a table with its metadata columns only, and its namespace where
// that is missing. A table that exists already is loaded, whoever made it.
func (l *Lake) Create(ctx context.Context, name string, s Settings) (*Table, error) {
	columns := &schema.Schema{Columns: schema.MetadataColumns(s.LSN, s.Kafka)}
	columns.AssignIDs()
	props := defaults()
	props[propertyOwner] = s.Owner
	if s.Partition != "" {
		props[propertyPartition] = s.Partition
	}
	if s.Sort != "" {
		props[propertySort] = s.Sort
	}
	if err := CheckShape(s.Partition, s.Sort, nil); err != nil {
		return nil, err
	}
	maps.Copy(props, s.Properties)
	if err := errors.Join(CheckProperties(s.Properties)...); err != nil {
		return nil, fmt.Errorf("checking the properties of table %s: %w", name, err)
	}
	if err := l.create(ctx, name, columns, props); err != nil {
		return nil, err
	}
	return l.Load(ctx, name)
}

// CheckProperties refuses table properties that iceberg-go would let override the catalog's own access settings, or
// that would write a file that nobody can read: each fault by itself, in the order of their names.
func CheckProperties(props map[string]string) []error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(props)) {
		v := props[key]
		switch {
		case strings.HasPrefix(key, "s3."), strings.HasPrefix(key, "gcs."), strings.HasPrefix(key, "adls."):
			faults = append(faults, fault.New(fault.InvalidArgument, "%s is a setting of the catalog, not of a table: move it to catalog.properties", key))
		case strings.HasPrefix(key, prefix):
			faults = append(faults, fault.New(fault.InvalidArgument, "%s is kept by Icestream itself: remove it", key))
		case key == "write.parquet.compression-codec" && !slices.Contains([]string{"zstd", "snappy", "gzip", "uncompressed"}, v):
			faults = append(faults, fault.New(fault.InvalidArgument, "%s is %s: write zstd, snappy, gzip or uncompressed (others cannot be read everywhere)", key, v))
		}
	}
	return faults
}

func (l *Lake) create(ctx context.Context, name string, columns *schema.Schema, props iceberg.Properties) error {
	ident, err := identifier(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.storage(ctx), l.cfg.Timeouts.Commit)
	defer cancel()
	cat, err := l.catalog(ctx)
	if err != nil {
		return err
	}
	if err := makeNamespace(ctx, cat, ident); err != nil {
		return err
	}
	icebergSchema, err := toIceberg(columns, 0)
	if err != nil {
		return err
	}
	_, err = cat.CreateTable(ctx, ident, icebergSchema, catalog.WithProperties(props))
	if err != nil && !errors.Is(err, catalog.ErrTableAlreadyExists) {
		return classify(err, "creating table %s", name)
	}
	if err == nil {
		l.log.Info("table created", "table", name)
	}
	return nil
}

func makeNamespace(ctx context.Context, cat catalog.Catalog, ident table.Identifier) error {
	for depth := 1; depth < len(ident); depth++ {
		ns := ident[:depth]
		ok, err := cat.CheckNamespaceExists(ctx, ns)
		if err != nil {
			return classify(err, "looking for namespace %s", strings.Join(ns, "."))
		}
		if ok {
			continue
		}
		if err := cat.CreateNamespace(ctx, ns, nil); err != nil && !errors.Is(err, catalog.ErrNamespaceAlreadyExists) {
			return classify(err, "creating namespace %s", strings.Join(ns, "."))
		}
	}
	return nil
}

// Owned lists the tables of a deployment in any namespace, by name. A table that
// cannot be loaded is reported in the error; the others are still returned.
func (l *Lake) Owned(ctx context.Context, deployment string) ([]string, error) {
	cat, err := l.catalog(ctx)
	if err != nil {
		return nil, err
	}
	var owned []string
	var failed error
	err = l.walkNamespaces(ctx, cat, nil, func(ident table.Identifier) {
		load, cancel := context.WithTimeout(ctx, l.cfg.Timeouts.Load)
		defer cancel()
		name := strings.Join(ident, ".")
		t, err := cat.LoadTable(load, ident)
		switch {
		case err != nil:
			failed = errors.Join(failed, classify(err, "loading table %s", name))
		case t.Properties()[propertyOwner] == deployment && !isQuarantine(name):
			owned = append(owned, name)
		}
	})
	slices.Sort(owned)
	return owned, errors.Join(err, failed)
}

// Main lists the tables beside a name that may be mistyped, without quarantine
// tables: those of its namespace or, where there is none, of the one that is
// nearest. It is a help for messages: what cannot be listed is left out.
func (l *Lake) Main(ctx context.Context, name string) []string {
	cat, err := l.catalog(ctx)
	ident, bad := identifier(name)
	if err != nil || bad != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeouts.Load)
	defer cancel()
	tables := func(namespace table.Identifier) (out []string) {
		for t, err := range cat.ListTables(ctx, namespace) {
			if err != nil {
				break
			}
			if name := strings.Join(t, "."); !isQuarantine(name) {
				out = append(out, name)
			}
		}
		return out
	}
	namespace := ident[:len(ident)-1]
	if out := tables(namespace); len(out) > 0 {
		return out
	}
	parent := namespace[:max(0, len(namespace)-1)]
	siblings, err := cat.ListNamespaces(ctx, parent)
	if err != nil {
		return nil
	}
	names := map[string]table.Identifier{}
	for _, s := range siblings {
		names[strings.Join(s, ".")] = s
	}
	return tables(names[near.Name(strings.Join(namespace, "."), slices.Sorted(maps.Keys(names)))])
}

// isQuarantine tells quarantine tables by their name.
func isQuarantine(name string) bool {
	_, ok := ident.MainTable(name)
	return ok
}

func (l *Lake) walkNamespaces(ctx context.Context, cat catalog.Catalog, parent table.Identifier, visit func(table.Identifier)) error {
	list, cancel := context.WithTimeout(ctx, l.cfg.Timeouts.Load)
	defer cancel()
	namespaces, err := cat.ListNamespaces(list, parent)
	if err != nil {
		return classify(err, "listing namespaces")
	}
	for _, ns := range namespaces {
		if len(ns) <= len(parent) {
			continue
		}
		for ident, err := range cat.ListTables(list, ns) {
			if err != nil {
				return classify(err, "listing the tables of %s", strings.Join(ns, "."))
			}
			visit(ident)
		}
		if err := l.walkNamespaces(ctx, cat, ns, visit); err != nil {
			return err
		}
	}
	return nil
}

func identifier(name string) (table.Identifier, error) {
	ident := strings.Split(name, ".")
	if err := catalog.ValidateTableIdentifier(ident); err != nil {
		return nil, fault.New(fault.InvalidArgument, "reading table name %q: want namespace.table", name)
	}
	return ident, nil
}

// classify gives an error of the catalog or the object store a reason. What it
// does not know is Unavailable: it may heal, and for a commit it means that the
// outcome is not known.
func classify(err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return fault.New(known.Reason, "%s: %w", what, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, catalog.ErrNoSuchTable):
		return fault.New(fault.UnknownTable, "%s: there is no such table: %w", what, err)
	case errors.Is(err, table.ErrCommitFailed):
		return fault.New(fault.Conflict, "%s: somebody else changed the table: %w", what, err)
	case unauthorized(err):
		return fault.New(fault.Unauthorized, "%s: the catalog refused our credentials or rights: %w", what, err)
	case badRequest(err):
		return fault.New(fault.InvalidArgument, "%s: the catalog refused the request: %w", what, err)
	case noJSON(err):
		return fault.New(fault.Unavailable, "%s: the answer is not a catalog's: is a proxy in between, or catalog.uri wrong? %w", what, err)
	case diskFull(err):
		return fault.New(fault.DiskFull, "%s: the disk is full: make room, nothing is lost meanwhile: %w", what, err)
	default:
		return fault.New(fault.Unavailable, "%s: %w", what, err)
	}
}
