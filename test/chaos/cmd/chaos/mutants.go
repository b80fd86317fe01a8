package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutation is a patch that takes one protection out of the product. Above the diff stand lines "Key: value": Stands-for,
// the entry of the model or the row of a crash table; and, where the seeds of a package's own machines are the ones to
// notice, Level, as `./package TestName`. Begin names a seed that is known to notice: it is the first to be played.
type mutation struct {
	name, file string
	keys       map[string]string
	touches    []string
}

// bench plays mutants.
type bench struct {
	*player
	most   uint64        // seeds
	within time.Duration // for the seeds of one mutant; 0 is no bound
	level  string        // "machine", "stack", or "" for both
	whole  string        // the binary of the product as it is, once it was needed
}

// verdict of one mutant.
type verdict struct {
	killed bool
	level  string
	by     string
	took   time.Duration
}

// playMutants plays all mutations and prints a table; it is false when one survives or does not apply any more.
func (b *bench) playMutants(ctx context.Context, only string) (bool, error) {
	began := time.Now()
	files, err := filepath.Glob("test/chaos/mutations/*.patch")
	if err != nil {
		return false, err
	}
	if exact := filepath.Join("test", "chaos", "mutations", only+".patch"); slices.Contains(files, exact) {
		files = []string{exact}
	}
	fmt.Printf(line, "mutant", "level", "took", "killed by", "stands for")
	bad, n := []string{}, 0
	for _, file := range files {
		m, err := readMutation(file)
		if err != nil {
			return false, err
		}
		if !strings.Contains(m.name, only) || b.level != "" && b.level != m.level() {
			continue
		}
		n++
		v, err := b.play(ctx, m)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			bad = append(bad, m.name)
			fmt.Printf("%-28s %v\n", m.name, err)
			continue
		}
		if !v.killed {
			bad = append(bad, m.name)
			v.by = strings.TrimSpace("NOBODY " + v.by)
		}
		fmt.Printf(line, m.name, v.level, v.took.Round(time.Second), v.by, m.keys["Stands-for"])
	}
	if len(bad) > 0 {
		fmt.Printf("FAILED: of %d mutants these live or do not apply: %s\n", n, strings.Join(bad, ", "))
		return false, nil
	}
	fmt.Printf("KILLED: all of %d mutants, in %v\n", n, time.Since(began).Round(time.Second))
	return true, nil
}

const line = "%-22s %-8s %6v  %-62s %s\n"

func (m mutation) level() string {
	if m.keys["Level"] != "" {
		return "machine"
	}
	return "stack"
}

func readMutation(file string) (mutation, error) {
	data, err := os.ReadFile(file)
	m := mutation{name: strings.TrimSuffix(filepath.Base(file), ".patch"), file: file, keys: map[string]string{}}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "--- a/"); ok {
			m.touches = append(m.touches, path)
		} else if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && len(m.touches) == 0 {
			m.keys[key] = value
		}
	}
	if err == nil && len(m.touches) == 0 {
		err = fmt.Errorf("reading %s: it changes no file", file)
	}
	return m, err
}

// play builds the mutant over a copy of the files it changes and plays until somebody notices.
func (b *bench) play(ctx context.Context, m mutation) (verdict, error) {
	began := time.Now()
	overlay, err := m.apply(ctx, filepath.Join(b.dir, m.name))
	if err != nil {
		return verdict{}, err
	}
	v := verdict{level: m.level()}
	if level, ok := m.keys["Level"]; ok {
		v.killed, v.by, err = m.machines(ctx, overlay, level)
	} else {
		v.killed, v.by, err = b.seeds(ctx, m, overlay)
	}
	v.took = time.Since(began)
	return v, err
}

// seeds plays until a seed fails that holds without the mutation.
func (b *bench) seeds(ctx context.Context, m mutation, overlay string) (bool, string, error) {
	begin := uint64(1)
	if text, ok := m.keys["Begin"]; ok {
		var err error
		if begin, err = strconv.ParseUint(text, 10, 64); err != nil {
			return false, "", fmt.Errorf("reading %s: the seed to begin with: %w", m.file, err)
		}
	}
	binary := filepath.Join(b.dir, m.name+".test")
	defer func() { _ = os.Remove(binary) }()
	if err := build(ctx, binary, overlay); err != nil {
		return false, "", err
	}
	if b.within > 0 {
		bounded, cancel := context.WithTimeout(ctx, b.within)
		defer cancel()
		ctx = bounded
	}
	b.quiet, b.untilFails = true, true
	var held uint64
	for b.first, b.last = begin, begin+b.most-1; b.first <= b.last && ctx.Err() == nil; b.first++ {
		failed, played := b.player.play(ctx, binary)
		held += played
		if len(failed) == 0 {
			break
		}
		why := reason(b.why)
		holds, err := b.holds(ctx, failed[0])
		if err != nil {
			return false, "", err
		}
		if holds {
			return true, fmt.Sprintf("seed %d: %s", failed[0], why), nil
		}
		fmt.Printf("%s: seed %d fails without the mutation too (%s)\n", m.name, failed[0], reason(b.why))
		b.first = failed[0]
	}
	return false, fmt.Sprintf("in %d seeds", held), nil
}

// holds plays a seed on the product as it is: what fails there too says nothing about a mutation.
func (b *bench) holds(ctx context.Context, seed uint64) (bool, error) {
	if b.whole == "" {
		whole := filepath.Join(b.dir, "whole.test")
		if err := build(ctx, whole, ""); err != nil {
			return false, err
		}
		b.whole = whole
	}
	again := &player{dir: b.dir, workers: 1, first: seed, last: seed, quiet: true}
	failed, _ := again.play(ctx, b.whole)
	b.why = again.why
	return len(failed) == 0, nil
}

// reason is the violation that ended a seed, without names that differ from run to run.
func reason(why string) string {
	if _, rest, ok := strings.Cut(why, "FAILED: "); ok {
		why = rest
	}
	if i := violation.FindStringIndex(why); i != nil {
		why = why[i[0]:]
	}
	why, _, _ = strings.Cut(why, "\n")
	if len(why) > 48 {
		why = why[:48] + "…"
	}
	return why
}

// violation is where the oracle names a guarantee.
var violation = regexp.MustCompile(`G[0-9]+: `)

// machines runs tests of one package.
func (m mutation) machines(ctx context.Context, overlay, level string) (bool, string, error) {
	pkg, test, _ := strings.Cut(level, " ")
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-overlay", overlay, "-run", "^"+test+"$", pkg)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false, "", nil
	}
	failed := failure.FindSubmatch(out)
	if failed == nil {
		return false, "", fmt.Errorf("building the mutant, or running %s: %w\n%s", test, err, out)
	}
	return true, string(failed[1]), nil
}

// failure is how a test says that it has noticed.
var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// apply patches copies of the files and returns what lays them over the tree.
func (m mutation) apply(ctx context.Context, tree string) (overlay string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for _, path := range m.touches {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("it does not apply any more: %w", err)
		}
		copied := filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(copied, data, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, path)] = copied
	}
	cmd := exec.CommandContext(ctx, "git", "apply", "--unidiff-zero", filepath.Join(root, m.file))
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(tree))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not apply any more: %w\n%s", err, out)
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(tree, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o644)
}
