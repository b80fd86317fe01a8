//go:build e2e

package lake

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strconv"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
)

// reading is what the readers that are not ours say about a table: rows by id, or an error in words.
type reading map[string]json.RawMessage

func (b *bench) readByOthers(columns ...string) reading {
	b.Helper()
	args := append([]string{"../../../../test/e2e/peers/v3_tables.py", localPath(b.Head().MetadataLocation)}, columns...)
	cmd := exec.CommandContext(b.Context(), "../../../../test/e2e/peers/python", args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(b, err, "%s%s", out, errs.String())
	b.Logf("%s", out)
	var r reading
	require.NoError(b, json.Unmarshal(out, &r))
	return r
}

// Rows of a table of version 3 without its types, after merges of manifests and another engine's upgrade, are read by
// pyiceberg and DuckDB (docs/interop.md F20).
func TestOtherReadersReadTablesOfVersionThree(t *testing.T) {
	b := newBench(t, version3(map[string]string{table.ManifestMinMergeCountKey: "2"}))
	for range 4 {
		b.commitRows(part(0), 3)
	}
	for name, raw := range b.readByOthers("id", "amount") {
		var rows map[string]any
		require.NoError(t, json.Unmarshal(raw, &rows), "%s: %s", name, raw)
		delete(rows, "types")
		require.Len(t, rows, 12, name)
	}
}

// Nanoseconds are read exactly by those that know them (docs/interop.md F6).
func TestOtherReadersReadNanoseconds(t *testing.T) {
	b := newBench(t, version3(nil))
	b.addColumns(nil, nil, &schema.Node{Name: "local", Type: schema.Of(schema.TimestampNano)})
	b.commitNanos()
	got := b.readByOthers("id", "local")
	for _, name := range []string{"pyiceberg", "duckdb"} {
		b.requireNanos(name, got[name])
	}
	b.addColumns(nil, nil, &schema.Node{Name: "at", Type: schema.Of(schema.TimestampTZNano)})
	got = b.readByOthers("id", "local")
	b.requireNanos("pyiceberg", got["pyiceberg"])
	require.Contains(t, string(got["duckdb"]), "timestamptz_ns", "the table as a whole is refused: when it is no longer, docs/interop.md is to be changed")
}

func (b *bench) requireNanos(name string, raw json.RawMessage) {
	b.Helper()
	var rows map[string]json.RawMessage
	require.NoError(b, json.Unmarshal(raw, &rows), "%s: %s", name, raw)
	for o := range nanos {
		require.JSONEq(b, "["+strconv.FormatInt(nanos[len(nanos)-1-o], 10)+"]", string(rows[strconv.Itoa(o)]), "%s, row %d", name, o)
	}
}

// Variants are read by DuckDB; pyiceberg says that it cannot (docs/interop.md F6).
func TestOtherReadersReadVariants(t *testing.T) {
	b := newBench(t, version3(nil))
	b.addVariants()
	b.commitVariants()
	got := b.readByOthers("id", "v")
	var rows map[string][]string
	require.NoError(t, json.Unmarshal(got["duckdb"], &rows), "%s", got["duckdb"])
	require.Equal(t, []string{"VARIANT"}, rows["types"])
	for i, want := range variants {
		if want == "" {
			want = "null"
		}
		require.JSONEq(t, want, rows[strconv.Itoa(i)][0])
	}
	require.Contains(t, string(got["pyiceberg"]), "ValidationError", "the table as a whole is refused: when it is no longer, docs/interop.md is to be changed")
}
