package schema

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// create is the target for a new table.
func create(t *testing.T, candidate *Schema) Target {
	t.Helper()
	target := reconcile3(&Schema{}, candidate, nil)
	require.Empty(t, target.Refusals)
	require.NoError(t, target.Schema.Validate())
	return target
}

// reconcile3 is Reconcile for a table that has all types.
func reconcile3(table, candidate *Schema, numbers NumberMap) Target {
	return Evolve(table, candidate, numbers, Options{FormatVersion: 3})
}

func changes(target Target) []string {
	var out []string
	for _, c := range target.Changes {
		out = append(out, c.String())
	}
	return out
}

func TestNewTableGetsIDsAndNumbers(t *testing.T) {
	c := of(col("id", 1, Long), list("items", 2, col("", 0, Struct, col("sku", 1, String))), mapOf("attrs", 7, String, col("", 0, String)))
	target := create(t, of(append(c.Columns, MetadataColumns(true, false)...)...))
	require.Equal(t, NumberMap{"1": 1, "2": 2, "2.element.1": 6, "7": 3}, target.Numbers)
	require.Equal(t, int32(8), target.Schema.LastID)
	require.Equal(t, "_lsn", target.Schema.Columns[3].Name)
	require.Zero(t, c.Columns[0].FieldID, "the candidate is not touched")
	again := Reconcile(target.Schema, c, target.Numbers)
	require.False(t, again.Changed)
	require.Equal(t, target.Schema, again.Schema)
}

// S1: columns come from the schema, at any depth, behind the old mapped ones and
// before the metadata columns.
func TestAddedColumnsAtAnyDepth(t *testing.T) {
	first := create(t, of(append([]*Node{
		col("c", 1, Struct, col("a", 1, Int)), list("l", 2, col("", 0, Struct, col("a", 1, Int))), mapOf("m", 3, String, col("", 0, Struct, col("a", 1, Int))),
	}, MetadataColumns(true, true)...)...))
	second := Reconcile(first.Schema, of(
		col("z", 4, String),
		col("c", 1, Struct, col("a", 1, Int), col("b", 2, Struct, col("deep", 1, Long))),
		list("l", 2, col("", 0, Struct, col("b", 2, Int), col("a", 1, Int))),
		mapOf("m", 3, String, col("", 0, Struct, col("a", 1, Int), col("b", 2, Int))),
	), first.Numbers)
	require.Empty(t, second.Refusals)
	require.Equal(t, []string{"added c.b struct<deep: long>", "added l.element.b int", "added m.value.b int", "added z string"}, changes(second))
	var names []string
	for _, c := range second.Schema.Columns {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"c", "l", "m", "z", "_lsn", "_kafka"}, names)
	require.Greater(t, second.Schema.Column("z").FieldID, first.Schema.LastID)
	require.Equal(t, second.Schema.Column("c").Kids[1].FieldID, second.Numbers["1.2"])
}

// G10, S10: what widens, what fits, and what is refused.
func TestTypeChanges(t *testing.T) {
	for _, c := range []struct {
		table, candidate Type
		want             string // type afterwards, "" for refused
	}{
		{Of(Int), Of(Long), "long"},
		{Of(Long), Of(Int), "long"},
		{Of(Float), Of(Double), "double"},
		{Of(Double), Of(Float), "double"},
		{DecimalOf(9, 2), DecimalOf(18, 2), "decimal(18,2)"},
		{DecimalOf(18, 2), DecimalOf(9, 2), "decimal(18,2)"},
		{DecimalOf(20, 0), Of(Long), "decimal(20,0)"},
		{DecimalOf(10, 0), Of(Int), "decimal(10,0)"},
		{Of(Binary), Of(String), "binary"},
		{DecimalOf(18, 0), Of(Long), ""},
		{DecimalOf(9, 2), DecimalOf(18, 3), ""},
		{Of(Long), DecimalOf(20, 0), ""},
		{Of(Int), Of(String), ""},
		{Of(String), Of(Int), ""},
		{Of(String), Of(Binary), ""},
		{Of(Int), Of(Double), ""},
		{Of(Long), Of(Double), ""},
		{Of(Boolean), Of(Int), ""},
		{Of(Date), Of(TimestampTZ), ""},
	} {
		table := create(t, of(&Node{Name: "x", Number: 1, Type: c.table}))
		target := Reconcile(table.Schema, of(&Node{Name: "x", Number: 1, Type: c.candidate}), table.Numbers)
		if c.want == "" {
			require.True(t, target.Refused(), "%s from %s", c.table, c.candidate)
			require.Equal(t, "x", target.Refusals[0].Path)
			continue
		}
		require.Empty(t, target.Refusals, "%s from %s", c.table, c.candidate)
		require.Equal(t, c.want, target.Schema.Columns[0].Type.String())
		require.Equal(t, c.want != c.table.String(), target.Changed)
		require.Equal(t, table.Schema.Columns[0].FieldID, target.Schema.Columns[0].FieldID)
	}
}

