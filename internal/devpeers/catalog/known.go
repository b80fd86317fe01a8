package catalog

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"github.com/apache/iceberg-go/catalog"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
)

// version is one state of a table. Its metadata file never changes, so what was read or written once need not be read
// again while the catalog names the same file.
type version struct {
	location string
	meta     table.Metadata
	text     []byte // meta as JSON
}

func newVersion(location string, meta table.Metadata) (*version, error) {
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	return &version{location, meta, text}, nil
}

// rawJSON is an answer that is encoded already.
type rawJSON []byte

// answer is the body of a load, or with config false of a commit.
func (v *version) answer(config bool) (rawJSON, error) {
	location, err := json.Marshal(v.location)
	if err != nil {
		return nil, err
	}
	tail := "}"
	if config {
		tail = `,"config":{}}`
	}
	body := make([]byte, 0, len(v.text)+len(location)+64)
	body = append(append(body, `{"metadata-location":`...), location...)
	body = append(append(body, `,"metadata":`...), v.text...)
	return append(body, tail...), nil
}

// known keeps the newest version of each table that was asked for. It is safe for concurrent use.
type known struct {
	mu       sync.Mutex
	versions map[string]*version // by name
}

func (k *known) get(ident table.Identifier, location string) *version {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v := k.versions[strings.Join(ident, "\x00")]; v != nil && v.location == location {
		return v
	}
	return nil
}

func (k *known) put(ident table.Identifier, v *version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.versions == nil {
		k.versions = map[string]*version{}
	}
	k.versions[strings.Join(ident, "\x00")] = v
}

// newest returns a table as it is now. Its metadata must not be changed.
func (s *Server) newest(ctx context.Context, ident table.Identifier) (*version, error) {
	if v := s.known.get(ident, s.locationOf(ctx, ident)); v != nil {
		return v, nil
	}
	t, err := s.cat.LoadTable(ctx, ident)
	if err != nil {
		return nil, err
	}
	v, err := newVersion(t.MetadataLocation(), t.Metadata())
	if err == nil {
		s.known.put(ident, v)
	}
	return v, err
}

// locationOf is the metadata file of a table, "" when the row is not found: the library then says why.
func (s *Server) locationOf(ctx context.Context, ident table.Identifier) string {
	var location string
	_ = s.db.QueryRowContext(ctx, `SELECT metadata_location FROM iceberg_tables
		WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND (iceberg_type = ? OR iceberg_type IS NULL)`,
		CatalogName, strings.Join(catalog.NamespaceFromIdent(ident), "."), catalog.TableNameFromIdent(ident), sqlcat.TableType,
	).Scan(&location)
	return location
}
