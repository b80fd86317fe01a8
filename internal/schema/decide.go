package schema

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Action is what an operator decided about a refusal.
type Action string

// The decisions.
const (
	// Accept gives the field another column beside the one that it does not fit.
	Accept Action = "accept"
	// Ignore leaves the field out where it does not fit its column.
	Ignore Action = "ignore"
	// Quarantine sends the records of a source schema that is refused to
	// quarantine.
	Quarantine Action = "quarantine"
)

// Decision is an operator's answer to a refusal, kept in the table for one
// pipeline. Accept and Ignore are about a Field, Quarantine is about a Source;
// the rest is for people.
type Decision struct {
	Action     Action    `json:"action"`
	Field      string    `json:"field,omitempty"`  // number path, as in Refusal
	Source     string    `json:"source,omitempty"` // name of the source schema
	Column     string    `json:"column,omitempty"` // where it was refused
	TableType  string    `json:"table_type,omitempty"`
	SourceType string    `json:"source_type,omitempty"`
	At         time.Time `json:"at"`
}

// String is one line about the decision.
func (d Decision) String() string {
	switch d.Action {
	case Accept:
		return "accept field " + d.Field + " (" + d.Column + ") as " + d.SourceType + " in a column beside the one of type " + d.TableType
	case Ignore:
		return "ignore field " + d.Field + " (" + d.Column + ") where it does not fit " + d.TableType
	default:
		return "quarantine the records of " + d.Source
	}
}

// about reports whether two decisions answer the same question.
func (d Decision) about(o Decision) bool {
	if d.Action == Quarantine || o.Action == Quarantine {
		return d.Action == o.Action && d.Source == o.Source
	}
	return d.Field == o.Field
}

// Decide adds a decision to a list, in place of an older one about the same
// thing. changed is false when the list says so already; the list given is not
// changed.
func Decide(list []Decision, d Decision) (after []Decision, changed bool) {
	for i, have := range list {
		if !have.about(d) {
			continue
		}
		if have.Action == d.Action {
			return list, false
		}
		after = slices.Clone(list)
		after[i] = d
		return after, true
	}
	return append(slices.Clone(list), d), true
}

// Quarantined reports whether the records of a source schema go to quarantine
// where the schema is refused.
func Quarantined(list []Decision, source string) bool {
	return slices.ContainsFunc(list, func(d Decision) bool { return d.Action == Quarantine && d.Source == source })
}

func decidedFields(list []Decision) map[string]Action {
	out := make(map[string]Action, len(list))
	for _, d := range list {
		if d.Action != Quarantine {
			out[d.Field] = d.Action
		}
	}
	return out
}

// besideMark stands between a field and the ordinal of a further column of it.
const besideMark = "~"

// isBeside reports whether the last step of a number path names a further column.
func isBeside(path string) bool {
	return strings.Contains(path[strings.LastIndexByte(path, '.')+1:], besideMark)
}

// isOneof reports whether the number is that of a column which names the set
// member of a oneof.
func isOneof(number int32) bool { return number < PresenceNumber && number > RecordKeyNumber }

// lastNumber is the field number at the end of a number path, 0 where it ends
// with a name.
func lastNumber(path string) int32 {
	n, err := strconv.ParseInt(path[strings.LastIndexByte(path, '.')+1:], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// SourcePath is a number path without the ordinals of further columns: the path
// of the field in the source schema.
func SourcePath(path string) string {
	steps := strings.Split(path, ".")
	for i, s := range steps {
		steps[i], _, _ = strings.Cut(s, besideMark)
	}
	return strings.Join(steps, ".")
}

// settle carries out the decisions about fields of one level: a field that does
// not fit its column finds or gets another one, or is left out. It returns the
// fields that are left and the ordinals, with their mark, of those that have
// another column, and changes partner.
func (r *reconciler) settle(table, candidate []*Node, partner map[*Node]*Node, path, numbers string) (left []*Node, beside map[*Node]string) {
	if len(r.decided) == 0 {
		return candidate, nil
	}
	beside = map[*Node]string{}
	columnOf := make(map[*Node]*Node, len(partner))
	for t, c := range partner {
		columnOf[c] = t
	}
	for _, c := range candidate {
		field := join(numbers, step(c))
		action, decided := r.decided[field]
		t := columnOf[c]
		if !decided || t == nil || r.takes(t, c, path, field) {
			left = append(left, c)
			continue
		}
		delete(partner, t)
		if action == Ignore {
			r.ignored = append(r.ignored, SourcePath(field))
			continue
		}
		left = append(left, c)
		beside[c] = r.another(table, c, partner, path, field)
	}
	return left, beside
}

// another finds a further column that takes the field, or else the lowest ordinal
// for a new one.
func (r *reconciler) another(table []*Node, c *Node, partner map[*Node]*Node, path, field string) string {
	free := ""
	for i := 2; ; i++ {
		ordinal := besideMark + strconv.Itoa(i)
		t := r.byNumber(table, field+ordinal)
		if t == nil && free == "" { // there never was one, or somebody dropped it
			free = ordinal
		}
		if t != nil && partner[t] == nil && r.takes(t, c, path, field+ordinal) {
			partner[t] = c
			return ordinal
		}
		if r.numbers[field+ordinal] == 0 {
			return free
		}
	}
}

// takes tries whether a column takes a field. What is refused further down, in
// fields of its own, does not count.
func (r *reconciler) takes(t, c *Node, path, field string) bool {
	trial := &reconciler{
		o: r.o, decided: r.decided, numbers: r.numbers, out: NumberMap{}, claimed: r.claimed, last: r.last, field: field,
	}
	trial.merge(t, c, join(path, t.Name), field)
	return !slices.ContainsFunc(trial.refusals, func(f Refusal) bool { return f.Field == field })
}

// rename gives a column its field's new name, where that is wanted and harmless.
// names are those of all siblings, in lower case.
func (r *reconciler) rename(n, c *Node, path string, names map[string]bool) {
	lower := strings.ToLower(c.Name)
	if !r.o.Rename || c.Number <= 0 && c.Source == "" || names[lower] || r.o.Pinned[path] {
		return
	}
	r.changes = append(r.changes, Change{Kind: Renamed, Path: path, From: n.Name, To: c.Name})
	delete(names, strings.ToLower(n.Name))
	names[lower] = true
	n.Name = c.Name
}
