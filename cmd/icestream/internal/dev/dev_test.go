package dev

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAFolderWithOtherFilesIsNeverCleared(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.txt")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))
	_, err := prepareFolder(dir, false)
	require.ErrorContains(t, err, "--dir")
	require.FileExists(t, precious)
}

func TestTheNextRunClearsItsOwnFolderUnlessToldToKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	continued, err := prepareFolder(dir, false)
	require.NoError(t, err)
	require.False(t, continued)
	left := filepath.Join(dir, "kafka", "log")
	require.NoError(t, os.MkdirAll(left, 0o755))

	continued, err = prepareFolder(dir, true)
	require.NoError(t, err)
	require.True(t, continued)
	require.DirExists(t, left)

	_, err = prepareFolder(dir, false)
	require.NoError(t, err)
	require.NoDirExists(t, left)
	require.FileExists(t, filepath.Join(dir, markerFile))
}

func TestAProgramGetsOneObjectALine(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, true, true)
	v.say("started", "two\nlines", map[string]any{"kafka": "127.0.0.1:9092"})
	v.stats(Stats{Elapsed: 1500 * time.Millisecond, Produced: 7})
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	require.Len(t, lines, 2)
	var first, second map[string]any
	require.NoError(t, json.Unmarshal(lines[0], &first))
	require.NoError(t, json.Unmarshal(lines[1], &second))
	require.Equal(t, "127.0.0.1:9092", first["kafka"])
	require.InDelta(t, 1.5, second["seconds"], 1e-9)
	require.InDelta(t, 7, second["produced"], 1e-9)
}

func TestPlainLinesComeEverySoOften(t *testing.T) {
	var out bytes.Buffer
	v := newView(&out, false, false)
	for i := range 10 {
		v.stats(Stats{Elapsed: time.Duration(i+1) * 500 * time.Millisecond, Produced: 1_234_567})
	}
	require.Equal(t, 3, bytes.Count(out.Bytes(), []byte("\n")), "%s", out.String())
	require.Contains(t, out.String(), "produced 1,234,567")
}
