package readapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
)

// BeginRead pins one consistent position under a lease and describes its parts.
func (s *Server) BeginRead(ctx context.Context, req *readstatev1.BeginReadRequest) (*readstatev1.BeginReadResponse, error) {
	out, err := s.beginRead(ctx, req)
	return out, s.counted("begin", err)
}

func (s *Server) beginRead(ctx context.Context, req *readstatev1.BeginReadRequest) (*readstatev1.BeginReadResponse, error) {
	length, err := s.leaseLength(req.GetLease())
	if err != nil {
		return nil, err
	}
	r, err := s.begin(ctx, req.GetTable(), req.GetAt(), req.GetColumns())
	if err != nil {
		return nil, err
	}
	le, err := s.leases.add(r, length)
	if err != nil {
		return nil, err
	}
	out, err := r.describe(le)
	if err != nil {
		s.leases.end(le.id)
	}
	return out, err
}

// leaseLength bounds the lease that was asked for; the answer names its end.
func (s *Server) leaseLength(d *durationpb.Duration) (time.Duration, error) {
	length := DefaultLease
	if d != nil {
		if length = d.AsDuration(); length <= 0 {
			return 0, fault.New(fault.InvalidArgument, "a lease of %s: ask for a positive time", length)
		}
	}
	return min(length, s.opt.MaxLease), nil
}

// describe is the answer to a reader whose lease is le.
func (r *read) describe(le *lease) (*readstatev1.BeginReadResponse, error) {
	out := &readstatev1.BeginReadResponse{
		Token:    r.token.String(),
		ReadId:   le.id,
		LeaseEnd: timestamppb.New(le.end),
		Cold: &readstatev1.ColdPart{
			SnapshotId: r.cold.SnapshotID, MetadataLocation: r.cold.MetadataLocation,
			Positions: wire.PositionsToProto(r.cold.Positions),
		},
		Hot:    &readstatev1.HotPart{Tickets: le.names()},
		Vector: &readstatev1.OffsetVector{Offsets: wire.VectorToProto(r.token.Vector)},
		Lsn:    int64(r.token.LSN),
	}
	if r.rest != nil {
		out.Cold.Rest = &readstatev1.ColdRest{SnapshotId: r.rest.SnapshotID, MetadataLocation: r.rest.MetadataLocation}
	}
	if r.schema.Fingerprint != "" {
		out.Schema = wire.SchemaToProto(&r.schema)
	}
	if !r.newest.IsZero() {
		out.Newest = timestamppb.New(r.newest)
	}
	for _, p := range r.pieces {
		rows, err := rowsIn(p)
		if err != nil {
			return nil, err
		}
		out.Hot.Rows += rows
		out.Hot.Bytes += p.Append.Bytes()
	}
	return out, nil
}

// Renew prolongs a lease.
func (s *Server) Renew(_ context.Context, req *readstatev1.RenewRequest) (*readstatev1.RenewResponse, error) {
	length, err := s.leaseLength(req.GetLease())
	if err != nil {
		return nil, wire.ToStatus(err)
	}
	end, err := s.leases.renew(req.GetReadId(), length)
	if err != nil {
		return nil, wire.ToStatus(err)
	}
	return &readstatev1.RenewResponse{LeaseEnd: timestamppb.New(end)}, nil
}

// EndRead gives a lease back. One that has ended already is no error.
func (s *Server) EndRead(_ context.Context, req *readstatev1.EndReadRequest) (*readstatev1.EndReadResponse, error) {
	s.leases.end(req.GetReadId())
	return &readstatev1.EndReadResponse{}, nil
}

// WaitFor waits until offsets or an LSN are visible and returns the token of a
// position that contains them.
func (s *Server) WaitFor(ctx context.Context, req *readstatev1.WaitForRequest) (*readstatev1.WaitForResponse, error) {
	out, err := s.waitFor(ctx, req)
	return out, s.counted("wait", err)
}

func (s *Server) waitFor(ctx context.Context, req *readstatev1.WaitForRequest) (*readstatev1.WaitForResponse, error) {
	src, err := s.opt.Tables.Table(req.GetTable())
	if err != nil {
		return nil, err
	}
	var timeout <-chan time.Time
	if req.GetWait() != nil {
		t := time.NewTimer(req.GetWait().AsDuration())
		defer t.Stop()
		timeout = t.C
	}
	for {
		changed := src.Changed()
		out, missing := reached(src, req)
		if missing == nil {
			return out, nil
		}
		if !fault.ReasonOf(missing).Retryable() {
			return nil, missing
		}
		select {
		case <-changed:
		case <-timeout:
			return nil, missing
		case <-s.closed:
			return nil, errClosed()
		case <-ctx.Done():
			// The reader learns what was missing, not only that time is up.
			return nil, fault.New(fault.ReasonOf(missing), "the deadline of the call ended: %w", missing)
		}
	}
}

// reached answers a wait, or says what is missing.
func reached(src Source, req *readstatev1.WaitForRequest) (*readstatev1.WaitForResponse, error) {
	pos, err := src.Position()
	if err != nil {
		return nil, err
	}
	want, err := resolveVector(pos, req.GetVector())
	if err != nil {
		return nil, err
	}
	for _, p := range want.Partitions() {
		if have, ok := pos.Vector[p]; !ok || have < want[p] {
			return nil, notYet(p, have, want[p])
		}
	}
	if lsn := req.GetLsn(); lsn > int64(pos.ReadableLSN) {
		return nil, fault.New(fault.NotYet, "rows below LSN %d are visible, not yet all below %d", pos.ReadableLSN, lsn)
	}
	return &readstatev1.WaitForResponse{
		Token:  pos.Token().String(),
		Vector: &readstatev1.OffsetVector{Offsets: wire.VectorToProto(pos.Vector)},
	}, nil
}
