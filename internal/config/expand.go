package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// expander resolves ${env:NAME} and ${file:PATH} in values; $${ stands for a plain ${.
type expander struct {
	env map[string]string
	dir string // relative files are looked up here: the folder of the configuration file
}

// text resolves all references in raw; used tells whether there was one. Errors never contain a resolved value.
func (e expander) text(raw string) (out string, used bool, err error) {
	var b strings.Builder
	for {
		at := strings.Index(raw, "${")
		if at < 0 {
			b.WriteString(raw)
			return b.String(), used, nil
		}
		if at > 0 && raw[at-1] == '$' {
			b.WriteString(raw[:at-1] + "${")
			raw = raw[at+2:]
			continue
		}
		end := strings.IndexByte(raw[at:], '}')
		if end < 0 {
			return "", false, fmt.Errorf("has a reference without its closing brace")
		}
		value, err := e.reference(raw[at+2 : at+end])
		if err != nil {
			return "", false, err
		}
		b.WriteString(raw[:at] + value)
		raw, used = raw[at+end+1:], true
	}
}

func (e expander) reference(ref string) (string, error) {
	kind, name, _ := strings.Cut(ref, ":")
	switch kind {
	case "env":
		value, ok := e.env[name]
		if !ok {
			return "", fmt.Errorf("refers to the environment variable %s, which is not set", name)
		}
		return value, nil
	case "file":
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(e.dir, path)
		}
		return readReference(path)
	default:
		return "", fmt.Errorf("has the unknown reference ${%s}: use ${env:NAME} or ${file:PATH}, and $${ for a plain ${", ref)
	}
}

// maxReference bounds a file that a value refers to; it is a password or a token, not a disk.
const maxReference = 1 << 20

func readReference(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("refers to a file that cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxReference {
		return "", fmt.Errorf("refers to %s, which is not a regular file of at most 1MiB", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("refers to a file that cannot be read: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// environment turns a list of NAME=value, as os.Environ returns it, into a map.
func environment(list []string) map[string]string {
	out := make(map[string]string, len(list))
	for _, entry := range list {
		if name, value, ok := strings.Cut(entry, "="); ok {
			out[name] = value
		}
	}
	return out
}
