package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mutation is a patch that takes one protection out of the product. Above the diff stand lines "Key: value": Stands-for,
// the entry of the model or the row of a crash table; and, where the seeds of a package's own machines are the ones to
// notice, Level, as `./package TestName`.
type mutation struct {
	name, file string
	keys       map[string]string
	touches    []string
}

// verdict of one mutant.
type verdict struct {
	killed bool
	level  string
	by     string
	took   time.Duration
}

// playMutants plays all mutations and prints a table; it is false when one survives or does not apply any more.
func playMutants(ctx context.Context, p *player, most uint64, only string) (bool, error) {
	files, err := filepath.Glob("test/chaos/mutations/*.patch")
	if err != nil {
		return false, err
	}
	fmt.Printf("%-28s %-8s %-9s %6s  %s\n", "mutant", "level", "killed by", "took", "stands for")
	bad, n := []string{}, 0
	for _, file := range files {
		m, err := readMutation(file)
		if err != nil {
			return false, err
		}
		if !strings.Contains(m.name, only) {
			continue
		}
		n++
		v, err := m.play(ctx, p, most)
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
			v.by = "NOBODY"
		}
		fmt.Printf("%-28s %-8s %-9s %6s  %s\n", m.name, v.level, v.by, v.took.Round(time.Second), m.keys["Stands-for"])
	}
	if len(bad) > 0 {
		fmt.Printf("FAILED: of %d mutants these live or do not apply: %s\n", n, strings.Join(bad, ", "))
		return false, nil
	}
	fmt.Printf("KILLED: all of %d mutants\n", n)
	return true, nil
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

// play builds the mutant over a copy of the files it changes and plays seeds until one fails.
func (m mutation) play(ctx context.Context, p *player, most uint64) (verdict, error) {
	began := time.Now()
	overlay, err := m.apply(ctx, filepath.Join(p.dir, m.name))
	if err != nil {
		return verdict{}, err
	}
	v := verdict{level: "stack"}
	if level, ok := m.keys["Level"]; ok {
		v.level = "machine"
		v.killed, v.by, err = m.machines(ctx, overlay, level)
	} else {
		v.killed, v.by, err = m.seeds(ctx, p, overlay, most)
	}
	v.took = time.Since(began)
	return v, err
}

func (m mutation) seeds(ctx context.Context, p *player, overlay string, most uint64) (bool, string, error) {
	binary := filepath.Join(p.dir, m.name+".test")
	defer func() { _ = os.Remove(binary) }()
	if err := build(ctx, binary, overlay); err != nil {
		return false, "", err
	}
	p.first, p.last, p.quiet, p.untilFails = 1, most, true, true
	failed, _ := p.play(ctx, binary)
	if len(failed) == 0 {
		return false, "", nil
	}
	return true, fmt.Sprintf("seed %d", failed[0]), nil
}

// machines runs the random runs of a package.
func (m mutation) machines(ctx context.Context, overlay, level string) (bool, string, error) {
	pkg, test, _ := strings.Cut(level, " ")
	if out, err := exec.CommandContext(ctx, "go", "vet", "-overlay", overlay, pkg).CombinedOutput(); err != nil {
		return false, "", fmt.Errorf("building the mutant: %w\n%s", err, out)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-overlay", overlay, "-run", "^"+test+"$", pkg)
	_, err := cmd.CombinedOutput()
	return err != nil, "its runs", nil
}

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
