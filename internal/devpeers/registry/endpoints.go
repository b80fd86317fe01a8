package registry

import (
	"net/http"
	"slices"
	"strconv"
)

// schemaBody is a schema in a request.
type schemaBody struct {
	Schema     string      `json:"schema"`
	SchemaType string      `json:"schemaType"`
	References []reference `json:"references"`
}

// schemaAnswer is a schema in an answer. AVRO, the default, is not spelled out.
type schemaAnswer struct {
	Subject    string      `json:"subject,omitempty"`
	ID         int         `json:"id,omitempty"`
	Version    int         `json:"version,omitempty"`
	GUID       string      `json:"guid,omitempty"`
	SchemaType string      `json:"schemaType,omitempty"`
	References []reference `json:"references,omitempty"`
	Schema     string      `json:"schema"`
}

// answer renders a schema in the form the request asks for.
func (s *Server) answer(r *http.Request, sc *schema) (schemaAnswer, error) {
	a := schemaAnswer{GUID: sc.GUID, References: sc.References, Schema: sc.Text}
	if sc.Type != typeAvro {
		a.SchemaType = sc.Type
	}
	if sc.Type == typeProtobuf && r.URL.Query().Get("format") == "serialized" {
		text, err := s.state.serialized(sc)
		if err != nil {
			return a, fail(codeInvalidSchema, "schema %d cannot be serialized: %v", sc.ID, err)
		}
		a.Schema = text
	}
	return a, nil
}

func (s *Server) versionAnswer(r *http.Request, subject string, v version) (schemaAnswer, error) {
	sc := s.state.Schemas[v.SchemaID]
	a, err := s.answer(r, sc)
	a.Subject, a.ID, a.Version = subject, sc.ID, v.Number
	return a, err
}

// readSchema decodes and checks the schema of a request; the result has no id yet.
func (s *Server) readSchema(r *http.Request) (*schema, error) {
	var req schemaBody
	if err := readBody(r, &req); err != nil {
		return nil, err
	}
	sc := &schema{Type: req.SchemaType, Text: req.Schema, References: slices.Clone(req.References)}
	if sc.Type == "" {
		sc.Type = typeAvro
	}
	for i, ref := range sc.References {
		versions := s.state.live(ref.Subject, false)
		if ref.Version == -1 && len(versions) > 0 {
			sc.References[i].Version = versions[len(versions)-1].Number // pinned: "latest" must not move later
		}
		if s.state.find(ref.Subject, sc.References[i].Version) == nil {
			return nil, fail(codeInvalidSchema, "Invalid schema: reference %q: subject %q has no version %d",
				ref.Name, ref.Subject, ref.Version)
		}
	}
	switch sc.Type {
	case typeProtobuf:
		if _, err := s.state.compile(sc.Text, sc.References); err != nil {
			return nil, fail(codeInvalidSchema, "Invalid schema of type PROTOBUF: %v", err)
		}
	case typeAvro:
		if err := s.state.checkAvro(sc.Text, sc.References); err != nil {
			return nil, fail(codeInvalidSchema, "Invalid schema of type AVRO: %v", err)
		}
	case typeJSON:
		if err := s.state.checkJSON(sc.Text, sc.References); err != nil {
			return nil, fail(codeInvalidSchema, "Invalid schema of type JSON: %v", err)
		}
	default:
		return nil, fail(codeInvalidSchema, "Invalid schema type %q: AVRO, JSON and PROTOBUF are supported", sc.Type)
	}
	sc.GUID = guidOf(sc.Type, sc.Text, sc.References)
	return sc, nil
}

// match returns the subject's newest version that holds this schema, also in the other PROTOBUF form.
func (s *Server) match(subject string, sc *schema, withDeleted bool) (version, bool) {
	versions := s.state.live(subject, withDeleted)
	for _, exact := range []bool{true, false} {
		for _, v := range slices.Backward(versions) {
			known := s.state.Schemas[v.SchemaID]
			if known.GUID == sc.GUID {
				return v, true
			}
			if !exact && known.Type == typeProtobuf && sc.Type == typeProtobuf && s.state.sameDescriptor(known, sc) {
				return v, true
			}
		}
	}
	return version{}, false
}

