package schema

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// NumberMap records which Iceberg column a source field feeds: number path to
// field id. A number path is the field numbers from the message down, joined by
// dots, with "element", "key" and "value" for the levels of lists and maps:
// "5.element.2" is field 2 of the elements of the repeated field 5. A field that
// has a name instead of a number adds "=name", with dots escaped. It is kept
// in a table property, one per pipeline, so that a renamed field stays the same
// column.
type NumberMap map[string]int32

// Clone copies the map; the copy is never nil.
func (m NumberMap) Clone() NumberMap {
	out := make(NumberMap, len(m))
	maps.Copy(out, m)
	return out
}

// ChangeKind says what a Change does to the table.
type ChangeKind string

// The changes that Evolve can ask for, and those that only others make.
const (
	Added    ChangeKind = "added"
	Widened  ChangeKind = "widened"
	Optional ChangeKind = "made optional"
	Renamed  ChangeKind = "renamed"
	Dropped  ChangeKind = "dropped"
	Required ChangeKind = "made required"
)

// Change is one change of the table's schema, for people.
type Change struct {
	Kind ChangeKind
	Path string // dotted column path in the table, before the change
	From string // type before, empty for an added column; name before, of a renamed one
	To   string // type after; name after, of a renamed one
}

// String is one line about the change.
func (c Change) String() string {
	switch c.Kind {
	case Added:
		return fmt.Sprintf("added %s %s", c.Path, c.To)
	case Widened:
		return fmt.Sprintf("widened %s from %s to %s", c.Path, c.From, c.To)
	case Renamed:
		return fmt.Sprintf("renamed %s to %s", c.Path, c.To)
	default:
		return fmt.Sprintf("%s %s", c.Kind, c.Path)
	}
}

// Refusal is a difference that no change of the table can bridge without
// altering values.
type Refusal struct {
	Path string // dotted column path in the table
	// Field is the number path of the field about which an operator decides: the
	// nearest one above Path that has siblings, so that a column can be put beside
	// its own. Empty where only a change of the table helps.
	Field         string
	TableType     string
	CandidateType string
	Why           string
}

// String is one line about the refusal.
func (r Refusal) String() string {
	return fmt.Sprintf("column %s: the table has %s, the records bring %s: %s", r.Path, r.TableType, r.CandidateType, r.Why)
}

// Target is the verdict of Reconcile.
type Target struct {
	// Schema is the full schema of the table after the change, in table order,
	// new columns after the old mapped ones and the metadata columns last. A
	// node carries the candidate's number where the candidate feeds it, 0
	// elsewhere. With refusals it is incomplete and must not be used.
	Schema *Schema
	// Numbers is the number map after the change.
	Numbers NumberMap
	// Changed says that the table's schema must be changed before rows of the
	// candidate can be written; Ignored fields are in Schema.
	Changed  bool
	Changes  []Change
	Refusals []Refusal
}

// Refused reports whether the candidate cannot be written to the table at all.
func (t *Target) Refused() bool { return len(t.Refusals) > 0 }

// Options are what a verdict depends on beside the schemas.
type Options struct {
	// Decisions of operators about the pipeline.
	Decisions []Decision
	// Rename lets columns follow renamed fields.
	Rename bool
	// Pinned are the dotted paths of columns whose names must stay.
	Pinned map[string]bool
	// FormatVersion is that of the table: a column of a type that it does not have
	// is refused. 0 means 2.
	FormatVersion int
}

// Reconcile is Evolve without options.
func Reconcile(table, candidate *Schema, numbers NumberMap) Target {
	return Evolve(table, candidate, numbers, Options{})
}

// Evolve decides how records of the candidate's shape are written to the table.
// It is pure and idempotent: the target of a target and the same candidate
// changes nothing.
//
// A candidate column is matched by number path first, then by name (exact, then
// without regard to case) with a table column that no other number feeds. A
// matched column keeps the table's name, place and id. Accepted: a new column at
// any depth, int to long, float to double, decimal of more digits and the same
// scale, required to optional. A candidate that is narrower than the table needs
// no change; the decoder widens its values. Everything else is refused, unless a
// decision says what to do with the field.
//
// No column is ever made required, whatever the candidate says, and a required
// one that is written is made optional: any record may lack any field.
//
// No argument is changed; table may be an empty schema (to create a table) and
// numbers nil.
func Evolve(table, candidate *Schema, numbers NumberMap, o Options) Target {
	r := newReconciler(table, numbers, o)
	columns := r.level(table.Columns, candidate.Columns, "", "", true)
	slices.Sort(r.ignored)
	return Target{
		Schema:  &Schema{Columns: metadataLast(columns), LastID: r.last, Ignored: r.ignored},
		Numbers: r.out, Changed: len(r.changes) > 0, Changes: r.changes, Refusals: r.refusals,
	}
}

