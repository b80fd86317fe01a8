package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

const (
	contentType  = "application/vnd.schemaregistry.v1+json"
	maxBody      = 32 << 20 // bytes of a request
	typeProtobuf = "PROTOBUF"
	typeAvro     = "AVRO"
	typeJSON     = "JSON"
)

// Error codes of the protocol; the first three digits are the HTTP status.
const (
	codeSubjectNotFound       = 40401
	codeVersionNotFound       = 40402
	codeSchemaNotFound        = 40403
	codeSubjectDeleted        = 40404
	codeSubjectNotSoftDeleted = 40405
	codeVersionDeleted        = 40406
	codeVersionNotSoftDeleted = 40407
	codeInvalidSchema         = 42201
	codeInvalidVersion        = 42202
	codeInvalidLevel          = 42203
	codeInvalidMode           = 42204
	codeReadOnly              = 42205
	codeReferenceExists       = 42206
	codeInternal              = 50001
)

// apiError is an answer of the protocol.
type apiError struct {
	code    int
	message string
}

func (e *apiError) Error() string { return e.message }

func fail(code int, format string, args ...any) error {
	return &apiError{code: code, message: fmt.Sprintf(format, args...)}
}

// plain is an answer that is sent as it is, not as a JSON value.
type plain string

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(*http.Request) (any, error){
		"GET /{$}":                                                  s.root,
		"GET /schemas/types":                                        s.types,
		"GET /schemas":                                              s.schemas,
		"GET /schemas/ids/{id}":                                     s.schemaByID,
		"GET /schemas/ids/{id}/schema":                              s.textByID,
		"GET /schemas/ids/{id}/subjects":                            s.subjectsOfID,
		"GET /schemas/ids/{id}/versions":                            s.versionsOfID,
		"GET /schemas/guids/{guid}":                                 s.schemaByGUID,
		"GET /schemas/guids/{guid}/ids":                             s.idsOfGUID,
		"GET /subjects":                                             s.subjects,
		"POST /subjects/{subject}":                                  s.lookUp,
		"DELETE /subjects/{subject}":                                s.deleteSubject,
		"GET /subjects/{subject}/versions":                          s.versions,
		"POST /subjects/{subject}/versions":                         s.register,
		"GET /subjects/{subject}/versions/{version}":                s.version,
		"DELETE /subjects/{subject}/versions/{version}":             s.deleteVersion,
		"GET /subjects/{subject}/versions/{version}/schema":         s.versionText,
		"GET /subjects/{subject}/versions/{version}/referencedby":   s.referencedBy,
		"GET /config":                                               s.level,
		"PUT /config":                                               s.setLevel,
		"GET /config/{subject}":                                     s.level,
		"PUT /config/{subject}":                                     s.setLevel,
		"DELETE /config":                                            s.level,
		"DELETE /config/{subject}":                                  s.level,
		"GET /mode":                                                 s.mode,
		"PUT /mode":                                                 s.setMode,
		"GET /mode/{subject}":                                       s.mode,
		"PUT /mode/{subject}":                                       s.setMode,
		"DELETE /mode/{subject}":                                    s.unsetMode,
		"POST /compatibility/subjects/{subject}/versions":           s.compatible,
		"POST /compatibility/subjects/{subject}/versions/{version}": s.compatible,
		"GET /contexts":                                             s.contexts,
	} {
		mux.HandleFunc(pattern, s.serve(handle))
	}
	mux.HandleFunc("/", s.serve(func(r *http.Request) (any, error) {
		return nil, fail(http.StatusNotFound, "HTTP 404 Not Found: %s %s", r.Method, r.URL.Path)
	}))
	return mux
}

