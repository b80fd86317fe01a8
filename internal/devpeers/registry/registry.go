// Package registry is the schema registry of `icestream dev`: a small Confluent-compatible registry on loopback that
// keeps everything in one JSON file.
//
// What it does: register, look up, ids, GUIDs, versions, references, soft and permanent deletes, modes READWRITE and
// READONLY. A PROTOBUF schema is compiled together with its references before it gets an id, as text or as a base64
// FileDescriptorProto; AVRO is parsed with the types of its references, JSON must be an object or a boolean. format=serialized answers a PROTOBUF schema as base64
// FileDescriptorProto. A schema comes back in the form in which it was registered. The same schema in two subjects has
// one id, and ids go on after a restart.
//
// What it does not do: it checks no compatibility. The level is NONE everywhere and any other is refused, so that nobody
// relies on a check that does not happen. normalize is ignored; there are no contexts and no rule sets.
package registry

import (
	"crypto/md5" //nolint:gosec // names a schema by its content, as other registries do; not a protection
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/icestream/icestream/internal/devpeers"
)

// Config says where the registry keeps its state and where it listens.
type Config struct {
	// File is the JSON file; its folder is created if it does not exist.
	File string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// Logger gets failures that no client sees; nil discards.
	Logger *slog.Logger
}

// Server is a running registry. It is safe for concurrent use.
type Server struct {
	http *devpeers.HTTPServer
	log  *slog.Logger
	file string

	mu    sync.Mutex // held over the write of the file, so that answers and file agree
	state state
}

// Start loads the file and serves the registry. A taken port is devpeers.ErrPortInUse.
func Start(cfg Config) (*Server, error) {
	s := &Server{file: cfg.File, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("starting the embedded schema registry: %w", err)
	}
	var err error
	if s.http, err = devpeers.ServeHTTP(cfg.Port, s.handler()); err != nil {
		return nil, fmt.Errorf("starting the embedded schema registry: %w", err)
	}
	s.log.Info("embedded schema registry is listening", "url", s.URL(), "file", s.file)
	return s, nil
}

// URL is the registry's address for clients, http://host:port.
func (s *Server) URL() string { return s.http.URL() }

// Close finishes running requests. Everything acknowledged is in the file already.
func (s *Server) Close() error { return s.http.Close() }

// reference is one import of a schema, pinned by subject and version.
type reference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// schema is a schema as registered; it is never changed.
type schema struct {
	ID         int         `json:"id"`
	GUID       string      `json:"guid"`
	Type       string      `json:"type"`
	Text       string      `json:"text"`
	References []reference `json:"references,omitempty"`
}

// version is one entry of a subject.
type version struct {
	Number   int  `json:"version"`
	SchemaID int  `json:"id"`
	Deleted  bool `json:"deleted,omitempty"`
}

// state is what the file holds.
type state struct {
	LastID   int                  `json:"last_id"`
	Schemas  map[int]*schema      `json:"schemas"`
	Subjects map[string][]version `json:"subjects"` // ascending by number; permanently deleted ones are gone
	Last     map[string]int       `json:"last"`     // the highest number a subject ever gave, so that none is given twice
	Modes    map[string]string    `json:"modes"`    // "" is the global one
}

func (s *Server) load() error {
	s.state = state{}
	data, err := os.ReadFile(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
			return fmt.Errorf("creating the folder of %s: %w", s.file, err)
		}
	case err != nil:
		return fmt.Errorf("reading %s: %w", s.file, err)
	default:
		if err := json.Unmarshal(data, &s.state); err != nil {
			return fmt.Errorf("reading %s: %w: restore it, or remove it and register the schemas again", s.file, err)
		}
	}
	st := &s.state
	if st.Schemas == nil {
		st.Schemas = map[int]*schema{}
	}
	if st.Subjects == nil {
		st.Subjects = map[string][]version{}
	}
	if st.Last == nil {
		st.Last = map[string]int{}
	}
	if st.Modes == nil {
		st.Modes = map[string]string{}
	}
	return nil
}

// save writes the file: temporary file, fsync, rename. On an error the old file stays, and memory goes back to it, so
// that nothing is answered which a restart would forget.
func (s *Server) save() error {
	err := s.write()
	if err != nil {
		err = errors.Join(fmt.Errorf("writing %s: %w", s.file, err), s.load())
	}
	return err
}

func (s *Server) write() error {
	data, err := json.MarshalIndent(s.state, "", " ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(s.file), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), s.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	dir, err := os.Open(filepath.Dir(s.file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// guidOf names a schema by its content: the same schema has the same GUID in every registry of this kind.
func guidOf(kind, text string, refs []reference) string {
	sum := md5.New() //nolint:gosec // see the import
	for _, part := range []string{kind, text} {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	for _, r := range refs {
		_, _ = fmt.Fprintf(sum, "%q %q %d", r.Name, r.Subject, r.Version)
	}
	id, err := uuid.FromBytes(sum.Sum(nil))
	if err != nil { // 16 bytes always make one
		return ""
	}
	return id.String()
}

// intern returns the schema of this content, with a new id if there is none yet.
func (st *state) intern(kind, text string, refs []reference) *schema {
	guid := guidOf(kind, text, refs)
	for _, known := range st.Schemas {
		if known.GUID == guid {
			return known
		}
	}
	st.LastID++
	fresh := &schema{ID: st.LastID, GUID: guid, Type: kind, Text: text, References: refs}
	st.Schemas[fresh.ID] = fresh
	return fresh
}

// live returns the versions that are not deleted, or all of them.
func (st *state) live(subject string, withDeleted bool) []version {
	all := st.Subjects[subject]
	if withDeleted {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(v version) bool { return v.Deleted })
}

// subjects returns the names of subjects with at least one version, sorted.
func (st *state) subjects(prefix string, withDeleted bool) []string {
	names := []string{}
	for name := range st.Subjects {
		if strings.HasPrefix(name, prefix) && len(st.live(name, withDeleted)) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// referencing returns the ids of the schemas that import this version and are still in a subject, sorted.
func (st *state) referencing(subject string, number int) []int {
	ids := []int{}
	for name := range st.Subjects {
		for _, v := range st.live(name, false) {
			uses := slices.ContainsFunc(st.Schemas[v.SchemaID].References, func(r reference) bool {
				return r.Subject == subject && r.Version == number
			})
			if uses {
				ids = append(ids, v.SchemaID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
