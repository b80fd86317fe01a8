package event_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/event"
)

// Skip reasons stand in tables and journals: names and numbers are those of the wire.
func TestSkipReasonsAreThoseOfTheWire(t *testing.T) {
	require.Len(t, event.SkipReasons(), len(typesv1.SkipReason_name)-1)
	for _, r := range event.SkipReasons() {
		require.Equal(t, r, event.ParseSkipReason(r.String()))
		require.Equal(t, "SKIP_REASON_"+strings.ToUpper(r.String()), typesv1.SkipReason(r).String())
	}
	require.Equal(t, event.SkipUnspecified, event.ParseSkipReason("nonsense"))
}
