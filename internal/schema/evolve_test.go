package schema

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shapes are every kind of column: all primitive types, with the parameters that matter, and every kind of nesting.
func shapes() []*Node {
	var out []*Node
	for _, t := range []string{
		"boolean", "int", "long", "float", "double", "decimal(9,2)", "decimal(18,2)", "decimal(9,3)", "decimal(10,0)", "decimal(20,0)",
		"date", "time", "timestamptz", "timestamp", "timestamptz_ns", "timestamp_ns", "string", "uuid", "binary", "fixed[5]", "variant",
	} {
		parsed, err := ParseType(t)
		if err != nil {
			panic(err)
		}
		out = append(out, &Node{Type: parsed})
	}
	return append(out, col("", 0, Struct, col("a", 1, Date)), list("", 0, col("", 0, Date)), mapOf("", 0, String, col("", 0, Date)))
}

// held says which types a column of each type takes, and what it becomes: the whole list of what is not refused
// beside the same type. It is written down here and not computed.
var held = map[string]map[string]string{
	"int":           {"long": "long"},
	"long":          {"int": "long"},
	"float":         {"double": "double"},
	"double":        {"float": "double"},
	"decimal(9,2)":  {"decimal(18,2)": "decimal(18,2)"},
	"decimal(18,2)": {"decimal(9,2)": "decimal(18,2)"},
	"decimal(10,0)": {"decimal(20,0)": "decimal(20,0)", "int": "decimal(10,0)"},
	"decimal(20,0)": {"decimal(10,0)": "decimal(20,0)", "int": "decimal(20,0)", "long": "decimal(20,0)"},
	"binary":        {"string": "binary"},
}

// place puts a column somewhere in a schema: whole builds it, path is where the column is then, field whom an operator
// would decide about.
type place struct {
	path, field string
	whole       func(n *Node) *Schema
}

func places() []place {
	field := func(n *Node) *Node {
		c := n.Clone()
		c.Name, c.Number = "f", 1
		return c
	}
	in := func(n *Node) *Node { return n.Clone() }
	return []place{
		{"f", "1", func(n *Node) *Schema { return of(field(n), col("z", 2, Int)) }},
		{"s.f", "9.1", func(n *Node) *Schema { return of(col("s", 9, Struct, field(n))) }},
		{"s.s.f", "9.9.1", func(n *Node) *Schema {
			return of(col("s", 9, Struct, col("s", 9, Struct, col("z", 2, Int), field(n))))
		}},
		{"f.element", "1", func(n *Node) *Schema { return of(list("f", 1, in(n))) }},
		{"f.value", "1", func(n *Node) *Schema { return of(mapOf("f", 1, Int, in(n))) }},
		{"l.element.f", "8.element.1", func(n *Node) *Schema { return of(list("l", 8, col("", 0, Struct, field(n)))) }},
		{"m.value.f", "7.value.1", func(n *Node) *Schema { return of(mapOf("m", 7, String, col("", 0, Struct, field(n)))) }},
		{"l.element.m.value", "8.element.7", func(n *Node) *Schema {
			return of(list("l", 8, col("", 0, Struct, mapOf("m", 7, String, in(n)))))
		}},
		{"m.value.l.element.f", "7.value.8.element.1", func(n *Node) *Schema {
			return of(mapOf("m", 7, Long, col("", 0, Struct, list("l", 8, col("", 0, Struct, field(n))))))
		}},
	}
}

func at(s *Schema, path string) *Node {
	var found *Node
	s.Walk(func(p string, n *Node) {
		if p == path {
			found = n
		}
	})
	return found
}

// G10, S10: every change of a field's type, at every depth: what the table becomes, or who is refused with both types
// named, and what each decision then does. Nothing that was there changes, no id is used twice, and the older writer
// still finds its column.
func TestEveryTypeChangeAtEveryDepth(t *testing.T) {
	for _, p := range places() {
		for _, was := range shapes() {
			table := create(t, p.whole(was))
			for _, now := range shapes() {
				before, after := Describe(was), Describe(now)
				t.Run(fmt.Sprintf("%s from %s to %s", p.path, before, after), func(t *testing.T) {
					candidate := p.whole(now)
					target := reconcile3(table.Schema, candidate, table.Numbers)
					want := held[before][after]
					if before == after {
						want = before
					}
					if want == "" {
						requireRefused(t, p, table, candidate, target, before, after)
						requireAccepted(t, p, table, was, candidate, target.Refusals[0])
						requireIgnored(t, table, candidate, target.Refusals[0])
						return
					}
					require.Empty(t, target.Refusals)
					require.Equal(t, want, Describe(at(target.Schema, p.path)))
					require.Equal(t, want != before, target.Changed)
					require.Equal(t, at(table.Schema, p.path).FieldID, at(target.Schema, p.path).FieldID)
					require.Equal(t, table.Numbers, target.Numbers)
					require.False(t, reconcile3(target.Schema, p.whole(was), target.Numbers).Changed, "the older writer changes nothing")
				})
			}
		}
	}
}

