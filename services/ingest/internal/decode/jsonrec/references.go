package jsonrec

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
)

// document finds the one that a $ref in another means: by its name or $id as it stands
// there, then by what that is relative to the $id or the name of the document that says
// it. After those any that has the same end is taken, because schemas are written with
// names and ids that do not fit each other; it must be the only one.
func (r *reader) document(in *document, ref string) (*document, error) {
	for _, full := range []string{ref, relative(in.id, ref), relative(in.name, ref)} {
		if full == "" {
			continue
		}
		for _, key := range []func(*document) string{(*document).byName, (*document).byID} {
			found := r.matching(func(d *document) bool { return key(d) == full })
			if len(found) > 0 {
				return one(found)
			}
		}
	}
	longest := 0
	for _, d := range r.docs {
		for _, known := range []string{d.name, d.id} {
			if known != "" && strings.HasSuffix(ref, "/"+known) {
				longest = max(longest, len(known))
			}
		}
	}
	return one(r.matching(func(d *document) bool {
		for _, known := range []string{d.name, d.id} {
			if longest > 0 && len(known) == longest && strings.HasSuffix(ref, "/"+known) ||
				longest == 0 && strings.HasSuffix(known, "/"+ref) {
				return true
			}
		}
		return false
	}))
}

func (d *document) byName() string { return d.name }

func (d *document) byID() string { return d.id }

func (r *reader) matching(fits func(*document) bool) []*document {
	return slices.DeleteFunc(slices.Clone(r.docs), func(d *document) bool { return !fits(d) })
}

// one is the only document of those found. The same text under several names is one.
func one(found []*document) (*document, error) {
	if len(found) == 0 {
		return nil, errors.New("names none of the references")
	}
	for _, d := range found[1:] {
		if d.text != found[0].text {
			var names []string
			for _, d := range found {
				names = append(names, d.title())
			}
			return nil, fmt.Errorf("may be any of %s", strings.Join(names, ", "))
		}
	}
	return found[0], nil
}

func (d *document) title() string {
	if d.name == "" {
		return "the schema itself"
	}
	return d.name
}

// relative is what a reference means in a document of the given name or $id, "" where
// that says nothing.
func relative(base, ref string) string {
	if base == "" {
		return ""
	}
	b, err := url.Parse(base)
	if err != nil || b.Scheme == "" {
		return path.Join(path.Dir(base), ref)
	}
	to, err := b.Parse(ref)
	if err != nil {
		return ""
	}
	return to.String()
}
