package server

import (
	"context"
	"encoding/json"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// ProposeSchema implements the RPC.
func (s *tableService) ProposeSchema(ctx context.Context, req *committerv1.ProposeSchemaRequest) (*committerv1.ProposeSchemaResponse, error) {
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	var candidate schema.Schema
	if err := json.Unmarshal(req.GetCandidate(), &candidate); err != nil {
		return nil, fault.New(fault.InvalidArgument, "reading the candidate for schema %s: %w", req.GetSourceSchema(), err)
	}
	p, err := e.table.Propose(ctx, commit.Proposal{
		Pipeline: req.GetPipeline(), Source: req.GetSourceSchema(), Order: req.GetSourceOrder(), Rename: req.GetFollowRenames(),
		DryRun: req.GetDryRun(), Candidate: &candidate,
	})
	if err != nil {
		return nil, err
	}
	resp := &committerv1.ProposeSchemaResponse{Refusals: refusalsToProto(p.Refusals), Quarantine: p.Quarantine}
	for _, c := range p.Changes {
		resp.Changes = append(resp.Changes, c.String())
	}
	if len(p.Refusals) == 0 {
		resp.Schema = wire.SchemaToProto(&p.Schema)
	}
	return resp, nil
}

func refusalsToProto(list []schema.Refusal) []*committerv1.SchemaRefusal {
	var out []*committerv1.SchemaRefusal
	for _, r := range list {
		out = append(out, &committerv1.SchemaRefusal{
			Path: r.Path, TableType: r.TableType, SourceType: r.CandidateType, Why: r.Why, Field: r.Field,
		})
	}
	return out
}

// ListSchemaRefusals implements the RPC. A table that cannot answer, and has been
// asked for by name, is an error; among all it is left out, its state says why.
func (s *commitService) ListSchemaRefusals(ctx context.Context, req *committerv1.ListSchemaRefusalsRequest) (*committerv1.ListSchemaRefusalsResponse, error) {
	resp := &committerv1.ListSchemaRefusalsResponse{}
	entries := s.hub.list()
	if req.GetTable() != "" {
		e, err := s.hub.find(ctx, req.GetTable())
		if err != nil {
			return nil, err
		}
		entries = []*entry{e}
	}
	for _, e := range entries {
		waiting, err := e.table.Waiting(ctx)
		if err != nil && (req.GetTable() != "" || ctx.Err() != nil) {
			return nil, err
		}
		resp.Refused = append(resp.Refused, waitingToProto(e.table.Name(), waiting)...)
	}
	return resp, nil
}

func waitingToProto(table string, waiting []commit.Waiting) []*committerv1.RefusedSchema {
	var out []*committerv1.RefusedSchema
	for _, w := range waiting {
		out = append(out, &committerv1.RefusedSchema{
			Table: table, Pipeline: w.Pipeline, SourceSchema: w.Source, Refusals: refusalsToProto(w.Refusals), Proposed: w.At.UnixMicro(),
		})
	}
	return out
}

var actions = map[committerv1.SchemaAction]schema.Action{
	committerv1.SchemaAction_SCHEMA_ACTION_ACCEPT:     schema.Accept,
	committerv1.SchemaAction_SCHEMA_ACTION_IGNORE:     schema.Ignore,
	committerv1.SchemaAction_SCHEMA_ACTION_QUARANTINE: schema.Quarantine,
}

func actionToProto(a schema.Action) committerv1.SchemaAction {
	for p, have := range actions {
		if have == a {
			return p
		}
	}
	return committerv1.SchemaAction_SCHEMA_ACTION_UNSPECIFIED
}

// DecideSchema implements the RPC.
func (s *commitService) DecideSchema(ctx context.Context, req *committerv1.DecideSchemaRequest) (*committerv1.DecideSchemaResponse, error) {
	action, ok := actions[req.GetAction()]
	if !ok {
		return nil, fault.New(fault.InvalidArgument, "deciding about table %s: want accept, ignore or quarantine", req.GetTable())
	}
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	d, err := e.table.Decide(ctx, commit.Question{
		Action: action, Pipeline: req.GetPipeline(), Source: req.GetSourceSchema(), Column: req.GetColumn(),
	})
	if err != nil {
		return nil, err
	}
	resp := &committerv1.DecideSchemaResponse{Already: d.Already, Refused: waitingToProto(req.GetTable(), d.Waiting)}
	for _, m := range d.Made {
		resp.Decisions = append(resp.Decisions, &committerv1.SchemaDecision{
			Pipeline: m.Pipeline, Action: actionToProto(m.Action), Field: m.Field, Column: m.Column, SourceSchema: m.Source,
			TableType: m.TableType, SourceType: m.SourceType, Decided: m.At.UnixMicro(),
		})
	}
	return resp, nil
}
