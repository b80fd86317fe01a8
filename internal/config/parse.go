package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/icestream/icestream/internal/near"
)

// maxDepth bounds nesting, so that neither a hostile file nor an alias to its own parent can exhaust the stack.
const maxDepth = 32

// leaf is a setting bound to the value it fills.
type leaf struct {
	ptr    any
	values []string
}

// branch is a section: its keys lead to further sections or to leaves.
type branch struct {
	kids  map[string]*branch
	order []string
	leaf  *leaf
	// custom replaces the walk for a key whose value is read later.
	custom func(n *yaml.Node)
}

func newBranch() *branch { return &branch{kids: map[string]*branch{}} }

func (b *branch) kid(key string) *branch {
	k, ok := b.kids[key]
	if !ok {
		k = newBranch()
		b.kids[key] = k
		b.order = append(b.order, key)
	}
	return k
}

// bind adds the settings of a table, with the values of root, under b.
func bind[T any](b *branch, table []setting[T], root *T) {
	for _, s := range table {
		at := b
		for key := range strings.SplitSeq(s.key, "/") {
			at = at.kid(key)
		}
		at.leaf = &leaf{ptr: s.at(root), values: s.values}
	}
}

// parser fills bound values from YAML nodes and reports what is wrong.
type parser struct {
	*report

	expand expander
	// references holds, by path, the unexpanded text of values that contain a reference.
	references map[string]string
	overruled  map[string]bool
}

func (p *parser) place(n *yaml.Node) string { return fmt.Sprintf("%s:%d:%d", p.file, n.Line, n.Column) }

// walk reads node n into the section or setting b.
func (p *parser) walk(b *branch, n *yaml.Node, path string, depth int) {
	if depth > maxDepth {
		p.addAt(p.place(n), path, "is nested too deeply", "check its anchors and aliases")
		return
	}
	if n.Kind == yaml.AliasNode {
		p.walk(b, n.Alias, path, depth+1)
		return
	}
	p.places[path] = place{p.place(n), n.Line, n.Column}
	switch {
	case b.custom != nil:
		b.custom(n)
	case b.leaf != nil:
		p.set(b.leaf, n, path)
	case isNull(n): // a section whose keys are all commented out
	case n.Kind != yaml.MappingNode:
		p.addAt(p.place(n), path, "must be a mapping of keys", "known keys: "+strings.Join(b.order, ", "))
	default:
		p.mapping(b, n, path, depth)
	}
}

func (p *parser) mapping(b *branch, n *yaml.Node, path string, depth int) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		sub := join(path, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode:
			p.addAt(p.place(key), path, "has a key that is not a word", "write plain keys")
		case seen[key.Value]:
			p.addAt(p.place(key), sub, "is given twice", "remove one of them")
		case b.kids[key.Value] == nil:
			p.unknown(b, key, path)
		default:
			p.walk(b.kids[key.Value], value, sub, depth+1)
		}
		seen[key.Value] = true
	}
}

func (p *parser) unknown(b *branch, key *yaml.Node, path string) {
	sub := join(path, key.Value)
	if todo := refused(sub); todo != "" {
		p.addAt(p.place(key), sub, "is not a setting of Icestream", todo)
		return
	}
	todo := "known keys: " + strings.Join(b.order, ", ")
	if n := near.Name(key.Value, b.order); n != "" {
		todo = fmt.Sprintf("did you mean %q?", n)
	} else if elsewhere := elsewhere(key.Value); elsewhere != "" {
		todo = "it belongs at " + elsewhere
	}
	p.addAt(p.place(key), sub, "is an unknown key", todo)
}

// elsewhere finds a setting of another section that has this key.
func elsewhere(key string) string {
	for _, s := range settings() {
		if s.key == key || strings.HasSuffix(s.key, "/"+key) {
			return s.path()
		}
	}
	return ""
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// set reads a node into a setting.
func (p *parser) set(l *leaf, n *yaml.Node, path string) {
	if isNull(n) {
		p.addAt(p.place(n), path, "has no value", "give one, or remove the key to get the default")
		return
	}
	switch ptr := l.ptr.(type) {
	case *[]string:
		if list, ok := p.list(n, path); ok {
			p.choose(l, list, n, path)
			*ptr = list
		}
	case *Properties:
		p.properties(ptr, n, path)
	case *Start:
		p.start(ptr, n, path)
	default:
		if text, ok := p.scalar(n, path); ok {
			p.setText(l, text, p.place(n), path)
		}
	}
}

// scalar returns the expanded text of a plain value.
func (p *parser) scalar(n *yaml.Node, path string) (string, bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		p.addAt(p.place(n), path, "must be a single value", "write it on one line")
		return "", false
	}
	return p.expanded(n.Value, p.place(n), path)
}

func (p *parser) expanded(raw, where, path string) (string, bool) {
	text, used, err := p.expand.text(raw)
	if err != nil {
		p.addAt(where, path, err.Error(), "set it, or write the value here")
		return "", false
	}
	if used {
		p.references[path] = raw
	} else {
		delete(p.references, path) // a flag over a reference of the file
	}
	return text, true
}

