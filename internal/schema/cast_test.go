package schema

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDiffNamesWhatOthersChanged(t *testing.T) {
	before := create(t, of(col("a", 1, Int), col("s", 2, Struct, col("x", 1, Int), col("y", 2, Int)), col("gone", 3, Struct, col("z", 1, Int)), col("r", 4, Int))).Schema
	after := before.Clone()
	after.Columns[0].Type = Of(Long)
	after.Columns[1].Name = "t"
	after.Columns[1].Kids[0].Name = "xx"
	after.Columns[1].Kids = append(after.Columns[1].Kids, col("new", 0, Struct, col("deep", 0, Int)))
	after.Columns = append(after.Columns[:2], after.Columns[3])
	after.Columns[2].Required = true
	after.AssignIDs()
	var got []string
	for _, c := range Diff(before, after) {
		got = append(got, c.String())
	}
	require.Equal(t, []string{
		"widened a from int to long", "renamed s to t", "renamed s.x to xx", "added t.new struct<deep: int>", "made required r", "dropped gone",
	}, got)
	require.Empty(t, Diff(after, after))
}

func TestCastsAreThoseThatTheTableMakes(t *testing.T) {
	table := create(t, of(col("n", 1, Long), list("l", 2, col("", 0, Struct, col("f", 1, Double))), mapOf("m", 3, Long, col("", 0, Binary)), col("same", 4, Int)))
	candidate := of(col("other", 1, Int), list("l", 2, col("", 0, Struct, col("f", 1, Float))), mapOf("m", 3, Int, col("", 0, String)), col("same", 4, Int))
	target := Reconcile(table.Schema, candidate, table.Numbers)
	require.Empty(t, target.Refusals)
	var got []string
	for _, c := range Casts(target.Schema, candidate) {
		got = append(got, c.String())
	}
	require.Equal(t, []string{"n from int to long", "l.element.f from float to double", "m.key from int to long", "m.value from string to binary"}, got)
}