func requireRefused(t *testing.T, p place, table Target, candidate *Schema, target Target, before, after string) {
	t.Helper()
	require.Len(t, target.Refusals, 1)
	r := target.Refusals[0]
	require.Equal(t, Refusal{Path: p.path, Field: p.field, TableType: before, CandidateType: after, Why: r.Why}, r)
	require.NotEmpty(t, r.Why)
	require.Contains(t, r.String(), before)
	require.Contains(t, r.String(), after)
	require.Equal(t, table.Schema, reconcile3(table.Schema, p.whole(at(table.Schema, p.path)), table.Numbers).Schema, "refused again and again, the table stays")
	require.Empty(t, candidate.Ignored)
}

// requireAccepted checks the column beside.
func requireAccepted(t *testing.T, p place, table Target, was *Node, candidate *Schema, r Refusal) {
	t.Helper()
	o := Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: r.Field}}}
	target := Evolve(table.Schema, candidate, table.Numbers, o)
	require.Empty(t, target.Refusals)
	require.True(t, target.Changed)
	require.NoError(t, target.Schema.Validate())
	requireKept(t, table.Schema, target.Schema)
	id := target.Numbers[r.Field+"~2"]
	require.Greater(t, id, table.Schema.LastID, "a new id")
	var beside *Node
	target.Schema.Walk(func(_ string, n *Node) {
		if n.FieldID == id {
			beside = n
		}
	})
	require.NotNil(t, beside)
	require.Contains(t, []string{"f_2", "m_2"}, beside.Name)
	require.NotZero(t, beside.Number, "fed by the candidate")
	again := Evolve(target.Schema, candidate, target.Numbers, o)
	require.False(t, again.Changed, "%v", again.Changes)
	require.Equal(t, target.Schema.Fingerprint(), again.Schema.Fingerprint())
	older := Evolve(target.Schema, p.whole(was), target.Numbers, o)
	require.Empty(t, older.Refusals)
	require.False(t, older.Changed)
	require.NotEqual(t, again.Schema.Fingerprint(), older.Schema.Fingerprint(), "the older writer feeds the older column")
}

func requireIgnored(t *testing.T, table Target, candidate *Schema, r Refusal) {
	t.Helper()
	target := Evolve(table.Schema, candidate, table.Numbers, Options{FormatVersion: 3, Decisions: []Decision{{Action: Ignore, Field: r.Field}}})
	require.Empty(t, target.Refusals)
	require.Equal(t, []string{r.Field}, target.Schema.Ignored)
	require.True(t, target.Schema.Ignores(r.Field))
	require.False(t, target.Changed)
	require.Equal(t, table.Numbers, target.Numbers)
	require.Equal(t, withoutNumbers(table.Schema), func() *Schema { s := withoutNumbers(target.Schema); s.Ignored = nil; return s }())
}

// S10: the key of a map never changes, at any depth; a narrower one fits.
func TestEveryMapKeyChange(t *testing.T) {
	for _, was := range shapes()[:20] {
		for _, now := range shapes()[:20] {
			whole := func(k Type) *Schema {
				m := mapOf("m", 7, String, col("", 0, Int))
				m.Kids[0].Type = k
				return of(col("s", 9, Struct, m))
			}
			table := create(t, whole(was.Type))
			target := reconcile3(table.Schema, whole(now.Type), table.Numbers)
			before, after := Describe(was), Describe(now)
			if before == after || held[before][after] == before {
				require.Empty(t, target.Refusals, "%s from %s", before, after)
				require.False(t, target.Changed)
				require.True(t, at(target.Schema, "s.m.key").Required)
				continue
			}
			require.Len(t, target.Refusals, 1, "%s from %s", before, after)
			require.Equal(t, "s.m.key", target.Refusals[0].Path)
			require.Equal(t, "9.7", target.Refusals[0].Field, "the whole map can be put beside")
			accepted := Evolve(table.Schema, whole(now.Type), table.Numbers, Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: "9.7"}}})
			require.Equal(t, []string{"added s.m_2 map<" + after + ", int>"}, changes(accepted))
		}
	}
}

