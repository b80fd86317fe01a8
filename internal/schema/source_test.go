package schema

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func named(name string, k Kind, aliases ...string) *Node {
	return &Node{Name: name, Source: name, Type: Of(k), Aliases: aliases}
}

// follow reconciles one candidate after the other with the table that the ones before made.
func follow(t *testing.T, candidates ...*Schema) Target {
	t.Helper()
	table, numbers := &Schema{}, NumberMap(nil)
	var target Target
	for _, c := range candidates {
		ResolveNames(c.Columns, true)
		target = Reconcile(table, c, numbers)
		require.Empty(t, target.Refusals)
		table, numbers = target.Schema, target.Numbers
		again := Reconcile(table, c, numbers)
		require.False(t, again.Changed)
		require.Equal(t, target.Schema.Fingerprint(), again.Schema.Fingerprint(), "idempotent")
	}
	return target
}

func TestFieldsWithoutNumbersKeepTheirColumnByName(t *testing.T) { // S1
	target := follow(t,
		&Schema{Columns: []*Node{named("id", Long), named("ID", String), named("a.b", String)}},
		&Schema{Columns: []*Node{named("a.b", String), named("ID", String), named("id", Long)}}, // another order
		&Schema{Columns: []*Node{named("ID_2", Date)}},                                          // the name of another field's column
	)
	require.Equal(t, []string{"id", "ID_2", "a.b", "ID_2_1"}, names(target.Schema.Columns))
	require.Equal(t, "ID_2", target.Schema.Columns[3].Source)
	require.Empty(t, target.Schema.Columns[1].Source, "not fed by this schema")
	require.Equal(t, target.Schema.Columns[1].FieldID, target.Numbers["=ID"])
	require.Contains(t, target.Numbers, "=a%2Eb")
}

func TestFieldRenamedByAliasKeepsItsColumn(t *testing.T) { // S2
	target := follow(t,
		&Schema{Columns: []*Node{named("old", Long)}},
		&Schema{Columns: []*Node{named("new", Long, "older", "old")}},
		&Schema{Columns: []*Node{named("new", Long)}}, // the table knows by now
	)
	require.Equal(t, []string{"old"}, names(target.Schema.Columns))
	require.Equal(t, "new", target.Schema.Columns[0].Source)
	require.Empty(t, target.Schema.Columns[0].Aliases)
}

func TestSourcesFollowAColumnThatWasRenamedByHand(t *testing.T) { // S2
	first := follow(t, &Schema{Columns: []*Node{named("id", Long)}})
	first.Schema.Columns[0].Name = "order_id"
	next := Reconcile(first.Schema, &Schema{Columns: []*Node{named("id", Long)}}, first.Numbers)
	require.False(t, next.Changed)
	require.Equal(t, "order_id", next.Schema.Columns[0].Name)
	require.Equal(t, "id", next.Schema.Columns[0].Source)
}

func TestSourceTakesTheColumnOfAFieldThatHadANumber(t *testing.T) { // a pipeline that changes its format
	table := follow(t, &Schema{Columns: []*Node{{Name: "id", Number: 1, Type: Of(Long)}}})
	next := Reconcile(table.Schema, &Schema{Columns: []*Node{named("id", Long)}}, table.Numbers)
	require.False(t, next.Changed)
	require.Equal(t, "id", next.Schema.Columns[0].Source)
}

func TestSourcesSurviveJSONAndAreNamedByTheFingerprint(t *testing.T) {
	s := &Schema{Columns: []*Node{named("a", Long, "b")}}
	b, err := json.Marshal(s)
	require.NoError(t, err)
	var back Schema
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, s.Columns, back.Columns)
	other := s.Clone()
	other.Columns[0].Source = "c"
	require.NotEqual(t, s.Fingerprint(), other.Fingerprint())
}

func TestKeyColumnStepsAsideForAFieldOfItsName(t *testing.T) {
	columns := []*Node{{Name: RecordKeyName, Number: RecordKeyNumber, Type: Of(Binary)}, {Name: "_KEY", Number: 7, Type: Of(String)}}
	ResolveNames(columns, true)
	require.Equal(t, []string{"_key_kafka", "_KEY"}, names(columns))
}

func TestColumnOfTheRawRecordStepsAsideForAFieldOfItsName(t *testing.T) {
	columns := []*Node{{Name: RawName, Number: RawNumber, Type: Of(Binary)}, {Name: "_RAW", Number: 7, Type: Of(String)}, {Name: RecordKeyName, Number: RecordKeyNumber, Type: Of(Binary)}}
	ResolveNames(columns, true)
	require.Equal(t, []string{"_raw_record", "_RAW", "_key"}, names(columns))
	ResolveNames(columns, true)
	require.Equal(t, []string{"_raw_record", "_RAW", "_key"}, names(columns), "a second time changes nothing")
	require.False(t, isOneof(RawNumber))
	require.False(t, isOneof(RecordKeyNumber))
	require.True(t, isOneof(OneofNumber(1<<29-1)))
}

func names(nodes []*Node) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.Name
	}
	return out
}
