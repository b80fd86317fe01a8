// Package archtest holds the import law of the tree as data (floors.txt, fences.txt, closures.txt) and checks it in
// its test. The law itself is tested too: planted violations have to be caught.
//
// A package stands on a floor and may only import what stands lower. Services never import each other. Third parties
// are fenced: only the packages named in fences.txt may import them. What a binary links as a whole is bounded in
// closures.txt.
package archtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Package is one package of the module, with paths relative to the module for its own packages.
type Package struct {
	Path        string
	Imports     []string // of the product
	TestImports []string // of its tests only
}

// Law is the whole import law.
type Law struct {
	floors   []floor
	fences   []fence
	closures []closure
}

// floor says where the packages of a pattern stand.
type floor struct {
	pattern  string
	number   int
	only     []string // who may import it; nil: everybody above
	confined bool     // whether only was given
}

// fence says who may import a third party.
type fence struct {
	prefix string
	users  []string
	tests  []string // whose tests may, besides
}

// closure says what a binary may not link.
type closure struct {
	command string
	without []string
}

// servicesFloor is the lowest floor of a service; what tests may import lies below it.
const servicesFloor = 60

// ParseLaw reads the three data files. Empty lines and lines that begin with # are skipped.
func ParseLaw(floors, fences, closures string) (*Law, error) {
	law := &Law{}
	err := eachLine(floors, func(words []string) error {
		number, err := strconv.Atoi(words[0])
		if err != nil || len(words) < 2 {
			return fmt.Errorf("want NUMBER PATTERN and perhaps only: with patterns")
		}
		f := floor{pattern: words[1], number: number}
		if len(words) > 2 {
			if words[2] != "only:" {
				return fmt.Errorf("unknown word %q", words[2])
			}
			f.confined, f.only = true, words[3:]
		}
		if slices.ContainsFunc(law.floors, func(g floor) bool { return g.pattern == f.pattern }) {
			return fmt.Errorf("%s is listed twice", f.pattern)
		}
		law.floors = append(law.floors, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading floors.txt: %w", err)
	}
	err = eachLine(fences, func(words []string) error {
		f := fence{prefix: words[0], users: words[1:]}
		if at := slices.Index(words, "tests:"); at > 0 {
			f.users, f.tests = words[1:at], words[at+1:]
		}
		law.fences = append(law.fences, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading fences.txt: %w", err)
	}
	err = eachLine(closures, func(words []string) error {
		if len(words) < 3 || words[1] != "without:" {
			return fmt.Errorf("want COMMAND without: and prefixes")
		}
		law.closures = append(law.closures, closure{words[0], words[2:]})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading closures.txt: %w", err)
	}
	return law, nil
}

func eachLine(text string, read func(words []string) error) error {
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			if err := read(words); err != nil {
				return fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// matches reports whether path is the pattern, or below it where the pattern ends in "/...".
func matches(pattern, path string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return pattern == path
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

// within reports whether an import path is the prefix or below it.
func within(prefix, path string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

// floorOf returns the floor of a package: that of the most specific pattern.
func (l *Law) floorOf(path string) (floor, bool) {
	best, found := floor{}, false
	for _, f := range l.floors {
		if matches(f.pattern, path) && (!found || more(f.pattern, best.pattern)) {
			best, found = f, true
		}
	}
	return best, found
}

// more reports whether pattern a is more specific than b: longer, and an exact one before its own "/...".
func more(a, b string) bool {
	return len(strings.TrimSuffix(a, "/...")) > len(strings.TrimSuffix(b, "/...")) || (a+"/..." == b)
}

// serviceOf returns the service that a package belongs to, "" for all others.
func serviceOf(path string) string {
	if rest, ok := strings.CutPrefix(path, "services/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		return name
	}
	return ""
}

// Check returns every violation of the law among the packages, as sentences. Patterns of the law that match nothing
// are not violations: a floor may be prepared before its package exists.
func (l *Law) Check(packages []Package) []string {
	own := map[string]bool{}
	for _, p := range packages {
		own[p.Path] = true
	}
	var out []string
	for _, p := range packages {
		from, ok := l.floorOf(p.Path)
		if !ok {
			out = append(out, fmt.Sprintf("%s stands on no floor: add it to internal/archtest/floors.txt", p.Path))
			continue
		}
		for _, imp := range p.Imports {
			if own[imp] {
				out = append(out, l.checkOwn(p.Path, imp, from)...)
			} else {
				out = append(out, l.checkFence(p.Path, imp, false)...)
			}
		}
		for _, imp := range p.TestImports {
			if own[imp] {
				out = append(out, l.checkTest(p.Path, imp, from)...)
			} else {
				out = append(out, l.checkFence(p.Path, imp, true)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (l *Law) checkOwn(path, imp string, from floor) []string {
	to, ok := l.floorOf(imp)
	if !ok {
		return nil // reported at the package itself
	}
	var out []string
	if to.number >= from.number {
		out = append(out, fmt.Sprintf("%s (floor %d) imports %s (floor %d): imports go down only", path, from.number, imp, to.number))
	}
	if a, b := serviceOf(path), serviceOf(imp); a != "" && b != "" && a != b {
		out = append(out, fmt.Sprintf("%s imports %s: services meet on the wire only", path, imp))
	}
	if strings.Contains(imp, "services/") && strings.Contains(imp, "/internal/") && serviceOf(path) == "" {
		out = append(out, fmt.Sprintf("%s imports %s: what is outside of a service uses its facade", path, imp))
	}
	if to.confined && !matchesAny(to.only, path) {
		out = append(out, fmt.Sprintf("%s imports %s, which only %s may", path, imp, orNobody(to.only)))
	}
	return out
}

// checkTest is laxer: tests may use the frame (testkit, devpeers) and everything of their own service, but neither
// another service nor a door.
func (l *Law) checkTest(path, imp string, from floor) []string {
	to, ok := l.floorOf(imp)
	if !ok {
		return nil
	}
	var out []string
	if a, b := serviceOf(path), serviceOf(imp); a != "" && b != "" && a != b {
		out = append(out, fmt.Sprintf("a test of %s imports %s: services meet on the wire only", path, imp))
	}
	if to.number >= servicesFloor && to.number > from.number && serviceOf(path) != serviceOf(imp) {
		out = append(out, fmt.Sprintf("a test of %s (floor %d) imports %s (floor %d): it belongs higher up", path, from.number, imp, to.number))
	}
	return out
}

// checkFence finds the fences around an import; the most specific one decides.
func (l *Law) checkFence(path, imp string, test bool) []string {
	best := -1
	for i, f := range l.fences {
		if within(f.prefix, imp) && (best < 0 || len(f.prefix) > len(l.fences[best].prefix)) {
			best = i
		}
	}
	if best < 0 || matchesAny(l.fences[best].users, path) || (test && matchesAny(l.fences[best].tests, path)) {
		return nil
	}
	who := path
	if test {
		who = "a test of " + path
	}
	return []string{fmt.Sprintf("%s imports %s, which is fenced: only %s may", who, imp, orNobody(l.fences[best].users))}
}

// Commands returns the commands whose closures are bounded.
func (l *Law) Commands() []string {
	var out []string
	for _, c := range l.closures {
		if !slices.Contains(out, c.command) {
			out = append(out, c.command)
		}
	}
	return out
}

// CheckClosure returns what the command links (deps: all its direct and indirect imports) though it may not.
func (l *Law) CheckClosure(command string, deps []string) []string {
	var out []string
	for _, c := range l.closures {
		if c.command != command {
			continue
		}
		for _, prefix := range c.without {
			if at := slices.IndexFunc(deps, func(d string) bool { return within(prefix, d) }); at >= 0 {
				out = append(out, fmt.Sprintf("%s links %s, which it must not", command, deps[at]))
			}
		}
	}
	return out
}

func orNobody(patterns []string) string {
	if len(patterns) == 0 {
		return "nobody (but tests)"
	}
	return strings.Join(patterns, ", ")
}