func newReconciler(table *Schema, numbers NumberMap, o Options) *reconciler {
	r := &reconciler{numbers: numbers, out: numbers.Clone(), last: table.HighestID(), o: o, decided: decidedFields(o.Decisions)}
	r.claimed = make(map[int32]string, len(numbers))
	for path, id := range numbers {
		if other, ok := r.claimed[id]; !ok || path < other {
			r.claimed[id] = path
		}
	}
	return r
}

type reconciler struct {
	o        Options
	decided  map[string]Action // by field
	numbers  NumberMap
	out      NumberMap
	claimed  map[int32]string // field id to the number path that feeds it
	last     int32
	field    string // the field under judgement about which an operator can decide
	changes  []Change
	refusals []Refusal
	ignored  []string
}

// level merges the fields of one struct: table fields in their order, then the
// new ones in the candidate's order.
func (r *reconciler) level(table, candidate []*Node, path, numbers string, top bool) []*Node {
	partner := r.match(table, candidate, numbers)
	candidate, beside := r.settle(table, candidate, partner, path, numbers)
	above := r.field
	defer func() { r.field = above }()
	stepOf := func(c *Node) string { return step(c) + beside[c] }
	out := make([]*Node, 0, len(table)+len(candidate))
	names := make(map[string]bool, len(table))
	for _, t := range table {
		names[strings.ToLower(t.Name)] = true
	}
	for _, t := range table {
		c := partner[t]
		switch {
		case c != nil:
			r.field = join(numbers, stepOf(c))
			n := r.merge(t, c, join(path, t.Name), r.field)
			r.rename(n, c, join(path, t.Name), names)
			out = append(out, n)
		case top && IsMetadata(t.Name):
			if ours := misfit(t); ours != nil {
				r.refusals = append(r.refusals, Refusal{
					Path: t.Name, TableType: Describe(t), CandidateType: Describe(ours),
					Why: "the table has a column of this name that is not Icestream's, which is never overwritten; rename the column",
				})
			}
			out = append(out, cleared(t))
		default:
			out = append(out, r.unfed(t, join(path, t.Name)))
		}
	}
	fed := make(map[*Node]bool, len(partner))
	for _, c := range partner {
		fed[c] = true
	}
	var fresh []*Node
	steps := make(map[*Node]string)
	for i, c := range candidate {
		if fed[c] || c.Number == PresenceNumber && len(table) > 0 {
			continue // a struct with other fields keeps presence without a column
		}
		n := optional(c)
		forgetAliases([]*Node{n})
		end := suffix(n.Number, i)
		if ordinal := beside[c]; ordinal != "" {
			end = "_" + ordinal[1:]
			n.Name += end
		}
		n.Name = freeName(n.Name, end, func(name string) bool { return names[strings.ToLower(name)] })
		names[strings.ToLower(n.Name)] = true
		fresh = append(fresh, n)
		steps[n] = stepOf(c)
	}
	r.add(fresh, steps, path, numbers)
	return append(out, fresh...)
}

// optional copies a new column: nothing in it is required but the keys of maps.
func optional(c *Node) *Node {
	n := c.Clone()
	relax(n, false)
	return n
}

func relax(n *Node, key bool) {
	n.Required = key
	for i, k := range n.Kids {
		relax(k, n.Type.Kind == Map && i == 0)
	}
}

// match pairs table fields with candidate fields.
func (r *reconciler) match(table, candidate []*Node, numbers string) map[*Node]*Node {
	partner := make(map[*Node]*Node, len(candidate))
	var open []*Node
	for _, c := range candidate {
		if t := r.byNumber(table, join(numbers, step(c))); t != nil && partner[t] == nil {
			partner[t] = c
		} else {
			open = append(open, c)
		}
	}
	open = slices.DeleteFunc(open, func(c *Node) bool {
		t := r.byAlias(table, c, numbers, partner)
		if t != nil {
			partner[t] = c
		}
		return t != nil
	})
	for _, same := range []func(a, b string) bool{func(a, b string) bool { return a == b }, strings.EqualFold} {
		var left []*Node
		for _, c := range open {
			if t := r.byName(table, c, join(numbers, step(c)), partner, same); t != nil {
				partner[t] = c
			} else {
				left = append(left, c)
			}
		}
		open = left
	}
	return partner
}

