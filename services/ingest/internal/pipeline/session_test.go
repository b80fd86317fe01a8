package pipeline

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A trickle is hot at once, a stream is batched, and a backlog comes in full entries.
func TestAnOpenEntryWaitsOnlyForWhatWillCome(t *testing.T) {
	require.Zero(t, patience(false, true))
	require.Equal(t, linger, patience(false, false))
	require.Equal(t, lingerBehind, patience(true, false))
	require.Equal(t, lingerBehind, patience(true, true))
}
