package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	sqlcat "github.com/apache/iceberg-go/catalog/sql"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

func tableOf(r *http.Request) table.Identifier { return append(namespaceOf(r), r.PathValue("table")) }

// tableAnswer is the body of load, create and register. A staged table has no metadata location yet.
type tableAnswer struct {
	MetadataLocation string            `json:"metadata-location,omitempty"`
	Metadata         table.Metadata    `json:"metadata"`
	Config           map[string]string `json:"config"`
}

func answerOf(t *table.Table) tableAnswer {
	return tableAnswer{MetadataLocation: t.MetadataLocation(), Metadata: t.Metadata(), Config: map[string]string{}}
}

func (s *Server) loadTable(r *http.Request) (any, error) {
	v, err := s.newest(r.Context(), tableOf(r))
	if err != nil {
		return nil, err
	}
	return v.answer(true)
}

func (s *Server) headTable(r *http.Request) (any, error) {
	ident := tableOf(r)
	exists, err := s.cat.CheckTableExists(r.Context(), ident)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, noSuchTable(ident)
	}
	return noContent{}, nil
}

func noSuchTable(ident table.Identifier) error {
	return fmt.Errorf("%w: %s", catalog.ErrNoSuchTable, strings.Join(ident, "."))
}

type createBody struct {
	Name          string                 `json:"name"`
	Location      string                 `json:"location"`
	Schema        *iceberg.Schema        `json:"schema"`
	PartitionSpec *iceberg.PartitionSpec `json:"partition-spec"`
	WriteOrder    *table.SortOrder       `json:"write-order"`
	StageCreate   bool                   `json:"stage-create"`
	Properties    iceberg.Properties     `json:"properties"`
}

func (s *Server) createTable(r *http.Request) (any, error) {
	var req createBody
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	if req.Name == "" || req.Schema == nil {
		return nil, badRequest("creating a table needs a name and a schema")
	}
	ident := append(namespaceOf(r), req.Name)
	if req.StageCreate {
		return s.stageTable(r.Context(), ident, req)
	}
	opts := []catalog.CreateTableOpt{catalog.WithProperties(req.Properties)}
	if req.Location != "" {
		opts = append(opts, catalog.WithLocation(req.Location))
	}
	if req.PartitionSpec != nil {
		opts = append(opts, catalog.WithPartitionSpec(req.PartitionSpec))
	}
	if req.WriteOrder != nil {
		opts = append(opts, catalog.WithSortOrder(*req.WriteOrder))
	}
	s.commits.Lock()
	defer s.commits.Unlock()
	t, err := s.cat.CreateTable(r.Context(), ident, req.Schema, opts...)
	if err != nil {
		return nil, err
	}
	return answerOf(t), nil
}

// stageTable answers with the metadata a table would get and keeps nothing; the client's first commit, which asserts
// that the table does not exist, makes it.
func (s *Server) stageTable(ctx context.Context, ident table.Identifier, req createBody) (any, error) {
	exists, err := s.cat.CheckTableExists(ctx, ident)
	if err != nil {
		return nil, err
	}
	if exists {
		return nil, fmt.Errorf("%w: %s", catalog.ErrTableAlreadyExists, strings.Join(ident, "."))
	}
	ns := catalog.NamespaceFromIdent(ident)
	nsProps, err := s.cat.LoadNamespaceProperties(ctx, ns)
	if err != nil {
		return nil, err
	}
	location := strings.TrimSuffix(req.Location, "/")
	if location == "" {
		location = s.warehouse + "/" + strings.Join(ns, ".") + ".db/" + req.Name
		if parent := nsProps.Get("location", ""); parent != "" {
			location = strings.TrimSuffix(parent, "/") + "/" + req.Name
		}
	}
	spec, order := req.PartitionSpec, table.UnsortedSortOrder
	if spec == nil {
		spec = iceberg.UnpartitionedSpec
	}
	if req.WriteOrder != nil {
		order = *req.WriteOrder
	}
	meta, err := table.NewMetadata(req.Schema, spec, order, location, req.Properties)
	if err != nil {
		return nil, badRequest("staging table %s: %v", strings.Join(ident, "."), err)
	}
	return tableAnswer{Metadata: meta, Config: map[string]string{}}, nil
}

func (s *Server) dropTable(r *http.Request) (any, error) {
	s.commits.Lock()
	defer s.commits.Unlock()
	drop := s.cat.DropTable
	if r.URL.Query().Get("purgeRequested") == "true" {
		drop = s.cat.PurgeTable
	}
	if err := drop(r.Context(), tableOf(r)); err != nil {
		return nil, err
	}
	return noContent{}, nil
}

func (s *Server) renameTable(r *http.Request) (any, error) {
	var req struct {
		Source      identifierBody `json:"source"`
		Destination identifierBody `json:"destination"`
	}
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	s.commits.Lock()
	defer s.commits.Unlock()
	if _, err := s.cat.RenameTable(r.Context(), req.Source.ident(), req.Destination.ident()); err != nil {
		return nil, err
	}
	return noContent{}, nil
}

// registerTable gives an existing metadata file a name. The SQL catalog has no such call, so the row is written here, in
// the same form.
func (s *Server) registerTable(r *http.Request) (any, error) {
	var req struct {
		Name             string `json:"name"`
		MetadataLocation string `json:"metadata-location"`
		Overwrite        bool   `json:"overwrite"`
	}
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	ns := namespaceOf(r)
	switch {
	case req.Name == "" || req.MetadataLocation == "":
		return nil, badRequest("registering a table needs a name and a metadata-location")
	case req.Overwrite:
		return nil, badRequest("registering with overwrite is not supported: drop the table first")
	case strings.Contains(r.PathValue("ns"), "."):
		return nil, badRequest("registering into a namespace with a dot in its name is not supported")
	}
	ident := append(ns, req.Name)
	ctx := r.Context()
	if _, err := table.NewFromLocation(ctx, ident, req.MetadataLocation,
		icebergio.LoadFSFunc(nil, req.MetadataLocation), s.cat); err != nil {
		return nil, badRequest("reading metadata file %s: %v", req.MetadataLocation, err)
	}
	s.commits.Lock()
	defer s.commits.Unlock()
	if _, err := s.headNamespace(r); err != nil {
		return nil, err
	}
	if err := s.insertTable(ctx, ident, req.MetadataLocation); err != nil {
		return nil, err
	}
	t, err := s.cat.LoadTable(ctx, ident)
	if err != nil {
		return nil, err
	}
	return answerOf(t), nil
}

func (s *Server) insertTable(ctx context.Context, ident table.Identifier, location string) error {
	result, err := s.db.ExecContext(ctx, `INSERT INTO iceberg_tables
		(catalog_name, table_namespace, table_name, iceberg_type, metadata_location) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`,
		CatalogName, strings.Join(catalog.NamespaceFromIdent(ident), "."), catalog.TableNameFromIdent(ident),
		sqlcat.TableType, sql.NullString{String: location, Valid: true})
	if err != nil {
		return fmt.Errorf("registering table %s: %w", strings.Join(ident, "."), err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("%w: %s", catalog.ErrTableAlreadyExists, strings.Join(ident, ".")))
	}
	return nil
}

// acceptMetrics takes a client's scan or commit report and drops it.
func (s *Server) acceptMetrics(r *http.Request) (any, error) {
	if _, err := s.headTable(r); err != nil {
		return nil, err
	}
	return noContent{}, nil
}
