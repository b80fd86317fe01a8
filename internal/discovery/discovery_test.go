package discovery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
)

// suite is what every resolver has to hold, given one instance of buffer at address and none of ingest.
func suite(t *testing.T, r Resolver, address string) {
	t.Run("the instance owns every table", func(t *testing.T) {
		for _, table := range []string{"shop.orders", "shop.customers"} {
			got, err := r.Owner(t.Context(), table, Buffer)
			require.NoError(t, err)
			require.Equal(t, address, got)
		}
	})
	t.Run("instances are listed", func(t *testing.T) {
		got, err := r.Instances(t.Context(), Buffer)
		require.NoError(t, err)
		require.Equal(t, []string{address}, got)
	})
	t.Run("a role without an instance is unavailable, which a retry may heal", func(t *testing.T) {
		_, err := r.Owner(t.Context(), "shop.orders", Ingest)
		require.Equal(t, fault.Unavailable, fault.ReasonOf(err))
		require.ErrorContains(t, err, "ingest")
		_, err = r.Instances(t.Context(), Ingest)
		require.Equal(t, fault.Unavailable, fault.ReasonOf(err))
	})
	t.Run("an ended context ends the search", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := r.Owner(ctx, "shop.orders", Buffer)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestStatic(t *testing.T) {
	r, err := FromConfig(config.Discovery{Type: "static", Buffer: "127.0.0.1:7401"})
	require.NoError(t, err)
	suite(t, r, "127.0.0.1:7401")
}

func TestUnknownTypeSaysWhatToUse(t *testing.T) {
	_, err := FromConfig(config.Discovery{Type: "stars"})
	require.ErrorContains(t, err, "use static")
}

// turns names one owner after the other, the last one for ever; "" is that nobody can be told.
type turns struct {
	Static

	owners []string
}

func (r *turns) Owner(context.Context, string, Role) (string, error) {
	now := r.owners[0]
	if len(r.owners) > 1 {
		r.owners = r.owners[1:]
	}
	if now == "" {
		return "", fault.New(fault.Unavailable, "nobody")
	}
	return now, nil
}

// G11: an owner that lives on after the role moved is left; one answer that is out of date, or none, moves nobody.
func TestAnOwnerIsLeftWhenTheRoleHasMovedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		now := Moved(t.Context(), &turns{owners: []string{"a", "b", "a", "b", "", "b", "a", "b", "b"}}, "t", Buffer, "a")
		require.Equal(t, "b", now)
		require.Equal(t, 9*look, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.Empty(t, Moved(ctx, &turns{owners: []string{"a"}}, "t", Buffer, "a"))
	})
}