func (r *reconciler) byNumber(table []*Node, numbers string) *Node {
	id := r.numbers[numbers]
	if id == 0 {
		return nil
	}
	for _, t := range table {
		if t.FieldID == id {
			return t
		}
	}
	return nil
}

// byAlias finds the column of a field that had another name before.
func (r *reconciler) byAlias(table []*Node, c *Node, numbers string, partner map[*Node]*Node) *Node {
	for _, alias := range c.Aliases {
		if t := r.byNumber(table, join(numbers, sourceStep(alias))); t != nil && partner[t] == nil {
			return t
		}
	}
	return nil
}

// byName leaves alone a column that another number path feeds: a new field that
// took over an old field's name is another field. The column that names the set
// member of a oneof is numbered after the lowest member, which may change.
func (r *reconciler) byName(table []*Node, c *Node, numbers string, partner map[*Node]*Node, same func(a, b string) bool) *Node {
	for _, t := range table {
		owner, claimed := r.claimed[t.FieldID]
		free := !claimed || owner == numbers || yields(owner, c)
		if partner[t] == nil && free && same(t.Name, c.Name) {
			return t
		}
	}
	return nil
}

// yields reports whether the owner of a column by its path leaves it to a field
// of its name.
func yields(owner string, c *Node) bool {
	switch {
	case isOneof(c.Number):
		return isOneof(lastNumber(owner))
	case c.Number != 0 || isBeside(owner):
		return false
	default:
		return c.Source == "" || !bySource(owner)
	}
}

// step is the part of a number path that a node adds.
func step(n *Node) string {
	switch {
	case n.Number != 0:
		return strconv.Itoa(int(n.Number))
	case n.Source != "":
		return sourceStep(n.Source)
	default:
		return n.Name
	}
}

// identified reports whether a field has a name or number of its own, by which its
// column is found again.
func identified(n *Node) bool { return n.Number != 0 || n.Source != "" }

// sourceStep escapes what would make two paths one.
func sourceStep(name string) string {
	return "=" + strings.NewReplacer("%", "%25", ".", "%2E", besideMark, "%7E").Replace(name)
}

// bySource reports whether the last step of a number path is a name.
func bySource(path string) bool {
	return strings.HasPrefix(path[strings.LastIndexByte(path, '.')+1:], "=")
}

// merge brings one matched pair together.
func (r *reconciler) merge(t, c *Node, path, numbers string) *Node {
	out := &Node{Name: t.Name, Number: c.Number, Source: c.Source, FieldID: t.FieldID, Type: t.Type, Required: t.Required, Doc: t.Doc}
	if identified(c) || isBeside(numbers) {
		r.out[numbers] = t.FieldID
	}
	if t.Required {
		out.Required = false
		r.changes = append(r.changes, Change{Kind: Optional, Path: path, From: t.Type.String(), To: t.Type.String()})
	}
	if t.Type.Kind != c.Type.Kind && (t.Type.Kind.Nested() || c.Type.Kind.Nested()) {
		r.refuse(path, t, c)
		return out
	}
	switch t.Type.Kind {
	case Struct:
		out.Kids = r.level(t.Kids, c.Kids, path, numbers, false)
	case List:
		out.Kids = []*Node{r.merge(t.Kids[0], c.Kids[0], join(path, ElementName), join(numbers, ElementName))}
	case Map:
		out.Kids = []*Node{
			r.key(t.Kids[0], c.Kids[0], path, numbers),
			r.merge(t.Kids[1], c.Kids[1], join(path, ValueName), join(numbers, ValueName)),
		}
	default:
		r.primitive(out, t, c, path)
	}
	return out
}

// key merges map keys, which Iceberg never lets change; they are required.
func (r *reconciler) key(t, c *Node, path, numbers string) *Node {
	before := len(r.changes)
	lax := *t
	lax.Required = false
	out := r.merge(&lax, c, join(path, KeyName), join(numbers, KeyName))
	out.Required = t.Required
	if len(r.changes) > before {
		r.changes = r.changes[:before]
		r.refusals = append(r.refusals, Refusal{
			Path: join(path, KeyName), Field: r.field, TableType: Describe(t), CandidateType: Describe(c),
			Why: "the key of a map can never change",
		})
	}
	return out
}

