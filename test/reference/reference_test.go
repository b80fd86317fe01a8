// Package reference holds the generated pages of docs/reference to the code that they are made from.
package reference

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/services/buffer"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
	"github.com/icestream/icestream/services/readstate"
)

var update = flag.Bool("update", false, "rewrite the reference pages")

// groups lists every package that declares metrics.
func groups() []obs.Group {
	return []obs.Group{
		{Title: "Process", Defs: obs.Defs()},
		{Title: "gRPC", Defs: rpc.Defs()},
		{Title: "Ingest", Defs: ingest.Defs()},
		{Title: "Buffer", Defs: buffer.Defs()},
		{Title: "Committer", Defs: committer.Defs()},
		{Title: "Readstate", Defs: readstate.Defs()},
	}
}

func TestMetricsReferenceIsCurrent(t *testing.T) {
	require.NoError(t, obs.Check(groups()))
	path := filepath.Join("..", "..", "docs", "reference", "metrics.md")
	want := obs.Reference(groups())
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, want, 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: make generate")
}
