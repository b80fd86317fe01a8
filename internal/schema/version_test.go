package schema

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What needs format version 3 is refused where the table has 2, at every depth, with
// the column, the version and the way out named; on a table of version 3 it is added
// as any other column (issue 4 point 3).
func TestTypesOfALaterFormatVersionAreRefused(t *testing.T) {
	candidate := of(col("a", 1, Int), col("s", 2, Struct, list("l", 3, col("", 0, TimestampTZNano)), col("n", 4, TimestampNano)), col("v", 5, Variant))
	for _, version := range []int{0, 2} {
		target := Evolve(&Schema{}, candidate, nil, Options{FormatVersion: version})
		require.Len(t, target.Refusals, 3)
		r := target.Refusals[0]
		require.Equal(t, Refusal{Path: "s.l.element", TableType: "format version 2", CandidateType: "timestamptz_ns", Why: r.Why}, r)
		require.Contains(t, r.Why, "format version 3")
		require.Contains(t, r.Why, "format_version")
		require.Equal(t, "s.n", target.Refusals[1].Path)
		require.Equal(t, "v", target.Refusals[2].Path)
	}
	target := Evolve(&Schema{}, candidate, nil, Options{FormatVersion: 3})
	require.Empty(t, target.Refusals)
	again := Evolve(target.Schema, candidate, target.Numbers, Options{FormatVersion: 3})
	require.False(t, again.Changed)

	added := Evolve(create(t, of(col("a", 1, Int))).Schema, candidate, NumberMap{"1": 1}, Options{})
	require.Len(t, added.Refusals, 3, "a field added later as well")
	fits := Evolve(create(t, of(col("a", 1, Int))).Schema, of(col("a", 1, Int)), NumberMap{"1": 1}, Options{})
	require.Empty(t, fits.Refusals, "the default mapping never needs version 3")
}

// A column of microseconds never becomes one of nanoseconds, nor the other way; beside it there may be one.
func TestNanosecondsStandBesideMicroseconds(t *testing.T) {
	table := create(t, of(col("at", 1, TimestampTZ)))
	now := of(col("at", 1, TimestampTZNano))
	target := Evolve(table.Schema, now, table.Numbers, Options{FormatVersion: 3})
	require.Len(t, target.Refusals, 1)
	require.Equal(t, "1", target.Refusals[0].Field)
	require.Contains(t, target.Refusals[0].Why, "no room for nanoseconds")
	accept := Options{FormatVersion: 3, Decisions: []Decision{{Action: Accept, Field: "1"}}}
	target = Evolve(table.Schema, now, table.Numbers, accept)
	require.Equal(t, []string{"added at_2 timestamptz_ns"}, changes(target))
	accept.FormatVersion = 2
	require.Len(t, Evolve(table.Schema, now, table.Numbers, accept).Refusals, 1, "a decision does not change the format")
}
