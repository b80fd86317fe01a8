// Package server answers operators: what ingest is doing and why it is not ready, and pause and resume of pipelines.
package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
)

// Admin implements icestream.admin.v1.AdminService. It is safe for concurrent use.
type Admin struct {
	adminv1.UnimplementedAdminServiceServer

	Instance  string
	Version   string
	Started   time.Time
	Health    *obs.Health
	Pipelines map[string]*pipeline.Pipeline
}

// GetStatus says what the service is doing.
func (a *Admin) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	report := a.Health.Report("ingest")
	resp := &adminv1.GetStatusResponse{
		Service: "ingest", Instance: a.Instance, Version: a.Version, Started: timestamppb.New(a.Started),
		Ready: report.Ready, Facts: map[string]string{},
	}
	for _, c := range report.Components {
		resp.Components = append(resp.Components, &adminv1.Component{Name: c.Name, Ready: c.Ready, Reason: c.Reason})
	}
	for name, p := range a.Pipelines {
		for _, s := range p.Status() {
			fact := fmt.Sprintf("%s, appended %d, end %d", state(s.State), s.Acked, s.End)
			if s.Reason != "" {
				fact += ": " + s.Reason
			}
			resp.Facts[ident.Partition{Pipeline: name, Topic: s.Topic, Number: s.Number}.String()] = fact
		}
	}
	return resp, nil
}

func state(s event.PartitionState) string {
	switch s {
	case event.PartitionRunning:
		return "running"
	case event.PartitionPaused:
		return "paused"
	case event.PartitionWaiting:
		return "waiting"
	case event.PartitionStopped:
		return "stopped"
	case event.PartitionUnspecified:
	}
	return "unknown"
}

// SetPipelineState pauses or resumes a pipeline. Resuming also lets its stopped partitions try again at once.
func (a *Admin) SetPipelineState(_ context.Context, r *adminv1.SetPipelineStateRequest) (*adminv1.SetPipelineStateResponse, error) {
	p, err := a.pipeline(r.GetPipeline())
	if err != nil {
		return nil, err
	}
	switch r.GetState() {
	case adminv1.PipelineState_PIPELINE_STATE_RUNNING:
		p.Pause(false)
	case adminv1.PipelineState_PIPELINE_STATE_PAUSED:
		p.Pause(true)
	case adminv1.PipelineState_PIPELINE_STATE_UNSPECIFIED:
		fallthrough
	default:
		return nil, fault.New(fault.InvalidArgument, "state %v: use RUNNING or PAUSED", r.GetState())
	}
	return &adminv1.SetPipelineStateResponse{}, nil
}
