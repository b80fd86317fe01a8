package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Start says where a topic partition that the table does not know yet begins.
type Start struct {
	// Mode is earliest, latest, group (the position of the consumer group), timestamp or offsets.
	Mode string
	// At is the record time to start at, for mode timestamp.
	At time.Time
	// Offsets holds topic → partition → first offset, for mode offsets; partitions not named start at the earliest.
	Offsets map[string]map[int32]int64
}

// String returns the form that the configuration file uses.
func (s Start) String() string {
	switch s.Mode {
	case "timestamp":
		return "{timestamp: " + s.At.UTC().Format(time.RFC3339Nano) + "}"
	case "offsets":
		var topics []string
		for _, t := range slices.Sorted(maps.Keys(s.Offsets)) {
			var parts []string
			for _, p := range slices.Sorted(maps.Keys(s.Offsets[t])) {
				parts = append(parts, fmt.Sprintf("%d: %d", p, s.Offsets[t][p]))
			}
			topics = append(topics, t+": {"+strings.Join(parts, ", ")+"}")
		}
		return "{offsets: {" + strings.Join(topics, ", ") + "}}"
	default:
		return s.Mode
	}
}

// Transform is one field of a partition spec or sort order: an Iceberg transform of a column.
type Transform struct {
	Name   string // identity, year, month, day, hour, bucket, truncate
	Arg    int    // number of buckets, or width; 0 for the others
	Column string // dotted path
}

// String returns the form that the configuration file uses.
func (t Transform) String() string {
	switch {
	case t.Name == "identity":
		return t.Column
	case t.Arg > 0:
		return fmt.Sprintf("%s(%d, %s)", t.Name, t.Arg, t.Column)
	default:
		return t.Name + "(" + t.Column + ")"
	}
}

// parseTransform reads "col", "day(col)" or "bucket(16, col)".
func parseTransform(text string) (Transform, error) {
	text = strings.TrimSpace(text)
	name, rest, call := strings.Cut(text, "(")
	if !call {
		return column(text, Transform{Name: "identity"})
	}
	inner, ok := strings.CutSuffix(rest, ")")
	if !ok {
		return Transform{}, fmt.Errorf("%q lacks its closing parenthesis", text)
	}
	t := Transform{Name: strings.ToLower(strings.TrimSpace(name))}
	switch t.Name {
	case "identity", "year", "month", "day", "hour":
		return column(inner, t)
	case "bucket", "truncate":
		arg, col, ok := strings.Cut(inner, ",")
		n, err := strconv.Atoi(strings.TrimSpace(arg))
		if !ok || err != nil || n < 1 || n > 1<<30 {
			return Transform{}, fmt.Errorf("%q needs a positive number and a column, such as %s(16, customer_id)", text, t.Name)
		}
		t.Arg = n
		return column(col, t)
	default:
		return Transform{}, fmt.Errorf("%q is not a transform: use a column, or year, month, day, hour, bucket(n, …) or truncate(n, …) of one", text)
	}
}

func column(text string, t Transform) (Transform, error) {
	t.Column = strings.TrimSpace(text)
	if t.Column == "" || strings.ContainsAny(t.Column, "(), \t\"'`") {
		return Transform{}, fmt.Errorf("%q is not the name of a column", t.Column)
	}
	return t, nil
}

// splitTop cuts text at the commas outside of parentheses.
func splitTop(text string) []string {
	var parts []string
	depth, from := 0, 0
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[from:i])
				from = i + 1
			}
		}
	}
	if rest := text[from:]; strings.TrimSpace(rest) != "" || len(parts) > 0 {
		parts = append(parts, rest)
	}
	return parts
}

// Partition is a partition spec; empty means unpartitioned.
type Partition []Transform

// String returns the form that the configuration file uses.
func (p Partition) String() string { return joinStrings(p) }

// UnmarshalText reads "day(created_at), bucket(16, customer_id)".
func (p *Partition) UnmarshalText(b []byte) error {
	out := Partition{}
	for _, part := range splitTop(string(b)) {
		t, err := parseTransform(part)
		if err != nil {
			return err
		}
		if slices.Contains(out, t) {
			return fmt.Errorf("%q is listed twice", t)
		}
		out = append(out, t)
	}
	*p = out
	return nil
}

// SortField is one field of a sort order.
type SortField struct {
	Transform

	Descending bool
	NullsLast  bool // defaults to true when descending, as in Iceberg
}

// String returns the form that the configuration file uses.
func (f SortField) String() string {
	s := f.Transform.String()
	if f.Descending {
		s += " desc"
	}
	if f.NullsLast != f.Descending {
		s += " nulls " + map[bool]string{true: "last", false: "first"}[f.NullsLast]
	}
	return s
}

// Sort is a sort order; empty means unsorted.
type Sort []SortField

// String returns the form that the configuration file uses.
func (s Sort) String() string { return joinStrings(s) }

// UnmarshalText reads "customer_id, day(created_at) desc nulls first".
func (s *Sort) UnmarshalText(b []byte) error {
	out := Sort{}
	for _, part := range splitTop(string(b)) {
		f, err := parseSortField(part)
		if err != nil {
			return err
		}
		out = append(out, f)
	}
	*s = out
	return nil
}

func parseSortField(text string) (SortField, error) {
	var f SortField
	expr := strings.TrimSpace(text)
	words := strings.ToLower(expr)
	nulls := ""
	for _, w := range []string{"first", "last"} {
		if fields := strings.Fields(words); len(fields) > 2 && fields[len(fields)-2] == "nulls" && fields[len(fields)-1] == w {
			nulls = w
			words = words[:strings.LastIndex(words, "nulls")]
		}
	}
	words = strings.TrimRight(words, " \t")
	if w, ok := strings.CutSuffix(words, " desc"); ok {
		f.Descending, words = true, w
	} else if w, ok := strings.CutSuffix(words, " asc"); ok {
		words = w
	}
	t, err := parseTransform(expr[:len(words)])
	f.Transform = t
	f.NullsLast = f.Descending
	if nulls != "" {
		f.NullsLast = nulls == "last"
	}
	return f, err
}

func joinStrings[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return strings.Join(out, ", ")
}
