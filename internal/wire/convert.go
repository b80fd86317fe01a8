package wire

import (
	"slices"
	"time"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// UUIDToProto returns 16 bytes, or nil for the zero UUID.
func UUIDToProto(u ident.UUID) []byte {
	if u.IsZero() {
		return nil
	}
	return u[:]
}

// UUIDFromProto reads what UUIDToProto wrote; any other length is refused.
func UUIDFromProto(b []byte) (ident.UUID, error) {
	var u ident.UUID
	if len(b) == 0 {
		return u, nil
	}
	if len(b) != len(u) {
		return u, fault.New(fault.InvalidArgument, "a uuid has %d bytes on the wire, want 16", len(b))
	}
	copy(u[:], b)
	return u, nil
}

// PartitionToProto converts p.
func PartitionToProto(p ident.Partition) *typesv1.Partition {
	return &typesv1.Partition{Pipeline: p.Pipeline, Topic: p.Topic, TopicId: UUIDToProto(p.TopicID), Number: p.Number}
}

// PartitionFromProto converts p; a missing partition is refused.
func PartitionFromProto(p *typesv1.Partition) (ident.Partition, error) {
	if p == nil {
		return ident.Partition{}, fault.New(fault.InvalidArgument, "a message lacks its topic partition")
	}
	id, err := UUIDFromProto(p.GetTopicId())
	if err != nil {
		return ident.Partition{}, err
	}
	if p.GetNumber() < 0 {
		return ident.Partition{}, fault.New(fault.InvalidArgument, "topic %q has partition number %d", p.GetTopic(), p.GetNumber())
	}
	return ident.Partition{Pipeline: p.GetPipeline(), Topic: p.GetTopic(), TopicID: id, Number: p.GetNumber()}, nil
}

// RangeToProto converts r.
func RangeToProto(r ident.Range) *typesv1.OffsetRange {
	return &typesv1.OffsetRange{First: r.First, Next: r.Next}
}

// RangeFromProto converts r; a range that runs backwards or below 0 is refused.
func RangeFromProto(r *typesv1.OffsetRange) (ident.Range, error) {
	out := ident.Range{First: r.GetFirst(), Next: r.GetNext()}
	if out.First < 0 || out.Next < out.First {
		return ident.Range{}, fault.New(fault.InvalidArgument, "offset range %v is not ascending from 0 on", out)
	}
	return out, nil
}

// VectorToProto converts v, in partition order.
func VectorToProto(v ident.Vector) []*typesv1.PartitionOffset {
	out := make([]*typesv1.PartitionOffset, 0, len(v))
	for _, p := range v.Partitions() {
		out = append(out, &typesv1.PartitionOffset{Partition: PartitionToProto(p), Next: v[p]})
	}
	return out
}

// VectorFromProto converts what VectorToProto wrote.
func VectorFromProto(list []*typesv1.PartitionOffset) (ident.Vector, error) {
	v := make(ident.Vector, len(list))
	for _, o := range list {
		p, err := PartitionFromProto(o.GetPartition())
		if err != nil {
			return nil, err
		}
		v[p] = o.GetNext()
	}
	return v, nil
}

// PositionsToProto converts ps, in partition order.
func PositionsToProto(ps ident.Positions) []*typesv1.PartitionPosition {
	out := make([]*typesv1.PartitionPosition, 0, len(ps))
	for _, p := range ps.Vector().Partitions() {
		pos := ps[p]
		out = append(out, &typesv1.PartitionPosition{
			Partition: PartitionToProto(p), Start: pos.Start, Next: pos.Next, LeaderEpoch: pos.LeaderEpoch,
		})
	}
	return out
}

// PositionsFromProto converts what PositionsToProto wrote.
func PositionsFromProto(list []*typesv1.PartitionPosition) (ident.Positions, error) {
	ps := make(ident.Positions, len(list))
	for _, o := range list {
		p, err := PartitionFromProto(o.GetPartition())
		if err != nil {
			return nil, err
		}
		ps[p] = ident.Position{Start: o.GetStart(), Next: o.GetNext(), LeaderEpoch: o.GetLeaderEpoch()}
	}
	return ps, nil
}

// HeaderToProto converts h.
func HeaderToProto(h *event.Header) *typesv1.AppendHeader {
	skips := make([]*typesv1.Skip, 0, len(h.Skips))
	for _, s := range h.Skips {
		skips = append(skips, &typesv1.Skip{Range: RangeToProto(s.Range), Reason: typesv1.SkipReason(s.Reason)})
	}
	return &typesv1.AppendHeader{
		Partition: PartitionToProto(h.Partition), Range: RangeToProto(h.Range), LeaderEpoch: h.LeaderEpoch,
		Revision: h.Revision, Fingerprint: h.Fingerprint, Rows: h.Rows, Quarantined: h.Quarantined,
		Skips: skips, Digest: h.Digest[:], MinTime: h.MinTime, MaxTime: h.MaxTime,
	}
}

// HeaderFromProto converts h and checks that its counts account for every
// offset of its range (G1).
func HeaderFromProto(h *typesv1.AppendHeader) (event.Header, error) {
	var out event.Header
	p, err := PartitionFromProto(h.GetPartition())
	if err != nil {
		return out, err
	}
	r, err := RangeFromProto(h.GetRange())
	if err != nil {
		return out, err
	}
	if len(h.GetDigest()) != len(out.Digest) {
		return out, fault.New(fault.InvalidArgument, "append %v %v has a digest of %d bytes, want 16", p, r, len(h.GetDigest()))
	}
	out = event.Header{
		Partition: p, Range: r, LeaderEpoch: h.GetLeaderEpoch(), Revision: h.GetRevision(), Fingerprint: h.GetFingerprint(),
		Rows: h.GetRows(), Quarantined: h.GetQuarantined(), MinTime: h.GetMinTime(), MaxTime: h.GetMaxTime(),
	}
	copy(out.Digest[:], h.GetDigest())
	accounted, below := out.Rows+out.Quarantined, r.First
	for _, s := range h.GetSkips() {
		sr, err := RangeFromProto(s.GetRange())
		if err != nil {
			return out, err
		}
		if sr.Empty() || sr.First < below || sr.Next > r.Next {
			return out, fault.New(fault.InvalidArgument, "append %v %v skips %v out of order or outside the range", p, r, sr)
		}
		below = sr.Next
		accounted += sr.Len()
		out.Skips = append(out.Skips, event.Skip{Range: sr, Reason: event.SkipReason(s.GetReason())})
	}
	if out.Rows < 0 || out.Quarantined < 0 || accounted != r.Len() {
		return out, fault.New(fault.InvalidArgument, "append %v %v accounts for %d of %d offsets", p, r, accounted, r.Len())
	}
	return out, nil
}

// CommitToProto converts c.
func CommitToProto(c *event.Commit) *typesv1.Commit {
	out := &typesv1.Commit{
		TableUuid: UUIDToProto(c.Table), SnapshotId: c.SnapshotID, SequenceNumber: c.SequenceNumber,
		MetadataLocation: c.MetadataLocation, Positions: PositionsToProto(c.Positions),
		LogEpoch: int64(c.LogEpoch), WriterEpoch: int64(c.WriterEpoch),
		Lsn: &typesv1.LsnState{Start: int64(c.LSN.Start), Next: int64(c.LSN.Next), Reserved: int64(c.LSN.Reserved)},
	}
	if !c.CommitTime.IsZero() {
		out.CommitTime = c.CommitTime.UnixMicro()
	}
	return out
}

// CommitFromProto converts c; a missing commit is refused.
func CommitFromProto(c *typesv1.Commit) (event.Commit, error) {
	if c == nil {
		return event.Commit{}, fault.New(fault.InvalidArgument, "a message lacks its commit")
	}
	table, err := UUIDFromProto(c.GetTableUuid())
	if err != nil {
		return event.Commit{}, err
	}
	ps, err := PositionsFromProto(c.GetPositions())
	if err != nil {
		return event.Commit{}, err
	}
	out := event.Commit{
		Table: table, SnapshotID: c.GetSnapshotId(), SequenceNumber: c.GetSequenceNumber(), MetadataLocation: c.GetMetadataLocation(),
		Positions: ps, LogEpoch: ident.LogEpoch(c.GetLogEpoch()), WriterEpoch: ident.WriterEpoch(c.GetWriterEpoch()),
		LSN: ident.LSNState{
			Start: ident.LSN(c.GetLsn().GetStart()), Next: ident.LSN(c.GetLsn().GetNext()), Reserved: ident.LSN(c.GetLsn().GetReserved()),
		},
	}
	if c.GetCommitTime() != 0 {
		out.CommitTime = time.UnixMicro(c.GetCommitTime()).UTC()
	}
	return out, nil
}

// SchemaToProto converts s.
func SchemaToProto(s *event.Schema) *typesv1.TableSchema {
	return &typesv1.TableSchema{Fingerprint: s.Fingerprint, TableSchemaId: s.TableSchemaID, Columns: s.Columns}
}

// SchemaFromProto converts s; a schema without a fingerprint is refused.
func SchemaFromProto(s *typesv1.TableSchema) (event.Schema, error) {
	if s.GetFingerprint() == "" {
		return event.Schema{}, fault.New(fault.InvalidArgument, "a table schema lacks its fingerprint")
	}
	return event.Schema{Fingerprint: s.GetFingerprint(), TableSchemaID: s.GetTableSchemaId(), Columns: s.GetColumns()}, nil
}

// SchemasToProto converts a list.
func SchemasToProto(list []event.Schema) []*typesv1.TableSchema {
	out := make([]*typesv1.TableSchema, len(list))
	for i := range list {
		out[i] = SchemaToProto(&list[i])
	}
	return out
}

// SchemasFromProto converts a list.
func SchemasFromProto(list []*typesv1.TableSchema) ([]event.Schema, error) {
	out := make([]event.Schema, len(list))
	for i, s := range list {
		var err error
		if out[i], err = SchemaFromProto(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// EndedEpochsToProto converts a list.
func EndedEpochsToProto(list []event.EndedEpoch) []*typesv1.EndedEpoch {
	out := make([]*typesv1.EndedEpoch, len(list))
	for i, e := range list {
		out[i] = &typesv1.EndedEpoch{LogEpoch: int64(e.Epoch), Base: VectorToProto(e.Base)}
	}
	return out
}

// EndedEpochsFromProto converts a list.
func EndedEpochsFromProto(list []*typesv1.EndedEpoch) ([]event.EndedEpoch, error) {
	out := make([]event.EndedEpoch, len(list))
	for i, e := range list {
		base, err := VectorFromProto(e.GetBase())
		if err != nil {
			return nil, err
		}
		out[i] = event.EndedEpoch{Epoch: ident.LogEpoch(e.GetLogEpoch()), Base: base}
	}
	return out, nil
}

// ProgressToProto converts p.
func ProgressToProto(p *event.Progress) *typesv1.Progress {
	out := &typesv1.Progress{
		Partition: PartitionToProto(p.Partition), LogStart: p.LogStart, StableEnd: p.StableEnd, Fetch: p.Fetch,
		RetentionMs: p.Retention.Milliseconds(), State: typesv1.PartitionState(p.State), Reason: p.Reason, LeaderEpoch: p.LeaderEpoch,
	}
	if !p.NewestTime.IsZero() {
		out.NewestTime = p.NewestTime.UnixMilli()
	}
	return out
}

// ProgressFromProto converts p.
func ProgressFromProto(p *typesv1.Progress) (event.Progress, error) {
	part, err := PartitionFromProto(p.GetPartition())
	if err != nil {
		return event.Progress{}, err
	}
	out := event.Progress{
		Partition: part, LogStart: p.GetLogStart(), StableEnd: p.GetStableEnd(), Fetch: p.GetFetch(),
		Retention: time.Duration(p.GetRetentionMs()) * time.Millisecond, State: event.PartitionState(p.GetState()),
		Reason: p.GetReason(), LeaderEpoch: p.GetLeaderEpoch(),
	}
	if p.GetNewestTime() != 0 {
		out.NewestTime = time.UnixMilli(p.GetNewestTime()).UTC()
	}
	return out, nil
}

// ProgressReportToProto converts a list.
func ProgressReportToProto(list []event.Progress) *bufferv1.ProgressReport {
	out := make([]*typesv1.Progress, len(list))
	for i := range list {
		out[i] = ProgressToProto(&list[i])
	}
	return &bufferv1.ProgressReport{Partitions: out}
}

// ProgressReportFromProto converts a list.
func ProgressReportFromProto(r *bufferv1.ProgressReport) ([]event.Progress, error) {
	out := make([]event.Progress, 0, len(r.GetPartitions()))
	for _, p := range r.GetPartitions() {
		v, err := ProgressFromProto(p)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return slices.Clip(out), nil
}