// register is idempotent: a schema that the subject holds already keeps its version and id.
func (s *Server) register(r *http.Request) (any, error) {
	subject := r.PathValue("subject")
	if err := s.writable(subject); err != nil {
		return nil, err
	}
	sc, err := s.readSchema(r)
	if err != nil {
		return nil, err
	}
	if v, known := s.match(subject, sc, false); known {
		return s.registered(v), nil
	}
	stored := s.state.intern(sc.Type, sc.Text, sc.References)
	s.state.Last[subject]++
	v := version{Number: s.state.Last[subject], SchemaID: stored.ID}
	s.state.Subjects[subject] = append(s.state.Subjects[subject], v)
	return s.registered(v), s.save()
}

func (s *Server) registered(v version) any {
	return map[string]any{"id": v.SchemaID, "version": v.Number, "guid": s.state.Schemas[v.SchemaID].GUID}
}

func (s *Server) lookUp(r *http.Request) (any, error) {
	subject := r.PathValue("subject")
	if len(s.state.live(subject, flag(r, "deleted"))) == 0 {
		return nil, subjectNotFound(subject)
	}
	sc, err := s.readSchema(r)
	if err != nil {
		return nil, err
	}
	v, known := s.match(subject, sc, flag(r, "deleted"))
	if !known {
		return nil, fail(codeSchemaNotFound, "Schema not found in subject '%s'", subject)
	}
	return s.versionAnswer(r, subject, v)
}

func subjectNotFound(subject string) error {
	return fail(codeSubjectNotFound, "Subject '%s' not found.", subject)
}

func (s *Server) schemas(r *http.Request) (any, error) {
	prefix, latest := r.URL.Query().Get("subjectPrefix"), flag(r, "latestOnly")
	answers := []schemaAnswer{}
	for _, subject := range s.state.subjects(prefix, flag(r, "deleted")) {
		versions := s.state.live(subject, flag(r, "deleted"))
		if latest {
			versions = versions[len(versions)-1:]
		}
		for _, v := range versions {
			a, err := s.versionAnswer(r, subject, v)
			if err != nil {
				return nil, err
			}
			answers = append(answers, a)
		}
	}
	return answers, nil
}

func (s *Server) schemaByID(r *http.Request) (any, error) {
	sc, err := s.pathID(r)
	if err != nil {
		return nil, err
	}
	return s.answer(r, sc)
}

func (s *Server) textByID(r *http.Request) (any, error) {
	sc, err := s.pathID(r)
	if err != nil {
		return nil, err
	}
	a, err := s.answer(r, sc)
	return plain(a.Schema), err
}

func (s *Server) subjectsOfID(r *http.Request) (any, error) {
	places, err := s.places(r)
	names := []string{}
	for _, p := range places {
		names = append(names, p.Subject)
	}
	return slices.Compact(names), err
}

func (s *Server) versionsOfID(r *http.Request) (any, error) { return s.places(r) }