// S1, S4: at every depth: a new field is a column, a dropped one is null from then on, and one that moves to another
// level is another column; ids only ever grow.
func TestFieldsComeAndGoAtEveryDepth(t *testing.T) {
	for _, p := range places() {
		if at(p.whole(&Node{Type: Of(Int)}), p.path).Name != "f" {
			continue // elements and values neither come nor go
		}
		for _, n := range shapes() {
			full := p.whole(n)
			bare := p.whole(n)
			parent := parentOf(bare, p.path)
			*parent = without(*parent, "f")
			*parent = append(*parent, col("other", 5, Int)) // Protobuf has no struct without fields here
			first := create(t, bare)
			added := reconcile3(first.Schema, full, first.Numbers)
			require.Empty(t, added.Refusals)
			require.Contains(t, changes(added), "added "+p.path+" "+Describe(n))
			require.Greater(t, at(added.Schema, p.path).FieldID, first.Schema.LastID)
			requireKept(t, first.Schema, added.Schema)
			dropped := reconcile3(added.Schema, bare, added.Numbers)
			require.False(t, dropped.Changed)
			require.Zero(t, at(dropped.Schema, p.path).Number, "nothing feeds it")
			require.False(t, at(dropped.Schema, p.path).Required)
			moved := bare.Clone()
			moved.Columns = append(moved.Columns, &Node{Name: "moved", Number: 77, Type: n.Type, Kids: cloneAll(n.Kids)})
			up := reconcile3(added.Schema, moved, added.Numbers)
			require.Equal(t, []string{"added moved " + Describe(n)}, changes(up))
			require.Greater(t, at(up.Schema, "moved").FieldID, added.Schema.LastID)
		}
	}
}

func parentOf(s *Schema, path string) *[]*Node {
	out := &s.Columns
	s.Walk(func(p string, n *Node) {
		if path == p+".f" {
			out = &n.Kids
		}
	})
	return out
}

func without(nodes []*Node, name string) []*Node {
	var out []*Node
	for _, n := range nodes {
		if n.Name != name {
			out = append(out, n)
		}
	}
	return out
}

// A field that gets another number is another field, whatever its name; its number may then be used again only by
// what fits the column.
func TestRenumberedAndReusedFields(t *testing.T) {
	for _, p := range places() {
		if at(p.whole(&Node{Type: Of(Int)}), p.path).Name != "f" {
			continue
		}
		table := create(t, p.whole(&Node{Type: Of(String)}))
		renumbered := p.whole(&Node{Type: Of(String)})
		at(renumbered, p.path).Number = 4
		target := reconcile3(table.Schema, renumbered, table.Numbers)
		require.Equal(t, []string{"added " + p.path + "_4 string"}, changes(target))
		require.Zero(t, at(target.Schema, p.path).Number)
		reused := p.whole(&Node{Type: Of(Boolean)})
		at(reused, p.path).Name = "flag"
		refused := reconcile3(table.Schema, reused, table.Numbers)
		require.Len(t, refused.Refusals, 1)
		require.Equal(t, p.path, refused.Refusals[0].Path)
		require.Equal(t, p.field, refused.Refusals[0].Field)
	}
}

// S7: a foreign engine dropped the column with the highest id; the table remembers that id.
func TestIDsOfForeignDropsAreNeverUsedAgain(t *testing.T) {
	table := create(t, of(col("a", 1, Int), col("s", 2, Struct, col("x", 1, Int), col("y", 2, Int))))
	dropped := table.Schema.Clone()
	dropped.Columns[1].Kids = dropped.Columns[1].Kids[:1]
	again := reconcile3(dropped, of(col("a", 1, Int), col("s", 2, Struct, col("x", 1, Int), col("y", 2, Int))), table.Numbers)
	require.Equal(t, []string{"added s.y int"}, changes(again))
	require.Equal(t, table.Schema.LastID+1, at(again.Schema, "s.y").FieldID)
	require.Equal(t, table.Schema.LastID+1, again.Numbers["2.2"])
}