func (r *reconciler) primitive(out, t, c *Node, path string) {
	switch fit(t.Type, c.Type) {
	case fits:
	case widens:
		out.Type = c.Type
		r.changes = append(r.changes, Change{Kind: Widened, Path: path, From: t.Type.String(), To: c.Type.String()})
	case never:
		r.refuse(path, t, c)
	}
}

func (r *reconciler) refuse(path string, t, c *Node) {
	r.refusals = append(r.refusals, Refusal{
		Path: path, Field: r.field, TableType: Describe(t), CandidateType: Describe(c), Why: why(t.Type, c.Type),
	})
}

type fitness uint8

const (
	never  fitness = iota
	fits           // every value of the candidate has its exact place in the table's type
	widens         // after a change that Iceberg allows
)

// fit compares two primitive types.
func fit(table, candidate Type) fitness {
	if table == candidate {
		return fits
	}
	t, c := table.Kind, candidate.Kind
	switch {
	case t == Int && c == Long, t == Float && c == Double:
		return widens
	case t == Long && c == Int, t == Double && c == Float, t == Binary && c == String:
		return fits
	case t == Decimal && c == Int && table.Scale == 0 && table.Precision >= 10,
		t == Decimal && c == Long && table.Scale == 0 && table.Precision >= 19:
		return fits
	case t == Decimal && c == Decimal && table.Scale == candidate.Scale:
		if candidate.Precision > table.Precision {
			return widens
		}
		return fits
	default:
		return never
	}
}

// CanHold reports whether every value of type candidate can be written to a
// column of the table's type without a change of the table.
func CanHold(table, candidate Type) bool { return fit(table, candidate) == fits }

// unfed is a table column that the candidate does not bring: it must be optional,
// and nothing below it is fed, except a presence column, which stays for ever.
func (r *reconciler) unfed(t *Node, path string) *Node {
	out := cleared(t)
	if strings.HasSuffix(r.claimed[t.FieldID], "."+strconv.Itoa(int(PresenceNumber))) {
		out.Number = PresenceNumber
	}
	if out.Required {
		out.Required = false
		r.changes = append(r.changes, Change{Kind: Optional, Path: path, From: t.Type.String(), To: t.Type.String()})
	}
	return out
}

// forgetAliases takes away what only matching needs.
func forgetAliases(nodes []*Node) {
	for _, n := range nodes {
		n.Aliases = nil
		forgetAliases(n.Kids)
	}
}

func cleared(t *Node) *Node {
	out := t.Clone()
	clearNumbers([]*Node{out})
	return out
}

func clearNumbers(nodes []*Node) {
	for _, n := range nodes {
		n.Number, n.Source = 0, ""
		clearNumbers(n.Kids)
	}
}

// add gives ids to new columns and everything below them, and notes them. steps
// are the parts that they add to number paths.
func (r *reconciler) add(fresh []*Node, steps map[*Node]string, path, numbers string) {
	assignIDs(fresh, &r.last)
	for _, n := range fresh {
		r.changes = append(r.changes, Change{Kind: Added, Path: join(path, n.Name), To: Describe(n)})
		r.hasTypes(n, join(path, n.Name))
		at := join(numbers, steps[n])
		if identified(n) || isBeside(at) {
			r.out[at] = n.FieldID
		}
		r.record(n.Kids, at)
	}
}

// hasTypes refuses a new column of a type that the table's format version does not
// have. Only a change of the table helps.
func (r *reconciler) hasTypes(n *Node, path string) {
	have := max(2, r.o.FormatVersion)
	if needs := n.Type.Kind.FormatVersion(); needs > have {
		r.refusals = append(r.refusals, Refusal{
			Path: path, TableType: fmt.Sprintf("format version %d", have), CandidateType: n.Type.String(),
			Why: fmt.Sprintf("the type needs a table of format version %d, and format_version is for new tables: upgrade the table with another engine, write to a new one, or take the option back that asks for the type", needs),
		})
	}
	for _, k := range n.Kids {
		r.hasTypes(k, join(path, k.Name))
	}
}

func (r *reconciler) record(nodes []*Node, numbers string) {
	for _, n := range nodes {
		p := join(numbers, step(n))
		if identified(n) {
			r.out[p] = n.FieldID
		}
		r.record(n.Kids, p)
	}
}

func metadataLast(columns []*Node) []*Node {
	out := make([]*Node, 0, len(columns))
	var meta []*Node
	for _, c := range columns {
		if IsMetadata(c.Name) {
			meta = append(meta, c)
		} else {
			out = append(out, c)
		}
	}
	return append(out, meta...)
}
