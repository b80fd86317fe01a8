package discovery

import (
	"context"
	"testing"

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
