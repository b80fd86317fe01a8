package server

import (
	"context"
	"time"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// decided runs one call of the machine under the log's lock and waits until its
// step, if there is one, is durable.
func (l *tableLog) decided(ctx context.Context, f func(*table.Machine) (*table.Step, error)) error {
	l.mu.Lock()
	s, err := f(l.m)
	var out <-chan error
	if err == nil && s != nil {
		out = l.wait(s)
	}
	l.settle()
	l.mu.Unlock()
	if out == nil {
		return err
	}
	select {
	case err := <-out:
		return err
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "table %s: the journal has not answered in time: try again", l.name)
	}
}

// OpenTable takes in the state of a table.
func (s *Service) OpenTable(ctx context.Context, req *bufferv1.OpenTableRequest) (*bufferv1.OpenTableResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	schemas, err := wire.SchemasFromProto(req.GetSchemas())
	if err != nil {
		return nil, err
	}
	for _, sch := range schemas {
		if err := parses(sch); err != nil {
			return nil, err
		}
	}
	ended, err := wire.EndedEpochsFromProto(req.GetEnded())
	if err != nil {
		return nil, err
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return nil, err
	}
	err = l.decided(ctx, func(m *table.Machine) (*table.Step, error) { return m.Open(c, schemas, ended) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.m.Request(); ok {
		return &bufferv1.OpenTableResponse{EpochWanted: &bufferv1.EpochWanted{Nonce: r.Nonce, Reason: r.Reason, AppendsWaiting: r.Waiting}}, nil
	}
	if err != nil {
		return nil, err
	}
	return &bufferv1.OpenTableResponse{Serving: l.m.State() == table.Serving}, nil
}

// PublishSchema makes a schema known.
func (s *Service) PublishSchema(ctx context.Context, req *bufferv1.PublishSchemaRequest) (*bufferv1.PublishSchemaResponse, error) {
	uuid, err := wire.UUIDFromProto(req.GetTableUuid())
	if err != nil {
		return nil, err
	}
	sch, err := wire.SchemaFromProto(req.GetSchema())
	if err != nil {
		return nil, err
	}
	if err := parses(sch); err != nil {
		return nil, err
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return nil, err
	}
	writer := writerEpoch(req.GetWriterEpoch())
	err = l.decided(ctx, func(m *table.Machine) (*table.Step, error) { return m.PublishSchema(uuid, writer, sch) })
	if err != nil {
		return nil, err
	}
	return &bufferv1.PublishSchemaResponse{}, nil
}

// GrantEpoch takes in the fence commit that landed.
func (s *Service) GrantEpoch(ctx context.Context, req *bufferv1.GrantEpochRequest) (*bufferv1.GrantEpochResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return nil, err
	}
	err = l.decided(ctx, func(m *table.Machine) (*table.Step, error) { return m.Grant(req.GetNonce(), c) })
	if err != nil {
		return nil, err
	}
	return &bufferv1.GrantEpochResponse{}, nil
}

// ReportCommit takes in the state of a snapshot.
func (s *Service) ReportCommit(ctx context.Context, req *bufferv1.ReportCommitRequest) (*bufferv1.ReportCommitResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return nil, err
	}
	if err := l.decided(ctx, func(m *table.Machine) (*table.Step, error) { return m.Report(c) }); err != nil {
		return nil, err
	}
	return &bufferv1.ReportCommitResponse{}, nil
}

// ReportPins notes the oldest snapshot that a replica needs.
func (s *Service) ReportPins(_ context.Context, req *bufferv1.ReportPinsRequest) (*bufferv1.ReportPinsResponse, error) {
	if req.GetFollower() == "" {
		return nil, fault.New(fault.InvalidArgument, "a report of pins must name its follower")
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.pins[req.GetFollower()]; !known && len(l.pins) >= maxTables {
		return nil, fault.New(fault.OverLimit, "table %s: %d followers report pins already", l.name, len(l.pins))
	}
	l.pins[req.GetFollower()] = pin{snapshot: req.GetPins().GetOldestSnapshotId(), sequence: req.GetPins().GetOldestSequenceNumber(), heard: time.Now()}
	l.touch()
	return &bufferv1.ReportPinsResponse{}, nil
}
