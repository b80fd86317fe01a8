//go:build bench

package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// decodePackage has the benchmark of decoder and walk.
const decodePackage = "./services/ingest/internal/decode/proto"

// decoded is nanoseconds per record.
type decoded struct {
	shape         string
	decoder, walk float64
}

// benchDecode runs the decoder's own benchmark: it needs the inside of the
// service, where this package does not reach.
func benchDecode(t *testing.T) []decoded {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-run", "^$", "-bench", "^BenchmarkDecode$/^.*$/^(decoder|walk)$",
		"-benchtime", "300ms", "-count", "3", decodePackage)
	cmd.Dir = moduleRoot(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	line := regexp.MustCompile(`(?m)^BenchmarkDecode/(\w+)/(decoder|walk)\S*\s+\d+\s+([\d.]+) ns/op`)
	var all []decoded
	for _, m := range line.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[3], 64)
		require.NoError(t, err)
		if len(all) == 0 || all[len(all)-1].shape != m[1] {
			all = append(all, decoded{shape: m[1]})
		}
		into := &all[len(all)-1].decoder
		if m[2] == "walk" {
			into = &all[len(all)-1].walk
		}
		if *into == 0 || ns < *into {
			*into = ns
		}
	}
	require.NotEmpty(t, all, "%s", out)
	return all
}

// moduleRoot is the folder of go.mod, above wherever the binary was started.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		require.NotEqual(t, dir, up, "no go.mod above the working folder: run inside of the checkout")
		dir = up
	}
}
