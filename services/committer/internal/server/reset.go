package server

import (
	"context"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// ResetOffsets implements the RPC.
func (s *commitService) ResetOffsets(ctx context.Context, req *committerv1.ResetOffsetsRequest) (*committerv1.ResetOffsetsResponse, error) {
	if req.GetTable() == "" {
		return nil, fault.New(fault.InvalidArgument, "resetting a table: no table is named")
	}
	o, err := orderOf(req)
	if err != nil {
		return nil, err
	}
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	done, err := e.table.Reset(ctx, o)
	if err != nil {
		return nil, err
	}
	resp := &committerv1.ResetOffsetsResponse{SnapshotId: done.Snapshot, LogEpoch: int64(done.LogEpoch)}
	for i, p := range done.Partitions {
		resp.Partitions = append(resp.Partitions, &committerv1.ResetPartition{
			Partition: wire.PartitionToProto(ident.Partition{Pipeline: p.Pipeline, Topic: p.Topic, TopicID: p.TopicID, Number: p.Partition}),
			Table:     p.Table, Copy: p.Copy, Next: p.Next, Lost: p.Lost, Remark: done.Remarks[i],
		})
	}
	return resp, nil
}

// orderOf is what an operator decided.
func orderOf(req *committerv1.ResetOffsetsRequest) (commit.Order, error) {
	o := commit.Order{Reason: req.GetReason(), DryRun: req.GetDryRun(), Unchecked: req.GetUnchecked()}
	switch req.GetBase() {
	case committerv1.ResetBase_RESET_BASE_UNSPECIFIED:
	case committerv1.ResetBase_RESET_BASE_TABLE:
		o.Base = commit.BaseTable
	case committerv1.ResetBase_RESET_BASE_COPY:
		o.Base = commit.BaseCopy
	default:
		return commit.Order{}, fault.New(fault.InvalidArgument, "resetting table %s: base %v is not known to this release", req.GetTable(), req.GetBase())
	}
	for _, f := range req.GetForward() {
		o.Forward = append(o.Forward, commit.Forward{Pipeline: f.GetPipeline(), Topic: f.GetTopic(), Number: f.GetPartition(), Offset: f.GetOffset()})
	}
	for _, l := range req.GetLog() {
		part, err := wire.PartitionFromProto(l.GetPartition())
		if err != nil {
			return commit.Order{}, err
		}
		r, err := wire.RangeFromProto(l.GetRange())
		if err != nil {
			return commit.Order{}, err
		}
		o.Log = append(o.Log, commit.Extent{Cluster: l.GetCluster(), Partition: part, Range: r})
	}
	return o, nil
}
