package archtest

import (
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/icestream/icestream"

//go:embed floors.txt
var floorsText string

//go:embed fences.txt
var fencesText string

//go:embed closures.txt
var closuresText string

func theLaw(t *testing.T) *Law {
	t.Helper()
	law, err := ParseLaw(floorsText, fencesText, closuresText)
	require.NoError(t, err)
	return law
}

// goList runs go list at the root of the module.
func goList(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go list %s: %s", strings.Join(args, " "), exit.Stderr)
	}
	require.NoError(t, err)
	return out
}

func relative(paths ...[]string) []string {
	var out []string
	for _, list := range paths {
		for _, p := range list {
			out = append(out, strings.TrimPrefix(p, module+"/"))
		}
	}
	return out
}

// packagesOf reads the packages of the module, those behind build tags included.
func packagesOf(t *testing.T, tags string) []Package {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(goList(t, "-e", "-tags", tags,
		"-json=ImportPath,Imports,TestImports,XTestImports", "./..."))))
	var out []Package
	for {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		if p.ImportPath != module { // the root holds no package of the product
			out = append(out, Package{relative([]string{p.ImportPath})[0], relative(p.Imports), relative(p.TestImports, p.XTestImports)})
		}
	}
}

func TestEveryImportKeepsTheLaw(t *testing.T) {
	for _, tags := range []string{"", "cloud", "e2e,bench"} {
		packages := packagesOf(t, tags)
		require.NotEmpty(t, packages)
		for _, v := range theLaw(t).Check(packages) {
			t.Errorf("with tags %q: %s", tags, v)
		}
	}
}

func TestEveryBinaryLinksOnlyWhatItNeeds(t *testing.T) {
	law := theLaw(t)
	require.Len(t, law.Commands(), 5, "closures.txt bounds all five binaries")
	for _, command := range law.Commands() {
		deps := relative(strings.Fields(string(goList(t, "-deps", "./"+command))))
		require.Contains(t, deps, command)
		for _, v := range law.CheckClosure(command, deps) {
			t.Error(v)
		}
	}
}

// TestPlantedViolationsAreCaught proves that the law can fail, rule by rule, on the real data files.
func TestPlantedViolationsAreCaught(t *testing.T) {
	law := theLaw(t)
	sound := []Package{
		{Path: "internal/ident"},
		{Path: "internal/event", Imports: []string{"internal/ident"}},
		{Path: "internal/readview", Imports: []string{"internal/event"}},
		{Path: "internal/rpc", Imports: []string{"google.golang.org/grpc"}},
		{Path: "internal/devpeers/kafka", Imports: []string{"github.com/twmb/franz-go/pkg/kfake"}},
		{Path: "internal/testkit"},
		{Path: "services/buffer"},
		{Path: "services/buffer/internal/table", Imports: []string{"internal/readview"}, TestImports: []string{"internal/testkit", "github.com/stretchr/testify/require"}},
		{Path: "services/ingest/internal/source", TestImports: []string{"internal/devpeers/kafka"}},
		{Path: "gen/go/icestream/buffer/v1", Imports: []string{"google.golang.org/grpc"}},
	}
	require.Empty(t, law.Check(sound))

	for name, test := range map[string]struct {
		planted Package
		want    string
	}{
		"upward":                {Package{Path: "internal/ident", Imports: []string{"internal/event"}}, "imports go down only"},
		"same floor":            {Package{Path: "internal/fault", Imports: []string{"internal/ident"}}, "imports go down only"},
		"another service":       {Package{Path: "services/ingest", Imports: []string{"services/buffer"}}, "services meet on the wire only"},
		"another, in a test":    {Package{Path: "services/ingest", TestImports: []string{"services/buffer"}}, "services meet on the wire only"},
		"rooms from outside":    {Package{Path: "cmd/icestream", Imports: []string{"services/buffer/internal/table"}}, "uses its facade"},
		"kafka in the buffer":   {Package{Path: "services/buffer/internal/server", Imports: []string{"github.com/twmb/franz-go/pkg/kgo"}}, "is fenced"},
		"sr beside the decoder": {Package{Path: "services/ingest/internal/source", Imports: []string{"github.com/twmb/franz-go/pkg/sr"}}, "is fenced"},
		"iceberg in ingest":     {Package{Path: "services/ingest", Imports: []string{"github.com/apache/iceberg-go/table"}}, "is fenced"},
		"parquet in a test":     {Package{Path: "internal/arrowx", TestImports: []string{"github.com/apache/arrow-go/v18/parquet/pqarrow"}}, "is fenced"},
		"grpc in a machine":     {Package{Path: "services/buffer/internal/table", Imports: []string{"google.golang.org/grpc/codes"}}, "is fenced"},
		"testify in a product":  {Package{Path: "internal/run", Imports: []string{"github.com/stretchr/testify/require"}}, "is fenced"},
		"the old yaml":          {Package{Path: "internal/config", Imports: []string{"gopkg.in/yaml.v3"}}, "nobody"},
		"devpeers in a service": {Package{Path: "services/ingest", Imports: []string{"internal/devpeers/kafka"}}, "which only"},
		"testkit in a binary":   {Package{Path: "cmd/icestream", Imports: []string{"internal/testkit"}}, "which only internal/testkit"},
		"gen in a core":         {Package{Path: "internal/readview", Imports: []string{"gen/go/icestream/buffer/v1"}}, "which only"},
		"a door in a test":      {Package{Path: "internal/rpc", TestImports: []string{"services/buffer"}}, "belongs higher up"},
		"unknown package":       {Package{Path: "internal/util"}, "stands on no floor"},
		"unknown room":          {Package{Path: "services/buffer/internal/misc"}, "stands on no floor"},
	} {
		t.Run(name, func(t *testing.T) {
			got := law.Check(append(slices.Clone(sound), test.planted))
			require.NotEmpty(t, got)
			require.Contains(t, strings.Join(got, "\n"), test.want)
		})
	}
}

func TestPlantedClosuresAreCaught(t *testing.T) {
	law := theLaw(t)
	for command, dep := range map[string]string{
		"services/ingest/cmd/ingestd":       "github.com/apache/iceberg-go/table",
		"services/buffer/cmd/bufferd":       "github.com/twmb/franz-go/pkg/kgo",
		"services/committer/cmd/committerd": "internal/devpeers/catalog",
		"services/readstate/cmd/readstated": "github.com/twmb/franz-go/pkg/kgo",
		"cmd/icestream":                     "internal/testkit",
	} {
		require.Empty(t, law.CheckClosure(command, []string{"fmt", "internal/testkits", "internal/ident"}))
		require.Len(t, law.CheckClosure(command, []string{"fmt", dep}), 1)
	}
}

func TestAMalformedLawIsRefused(t *testing.T) {
	for _, floors := range []string{"x internal/a", "10", "10 internal/a for: b", "10 internal/a\n11 internal/a"} {
		_, err := ParseLaw(floors, "", "")
		require.ErrorContains(t, err, "floors.txt: line", floors)
	}
	_, err := ParseLaw("", "", "cmd/x links: y")
	require.ErrorContains(t, err, "closures.txt: line 1")
}
