package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/table"
)

// maxBody bounds a request body, in bytes: a table's creation or commit with very many columns or properties.
const maxBody = 64 << 20

// apiError is an error that has its answer already.
type apiError struct {
	code    int
	kind    string // the specification's exception name
	message string
}

func (e *apiError) Error() string { return e.message }

func badRequest(format string, args ...any) error {
	return &apiError{code: http.StatusBadRequest, kind: "BadRequestException", message: fmt.Sprintf(format, args...)}
}

func conflict(format string, args ...any) error {
	return &apiError{code: http.StatusConflict, kind: "CommitFailedException", message: fmt.Sprintf(format, args...)}
}

// classify is the one place where an error becomes a status and an exception name.
func classify(err error) *apiError {
	if own, ok := errors.AsType[*apiError](err); ok {
		return own
	}
	answer := func(code int, kind string) *apiError { return &apiError{code: code, kind: kind, message: err.Error()} }
	switch {
	case errors.Is(err, catalog.ErrNoSuchTable):
		return answer(http.StatusNotFound, "NoSuchTableException")
	case errors.Is(err, catalog.ErrNoSuchNamespace):
		return answer(http.StatusNotFound, "NoSuchNamespaceException")
	case errors.Is(err, catalog.ErrTableAlreadyExists), errors.Is(err, catalog.ErrViewAlreadyExists),
		errors.Is(err, catalog.ErrNamespaceAlreadyExists):
		return answer(http.StatusConflict, "AlreadyExistsException")
	case errors.Is(err, catalog.ErrNamespaceNotEmpty):
		return answer(http.StatusConflict, "NamespaceNotEmptyException")
	case errors.Is(err, table.ErrCommitFailed):
		return answer(http.StatusConflict, "CommitFailedException")
	case errors.Is(err, catalog.ErrInvalidIdentifier), errors.Is(err, iceberg.ErrInvalidArgument),
		errors.Is(err, iceberg.ErrInvalidSchema), errors.Is(err, iceberg.ErrInvalidPartitionSpec),
		errors.Is(err, table.ErrInvalidMetadata):
		return answer(http.StatusBadRequest, "BadRequestException")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return answer(http.StatusServiceUnavailable, "ServiceUnavailableException")
	default:
		return answer(http.StatusInternalServerError, "InternalServerError")
	}
}

// noContent is the answer of an endpoint that has nothing to say.
type noContent struct{}

// serve turns an endpoint into a handler: its value as JSON, its error as the specification's error object.
func (s *Server) serve(handle func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		value, err := handle(r)
		code := http.StatusOK
		if err != nil {
			failed := classify(err)
			if failed.code >= http.StatusInternalServerError {
				s.log.Error("catalog request failed", "method", r.Method, "path", r.URL.Path, "error", err)
			}
			code = failed.code
			value = map[string]any{
				"error": map[string]any{"message": failed.message, "type": failed.kind, "code": failed.code},
			}
		}
		if _, empty := value.(noContent); empty {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		body, err := encode(value)
		if err != nil {
			s.log.Error("encoding a catalog answer failed", "path", r.URL.Path, "error", err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(body) // the client has gone: nobody to tell
	}
}

func encode(value any) ([]byte, error) {
	if done, ok := value.(rawJSON); ok {
		return done, nil
	}
	return json.Marshal(value)
}

// readJSON decodes the request body.
func readJSON(r *http.Request, into any) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return badRequest("reading the request body: %v", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return badRequest("decoding the request body: %v", err)
	}
	return nil
}