// S4: nothing becomes required, whatever a candidate says, and what is written becomes optional, at every depth; the
// keys of maps stay.
func TestNothingIsEverRequired(t *testing.T) {
	strict := everything()
	strict.Walk(func(_ string, n *Node) { n.Required, n.FieldID = true, 0 })
	strict.Columns, strict.LastID = strict.Mapped(), 0
	fresh := reconcile3(&Schema{}, strict, nil)
	requireOptional(t, fresh.Schema)
	required := fresh.Schema.Clone()
	required.Walk(func(_ string, n *Node) { n.Required = true })
	target := reconcile3(required, strict, fresh.Numbers)
	require.Empty(t, target.Refusals)
	requireOptional(t, target.Schema)
	require.True(t, target.Changed)
}

func requireOptional(t *testing.T, s *Schema) {
	t.Helper()
	s.Walk(func(path string, n *Node) { require.Equal(t, n.Name == KeyName, n.Required, path) })
}

// A oneof that gains members, loses them or takes a plain field in: columns are members, so only what is new is added,
// and the column that names the member stays one column although its number is made from the lowest member.
func TestOneofMembersMove(t *testing.T) {
	kind := func(lowest int32) *Node { return col("kind", OneofNumber(lowest), String) }
	table := create(t, of(col("a", 3, Int), col("b", 4, String), kind(3)))
	grown := reconcile3(table.Schema, of(col("first", 2, Date), col("a", 3, Int), col("b", 4, String), kind(2)), table.Numbers)
	require.Equal(t, []string{"added first date"}, changes(grown))
	require.Equal(t, OneofNumber(2), grown.Schema.Column("kind").Number)
	shrunk := reconcile3(grown.Schema, of(col("b", 4, String), kind(4)), grown.Numbers)
	require.False(t, shrunk.Changed)
	require.Equal(t, OneofNumber(4), shrunk.Schema.Column("kind").Number)
	back := reconcile3(shrunk.Schema, of(col("a", 3, Int), col("b", 4, String), kind(3)), shrunk.Numbers)
	require.False(t, back.Changed)
}

// An enum is text by default: other values, other names, or text instead of the enum change nothing; the option that
// makes it a number is another column's type.
func TestEnumChanges(t *testing.T) {
	table := create(t, of(col("status", 1, String)))
	require.False(t, new(reconcile3(table.Schema, of(col("status", 1, String)), table.Numbers)).Changed)
	require.True(t, new(reconcile3(table.Schema, of(col("status", 1, Int)), table.Numbers)).Refused())
}

// S2: an empty message that gets fields keeps its presence, at every depth; one that loses them all needs none.
func TestEmptyMessagesGainFieldsAtEveryDepth(t *testing.T) {
	empty := &Node{Type: Of(Struct), Kids: []*Node{{Name: PresenceName, Number: PresenceNumber, Type: Of(Boolean)}}}
	full := &Node{Type: Of(Struct), Kids: []*Node{{Name: "x", Number: 1, Type: Of(Int)}}}
	for _, p := range places() {
		table := create(t, p.whole(empty))
		grown := reconcile3(table.Schema, p.whole(full), table.Numbers)
		require.Equal(t, []string{"added " + p.path + ".x int"}, changes(grown))
		require.Equal(t, PresenceNumber, at(grown.Schema, p.path+".present").Number)
		require.False(t, new(reconcile3(grown.Schema, p.whole(empty), grown.Numbers)).Changed)
	}
}

func TestColumnsFollowRenamesOnlyWhereWantedAndHarmless(t *testing.T) {
	table := create(t, of(col("old", 1, String), col("s", 2, Struct, col("in", 1, Int)), col("pinned", 3, Int), col("taken", 4, Int)))
	candidate := of(col("new", 1, String), col("s2", 2, Struct, col("inside", 1, Int)), col("free", 3, Int), col("TAKEN", 4, Int), col("x", 5, Int))
	kept := reconcile3(table.Schema, candidate, table.Numbers)
	require.Equal(t, []string{"added x int"}, changes(kept))
	target := Evolve(table.Schema, candidate, table.Numbers, Options{FormatVersion: 3, Rename: true, Pinned: map[string]bool{"pinned": true}})
	require.Equal(t, []string{"renamed old to new", "renamed s.in to inside", "renamed s to s2", "added x int"}, changes(target))
	require.Equal(t, "s2.inside", pathOfID(target.Schema, at(table.Schema, "s.in").FieldID))
	require.NotNil(t, target.Schema.Column("taken"), "case alone is no rename")
	require.NotNil(t, target.Schema.Column("pinned"))
	require.False(t, new(Evolve(target.Schema, candidate, target.Numbers, Options{FormatVersion: 3, Rename: true, Pinned: map[string]bool{"pinned": true}})).Changed)
	// Two fields that change names would make queries read the other one without a word.
	swapped := Evolve(table.Schema, of(col("taken", 1, String), col("old", 4, Int)), table.Numbers, Options{FormatVersion: 3, Rename: true})
	require.False(t, swapped.Changed)
	require.Equal(t, int32(1), swapped.Schema.Column("old").Number)
}