// serve runs an endpoint under the lock and sends its value or error.
func (s *Server) serve(handle func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		s.mu.Lock()
		value, err := handle(r)
		s.mu.Unlock()
		status := http.StatusOK
		if err != nil {
			failed, ok := errors.AsType[*apiError](err)
			if !ok {
				s.log.Error("schema registry request failed", "method", r.Method, "path", r.URL.Path, "error", err)
				failed = &apiError{code: codeInternal, message: err.Error()}
			}
			status = failed.code
			if status > 999 {
				status /= 100
			}
			value = map[string]any{"error_code": failed.code, "message": failed.message}
		}
		w.Header().Set("Content-Type", contentType)
		body, isPlain := value.(plain)
		encoded := []byte(body)
		if !isPlain {
			if encoded, err = json.Marshal(value); err != nil {
				s.log.Error("encoding an answer failed", "path", r.URL.Path, "error", err)
				status = http.StatusInternalServerError
			}
		}
		w.WriteHeader(status)
		_, _ = w.Write(encoded) // the client has gone: nobody to tell
	}
}

func flag(r *http.Request, name string) bool { return r.URL.Query().Get(name) == "true" }

func readBody(r *http.Request, into any) error {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		return fail(http.StatusUnprocessableEntity, "decoding the request body: %v", err)
	}
	return nil
}

func (s *Server) root(*http.Request) (any, error) { return struct{}{}, nil }

func (s *Server) types(*http.Request) (any, error) {
	return []string{typeJSON, typeProtobuf, typeAvro}, nil
}

func (s *Server) contexts(*http.Request) (any, error) { return []string{"."}, nil }

// level is always NONE: nothing is checked.
func (s *Server) level(*http.Request) (any, error) {
	return map[string]string{"compatibilityLevel": "NONE"}, nil
}

func (s *Server) setLevel(r *http.Request) (any, error) {
	var req struct {
		Compatibility string `json:"compatibility"`
	}
	if err := readBody(r, &req); err != nil {
		return nil, err
	}
	if req.Compatibility != "NONE" {
		return nil, fail(codeInvalidLevel, "compatibility level %q: this registry checks no compatibility, "+
			"so NONE is the only level it takes", req.Compatibility)
	}
	return map[string]string{"compatibility": "NONE"}, nil
}

// compatible says yes to every schema that compiles: the level is NONE.
func (s *Server) compatible(r *http.Request) (any, error) {
	if _, err := s.readSchema(r); err != nil {
		return nil, err
	}
	return map[string]any{"is_compatible": true}, nil
}

func (s *Server) modeOf(subject string) string {
	for _, name := range []string{subject, ""} {
		if mode := s.state.Modes[name]; mode != "" {
			return mode
		}
	}
	return "READWRITE"
}

func (s *Server) mode(r *http.Request) (any, error) {
	return map[string]string{"mode": s.modeOf(r.PathValue("subject"))}, nil
}

func (s *Server) setMode(r *http.Request) (any, error) {
	var req struct {
		Mode string `json:"mode"`
	}
	if err := readBody(r, &req); err != nil {
		return nil, err
	}
	if req.Mode != "READWRITE" && req.Mode != "READONLY" {
		return nil, fail(codeInvalidMode, "mode %q: READWRITE and READONLY are supported", req.Mode)
	}
	s.state.Modes[r.PathValue("subject")] = req.Mode
	return map[string]string{"mode": req.Mode}, s.save()
}

func (s *Server) unsetMode(r *http.Request) (any, error) {
	subject := r.PathValue("subject")
	mode := s.modeOf(subject)
	delete(s.state.Modes, subject)
	return map[string]string{"mode": mode}, s.save()
}

func (s *Server) writable(subject string) error {
	if s.modeOf(subject) == "READONLY" {
		return fail(codeReadOnly, "subject %s is in mode READONLY", subject)
	}
	return nil
}

// pathID reads the {id} of the path and returns its schema.
func (s *Server) pathID(r *http.Request) (*schema, error) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		return nil, fail(http.StatusNotFound, "HTTP 404 Not Found: schema id %q is not a number", r.PathValue("id"))
	}
	sc := s.state.Schemas[id]
	if sc == nil {
		return nil, fail(codeSchemaNotFound, "Schema %d not found", id)
	}
	return sc, nil
}