func TestNestedAndPrimitiveNeverMix(t *testing.T) {
	table := create(t, of(col("x", 1, Struct, col("a", 1, Int)), list("l", 2, col("", 0, Int)), col("s", 3, String)))
	for _, c := range []*Node{col("x", 1, String), col("l", 2, Int), list("s", 3, col("", 0, String)), list("x", 1, col("", 0, Int))} {
		target := Reconcile(table.Schema, of(c), table.Numbers)
		require.Len(t, target.Refusals, 1, c.Name)
		require.Contains(t, target.Refusals[0].String(), "column "+c.Name)
	}
}

func TestMapKeysNeverChange(t *testing.T) {
	table := create(t, of(mapOf("m", 1, Int, col("", 0, Int))))
	target := Reconcile(table.Schema, of(mapOf("m", 1, Long, col("", 0, Long))), table.Numbers)
	require.Len(t, target.Refusals, 1)
	require.Equal(t, "m.key", target.Refusals[0].Path)
	require.True(t, target.Schema == nil || target.Schema.Columns[0].Kids[1].Type.Kind == Long)
}

// A renamed field stays the same column: the number decides, the table's name is
// kept, and nothing changes in the table.
func TestRenamedFieldStaysTheSameColumn(t *testing.T) {
	table := create(t, of(col("old", 5, String), col("st", 6, Struct, col("in", 1, Int))))
	target := Reconcile(table.Schema, of(col("new", 5, String), col("st2", 6, Struct, col("inside", 1, Int))), table.Numbers)
	require.False(t, target.Changed, "%v", changes(target))
	require.Equal(t, table.Schema, target.Schema)
}

// A new field that takes the name of another number's column is another column.
func TestNewNumberWithAnOldNameIsAnotherColumn(t *testing.T) {
	table := create(t, of(col("a", 1, String)))
	target := Reconcile(table.Schema, of(col("A", 2, Long)), table.Numbers)
	require.Equal(t, []string{"added A_2 long"}, changes(target))
	require.Zero(t, target.Schema.Columns[0].Number)
	require.Equal(t, int32(2), target.Schema.Columns[1].Number)
	swapped := Reconcile(table.Schema, of(col("b", 1, String), col("a", 2, Long)), table.Numbers)
	require.Equal(t, []string{"added a_2 long"}, changes(swapped))
	require.Equal(t, int32(1), swapped.Schema.Columns[0].Number)
}

// A table that somebody else made is matched by name, without regard to case.
func TestForeignTableIsMatchedByName(t *testing.T) {
	table := of(&Node{Name: "userid", FieldID: 3, Type: Of(Long), Required: true}, &Node{Name: "other", FieldID: 9, Type: Of(String), Required: true})
	table.LastID = 20
	target := Reconcile(table, of(col("userId", 1, Int), col("x", 2, Int)), nil)
	require.Empty(t, target.Refusals)
	require.Equal(t, []string{"made optional userid", "made optional other", "added x int"}, changes(target))
	require.Equal(t, NumberMap{"1": 3, "2": 21}, target.Numbers)
	require.Equal(t, int32(1), target.Schema.Column("userid").Number)
	require.True(t, table.Columns[0].Required, "the table's schema is not touched")
}

