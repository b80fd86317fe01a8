package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"
)

// levelSeparator stands between the levels of a namespace in a path.
const levelSeparator = "\x1f"

// markerProperty is how the SQL catalog keeps a namespace that has no properties; clients never see it.
const markerProperty = "exists"

func namespaceOf(r *http.Request) table.Identifier {
	return strings.Split(r.PathValue("ns"), levelSeparator)
}

func checkNamespace(ns table.Identifier) error {
	if len(ns) == 0 || slices.Contains(ns, "") {
		return badRequest("namespace %q has an empty level", strings.Join(ns, "."))
	}
	return nil
}

// listNamespaces answers with the direct children of ?parent, in one page.
func (s *Server) listNamespaces(r *http.Request) (any, error) {
	var parent table.Identifier
	if p := r.URL.Query().Get("parent"); p != "" {
		parent = strings.Split(p, levelSeparator)
	}
	all, err := s.cat.ListNamespaces(r.Context(), parent)
	if err != nil {
		return nil, err
	}
	children := make([]table.Identifier, 0, len(all))
	for _, ns := range all {
		if len(ns) > len(parent) {
			children = append(children, ns[:len(parent)+1])
		}
	}
	slices.SortFunc(children, func(a, b table.Identifier) int { return slices.Compare(a, b) })
	children = slices.CompactFunc(children, slices.Equal[table.Identifier])
	return map[string]any{"namespaces": children}, nil
}

type namespaceBody struct {
	Namespace  table.Identifier   `json:"namespace"`
	Properties iceberg.Properties `json:"properties"`
}

func (s *Server) createNamespace(r *http.Request) (any, error) {
	var req namespaceBody
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	if err := checkNamespace(req.Namespace); err != nil {
		return nil, err
	}
	if err := s.cat.CreateNamespace(r.Context(), req.Namespace, req.Properties); err != nil {
		return nil, err
	}
	return s.namespaceAnswer(r, req.Namespace)
}

func (s *Server) loadNamespace(r *http.Request) (any, error) {
	return s.namespaceAnswer(r, namespaceOf(r))
}

func (s *Server) namespaceAnswer(r *http.Request, ns table.Identifier) (any, error) {
	props, err := s.cat.LoadNamespaceProperties(r.Context(), ns)
	if err != nil {
		return nil, err
	}
	if props == nil {
		props = iceberg.Properties{}
	}
	delete(props, markerProperty)
	return namespaceBody{Namespace: ns, Properties: props}, nil
}

func (s *Server) headNamespace(r *http.Request) (any, error) {
	ns := namespaceOf(r)
	exists, err := s.cat.CheckNamespaceExists(r.Context(), ns)
	if err != nil {
		return nil, err
	}
	if !exists {
		return nil, fmt.Errorf("%w: %s", catalog.ErrNoSuchNamespace, strings.Join(ns, "."))
	}
	return noContent{}, nil
}

func (s *Server) dropNamespace(r *http.Request) (any, error) {
	if err := s.cat.DropNamespace(r.Context(), namespaceOf(r)); err != nil {
		return nil, err
	}
	return noContent{}, nil
}

func (s *Server) updateNamespace(r *http.Request) (any, error) {
	var req struct {
		Removals []string           `json:"removals"`
		Updates  iceberg.Properties `json:"updates"`
	}
	if err := readJSON(r, &req); err != nil {
		return nil, err
	}
	for _, key := range req.Removals {
		if _, both := req.Updates[key]; both {
			return nil, &apiError{
				code: http.StatusUnprocessableEntity, kind: "UnprocessableEntityException",
				message: fmt.Sprintf("property %q is both removed and set", key),
			}
		}
	}
	summary, err := s.cat.UpdateNamespaceProperties(r.Context(), namespaceOf(r), req.Removals, req.Updates)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"updated": orEmpty(summary.Updated), "removed": orEmpty(summary.Removed), "missing": orEmpty(summary.Missing),
	}, nil
}

type identifierBody struct {
	Namespace table.Identifier `json:"namespace"`
	Name      string           `json:"name"`
}

func (b identifierBody) ident() table.Identifier { return append(slices.Clone(b.Namespace), b.Name) }

// listTables answers with all tables of the namespace, in one page.
func (s *Server) listTables(r *http.Request) (any, error) {
	ns := namespaceOf(r)
	identifiers := []identifierBody{}
	var failed error
	for ident, err := range s.cat.ListTables(r.Context(), ns) {
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		identifiers = append(identifiers, identifierBody{Namespace: ns, Name: ident[len(ident)-1]})
	}
	if failed != nil {
		return nil, failed
	}
	return map[string]any{"identifiers": identifiers}, nil
}

// Tables are the names of all tables, as far as they can be listed.
func (s *Server) Tables(ctx context.Context) []string {
	namespaces, err := s.cat.ListNamespaces(ctx, nil)
	if err != nil {
		return nil
	}
	var out []string
	for _, ns := range namespaces {
		for ident, err := range s.cat.ListTables(ctx, ns) {
			if err != nil {
				break
			}
			out = append(out, strings.Join(ident, "."))
		}
	}
	return out
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
