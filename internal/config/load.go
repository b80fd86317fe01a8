package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/icestream/icestream/internal/near"
)

// EnvPrefix begins the name of every environment variable that overrides a setting: the path in upper case with
// every other character as "_", so limits.hot.bytes is ICESTREAM_LIMITS_HOT_BYTES.
const EnvPrefix = "ICESTREAM_"

// EnvFile names the configuration file; the commands read it, Load ignores it.
const EnvFile = EnvPrefix + "CONFIG"

// Override is a value given by a flag.
type Override struct {
	Path  string // such as "limits.hot.bytes" or "catalog.properties.s3.region"
	Value string
	Flag  string // how the user wrote it, for messages; "" means --set PATH
}

// Load reads the configuration from the file at path (none if path is empty), the environment (as os.Environ gives
// it) and flags. All problems are returned at once, as Errors; the configuration is nil then. Warnings are returned
// in both cases.
func Load(path string, env []string, overrides []Override) (*Config, Warnings, error) {
	var data []byte
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, nil, fmt.Errorf("reading the configuration: %w; name the file with --config or %s", err, EnvFile)
		}
	}
	return Parse(path, data, env, overrides)
}

// Validate does what Load does and returns only what is wrong.
func Validate(path string, env []string, overrides []Override) (Warnings, error) {
	_, warnings, err := Load(path, env, overrides)
	return warnings, err
}

// Parse is Load for a file that is in memory already; name stands for it in messages, and its folder is where
// relative ${file:…} references are looked up.
func Parse(name string, data []byte, env []string, overrides []Override) (*Config, Warnings, error) {
	c := Default()
	r := newReport(name)
	vars := environment(env)
	p := &parser{report: r, expand: expander{env: vars, dir: filepath.Dir(name)}, references: map[string]string{}, overruled: map[string]bool{}}

	var pipelines *yaml.Node
	root := newBranch()
	bind(root, settings(), c)
	bind(root.kid("defaults"), optionSettings(), &c.Defaults)
	leaves := flatten(root) // before pipelines: they have no environment names and no flags
	root.kid("pipelines").custom = func(n *yaml.Node) { pipelines = n }

	doc, ok := r.document(data)
	if !ok {
		return nil, r.warnings, r.err()
	}
	if doc != nil {
		p.walk(root, doc, "", 0)
	}
	p.environment(leaves, vars)
	p.flags(leaves, overrides, &c.Catalog.Properties)
	c.Pipelines = p.pipelines(pipelines, c.Defaults)
	c.where, c.file, c.references, c.overruled = r.places, name, p.references, p.overruled

	c.check(r)
	r.sort()
	if err := r.err(); err != nil {
		return nil, r.warnings, err
	}
	return c, r.warnings, nil
}

// Validate checks a configuration that was built in code, or changed after Load, and returns Errors or nil.
func (c *Config) Validate() error {
	r := newReport(c.file)
	if c.where != nil {
		r.places = c.where
	}
	c.check(r)
	return r.err()
}

// document parses data to its one root node; nil for an empty file.
func (r *report) document(data []byte) (*yaml.Node, bool) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, true
	}
	if err != nil {
		where, what := r.syntax(err)
		r.addAt(where, "", what, "check the indentation and quotes around it")
		return nil, false
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		r.addAt(r.file, "", "holds several YAML documents", "keep one")
		return nil, false
	}
	return doc.Content[0], true
}

// syntax takes the line out of a message of the YAML library.
func (r *report) syntax(err error) (where, what string) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := regexp.MustCompile(`^line (\d+): (.*)$`).FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s:%s:1", r.file, m[1]), "is not valid YAML: " + m[2]
	}
	return r.file, "is not valid YAML: " + text
}

// flatten lists the settings under b by path.
func flatten(b *branch) map[string]*leaf {
	out := map[string]*leaf{}
	var visit func(*branch, string)
	visit = func(b *branch, path string) {
		if b.leaf != nil {
			out[path] = b.leaf
		}
		for key, kid := range b.kids {
			visit(kid, join(path, key))
		}
	}
	visit(b, "")
	return out
}

// envName returns the environment variable that overrides the setting at path.
func envName(path string) string {
	return EnvPrefix + strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z' || '0' <= r && r <= '9':
			return r
		default:
			return '_'
		}
	}, path)
}

