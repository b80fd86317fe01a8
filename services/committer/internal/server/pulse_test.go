package server

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// G11: only a catalog that did not answer and does so now makes anybody go on.
func TestThePulseIsFeltWhenTheCatalogIsBack(t *testing.T) {
	p := newPulse()
	answer := func(err error) { p.feel(t.Context(), func(context.Context) error { return err }) }
	woken := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	waits := p.revived()
	answer(nil)
	require.False(t, woken(waits), "it was never away")
	answer(errors.New("connection refused"))
	answer(errors.New("connection refused"))
	require.False(t, woken(waits))
	answer(nil)
	require.True(t, woken(waits))
	waits = p.revived()
	answer(nil)
	require.False(t, woken(waits), "it was said once")
}
