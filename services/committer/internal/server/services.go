package server

import (
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Register registers the services of the hub.
func (h *Hub) Register(r grpc.ServiceRegistrar) {
	committerv1.RegisterTableServiceServer(r, &tableService{hub: h})
	committerv1.RegisterAdminServiceServer(r, &commitService{hub: h})
	adminv1.RegisterAdminServiceServer(r, &statusService{hub: h, started: time.Now()})
}

// tableService answers ingest.
type tableService struct {
	committerv1.UnimplementedTableServiceServer
	hub *Hub
}

// OpenTable implements the RPC.
func (s *tableService) OpenTable(ctx context.Context, req *committerv1.OpenTableRequest) (*committerv1.OpenTableResponse, error) {
	starts, err := startsOf(req)
	if err != nil {
		return nil, err
	}
	set := req.GetSettings()
	e, err := s.hub.open(ctx, req.GetTable(), req.GetPipeline(), &lake.Settings{
		Partition: set.GetPartition(), Sort: set.GetSort(), LSN: set.GetMetadataLsn(), Kafka: set.GetMetadataKafka(),
		Properties: set.GetProperties(), Owner: s.hub.o.Deployment,
	})
	if err != nil {
		return nil, err
	}
	e.table.WantMetadata(set.GetMetadataLsn(), set.GetMetadataKafka())
	opened, err := e.table.OpenPipeline(ctx, req.GetOwner(), req.GetPipeline(), starts)
	if err != nil {
		return nil, err
	}
	address, err := e.buffer.address(ctx) // of the log that knows what was answered here
	if err != nil {
		return nil, err
	}
	return &committerv1.OpenTableResponse{
		TableUuid: wire.UUIDToProto(opened.Table), Positions: wire.PositionsToProto(opened.Positions),
		Schema: wire.SchemaToProto(&opened.Schema), Buffer: address,
	}, nil
}

// startsOf checks a request and reads the proposed starts.
func startsOf(req *committerv1.OpenTableRequest) (ident.Vector, error) {
	switch {
	case req.GetTable() == "":
		return nil, fault.New(fault.InvalidArgument, "opening a table: no table is named")
	case req.GetPipeline() == "":
		return nil, fault.New(fault.InvalidArgument, "opening table %s: no pipeline is named", req.GetTable())
	case req.GetOwner() == "":
		return nil, fault.New(fault.InvalidArgument, "opening table %s: no owner is named", req.GetTable())
	}
	starts := make(ident.Vector, len(req.GetPartitions()))
	for _, p := range req.GetPartitions() {
		part, err := wire.PartitionFromProto(p.GetPartition())
		if err != nil {
			return nil, err
		}
		if part.Pipeline != req.GetPipeline() || p.GetStart() < 0 {
			return nil, fault.New(fault.InvalidArgument, "opening table %s for pipeline %q: %v cannot start at %d there",
				req.GetTable(), req.GetPipeline(), part, p.GetStart())
		}
		starts[part] = p.GetStart()
	}
	return starts, nil
}

// RecordReplaced implements the RPC.
func (s *tableService) RecordReplaced(ctx context.Context, req *committerv1.RecordReplacedRequest) (*committerv1.RecordReplacedResponse, error) {
	part, err := wire.PartitionFromProto(req.GetPartition())
	if err != nil {
		return nil, err
	}
	r, err := wire.RangeFromProto(req.GetRange())
	if err != nil {
		return nil, err
	}
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	if err := e.table.RecordReplaced(ctx, part, r); err != nil {
		return nil, err
	}
	return &committerv1.RecordReplacedResponse{}, nil
}

// commitService answers operators about commits.
type commitService struct {
	committerv1.UnimplementedAdminServiceServer
	hub *Hub
}

// arrival is how long CommitNow waits for rows that the buffer shows and that
// have not come here yet, before it looks again.
const arrival = 20 * time.Millisecond

// CommitNow implements the RPC. What readers could see when it was called is
// committed when it answers, also what was still on its way here.
func (s *commitService) CommitNow(ctx context.Context, req *committerv1.CommitNowRequest) (*committerv1.CommitNowResponse, error) {
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	shown, err := e.buffer.Visible(ctx)
	if err != nil {
		return nil, err
	}
	committed := false
	for {
		c, err := e.table.CommitNow(ctx)
		if err != nil {
			return nil, err
		}
		committed = committed || c.New
		if c.Commit.Positions.Vector().Covers(shown) {
			return &committerv1.CommitNowResponse{Commit: wire.CommitToProto(&c.Commit), Committed: committed}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(arrival):
		}
	}
}

// statusService answers operators about the service.
type statusService struct {
	adminv1.UnimplementedAdminServiceServer
	hub     *Hub
	started time.Time
}

// GetStatus implements the RPC.
func (s *statusService) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	report := s.hub.o.Health.Report("committer")
	resp := &adminv1.GetStatusResponse{
		Service: "committer", Instance: s.hub.o.Instance, Version: s.hub.o.Version, Started: timestamppb.New(s.started),
		Ready: report.Ready, Facts: map[string]string{
			"held bytes":        fmt.Sprintf("%d of %d", s.hub.budget.Used(), s.hub.o.Held),
			"uncommitted bytes": fmt.Sprint(s.hub.hot.Load()),
		},
	}
	for _, c := range report.Components {
		resp.Components = append(resp.Components, &adminv1.Component{Name: c.Name, Ready: c.Ready, Reason: c.Reason})
	}
	for _, e := range s.hub.list() {
		maps.Copy(resp.GetFacts(), e.facts())
	}
	return resp, nil
}

// facts describes a table for people.
func (e *entry) facts() map[string]string {
	s := e.table.Status()
	l := e.puller.Load()
	name := "table " + e.table.Name() + ": "
	out := map[string]string{
		name + "state":     s.State,
		name + "snapshot":  fmt.Sprintf("%d, sequence %d", s.Head.SnapshotID, s.Head.Sequence),
		name + "epochs":    fmt.Sprintf("writer %d, log %d", s.Head.State.WriterEpoch, s.Head.State.LogEpoch),
		name + "held":      fmt.Sprintf("%d rows, %d encoded bytes", l.Rows, l.Encoded),
		name + "confirmed": s.Confirmed.UTC().Format(time.RFC3339),
	}
	if s.Reason != "" {
		out[name+"reason"] = s.Reason
	}
	v := s.Head.State.Vector()
	for _, part := range v.Partitions() {
		out[name+part.String()] = fmt.Sprint(v[part])
	}
	return out
}
