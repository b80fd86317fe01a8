package run

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoWaitsForATurnCanGiveUp(t *testing.T) {
	turn := NewTurn()
	require.NoError(t, turn.Take(t.Context()))
	require.False(t, turn.TryTake())
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, turn.Take(gone), context.Canceled)
	turn.Give()
	require.True(t, turn.TryTake())
}
