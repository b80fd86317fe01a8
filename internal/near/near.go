// Package near helps people who mistyped a name.
package near

import (
	"fmt"
	"strings"

	"github.com/icestream/icestream/internal/ident"
)

// Name returns the candidate with the least edit distance to word, or "" if none is near. What both begin with up to a
// dot, such as a namespace, makes them no nearer.
func Name(word string, candidates []string) string {
	best, least := "", -1
	for _, c := range candidates {
		w, k := apart(strings.ToLower(word), strings.ToLower(c))
		d := distance(w, k)
		if near := max(2, len(w)/3); d <= near && (d < max(len(w), len(k)) || d == 0) && (least < 0 || d < least) {
			best, least = c, d
		}
	}
	return best
}

// apart takes away the parts between dots that both begin with.
func apart(a, b string) (string, string) {
	for {
		first, rest, more := strings.Cut(a, ".")
		other, restOther, moreOther := strings.Cut(b, ".")
		if !more || !moreOther || first != other {
			return a, b
		}
		a, b = rest, restOther
	}
}

// Hint is a clause to put behind the word that nobody knows: what was meant perhaps.
// It is empty if no candidate is near.
func Hint(word string, candidates []string) string {
	if n := Name(word, candidates); n != "" {
		return fmt.Sprintf("; did you mean %s?", n)
	}
	return ""
}

// Table is Hint for the name of a table, among the main tables that are known. The
// verbs know a quarantine table by the name of its main table.
func Table(name string, known []string) string {
	if main, ok := ident.MainTable(name); ok {
		return "; " + Quarantine(name, main)
	}
	return Hint(name, known)
}

// Quarantine tells somebody who named a quarantine table what to say instead.
func Quarantine(name, main string) string {
	return fmt.Sprintf("%s is the quarantine table of %s: say %s, or read it with `icestream quarantine show %s`", name, main, main, main)
}

// distance is the number of insertions, deletions and substitutions that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
