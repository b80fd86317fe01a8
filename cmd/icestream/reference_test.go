package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/run"
)

var update = flag.Bool("update", false, "rewrite the reference page")

// The page of all verbs and flags is made from the commands themselves.
func TestCommandReferenceIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString("# Commands\n\nMade from the commands by `make generate`.\n\n| exit code | name | meaning |\n| --- | --- | --- |\n")
	for _, c := range run.Codes() {
		fmt.Fprintf(&page, "| %d | %s | %s |\n", c.Code, c.Name, c.Meaning)
	}
	writeCommands(t, &page, rootCommand())
	path := filepath.Join("..", "..", "docs", "reference", "commands.md")
	if *update {
		require.NoError(t, os.WriteFile(path, page.Bytes(), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, page.String(), string(got), "run: make generate")
}

func writeCommands(t *testing.T, page *bytes.Buffer, c *cobra.Command) {
	t.Helper()
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if _, group := sub.Annotations[groupNote]; sub.Runnable() && !group {
			require.NotEmpty(t, sub.Example, "%s has no example in its help", sub.CommandPath())
			writeCommand(page, sub)
		}
		writeCommands(t, page, sub)
	}
}

func writeCommand(page *bytes.Buffer, c *cobra.Command) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(page, "\n## %s\n\n%s\n", strings.TrimPrefix(c.UseLine(), "icestream "), text)
	if c.Example != "" {
		fmt.Fprintf(page, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimSpace(c.Example), "\n  ", "\n"))
	}
	var rows bytes.Buffer
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", name, f.DefValue, f.Usage)
	})
	if rows.Len() > 0 {
		fmt.Fprintf(page, "\n| flag | default | |\n| --- | --- | --- |\n%s", rows.String())
	}
}

// Whoever copies an example finds something: every reason that help and documents
// name is one that records can be quarantined for.
func TestReasonsOfExamplesAreGiven(t *testing.T) {
	var code strings.Builder
	ingest := filepath.Join("..", "..", "services", "ingest")
	require.NoError(t, filepath.WalkDir(ingest, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	}))
	var texts strings.Builder
	writeHelp(&texts, rootCommand())
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	require.NoError(t, err)
	plans, err := filepath.Glob(filepath.Join("..", "..", "docs", "design", "*.md"))
	require.NoError(t, err)
	for _, path := range append(append(pages, plans...), filepath.Join("..", "..", "README.md")) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		texts.Write(text)
	}
	example := regexp.MustCompile(`--reason ([a-z][a-z_]+)`)
	found := example.FindAllStringSubmatch(texts.String(), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.Contains(t, code.String(), `"`+strings.TrimPrefix(m[1], "key_")+`"`, "no record is quarantined for %s", m[1])
	}
}

func writeHelp(w *strings.Builder, c *cobra.Command) {
	fmt.Fprintln(w, c.Long, c.Example)
	for _, sub := range c.Commands() {
		writeHelp(w, sub)
	}
}
