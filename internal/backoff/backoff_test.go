package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func fixed(v float64) func() float64 { return func() float64 { return v } }

func TestWaitsDoubleUpToTheMaximum(t *testing.T) {
	b := Policy{Initial: time.Second, Max: 5 * time.Second, Factor: 2}.Start()
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}, got)
	b.Reset()
	require.Equal(t, time.Second, b.Next())
}

func TestJitterOnlyShortensAWait(t *testing.T) {
	p := Policy{Initial: time.Second, Max: time.Second, Factor: 2, Jitter: 0.5}
	p.Rand = fixed(0)
	require.Equal(t, time.Second, p.Start().Next())
	p.Rand = fixed(1)
	require.Equal(t, 500*time.Millisecond, p.Start().Next())
}

func TestZeroPolicyIsTheDefault(t *testing.T) {
	p := Policy{Rand: fixed(0)}
	require.Equal(t, Default().Initial, p.Start().Next())
}

func TestHugeWaitsDoNotOverflow(t *testing.T) {
	b := Policy{Initial: time.Hour, Max: 1 << 62, Factor: 1e9}.Start()
	for range 100 {
		require.Positive(t, b.Next())
	}
}

func TestRetryGoesOnUntilSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, n := time.Now(), 0
		err := Retry(t.Context(), Policy{Initial: time.Second, Max: time.Minute, Factor: 2}, func(context.Context) error {
			if n++; n < 4 {
				return errors.New("down")
			}
			return nil
		}, nil)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, 7*time.Second, time.Since(started))
	})
}

func TestRetryHonoursTheWaitThatThePeerAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, n := time.Now(), 0
		err := Retry(t.Context(), Policy{Initial: time.Second, Max: time.Second, Factor: 1}, func(context.Context) error {
			if n++; n == 1 {
				return errors.New("429")
			}
			return nil
		}, func(error) Verdict { return AgainAfter(time.Minute) })
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(started))
	})
}

func TestRetryGivesUpWhenToldTo(t *testing.T) {
	bad := errors.New("401")
	n := 0
	err := Retry(t.Context(), Default(), func(context.Context) error { n++; return bad }, func(error) Verdict { return GiveUp() })
	require.Equal(t, bad, err)
	require.Equal(t, 1, n)
}

func TestRetryEndsWithItsContextAndKeepsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := Retry(ctx, Policy{Initial: time.Second, Max: time.Second, Factor: 1}, func(context.Context) error { return down }, nil)
		require.ErrorIs(t, err, down)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
