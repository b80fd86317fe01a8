package registry

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/twmb/avro"
)

// checkAvro parses an AVRO schema together with the named types of its references.
func (st *state) checkAvro(text string, refs []reference) error {
	known := &avro.SchemaCache{}
	if err := st.eachReference(refs, typeAvro, map[string]bool{}, func(name, text string) error {
		if _, err := known.Parse(text); err != nil {
			return fmt.Errorf("reference %q: %w", name, err)
		}
		return nil
	}); err != nil {
		return err
	}
	_, err := known.Parse(text)
	return err
}

// checkJSON looks whether a JSON schema is one at all: an object or a boolean.
func (st *state) checkJSON(text string, refs []reference) error {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	switch v.(type) {
	case map[string]any, bool:
	default:
		return errors.New("it is neither an object nor a boolean")
	}
	return st.eachReference(refs, typeJSON, map[string]bool{}, func(string, string) error { return nil })
}

// eachReference visits references, each name once, after those that it refers to itself. All are of one type.
func (st *state) eachReference(refs []reference, kind string, seen map[string]bool, visit func(name, text string) error) error {
	for _, ref := range refs {
		if seen[ref.Name] {
			continue
		}
		seen[ref.Name] = true
		target := st.find(ref.Subject, ref.Version)
		if target == nil {
			return fmt.Errorf("reference %q: subject %q has no version %d", ref.Name, ref.Subject, ref.Version)
		}
		if target.Type != kind {
			return fmt.Errorf("reference %q: subject %q holds a schema of type %s", ref.Name, ref.Subject, target.Type)
		}
		if err := st.eachReference(target.References, kind, seen, visit); err != nil {
			return err
		}
		if err := visit(ref.Name, target.Text); err != nil {
			return err
		}
	}
	return nil
}
