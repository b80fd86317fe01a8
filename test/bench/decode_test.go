//go:build bench

package bench

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// decodePackage has the benchmark of decoder, walk and dynamicpb.
const decodePackage = "./services/ingest/internal/decode/proto"

// decoded is what the decoder does with one shape of record.
type decoded struct {
	shape  string
	ns     float64 // per record
	walk   float64 // time of the walk to that of the decoder
	rival  float64 // time of dynamicpb and Arrow's builders to that of the decoder
	bad    float64 // time per record with a bad one in ten, to the time without
	many   float64 // time per record after 500 other schemas were used, to the time before
	allocs float64 // per record
}

// benchDecode runs the decoder's own benchmark: it needs the inside of the
// service, where this package does not reach. Of three runs the best figure counts,
// because what disturbs a run makes it worse, but of the ratios to the rival the
// least: its turns are so long that they are always disturbed.
func benchDecode(t *testing.T) []decoded {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-run", "^$", "-bench", "^BenchmarkRatios$", "-benchtime", "1x", "-count", "3", decodePackage)
	cmd.Dir = moduleRoot(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	line := regexp.MustCompile(`(?m)^BenchmarkRatios/(\w+)\S*\s+1\s+(.*)$`)
	value := regexp.MustCompile(`([\d.]+) (\S+)`)
	var all []decoded
	for _, m := range line.FindAllStringSubmatch(string(out), -1) {
		at := slices.IndexFunc(all, func(d decoded) bool { return d.shape == m[1] })
		if at < 0 {
			at = len(all)
			all = append(all, decoded{shape: m[1], ns: math.Inf(1), rival: math.Inf(1), bad: math.Inf(1), many: math.Inf(1), allocs: math.Inf(1)})
		}
		d := &all[at]
		for _, v := range value.FindAllStringSubmatch(m[2], -1) {
			x, err := strconv.ParseFloat(v[1], 64)
			require.NoError(t, err)
			switch v[2] {
			case "ns/record":
				d.ns = min(d.ns, x)
			case "of-walk":
				d.walk = max(d.walk, x)
			case "x-dynamicpb":
				d.rival = min(d.rival, x)
			case "x-bad":
				d.bad = min(d.bad, x)
			case "x-schemas":
				d.many = min(d.many, x)
			case "allocs":
				d.allocs = min(d.allocs, x)
			}
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