type place struct {
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

// places lists where the schema of the path's id stands, sorted by subject and version.
func (s *Server) places(r *http.Request) ([]place, error) {
	sc, err := s.pathID(r)
	if err != nil {
		return nil, err
	}
	places := []place{}
	for _, subject := range s.state.subjects("", flag(r, "deleted")) {
		for _, v := range s.state.live(subject, flag(r, "deleted")) {
			if v.SchemaID == sc.ID {
				places = append(places, place{subject, v.Number})
			}
		}
	}
	return places, nil
}

func (s *Server) byGUID(r *http.Request) (*schema, error) {
	for _, sc := range s.state.Schemas {
		if sc.GUID == r.PathValue("guid") {
			return sc, nil
		}
	}
	return nil, fail(codeSchemaNotFound, "Schema %s not found", r.PathValue("guid"))
}

func (s *Server) schemaByGUID(r *http.Request) (any, error) {
	sc, err := s.byGUID(r)
	if err != nil {
		return nil, err
	}
	return s.answer(r, sc)
}

func (s *Server) idsOfGUID(r *http.Request) (any, error) {
	sc, err := s.byGUID(r)
	if err != nil {
		return nil, err
	}
	return []map[string]any{{"context": ".", "id": sc.ID}}, nil
}

func (s *Server) subjects(r *http.Request) (any, error) {
	return s.state.subjects(r.URL.Query().Get("subjectPrefix"), flag(r, "deleted")), nil
}

func (s *Server) versions(r *http.Request) (any, error) {
	subject := r.PathValue("subject")
	versions := s.state.live(subject, flag(r, "deleted"))
	if len(versions) == 0 {
		return nil, subjectNotFound(subject)
	}
	return numbers(versions), nil
}

func numbers(versions []version) []int {
	list := make([]int, len(versions))
	for i, v := range versions {
		list[i] = v.Number
	}
	return list
}

// pick finds the version that the path names: a number, latest or -1.
func (s *Server) pick(r *http.Request, withDeleted bool) (version, error) {
	subject, text := r.PathValue("subject"), r.PathValue("version")
	number, err := strconv.Atoi(text)
	if text == "latest" {
		number, err = -1, nil
	}
	if err != nil || number == 0 || number < -1 {
		return version{}, fail(codeInvalidVersion, "The specified version '%s' is not a valid version id. "+
			"Allowed values are between [1, 2^31-1] and the string \"latest\"", text)
	}
	versions := s.state.live(subject, withDeleted)
	if len(versions) == 0 {
		return version{}, subjectNotFound(subject)
	}
	if number == -1 {
		return versions[len(versions)-1], nil
	}
	i := slices.IndexFunc(versions, func(v version) bool { return v.Number == number })
	if i < 0 {
		return version{}, fail(codeVersionNotFound, "Version %d not found.", number)
	}
	return versions[i], nil
}

func (s *Server) version(r *http.Request) (any, error) {
	v, err := s.pick(r, flag(r, "deleted"))
	if err != nil {
		return nil, err
	}
	return s.versionAnswer(r, r.PathValue("subject"), v)
}

func (s *Server) versionText(r *http.Request) (any, error) {
	v, err := s.pick(r, flag(r, "deleted"))
	if err != nil {
		return nil, err
	}
	a, err := s.answer(r, s.state.Schemas[v.SchemaID])
	return plain(a.Schema), err
}

func (s *Server) referencedBy(r *http.Request) (any, error) {
	v, err := s.pick(r, true)
	if err != nil {
		return nil, err
	}
	return s.state.referencing(r.PathValue("subject"), v.Number), nil
}

// deletable refuses to take away what another schema imports.
func (s *Server) deletable(subject string, v version) error {
	if users := s.state.referencing(subject, v.Number); len(users) > 0 {
		return fail(codeReferenceExists, "One or more references exist to the schema {subject=%s,version=%d}: ids %v",
			subject, v.Number, users)
	}
	return nil
}

func (s *Server) deleteVersion(r *http.Request) (any, error) {
	subject, permanent := r.PathValue("subject"), flag(r, "permanent")
	if err := s.writable(subject); err != nil {
		return nil, err
	}
	v, err := s.pick(r, true)
	if err != nil {
		return nil, err
	}
	if err := s.deletable(subject, v); err != nil {
		return nil, err
	}
	switch {
	case permanent && !v.Deleted:
		return nil, fail(codeVersionNotSoftDeleted, "Subject '%s' Version %d was not deleted first before being permanently deleted",
			subject, v.Number)
	case !permanent && v.Deleted:
		return nil, fail(codeVersionDeleted, "Subject '%s' Version %d was soft deleted. Set permanent=true to delete permanently",
			subject, v.Number)
	}
	s.remove(subject, []int{v.Number}, permanent)
	return v.Number, s.save()
}

func (s *Server) deleteSubject(r *http.Request) (any, error) {
	subject, permanent := r.PathValue("subject"), flag(r, "permanent")
	if err := s.writable(subject); err != nil {
		return nil, err
	}
	all, live := s.state.live(subject, true), s.state.live(subject, false)
	switch {
	case len(all) == 0:
		return nil, subjectNotFound(subject)
	case permanent && len(live) > 0:
		return nil, fail(codeSubjectNotSoftDeleted, "Subject '%s' was not deleted first before being permanently deleted", subject)
	case !permanent && len(live) == 0:
		return nil, fail(codeSubjectDeleted, "Subject '%s' was soft deleted. Set permanent=true to delete permanently", subject)
	}
	gone := live
	if permanent {
		gone = all
	}
	for _, v := range gone {
		if err := s.deletable(subject, v); err != nil {
			return nil, err
		}
	}
	list := numbers(gone)
	s.remove(subject, list, permanent)
	return list, s.save()
}

// remove marks the versions deleted, or takes them away. Schemas stay readable by id: topics may still carry them.
func (s *Server) remove(subject string, list []int, permanent bool) {
	kept := []version{}
	for _, v := range s.state.Subjects[subject] {
		if slices.Contains(list, v.Number) {
			if permanent {
				continue
			}
			v.Deleted = true
		}
		kept = append(kept, v)
	}
	s.state.Subjects[subject] = kept
	if len(kept) == 0 {
		delete(s.state.Subjects, subject)
	}
}
