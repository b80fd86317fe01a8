package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

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

// CheckOverride says what is wrong with the schema that the operator supplies for an id or GUID.
func CheckOverride(key, path string) error {
	_, err := readOverrides(map[string]string{key: path})
	return err
}

// Overrides names the schemas that the operator supplies, with all that they
// import, by a hash: records may become other rows where it differs. It is "" where
// there are none.
func (c *Client) Overrides() string { return c.given }

func hashOverrides(schemas map[Ref]*Schema) (string, error) {
	if len(schemas) == 0 {
		return "", nil
	}
	byName := make(map[string]*Schema, len(schemas))
	for ref, s := range schemas {
		byName[ref.String()] = s
	}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		set := &descriptorpb.FileDescriptorSet{}
		if err := collect(set, byName[name].File, map[string]bool{}); err != nil {
			return "", fmt.Errorf("hashing override of %s: %w", name, err)
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
		if err != nil {
			return "", fmt.Errorf("hashing override of %s: %w", name, err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", name, len(raw), raw) // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
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
