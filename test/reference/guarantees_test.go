package reference

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const guarantees = 12

var cited = regexp.MustCompile(`\bG(1[0-2]|[1-9])\b`)

// citations maps each guarantee to the tests whose comments cite it, as
// "folder TestName".
func citations(t *testing.T, root string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			for _, g := range citedBy(f, fn) {
				out[g] = append(out[g], filepath.ToSlash(folder)+" "+fn.Name.Name)
			}
		}
		return nil
	}))
	return out
}

// citedBy finds the guarantees in the comments above and inside a function.
func citedBy(f *ast.File, fn *ast.FuncDecl) []string {
	text := fn.Doc.Text()
	for _, c := range f.Comments {
		if fn.Pos() <= c.Pos() && c.End() <= fn.End() {
			text += c.Text()
		}
	}
	found := cited.FindAllString(text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// Each guarantee is held by tests, and the page names them.
func TestGuaranteesReferenceIsCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	by := citations(t, root)
	var page bytes.Buffer
	page.WriteString("# Tests by guarantee\n\nMade from the comments of the tests by `make generate`. The guarantees: [../guarantees.md](../guarantees.md).\n")
	for n := 1; n <= guarantees; n++ {
		g := fmt.Sprintf("G%d", n)
		require.NotEmpty(t, by[g], "no test cites %s", g)
		slices.Sort(by[g])
		fmt.Fprintf(&page, "\n## %s\n\n", g)
		for _, test := range by[g] {
			folder, name, _ := strings.Cut(test, " ")
			fmt.Fprintf(&page, "- `%s` %s\n", folder, name)
		}
	}
	path := filepath.Join(root, "docs", "reference", "guarantees.md")
	if *update {
		require.NoError(t, os.WriteFile(path, page.Bytes(), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, page.String(), string(got), "run: make generate")
}
