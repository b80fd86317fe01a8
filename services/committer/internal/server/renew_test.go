package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
)

// No table is made anew under the name of a quarantine table, nor under none; and none
// without a name is reset.
func TestRenewingAQuarantineTableIsRefused(t *testing.T) {
	s := &commitService{}
	for name, says := range map[string]string{
		"shop.orders__quarantine": "is the quarantine table of shop.orders: say shop.orders",
		"":                        "no table is named",
	} {
		_, err := s.RenewTable(t.Context(), &committerv1.RenewTableRequest{Table: name})
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument), name)
		require.ErrorContains(t, err, says)
	}
	_, err := s.ResetOffsets(t.Context(), &committerv1.ResetOffsetsRequest{})
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
	require.ErrorContains(t, err, "no table is named")
}
