package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// G1: what Kafka holds reaches whoever judges the order, and no look is left out that
// the operator did not say to leave out.
func TestAnOrderIsJudgedByTheLogThatCameWithIt(t *testing.T) {
	part := ident.Partition{Topic: "t", TopicID: ident.UUID{9}, Number: 3}
	held := &committerv1.LogExtent{Partition: wire.PartitionToProto(part), Cluster: "k", Range: wire.RangeToProto(ident.Range{First: 5, Next: 9})}
	req := &committerv1.ResetOffsetsRequest{
		Table: "a.b", Base: committerv1.ResetBase_RESET_BASE_COPY, Reason: "why", DryRun: true,
		Forward: []*committerv1.ResetForward{{Pipeline: "p", Topic: "t", Partition: 3, Offset: 7}}, Log: []*committerv1.LogExtent{held},
	}
	want := commit.Order{
		Base: commit.BaseCopy, Reason: "why", DryRun: true, Forward: []commit.Forward{{Pipeline: "p", Topic: "t", Number: 3, Offset: 7}},
		Log: []commit.Extent{{Cluster: "k", Partition: part, Range: ident.Range{First: 5, Next: 9}}},
	}
	for _, unchecked := range []bool{false, true} {
		req.Unchecked, want.Unchecked = unchecked, unchecked
		got, err := orderOf(req)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, broken := range []*committerv1.LogExtent{{}, {Partition: held.GetPartition(), Range: wire.RangeToProto(ident.Range{First: 9, Next: 5})}} {
		req.Log = []*committerv1.LogExtent{broken}
		_, err := orderOf(req)
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
	}
}