// S7: ids come after the highest one ever given, also to dropped columns.
func TestDroppedColumnsIDIsNeverUsedAgain(t *testing.T) {
	first := create(t, of(col("a", 1, Int), col("c", 2, Int)))
	dropped := first.Schema.Clone()
	dropped.Columns = dropped.Columns[:1]
	target := Reconcile(dropped, of(col("a", 1, Int), col("d", 3, Int)), first.Numbers)
	require.Equal(t, int32(3), target.Schema.Column("d").FieldID)
	back := Reconcile(dropped, of(col("a", 1, Int), col("c", 2, Int)), first.Numbers)
	require.Equal(t, int32(3), back.Schema.Column("c").FieldID, "a dropped column comes back as a new one")
	require.Equal(t, int32(3), back.Numbers["2"])
}

// S2: the presence column stays, is fed for ever, and is not added where other
// fields keep the presence.
func TestPresenceColumn(t *testing.T) {
	empty := of(col("p", 1, Struct, &Node{Name: PresenceName, Number: PresenceNumber, Type: Of(Boolean)}))
	grown := of(col("p", 1, Struct, col("present", 1, String)))
	first := create(t, empty)
	second := Reconcile(first.Schema, grown, first.Numbers)
	require.Equal(t, []string{"added p.present_1 string"}, changes(second))
	require.Equal(t, PresenceNumber, second.Schema.Columns[0].Kids[0].Number)
	require.False(t, Reconcile(second.Schema, empty, second.Numbers).Changed)
	other := create(t, grown)
	require.False(t, Reconcile(other.Schema, empty, other.Numbers).Changed)
}

// The target of a target changes nothing, and no accepted change ever alters an
// existing column's id, name, or kind of value (G10): random histories.
func TestReconcileIsIdempotentAndNeverAltersColumns(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		table := &Schema{}
		numbers := NumberMap{}
		for range 8 {
			candidate := of(randomFields(r, 3, true)...)
			target := Reconcile(table, candidate, numbers)
			if target.Refused() {
				continue
			}
			require.NoError(t, target.Schema.Validate())
			again := Reconcile(target.Schema, candidate, target.Numbers)
			require.False(t, again.Changed, "%v", again.Changes)
			require.Equal(t, target.Schema.Fingerprint(), again.Schema.Fingerprint())
			requireKept(t, table, target.Schema)
			table, numbers = target.Schema, target.Numbers
		}
	}
}

func requireKept(t *testing.T, before, after *Schema) {
	t.Helper()
	byID := map[int32]*Node{}
	paths := map[int32]string{}
	after.Walk(func(path string, n *Node) { byID[n.FieldID], paths[n.FieldID] = n, path })
	before.Walk(func(path string, n *Node) {
		now := byID[n.FieldID]
		require.NotNil(t, now, path)
		require.Equal(t, path, paths[n.FieldID])
		require.NotEqual(t, never, fit(now.Type, n.Type))
	})
}

func randomFields(r *rand.Rand, depth int, top bool) []*Node {
	var out []*Node
	for number := int32(1); number <= 6; number++ {
		if r.IntN(3) == 0 {
			continue
		}
		name := string(rune('a' + r.IntN(4)))
		if r.IntN(2) == 0 {
			name = string(rune('A' + r.IntN(4)))
		}
		kinds := []Kind{Int, Long, String, Double, Float}
		k := kinds[(int(number)+r.IntN(2))%len(kinds)]
		switch {
		case depth > 0 && number == 5:
			out = append(out, list(name, number, col("", 0, Struct, randomFields(r, depth-1, false)...)))
		case depth > 0 && number == 6:
			out = append(out, col(name, number, Struct, randomFields(r, depth-1, false)...))
		default:
			out = append(out, col(name, number, k))
		}
	}
	if len(out) == 0 {
		out = append(out, &Node{Name: PresenceName, Number: PresenceNumber, Type: Of(Boolean)})
	}
	ResolveNames(out, top)
	return out
}
