package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Redacted returns the whole configuration in force as YAML, defaults included, for people and logs. Secrets are
// redacted; a value that came from ${env:…} or ${file:…} is shown as that reference.
func (c *Config) Redacted() []byte {
	root := mapping()
	emit(root, settings(), c, "", c.references)
	defaults := mapping()
	emit(defaults, optionSettings(), &c.Defaults, "defaults", c.references)
	put(root, "defaults", defaults)
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range c.Pipelines {
		path := fmt.Sprintf("pipelines[%d]", i)
		item := mapping()
		emit(item, pipelineSettings(), &c.Pipelines[i], path, c.references)
		emit(item, optionSettings(), &c.Pipelines[i].Options, path, c.references)
		list.Content = append(list.Content, item)
	}
	put(root, "pipelines", list)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil { // a tree of scalars always encodes; never hide it if it does not
		return []byte("# printing the configuration: " + err.Error() + "\n")
	}
	return b.Bytes()
}

// LogValue logs the configuration in its redacted form.
func (c *Config) LogValue() slog.Value { return slog.StringValue(string(c.Redacted())) }

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func scalar(text string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(text)
	return n
}

func put(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, scalar(key), value)
}

// section returns the mapping under key, added if it is missing.
func section(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	kid := mapping()
	put(m, key, kid)
	return kid
}

// emit adds the settings of a table that hold anything to m.
func emit[T any](m *yaml.Node, table []setting[T], root *T, path string, references map[string]string) {
	for _, s := range table {
		at := m
		keys := strings.Split(s.key, "/")
		for _, key := range keys[:len(keys)-1] {
			at = section(at, key)
		}
		full := join(path, s.path())
		value := node(s.at(root), full, references)
		if raw, ok := references[full]; ok {
			value = scalar(raw)
		}
		if value != nil {
			put(at, keys[len(keys)-1], value)
		}
	}
}

// node renders the value behind ptr, nil if it is empty.
func node(ptr any, path string, references map[string]string) *yaml.Node {
	switch ptr := ptr.(type) {
	case *[]string:
		if len(*ptr) == 0 {
			return nil
		}
		list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i, v := range *ptr {
			if raw, ok := references[fmt.Sprintf("%s[%d]", path, i)]; ok {
				v = raw
			}
			list.Content = append(list.Content, scalar(v))
		}
		return list
	case *Properties:
		if len(*ptr) == 0 {
			return nil
		}
		m, shown := mapping(), ptr.shown()
		for _, k := range slices.Sorted(maps.Keys(shown)) {
			value := shown[k]
			if raw, ok := references[join(path, k)]; ok {
				value = raw
			}
			put(m, k, scalar(value))
		}
		return m
	case *Start:
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(ptr.String()), &n); err != nil || len(n.Content) == 0 {
			return scalar(ptr.String())
		}
		return n.Content[0]
	}
	text := render(ptr)
	if text == "" {
		return nil
	}
	n := scalar(text)
	switch ptr.(type) {
	case *int, *int64, *bool:
		n = &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	}
	return n
}

// render prints the value behind ptr as the file would hold it; secrets are redacted.
func render(ptr any) string {
	switch ptr := ptr.(type) {
	case *string:
		return *ptr
	case *int:
		return strconv.Itoa(*ptr)
	case *int64:
		return strconv.FormatInt(*ptr, 10)
	case *bool:
		return strconv.FormatBool(*ptr)
	case *time.Duration:
		return formatDuration(*ptr)
	case *[]string:
		if len(*ptr) == 0 {
			return ""
		}
		return "[" + strings.Join(*ptr, ", ") + "]"
	case fmt.Stringer:
		return ptr.String()
	}
	return fmt.Sprint(ptr)
}
