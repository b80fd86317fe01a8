// Command chaos plays seeds of test/chaos in several processes, or shows that the seeds notice what they should: it takes
// one protection after the other out of the product and plays until a seed fails. `make chaos` and `make mutants` call
// it from the root of the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context) (bool, error) {
	seeds := flag.Uint64("seeds", 200, "how many seeds to play; for mutants, how many at most")
	first := flag.Uint64("first", 1, "the first of them")
	seed := flag.Uint64("seed", 0, "play this seed alone and print its events and logs")
	workers := flag.Int("workers", runtime.NumCPU(), "processes at a time")
	mutants := flag.Bool("mutants", false, "play mutants of the product instead of the product")
	within := flag.Duration("within", 0, "how long the seeds of one mutant may play; 0 is until all have played")
	level := flag.String("level", "", "of the mutants, those of this level: stack or machine")
	only := flag.String("only", "", "of the mutants, the one of this name, else those whose names contain it")
	flag.Parse()
	dir, err := os.MkdirTemp(scratch(), "chaos-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p := &player{dir: dir, workers: *workers}
	if *mutants {
		return (&bench{player: p, most: *seeds, within: *within, level: *level}).playMutants(ctx, *only)
	}
	binary := filepath.Join(dir, "chaos.test")
	if err := build(ctx, binary, ""); err != nil {
		return false, err
	}
	if *seed != 0 {
		p.first, p.last, p.verbose = *seed, *seed, true
	} else {
		p.first, p.last = *first, *first+*seeds-1
	}
	began := time.Now()
	failed, played := p.play(ctx, binary)
	if err := ctx.Err(); err != nil {
		return false, errors.New("interrupted")
	}
	took := time.Since(began).Round(time.Second)
	if len(failed) > 0 {
		fmt.Printf("FAILED: %d of %d seeds in %v: %s; `SEED=%d make chaos` plays one again\n", len(failed), played, took, numbers(failed), failed[0])
		return false, nil
	}
	fmt.Printf("HELD: %d seeds, %d to %d, in %v\n", played, p.first, p.last, took)
	return true, nil
}

// scratch is where worlds live: in memory where that is possible, since their fsyncs prove nothing.
func scratch() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

func numbers(list []uint64) string {
	var out []string
	for _, n := range list[:min(len(list), 20)] {
		out = append(out, fmt.Sprint(n))
	}
	if len(list) > 20 {
		out = append(out, "…")
	}
	return strings.Join(out, ", ")
}
