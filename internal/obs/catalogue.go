package obs

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Group is the metrics of one service or package, under its title on the reference page.
type Group struct {
	Title string
	Defs  []Def
}

// Defs returns the metrics that this package measures itself.
func Defs() []Def { return []Def{buildInfo(), readyDef()} }

var (
	metricName = regexp.MustCompile(`^icestream_[a-z0-9]+(_[a-z0-9]+)+$`)
	labelName  = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// Check reports declarations that break the rules of naming or are made twice.
func Check(groups []Group) error {
	var faults []error
	seen := map[string]bool{}
	for _, g := range groups {
		for _, d := range g.Defs {
			fault := func(what string) { faults = append(faults, fmt.Errorf("metric %s (%s): %s", d.Name, g.Title, what)) }
			if seen[d.Name] {
				fault("is declared twice")
			}
			seen[d.Name] = true
			if !metricName.MatchString(d.Name) {
				fault("must be named icestream_<service>_<what>")
			}
			if d.Kind < KindCounter || d.Kind > KindHistogram {
				fault("has no kind")
			}
			if (d.Kind == KindCounter) != strings.HasSuffix(d.Name, "_total") {
				fault("counters, and only they, end in _total")
			}
			if !strings.HasSuffix(d.Help, ".") {
				fault("needs a help sentence")
			}
			for _, l := range d.Labels {
				if !labelName.MatchString(l) {
					fault("has the label " + l + ", which is not lower case")
				}
			}
			if !slices.IsSorted(d.Buckets) {
				fault("has buckets that do not ascend")
			}
		}
	}
	return errors.Join(faults...)
}

// Reference returns the page docs/reference/metrics.md for all groups, in their order; within a group by name.
func Reference(groups []Group) []byte {
	var b bytes.Buffer
	b.WriteString("# Metrics\n\nThis page is generated from the declarations in the code; change them there.\n\n" +
		"Every process serves its metrics at `node.metrics`, path `/metrics`, beside those of the Go runtime (`go_…`) and of the\n" +
		"process (`process_…`). Times are in seconds, sizes in bytes.\n")
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n", g.Title)
		defs := slices.SortedFunc(slices.Values(g.Defs), func(a, b Def) int { return strings.Compare(a.Name, b.Name) })
		for _, d := range defs {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Kind, strings.Join(d.Labels, ", "), strings.ReplaceAll(d.Help, "|", "\\|"))
		}
	}
	return b.Bytes()
}
