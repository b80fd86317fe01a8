package registry

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// readOverrides compiles the schemas that the operator supplies. Keys are ids or
// GUIDs, values files with Protobuf source or a serialized descriptor in base64. An
// import is looked for beside the file, then in each folder above it; the built-in
// ones are there already. A fault is one of the configuration.
func readOverrides(files map[string]string) (map[Ref]*Schema, error) {
	out := make(map[Ref]*Schema, len(files))
	for key, path := range files {
		ref, err := parseRef(key)
		if err != nil {
			return nil, fmt.Errorf("reading schema override %s: %w", key, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading override of %s: %w", ref, err)
		}
		r := &resolver{root: rootName(ref), text: string(text), folder: filepath.Dir(path)}
		file, err := r.compile(context.Background(), ref.String()+" from "+path)
		if err != nil {
			return nil, fmt.Errorf("reading override of %s: %w", ref, err)
		}
		out[ref] = &Schema{Ref: ref, File: file}
	}
	return out, nil
}

func parseRef(key string) (Ref, error) {
	if id, err := strconv.ParseInt(key, 10, 32); err == nil && id > 0 {
		return Ref{ID: int32(id)}, nil
	}
	guid, err := frame.ParseGUID(key)
	if err != nil {
		return Ref{}, fmt.Errorf("%q is neither a schema id nor a GUID", key)
	}
	return Ref{GUID: guid, ByGUID: true}, nil
}

// importedFile finds the file that an override imports.
func importedFile(folder, path string) (text string, found bool) {
	if folder == "" || !filepath.IsLocal(path) {
		return "", false
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return "", false
	}
	for {
		if raw, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(path))); err == nil {
			return string(raw), true
		}
		above := filepath.Dir(folder)
		if above == folder {
			return "", false
		}
		folder = above
	}
}

// blanked replaces a part of the text by blanks, so that lines keep their number.
func blanked(part string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return ' '
	}, part)
}