func pathOfID(s *Schema, id int32) string {
	var out string
	s.Walk(func(p string, n *Node) {
		if n.FieldID == id {
			out = p
		}
	})
	return out
}

// A third type gets a third column, each writer keeps its own, and a column that another engine dropped comes back.
func TestFurtherColumnsAreTriedInOrder(t *testing.T) {
	o := Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: "1"}}}
	s, n := &Schema{}, NumberMap{}
	fed := func(k Kind) string {
		t.Helper()
		target := Evolve(s, of(col("f", 1, k)), n, o)
		require.Empty(t, target.Refusals)
		s, n = target.Schema, target.Numbers
		for _, c := range s.Columns {
			if c.Number == 1 {
				return c.Name + " " + c.Type.String()
			}
		}
		return ""
	}
	for range 2 {
		require.Equal(t, "f string", fed(String))
		require.Equal(t, "f_2 int", fed(Int))
		require.Equal(t, "f_3 boolean", fed(Boolean))
	}
	require.Equal(t, "f_2 long", fed(Long), "a further column widens as any other")
	require.Equal(t, NumberMap{"1": 1, "1~2": 2, "1~3": 3}, n)
	s.Columns = without(s.Columns, "f_2")
	require.Equal(t, "f_3 boolean", fed(Boolean))
	require.Equal(t, "f_2 int", fed(Int))
	require.Equal(t, int32(4), n["1~2"])
	// Sources with names follow the same rule.
	source := func(k Kind) *Schema { return of(&Node{Name: "f", Source: "f", Type: Of(k)}) }
	first := create(t, source(String))
	target := Evolve(first.Schema, source(Int), first.Numbers, Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: "=f"}}})
	require.Equal(t, []string{"added f_2 int"}, changes(target))
	require.Equal(t, "f", target.Schema.Columns[1].Source)
	require.False(t, new(Evolve(target.Schema, source(Int), target.Numbers, Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: "=f"}}})).Changed)
}

func TestDecisionsReplaceWhatTheyAreAbout(t *testing.T) {
	first := Decision{Action: Accept, Field: "3", At: time.Unix(1, 0).UTC()}
	list, changed := Decide(nil, first)
	require.True(t, changed)
	same, changed := Decide(list, Decision{Action: Accept, Field: "3", At: time.Unix(9, 0).UTC()})
	require.False(t, changed, "the same decision again changes nothing")
	require.Equal(t, list, same)
	list, changed = Decide(list, Decision{Action: Ignore, Field: "3"})
	require.True(t, changed)
	require.Len(t, list, 1)
	list, _ = Decide(list, Decision{Action: Quarantine, Source: "schema id 7"})
	require.Len(t, list, 2)
	require.True(t, Quarantined(list, "schema id 7"))
	require.False(t, Quarantined(list, "schema id 8"))
}

func TestIgnoredFieldsTravelWithTheTargetAndNotInItsFingerprint(t *testing.T) {
	s := create(t, of(col("a", 1, Int))).Schema
	s.Ignored = []string{"2"}
	b, err := json.Marshal(s)
	require.NoError(t, err)
	back := &Schema{}
	require.NoError(t, json.Unmarshal(b, back))
	require.Equal(t, s, back)
	require.Equal(t, s, s.Clone())
	bare := s.Clone()
	bare.Ignored = nil
	require.Equal(t, bare.Fingerprint(), s.Fingerprint())
}

