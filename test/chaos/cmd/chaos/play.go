package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// batch is how many seeds one process plays: few enough that all workers stay busy to the end.
	batch = 10
	// limit is how long one of them may take before the process is taken for stuck.
	limit = 2 * time.Minute
)

// build makes the test binary; overlay names a file for `go build -overlay`, "" none. The tag makes the locks of the
// Kafka client visible to virtual time.
func build(ctx context.Context, binary, overlay string) error {
	args := []string{"test", "-tags", "synctests", "-c", "-o", binary}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./test/chaos")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the seeds: %w\n%s", err, out)
	}
	return nil
}

// player plays seeds first to last in several processes.
type player struct {
	dir         string
	workers     int
	first, last uint64
	verbose     bool
	quiet       bool // of mutants only the outcome counts
	untilFails  bool // end with the first seed that fails

	mu     sync.Mutex
	next   uint64
	played uint64
	failed []uint64
	why    string // the first failure
}

// play returns the seeds that failed and how many were played.
func (p *player) play(ctx context.Context, binary string) (failed []uint64, played uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.next, p.played, p.failed, p.why = p.first, 0, nil, ""
	var wg sync.WaitGroup
	for range p.workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				from, n := p.take()
				if n == 0 {
					return
				}
				p.process(ctx, binary, from, n)
				if p.untilFails && p.hasFailed() {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(p.failed)
	return p.failed, p.played
}

func (p *player) take() (from, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from = p.next
	if from > p.last {
		return 0, 0
	}
	n = min(batch, p.last-from+1)
	p.next += n
	return from, n
}

func (p *player) hasFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.failed) > 0
}

// process plays n seeds in one process. One that dies or hangs has failed the seed that it was at; the others of the
// batch are played by another.
func (p *player) process(ctx context.Context, binary string, from, n uint64) {
	for last := from + n - 1; from <= last && ctx.Err() == nil; {
		at := p.once(ctx, binary, from, last-from+1)
		from = at + 1
	}
}

// once returns the last seed that is settled.
func (p *player) once(ctx context.Context, binary string, from, n uint64) uint64 {
	bounded, cancel := context.WithTimeout(ctx, time.Duration(n)*limit)
	defer cancel()
	args := []string{"-test.timeout", "0", "-test.run", "EverySeed", "-first", fmt.Sprint(from), "-seeds", fmt.Sprint(n)}
	if p.verbose {
		args = append(args, "-trace", "-logs")
	}
	if p.untilFails {
		args = append(args, "-until-failure")
	}
	cmd := exec.CommandContext(bounded, binary, args...)
	cmd.Dir = filepath.Join("test", "chaos")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=800", "TMPDIR="+p.dir) // memory is cheaper here than the collector
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.fail(from, err.Error())
		return from + n
	}
	var tail ring
	cmd.Stderr = &tail
	if err := cmd.Start(); err != nil {
		p.fail(from, err.Error())
		return from + n
	}
	at, settled := p.follow(out, &tail)
	err = cmd.Wait()
	if at == 0 {
		at = from
	}
	if err != nil && !settled && ctx.Err() == nil {
		p.fail(at, fmt.Sprintf("seed %d ended its process: %v\n%s", at, err, tail.text()))
	}
	if !settled {
		return at
	}
	return from + n
}

// follow reads what a process says: the seed it is at, and whether that one is settled.
func (p *player) follow(r io.Reader, tail *ring) (at uint64, settled bool) {
	var events []string
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := in.Text()
		var seed uint64
		switch {
		case scan(line, "seed %d begins", &seed):
			at, settled, events = seed, false, nil
		case scan(line, "seed %d held", &seed):
			settled = true
			p.mu.Lock()
			p.played++
			if !p.quiet && p.played%50 == 0 || p.verbose {
				fmt.Println(line)
			}
			p.mu.Unlock()
		case scan(line, "seed %d FAILED", &seed):
			settled = true
			p.fail(seed, strings.Join(append(events, line), "\n"))
		default:
			events = append(events, line)
			if p.verbose {
				fmt.Println(line)
			}
		}
		_, _ = tail.Write([]byte(line + "\n"))
	}
	return at, settled
}

func scan(line, format string, seed *uint64) bool {
	n, _ := fmt.Sscanf(line, format, seed)
	return n == 1 && strings.HasPrefix(line, fmt.Sprintf(format, *seed))
}

func (p *player) fail(seed uint64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.played++
	p.failed = append(p.failed, seed)
	if p.why == "" {
		p.why = text
	}
	if !p.quiet {
		fmt.Println(text)
	}
}

// ring keeps the end of an output.
type ring struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (r *ring) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, b...)
	if n := len(r.buf) - 16<<10; n > 0 {
		r.buf = r.buf[n:]
	}
	return len(b), nil
}

func (r *ring) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.buf)
}