// list reads a sequence of scalars, or one scalar with commas.
func (p *parser) list(n *yaml.Node, path string) ([]string, bool) {
	var out []string
	if n.Kind == yaml.ScalarNode {
		text, ok := p.scalar(n, path)
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
		return out, ok
	}
	if n.Kind != yaml.SequenceNode {
		p.addAt(p.place(n), path, "must be a list", "write [a, b]")
		return nil, false
	}
	whole := true
	for i, item := range n.Content {
		text, ok := p.scalar(item, fmt.Sprintf("%s[%d]", path, i))
		whole = whole && ok
		out = append(out, text)
	}
	return out, whole
}

// choose checks each element of a list with a fixed choice.
func (p *parser) choose(l *leaf, list []string, n *yaml.Node, path string) {
	for _, word := range list {
		if len(l.values) > 0 && !slices.Contains(l.values, word) {
			p.addAt(p.place(n), path, fmt.Sprintf("%q is not known", word), oneOf(word, l.values))
		}
	}
}

func (p *parser) properties(ptr *Properties, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		p.addAt(p.place(n), path, "must be a mapping of words to values", "write {s3.region: us-east-1}")
		return
	}
	out := Properties{}
	maps.Copy(out, *ptr) // the defaults of all pipelines, each of which may be overridden
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		sub := join(path, key.Value)
		if seen[key.Value] {
			p.addAt(p.place(key), sub, "is given twice", "remove one of them")
		}
		seen[key.Value] = true
		p.places[sub] = place{p.place(key), key.Line, key.Column}
		if text, ok := p.scalar(n.Content[i+1], sub); ok {
			out[key.Value] = NewSecret(text)
		}
	}
	*ptr = out
}

// start reads the word or mapping of `start`.
func (p *parser) start(ptr *Start, n *yaml.Node, path string) {
	const todo = "write earliest, latest, group, {timestamp: 2026-01-01T00:00:00Z} or {offsets: {topic: {0: 100}}}"
	if n.Kind == yaml.ScalarNode {
		if text, ok := p.scalar(n, path); ok {
			switch text {
			case "earliest", "latest", "group":
				*ptr = Start{Mode: text}
			default:
				p.addAt(p.place(n), path, fmt.Sprintf("%q is not a start", text), todo)
			}
		}
		return
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		p.addAt(p.place(n), path, "is not a start", todo)
		return
	}
	value := n.Content[1]
	switch n.Content[0].Value {
	case "timestamp":
		text, ok := p.scalar(value, path)
		at, err := time.Parse(time.RFC3339Nano, text)
		if ok && err != nil {
			p.addAt(p.place(value), path, fmt.Sprintf("%q is not a time", text), "write it as 2026-01-01T00:00:00Z")
		}
		*ptr = Start{Mode: "timestamp", At: at.UTC()}
	case "offsets":
		offsets := map[string]map[int32]int64{}
		if err := value.Decode(&offsets); err != nil {
			p.addAt(p.place(value), path, "is not a mapping of topic to partition to offset", todo)
		}
		*ptr = Start{Mode: "offsets", Offsets: offsets}
	default:
		p.addAt(p.place(n), path, fmt.Sprintf("%q is not a start", n.Content[0].Value), todo)
	}
}

func oneOf(word string, values []string) string {
	if n := near.Name(word, values); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	return "use one of " + strings.Join(values, ", ")
}

// setText parses the text of a scalar setting into its value.
func (p *parser) setText(l *leaf, text, where, path string) {
	if len(l.values) > 0 && !slices.Contains(l.values, text) {
		if list, ok := l.ptr.(*[]string); ok {
			p.setList(l, list, text, where, path)
			return
		}
		p.addAt(where, path, p.veil(path, text, fmt.Sprintf("%q is not known", text)), oneOf(text, l.values))
		return
	}
	if err := assign(l.ptr, text); err != nil {
		p.addAt(where, path, p.veil(path, text, err.Error()), "")
	}
}

// veil puts the reference back into a message about a value that came from one: what it resolves to may be secret.
func (p *parser) veil(path, text, message string) string {
	if raw, ok := p.references[path]; ok && text != "" {
		return strings.ReplaceAll(message, strconv.Quote(text), strconv.Quote(raw))
	}
	return message
}

// setList reads a list given as one text, by the environment or a flag.
func (p *parser) setList(l *leaf, list *[]string, text, where, path string) {
	if err := assign(list, text); err != nil {
		p.addAt(where, path, err.Error(), "")
	}
	for _, word := range *list {
		if !slices.Contains(l.values, word) {
			p.addAt(where, path, fmt.Sprintf("%q is not known", word), oneOf(word, l.values))
		}
	}
}

// assign parses text into the value behind ptr.
func assign(ptr any, text string) error {
	switch ptr := ptr.(type) {
	case *string:
		*ptr = text
	case *Secret:
		*ptr = NewSecret(text)
	case *bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		*ptr = v
	case *int:
		v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*ptr = int(v)
	case *int64:
		v, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*ptr = v
	case *time.Duration:
		v, err := parseDuration(text)
		if err != nil {
			return err
		}
		*ptr = v
	case *[]string:
		*ptr = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*ptr = append(*ptr, part)
			}
		}
	case *Start:
		if !slices.Contains([]string{"earliest", "latest", "group"}, text) {
			return fmt.Errorf("%q is not a start: use earliest, latest or group here, the other forms in the file", text)
		}
		*ptr = Start{Mode: text}
	case encoding.TextUnmarshaler:
		return ptr.UnmarshalText([]byte(text))
	default:
		return errors.New("can only be set in the file")
	}
	return nil
}
