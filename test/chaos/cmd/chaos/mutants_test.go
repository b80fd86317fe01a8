package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that was renamed would let its mutants live: `go test` is content to run nothing.
func TestEveryMutantSaysWhatItStandsForAndWhoNotices(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..")
	files, err := filepath.Glob(filepath.Join(root, "test", "chaos", "mutations", "*.patch"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	readme, err := os.ReadFile(filepath.Join(root, "test", "chaos", "mutations", "README.md"))
	require.NoError(t, err)
	for _, file := range files {
		m, err := readMutation(file)
		require.NoError(t, err)
		require.NotEmpty(t, m.keys["Stands-for"], m.name)
		require.Contains(t, string(readme), "`"+m.name+"`", "the map of the mutants")
		level, ok := m.keys["Level"]
		if !ok {
			continue
		}
		pkg, test, _ := strings.Cut(level, " ")
		tests, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		require.NoError(t, err)
		found := false
		for _, name := range tests {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found = found || regexp.MustCompile(`(?m)^func (`+test+`)\(`).Match(text)
		}
		require.True(t, found, "%s: there is no %s in %s", m.name, test, pkg)
	}
}

// The table of the mutants says which guarantee a seed found broken.
func TestTheReasonOfASeedIsItsViolation(t *testing.T) {
	require.Equal(t, "G4: union at readstate-a: row {0 21} is there tw…",
		reason("03:01 kill buffer-a.1\nseed 14 FAILED: at \"read\": G4: union at readstate-a: row {0 21} is there twice\nmore"))
	require.Equal(t, "seed 3 ended its process: exit status 2", reason("seed 3 ended its process: exit status 2\npanic: …"))
}