// Random histories in which every refusal is decided at random: no column that exists ever changes but by widening and
// renaming, ids are unique for ever, and deciding leads to a target that changes nothing when asked for again.
func TestRandomHistoriesWithDecisions(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	decided, beside := 0, 0
	for range 300 {
		table, numbers := &Schema{}, NumberMap{}
		var decisions []Decision
		for range 8 {
			candidate := of(randomFields(r, 3, true)...)
			o := Options{FormatVersion: 3, Decisions: decisions}
			target := Evolve(table, candidate, numbers, o)
			for rounds := 0; target.Refused(); rounds++ {
				require.Less(t, rounds, 100, "decisions come to an end: %v", target.Refusals)
				action := Accept
				if r.IntN(2) == 0 {
					action = Ignore
				}
				o.Decisions, _ = Decide(o.Decisions, Decision{Action: action, Field: target.Refusals[0].Field})
				target = Evolve(table, candidate, numbers, o)
				decided++
			}
			decisions = o.Decisions
			require.NoError(t, target.Schema.Validate())
			requireKept(t, table, target.Schema)
			again := Evolve(target.Schema, candidate, target.Numbers, o)
			require.False(t, again.Changed, "%v", again.Changes)
			require.Equal(t, target.Schema.Fingerprint(), again.Schema.Fingerprint())
			require.Equal(t, target.Schema.Ignored, again.Schema.Ignored)
			table, numbers = target.Schema, target.Numbers
		}
		for path := range numbers {
			if isBeside(path) {
				beside++
			}
		}
	}
	require.Greater(t, decided, 300)
	require.Greater(t, beside, 50)
}

// What a decoder gets has a place for every field of the record, and is the target where those are taken away.
func TestTargetsWithIgnoredFieldsHaveAPlaceForThem(t *testing.T) {
	for _, p := range places() {
		was, now := &Node{Type: Of(String)}, &Node{Type: Of(Int)}
		table := create(t, p.whole(was))
		target := Evolve(table.Schema, p.whole(now), table.Numbers, Options{FormatVersion: 3, Decisions: []Decision{{Action: Ignore, Field: p.field}}})
		before := target.Schema.Clone()
		wide := target.Schema.WithIgnored(p.whole(now))
		require.Equal(t, before, target.Schema, "not touched")
		require.Empty(t, wide.Ignored)
		var extra []*Node
		wide.Walk(func(_ string, n *Node) {
			if n.FieldID == 0 && n.Number == 0 || n.FieldID != 0 {
				return
			}
			extra = append(extra, n)
		})
		require.Len(t, extra, 1, p.path)
		require.Positive(t, extra[0].Number)
		target.Schema.Walk(func(path string, n *Node) {
			got := at(wide, path)
			require.NotNil(t, got)
			require.Equal(t, n.FieldID, got.FieldID)
			for i, k := range n.Kids {
				require.Equal(t, k.Name, got.Kids[i].Name, "the others keep their places")
			}
		})
	}
}

// Issue 4 point 10: a column of our name that is not ours is never overwritten.
func TestMetadataColumnsAreAddedOnlyWhereTheirNamesAreFree(t *testing.T) {
	table := create(t, of(col("a", 1, Int))).Schema
	with, added := table.WithMetadata(true, true)
	require.Equal(t, []string{"added _lsn long", "added _kafka struct<topic: string, partition: int, offset: long, timestamp: timestamptz, …>"}, []string{added[0].String(), added[1].String()})
	require.Greater(t, with.Column(LSNColumn).FieldID, table.LastID)
	require.Nil(t, table.Column(LSNColumn), "not touched")
	again, added := with.WithMetadata(true, true)
	require.Empty(t, added)
	require.Equal(t, with, again)
	require.False(t, new(reconcile3(with, of(col("a", 1, Int)), nil)).Refused())

	theirs := create(t, of(col("a", 1, Int), col("_LSN", 2, String))).Schema
	with, _ = theirs.WithMetadata(true, false)
	require.Equal(t, theirs, with)
	theirs.Columns[1].Name = LSNColumn
	target := reconcile3(theirs, of(col("a", 1, Int)), nil)
	require.Len(t, target.Refusals, 1)
	require.Contains(t, target.Refusals[0].String(), "column _lsn: the table has string")
	require.Empty(t, target.Refusals[0].Field, "nothing to decide about")
	part := &Schema{Columns: MetadataColumns(false, true)}
	part.Columns[0].Kids = part.Columns[0].Kids[:3]
	part.AssignIDs()
	require.False(t, new(reconcile3(part, of(col("a", 1, Int)), nil)).Refused(), "older tables have fewer fields")
}
