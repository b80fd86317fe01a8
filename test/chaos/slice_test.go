//go:build !synctests

package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// G1, G2, G3, G4, G5, G6, G9, G11: a slice of what `make chaos` plays. The seeds need the tag that makes the locks of the Kafka client
// visible to virtual time, so they are a build of their own.
func TestASliceOfTheSeedsHolds(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "test", "-tags", "synctests", "-count=1", "-run", "EverySeed", ".", "-args", "-seeds", "6")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A protection that was rewritten takes its mutant with it: one that does not apply any more would be found only by `make mutants`.
func TestEveryMutantStillApplies(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git applies the patches, and is not here")
	}
	patches, err := filepath.Glob("mutations/*.patch")
	require.NoError(t, err)
	require.NotEmpty(t, patches)
	for _, name := range patches {
		cmd := exec.CommandContext(t.Context(), "git", "apply", "--check", "--unidiff-zero", filepath.Join("test", "chaos", name))
		cmd.Dir = filepath.Join("..", "..")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
}