func (p *parser) environment(leaves map[string]*leaf, vars map[string]string) {
	byName := map[string]string{}
	for path := range leaves {
		byName[envName(path)] = path
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if !strings.HasPrefix(name, EnvPrefix) || name == EnvFile {
			continue
		}
		where := "environment variable " + name
		path, ok := byName[name]
		if !ok {
			todo := "remove it"
			if n := near.Name(name, slices.Sorted(maps.Keys(byName))); n != "" {
				todo = "did you mean " + n + "?"
			}
			p.warn(where, "", "is no setting and has no effect", todo)
			continue
		}
		p.override(leaves[path], path, vars[name], where)
	}
}

func (p *parser) flags(leaves map[string]*leaf, overrides []Override, properties *Properties) {
	for _, o := range overrides {
		where := "flag " + o.Flag
		if o.Flag == "" {
			where = "flag --set " + o.Path
		}
		if key, ok := strings.CutPrefix(o.Path, "catalog.properties."); ok {
			p.places[o.Path] = place{where: where}
			if text, ok := p.expanded(o.Value, where, o.Path); ok {
				merged := maps.Clone(*properties)
				if merged == nil {
					merged = Properties{}
				}
				merged[key] = NewSecret(text)
				*properties = merged
			}
			continue
		}
		l, ok := leaves[o.Path]
		if !ok {
			todo := "see docs/reference/config.md"
			if n := near.Name(o.Path, slices.Sorted(maps.Keys(leaves))); n != "" {
				todo = fmt.Sprintf("did you mean %q?", n)
			}
			p.addAt(where, o.Path, "is no setting that a flag can change", todo)
			continue
		}
		if _, given := p.places[o.Path]; given && !empty(l.ptr) {
			p.overruled[o.Path] = true
		}
		p.override(l, o.Path, o.Value, where)
	}
}

// Overruled reports whether a flag took the place of a value that the file or the environment gives to the setting at
// path, one that is not empty.
func (c *Config) Overruled(path string) bool { return c.overruled[path] }

func empty(ptr any) bool {
	switch v := ptr.(type) {
	case *string:
		return *v == ""
	case *[]string:
		return len(*v) == 0
	default:
		return false
	}
}

func (p *parser) override(l *leaf, path, raw, where string) {
	p.places[path] = place{where: where}
	if text, ok := p.expanded(raw, where, path); ok {
		p.setText(l, text, where, path)
	}
}

// newPipeline is a pipeline of which nothing is said; its options are those of the defaults.
func newPipeline() Pipeline {
	return Pipeline{Schema: SchemaRef{Framing: "confluent"}, KeySchema: SchemaRef{Framing: "confluent"}, UnknownFields: "skip"}
}

// pipelines reads the list of pipelines, each on top of the defaults.
func (p *parser) pipelines(n *yaml.Node, defaults Options) []Pipeline {
	if n == nil || isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.addAt(p.place(n), "pipelines", "must be a list", "begin each pipeline with \"- name: …\"")
		return nil
	}
	out := make([]Pipeline, len(n.Content))
	for i, item := range n.Content {
		out[i] = newPipeline()
		out[i].Options = defaults
		b := newBranch()
		bind(b, pipelineSettings(), &out[i])
		bind(b, optionSettings(), &out[i].Options)
		p.walk(b, item, fmt.Sprintf("pipelines[%d]", i), 1)
	}
	return out
}

// sort puts problems of the file in the order of the file; the others follow.
func (r *report) sort() {
	type position struct{ line, col int }
	at := func(p Problem) position {
		parts := strings.Split(strings.TrimPrefix(p.Where, r.file), ":")
		if len(parts) == 3 {
			line, lerr := strconv.Atoi(parts[1])
			col, cerr := strconv.Atoi(parts[2])
			if lerr == nil && cerr == nil {
				return position{line, col}
			}
		}
		return position{1 << 30, 0}
	}
	slices.SortStableFunc(r.errors, func(a, b Problem) int {
		pa, pb := at(a), at(b)
		if pa.line != pb.line {
			return pa.line - pb.line
		}
		return pa.col - pb.col
	})
}
