package config

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong with a configuration.
type Problem struct {
	// Where it stands: "icestream.yaml:12:5", "environment variable ICESTREAM_…", "flag --…" or "configuration".
	Where string
	// Path of the setting, such as "limits.hot.bytes" or "pipelines[0].table"; empty for a fault of the whole file.
	Path string
	// What is wrong, and What to do about it.
	What, Todo string
}

// String returns "where: path: what, what to do" without empty parts.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Where)
	if p.Path != "" {
		b.WriteString(": " + p.Path)
	}
	b.WriteString(": " + p.What)
	if p.Todo != "" {
		b.WriteString(", " + p.Todo)
	}
	return b.String()
}

// Errors holds every problem of a configuration, in the order of the file.
type Errors []Problem

// Error prints one problem a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Warnings are problems that do not stop a service; a validating verb shows them.
type Warnings []Problem

// place is where a setting was given.
type place struct {
	where     string
	line, col int
}

// report collects problems and remembers where each setting was given.
type report struct {
	file     string
	places   map[string]place
	errors   Errors
	warnings Warnings
}

func newReport(file string) *report { return &report{file: file, places: map[string]place{}} }

// whereOf returns the place of path, or of the nearest setting around it that was given.
func (r *report) whereOf(path string) string {
	for path != "" {
		if p, ok := r.places[path]; ok {
			return p.where
		}
		cut := max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['))
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	if r.file != "" {
		return r.file
	}
	return "configuration"
}

// addAt reports a problem that stands at a known place.
func (r *report) addAt(where, path, what, todo string) {
	r.errors = append(r.errors, Problem{Where: where, Path: path, What: what, Todo: todo})
}

// add reports a problem of a setting.
func (r *report) add(path, what, todo string) { r.addAt(r.whereOf(path), path, what, todo) }

func (r *report) addf(path, todo, format string, args ...any) {
	r.add(path, fmt.Sprintf(format, args...), todo)
}

func (r *report) warn(where, path, what, todo string) {
	r.warnings = append(r.warnings, Problem{Where: where, Path: path, What: what, Todo: todo})
}

// err returns the collected errors, nil if there are none.
func (r *report) err() error {
	if len(r.errors) == 0 {
		return nil
	}
	return r.errors
}

// Faults collects what only others can find wrong with a configuration that parsed, such as a service with the words of
// its own formats. Each gets the place of its setting, as those that Load finds.
type Faults struct{ r *report }

// Faults begins an empty collection.
func (c *Config) Faults() *Faults {
	r := newReport(c.file)
	if c.where != nil {
		r.places = c.where
	}
	return &Faults{r}
}

// Add notes what is wrong with the setting at path, and what to do about it.
func (f *Faults) Add(path, what, todo string) { f.r.add(path, what, todo) }

// Err returns Errors in the order of the file, nil if there are none.
func (f *Faults) Err() error {
	f.r.sort()
	return f.r.err()
}
