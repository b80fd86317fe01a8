package server

import (
	"context"
	"maps"
	"slices"
	"strings"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
)

func (a *Admin) pipeline(name string) (*pipeline.Pipeline, error) {
	if p := a.Pipelines[name]; p != nil {
		return p, nil
	}
	names := slices.Sorted(maps.Keys(a.Pipelines))
	return nil, fault.New(fault.NotFound, "there is no pipeline %q here, there is %s%s", name, strings.Join(names, ", "), near.Hint(name, names))
}

// GetPolicy says what becomes of records that cannot be rows.
func (a *Admin) GetPolicy(_ context.Context, r *adminv1.GetPolicyRequest) (*adminv1.GetPolicyResponse, error) {
	names := slices.Sorted(maps.Keys(a.Pipelines))
	if r.GetPipeline() != "" {
		names = []string{r.GetPipeline()}
	}
	resp := &adminv1.GetPolicyResponse{}
	for _, name := range names {
		p, err := a.pipeline(name)
		if err != nil {
			return nil, err
		}
		resp.Policies = append(resp.Policies, policyOf(p))
	}
	return resp, nil
}

// SetPolicy switches a pipeline for as long as this process lives.
func (a *Admin) SetPolicy(_ context.Context, r *adminv1.SetPolicyRequest) (*adminv1.SetPolicyResponse, error) {
	p, err := a.pipeline(r.GetPipeline())
	if err != nil {
		return nil, err
	}
	if err := p.SetPolicy(r.GetPolicy()); err != nil {
		return nil, err
	}
	return &adminv1.SetPolicyResponse{Policy: policyOf(p)}, nil
}

// AllowFlood lets partitions go on that stopped for too many bad records.
func (a *Admin) AllowFlood(_ context.Context, r *adminv1.AllowFloodRequest) (*adminv1.AllowFloodResponse, error) {
	p, err := a.pipeline(r.GetPipeline())
	if err != nil {
		return nil, err
	}
	return &adminv1.AllowFloodResponse{Released: stopped(p.AllowFlood())}, nil
}

func policyOf(p *pipeline.Pipeline) *adminv1.PipelinePolicy {
	s := p.Policy()
	return &adminv1.PipelinePolicy{Pipeline: p.Name(), Policy: s.Policy, Configured: s.Configured, Stopped: stopped(s.Stopped)}
}

func stopped(list []pipeline.StoppedPartition) []*adminv1.StoppedPartition {
	out := make([]*adminv1.StoppedPartition, len(list))
	for i, s := range list {
		out[i] = &adminv1.StoppedPartition{Topic: s.Topic, Partition: s.Number, Reason: s.Reason}
	}
	return out
}
