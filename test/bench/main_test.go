//go:build bench

package bench

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/test/bench/shapes"
)

var (
	gate     = flag.Bool("gate", false, "fail when a ratio misses its aim")
	rounds   = flag.Int("rounds", 2, "rounds of pipeline and floor for each shape; the best of each counts")
	scale    = flag.Float64("scale", 1, "factor on the number of records")
	only     = flag.String("shapes", "event,order,wide", "shapes to run the pipeline with, or none")
	parts    = flag.String("parts", "pipeline,hop,decode", "what to measure")
	hotBytes = flag.String("hot", "512MiB", "limits.hot.bytes of the pipeline")
	profiles = flag.String("cpuprofile", "", "folder for a CPU profile of each shape's last pipeline and floor")
	keep     = flag.Bool("keep", false, "leave the folder of the run in place, and say where")
)

// records of each shape at -scale 1: two to three seconds of work on two cores.
var records = map[string]int{"event": 1_500_000, "order": 400_000, "wide": 800_000}

// aims are the least ratios of pipeline to floor. The wide shape has none of its
// own: its decode fills sixty columns for eight values, which the floor never sees.
var aims = map[string]float64{
	"event": 0.6, "order": 0.7, "hop": 0.6,
	"decode event": 0.6, "decode order": 0.4, "decode wide": 0.25,
	"decode event dynamicpb": 10, "decode order dynamicpb": 10, "decode wide dynamicpb": 10,
}

// TestMain turns the same binary into the peers: they run in a process of their
// own, so that their CPU and memory are not taken for ours.
func TestMain(m *testing.M) {
	if dir := os.Getenv(peersEnv); dir != "" {
		if err := servePeers(dir, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench peers:", err)
			os.Exit(1) //nolint:forbidigo // the exit of a process that is no test
		}
		return
	}
	m.Run()
}

func TestBench(t *testing.T) {
	boot.Tune(stack.Services * boot.Headroom)
	out := &report{w: os.Stdout}
	out.line("%s, %d CPUs, %s/%s, GOGC %d", boot.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, gcPercent())
	out.load("start")
	if has(*parts, "pipeline") {
		benchPipelines(t, out)
	}
	if has(*parts, "hop") {
		out.hop(benchHop(t))
	}
	if has(*parts, "decode") {
		out.decode(benchDecode(t))
	}
	out.load("end")
	if *gate {
		require.Empty(t, out.missed, "ratios below their aim")
	}
}

func benchPipelines(t *testing.T, out *report) {
	dir := t.TempDir()
	if *keep {
		var err error
		dir, err = os.MkdirTemp("", "icestream-bench-") //nolint:usetesting // it is to outlive the test
		require.NoError(t, err)
		out.line("folder: %s", dir)
	}
	p := startPeers(t, filepath.Join(dir, "peers"))
	out.pipelineHeader()
	for _, s := range shapes.All() {
		if !has(*only, s.Name) {
			continue
		}
		n := int64(math.Ceil(float64(records[s.Name]) * *scale))
		topic := p.produce(t, s.Name, n)
		var best pair
		for round := range *rounds {
			got := runPair(t, dir, p, s, topic, round)
			best = best.better(got)
			debug.FreeOSMemory()
		}
		out.pipeline(s.Name, topic, best)
	}
	out.pipelineFooter()
}

// pair is one pipeline and its floor, measured one after the other.
type pair struct{ pipeline, floor measure }

// better keeps the faster of each: what disturbs a run only ever makes it slower.
func (p pair) better(q pair) pair {
	if p.pipeline.rows == 0 || q.pipeline.rate() > p.pipeline.rate() {
		p.pipeline = q.pipeline
	}
	if p.floor.rows == 0 || q.floor.rate() > p.floor.rate() {
		p.floor = q.floor
	}
	return p
}

func runPair(t *testing.T, dir string, p *peers, s shapes.Shape, topic topic, round int) pair {
	profile := func(what string) string {
		if *profiles == "" || round+1 < *rounds {
			return ""
		}
		require.NoError(t, os.MkdirAll(*profiles, 0o755))
		return filepath.Join(*profiles, s.Name+"-"+what+".pprof")
	}
	name := fmt.Sprintf("%s_%d", s.Name, round)
	pipeline, files := runPipeline(t, filepath.Join(dir, name), p, s, topic, "bench."+name, profile("pipeline"))
	floor := runFloor(t, files, filepath.Join(dir, name+"-floor.parquet"), topic.records, profile("floor"))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
	return pair{pipeline, floor}
}

// has reports whether a comma list holds a word.
func has(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(w) == word {
			return true
		}
	}
	return false
}

// gcPercent is the percentage that is set.
func gcPercent() int {
	old := debug.SetGCPercent(100)
	debug.SetGCPercent(old)
	return old
}
