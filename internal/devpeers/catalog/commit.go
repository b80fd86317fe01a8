package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/icefile"
)

// assertCreate is the requirement that the table does not exist.
const assertCreate = "assert-create"

type commitBody struct {
	Identifier   identifierBody     `json:"identifier"`
	Requirements table.Requirements `json:"requirements"`
	Updates      table.Updates      `json:"updates"`
}

// commitTable answers with the new metadata and its location.
func (s *Server) commitTable(r *http.Request) (any, error) {
	var req commitBody
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), commitTimeout)
	defer cancel()
	s.commits.Lock()
	defer s.commits.Unlock()
	v, err := s.commit(ctx, tableOf(r), req)
	if err != nil {
		return nil, err
	}
	return v.answer(false)
}

// commitTransaction checks every table's requirements and only then commits the tables, in the order given. The SQL
// catalog has no transaction over tables: see the package comment for what a crash in between leaves.
func (s *Server) commitTransaction(r *http.Request) (any, error) {
	var req struct {
		Changes []commitBody `json:"table-changes"`
	}
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), commitTimeout)
	defer cancel()
	s.commits.Lock()
	defer s.commits.Unlock()
	for _, change := range req.Changes {
		if _, err := s.check(ctx, change.Identifier.ident(), change); err != nil {
			return nil, err
		}
	}
	for _, change := range req.Changes {
		if _, err := s.commit(ctx, change.Identifier.ident(), change); err != nil {
			return nil, err
		}
	}
	return noContent{}, nil
}

// commit runs with s.commits held. Whatever it refuses before the swap has a definite answer (400, 404, 409); an error
// of the swap itself is a 500, which tells the client that the outcome is unknown.
func (s *Server) commit(ctx context.Context, ident table.Identifier, req commitBody) (*version, error) {
	base, err := s.check(ctx, ident, req)
	if err != nil {
		return nil, err
	}
	meta, location, err := s.cat.CommitTable(ctx, ident, req.Requirements, req.Updates)
	if err != nil {
		// Another process may have moved the table after the check; the library reports that without a type.
		if _, again := s.check(ctx, ident, req); again != nil {
			return nil, again
		}
		return nil, err
	}
	if base != nil {
		s.removeOldMetadata(base, meta)
	}
	v, err := newVersion(location, meta)
	if err == nil {
		s.known.put(ident, v)
	}
	return v, err
}

// check loads the table and tries requirements and updates on it. It returns the metadata the commit would replace, nil
// for a table that the commit creates.
func (s *Server) check(ctx context.Context, ident table.Identifier, req commitBody) (table.Metadata, error) {
	current, err := s.newest(ctx, ident)
	creates := requiresCreate(req.Requirements)
	switch {
	case errors.Is(err, catalog.ErrNoSuchTable) && creates:
		return nil, nil //nolint:nilnil // no table and no error: the commit creates it
	case err != nil:
		return nil, err
	case creates:
		return nil, fmt.Errorf("%w: %s", catalog.ErrTableAlreadyExists, strings.Join(ident, "."))
	}
	for _, requirement := range req.Requirements {
		if err := requirement.Validate(current.meta); err != nil {
			return nil, conflict("table %s: requirement %s: %v: load the table again and decide anew",
				strings.Join(ident, "."), requirement.GetType(), err)
		}
	}
	if _, err := table.UpdateTableMetadata(current.meta, req.Updates, current.location); err != nil {
		return nil, badRequest("table %s: applying the updates: %v", strings.Join(ident, "."), err)
	}
	return current.meta, nil
}

func requiresCreate(requirements table.Requirements) bool {
	for _, r := range requirements {
		if r.GetType() == assertCreate {
			return true
		}
	}
	return false
}

// removeOldMetadata deletes the metadata files that fell out of the table's metadata log, if the table wants that. On a
// REST catalog this is the server's duty. A file that cannot be deleted is only litter.
func (s *Server) removeOldMetadata(base, now table.Metadata) {
	if !now.Properties().GetBool(table.MetadataDeleteAfterCommitEnabledKey, table.MetadataDeleteAfterCommitEnabledDefault) {
		return
	}
	kept := make(map[string]bool)
	for entry := range now.PreviousFiles() {
		kept[entry.MetadataFile] = true
	}
	for entry := range base.PreviousFiles() {
		// A location outside of the warehouse belongs to somebody else (a registered table).
		if kept[entry.MetadataFile] || !strings.HasPrefix(entry.MetadataFile, s.warehouse+"/") {
			continue
		}
		if err := (icefile.FS{}).Remove(entry.MetadataFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("old metadata file was not deleted", "file", entry.MetadataFile, "error", err)
		}
	}
}
