package cold

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	_ "github.com/apache/iceberg-go/catalog/rest" // makes type rest known to catalog.Load
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/icefile"
	"github.com/icestream/icestream/internal/s3file"
)

// lent is how long credentials that a catalog lent with a table are used before
// the table is asked for again. Catalogs lend for an hour or so.
const lent = 5 * time.Minute

// files opens file systems and keeps them, because each new one of an object
// store means new connections.
type files struct {
	cfg Config

	mu      sync.Mutex
	catalog catalog.Catalog
	kept    map[string]opened
}

type opened struct {
	io   iceio.IO
	ends time.Time // zero: never
}

func newFiles(cfg Config) *files { return &files{cfg: cfg, kept: map[string]opened{}} }

// opener returns what the Iceberg library calls to reach the files of a table.
func (f *files) opener(id table.Identifier, location string) table.FSysF {
	return func(ctx context.Context) (iceio.IO, error) { return f.open(ctx, id, location) }
}

func (f *files) open(ctx context.Context, id table.Identifier, location string) (iceio.IO, error) {
	if isLocal(location) {
		return icefile.FS{}, nil
	}
	if err := s3file.Check(location); err != nil {
		return nil, err
	}
	u, err := url.Parse(location)
	if err != nil {
		return nil, fmt.Errorf("reading location %q: %w", location, err)
	}
	lends := f.lends(u.Scheme)
	key := u.Scheme + "://" + u.Host
	if lends {
		key += "/" + strings.Join(id, ".") // credentials are lent per table
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.kept[key]; ok && (o.ends.IsZero() || time.Now().Before(o.ends)) {
		return o.io, nil
	}
	var o opened
	if lends {
		o.ends = time.Now().Add(lent)
		o.io, err = f.borrow(ctx, id)
	} else {
		// The file system outlives the call that happens to open it first.
		o.io, err = iceio.LoadFS(context.WithoutCancel(ctx), f.cfg.Properties, location)
	}
	if err != nil {
		return nil, fmt.Errorf("opening files under %s: %w", key, err)
	}
	f.kept[key] = o
	return o.io, nil
}

// isLocal reports whether a location is a path of this machine, with or without
// the scheme.
func isLocal(location string) bool {
	return strings.HasPrefix(location, "file:") || !strings.Contains(location, "://")
}

// lends reports whether credentials for a scheme have to come from the catalog.
func (f *files) lends(scheme string) bool {
	if f.cfg.Type != "rest" {
		return false
	}
	prefix := map[string]string{"s3": "s3.", "s3a": "s3.", "s3n": "s3.", "gs": "gcs.", "abfs": "adls.", "abfss": "adls."}[scheme]
	for key := range f.cfg.Properties {
		if prefix != "" && strings.HasPrefix(key, prefix) && (strings.Contains(key, "key") || strings.Contains(key, "token")) {
			return false
		}
	}
	return prefix != ""
}

// borrow asks the catalog for the table and takes the file system that comes
// with it; f.mu is held.
func (f *files) borrow(ctx context.Context, id table.Identifier) (iceio.IO, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	if f.catalog == nil {
		props := iceberg.Properties{"type": f.cfg.Type, "uri": f.cfg.URI}
		if f.cfg.Warehouse != "" {
			props["warehouse"] = f.cfg.Warehouse
		}
		maps.Copy(props, f.cfg.Properties)
		cat, err := catalog.Load(ctx, f.cfg.Name, props)
		if err != nil {
			return nil, fmt.Errorf("reaching the catalog at %s: %w", f.cfg.URI, err)
		}
		f.catalog = cat
	}
	t, err := f.catalog.LoadTable(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("loading table %s from the catalog at %s: %w", strings.Join(id, "."), f.cfg.URI, err)
	}
	return t.FS(context.WithoutCancel(ctx))
}
