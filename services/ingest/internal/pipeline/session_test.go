package pipeline

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A trickle is hot at once, a stream is batched, and a backlog comes in full entries; but
// fetches that come one by one do not put an entry off for ever.
func TestAnOpenEntryWaitsOnlyForWhatWillCome(t *testing.T) {
	require.Zero(t, patience(false, true, 0))
	require.Equal(t, linger, patience(false, false, 0))
	require.Equal(t, lingerBehind, patience(true, false, 0))
	require.Equal(t, lingerBehind, patience(true, true, 0))
	require.Equal(t, 10*time.Millisecond, patience(true, true, lingerBehind-10*time.Millisecond))
	require.LessOrEqual(t, patience(true, false, lingerBehind), time.Duration(0))
}
