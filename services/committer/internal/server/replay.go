package server

import (
	"context"
	"encoding/json"
	"time"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/lake"
	"github.com/icestream/icestream/services/committer/internal/replay"
)

// ReplayQuarantine implements the RPC.
func (s *commitService) ReplayQuarantine(ctx context.Context, req *committerv1.ReplayQuarantineRequest) (*committerv1.ReplayQuarantineResponse, error) {
	e, err := s.hub.find(ctx, req.GetTable())
	if err != nil {
		return nil, err
	}
	if !e.replaying.TryLock() {
		return nil, fault.New(fault.Conflict, "replaying into table %s: another replay of it runs: wait for its end", req.GetTable())
	}
	defer e.replaying.Unlock()
	f := req.GetFilter()
	if f == nil {
		f = &committerv1.QuarantineFilter{}
	}
	result, err := replay.Run(ctx, replay.Options{
		Name: req.GetTable(), DryRun: req.GetDryRun(), Table: e.table, Lake: replayLake{Table: e.lake, files: &files{hub: s.hub, entry: e}},
		Decoder: &decodeClient{hub: s.hub}, Log: s.hub.o.Log,
		Filter: lake.QuarantineFilter{
			Pipeline: f.GetPipeline(), Topic: f.GetTopic(), Partition: f.Partition, From: f.From, To: f.To, //nolint:protogetter // absent differs from zero
			Reason: f.GetReason(), SchemaID: f.SchemaId, //nolint:protogetter // as above
		},
	})
	if !req.GetDryRun() {
		s.hub.o.Metrics.Counter(defReplayed, req.GetTable()).Add(float64(result.Replayed))
	}
	if err != nil {
		return nil, err
	}
	resp := &committerv1.ReplayQuarantineResponse{Selected: result.Selected, Replayed: result.Replayed, Marked: result.Marked}
	for _, n := range result.Snapshots {
		resp.Snapshots = append(resp.Snapshots, &committerv1.ReplaySnapshot{SnapshotId: n.ID, Rows: n.Rows, CommitId: n.CommitID.String()})
	}
	for _, n := range result.Refusals {
		resp.Refusals = append(resp.Refusals, &committerv1.ReplayRefusal{Reason: n.Reason, Count: n.Count, First: n.First, Error: n.Text})
	}
	return resp, nil
}

// replayLake is the table of an entry for a replay.
type replayLake struct {
	*lake.Table

	files *files
}

// Shape is the newest schema of the table.
func (l replayLake) Shape() *schema.Schema { return l.Head().Schema }

// NewFiles makes a writer of data files.
func (l replayLake) NewFiles(ctx context.Context, s *schema.Schema, id ident.UUID, epoch ident.WriterEpoch) (replay.Files, error) {
	return l.files.NewWriter(ctx, s, id, epoch)
}

// decodeTime bounds one call to ingest, which may have to ask the registry and
// this committer for a schema.
const decodeTime = 2 * time.Minute

// decodeBytes is what one call carries at most, unless a single record has more.
const decodeBytes = 8 << 20

// decodeClient is the ingest that has the pipeline of a record.
type decodeClient struct{ hub *Hub }

// Decode implements replay.Decoder.
func (c *decodeClient) Decode(ctx context.Context, table string, part ident.Partition, records []lake.Quarantined, dry bool) (replay.Decoded, error) {
	req := &ingestv1.DecodeRequest{Pipeline: part.Pipeline, Table: table, Partition: wire.PartitionToProto(part), DryRun: dry}
	var bytes int64
	for i := range records {
		if bytes += records[i].Bytes(); bytes > decodeBytes && i > 0 {
			return replay.Decoded{}, fault.New(fault.OverLimit, "decoding records of %s: %d bytes are too many for one call", part, bytes)
		}
		req.Records = append(req.Records, rawRecord(&records[i]))
	}
	address, err := c.hub.o.Resolve.Owner(ctx, table, discovery.Ingest)
	if err != nil {
		return replay.Decoded{}, err
	}
	conn, err := c.hub.o.Dial.Conn(address)
	if err != nil {
		return replay.Decoded{}, err
	}
	call, cancel := context.WithTimeout(ctx, decodeTime)
	defer cancel()
	resp, err := ingestv1.NewDecodeServiceClient(conn).Decode(call, req)
	if err != nil {
		return replay.Decoded{}, wire.FromStatus(err)
	}
	return decodedFromProto(resp)
}

func rawRecord(q *lake.Quarantined) *ingestv1.RawRecord {
	r := &ingestv1.RawRecord{Offset: q.Offset, Key: q.Key, Value: q.Value}
	if !q.Time.IsZero() {
		r.Timestamp = q.Time.UnixMilli()
	}
	for _, h := range q.Headers {
		r.Headers = append(r.Headers, &ingestv1.RawHeader{Key: h.Key, Value: h.Value})
	}
	return r
}

func decodedFromProto(resp *ingestv1.DecodeResponse) (replay.Decoded, error) {
	var out replay.Decoded
	for _, b := range resp.GetBatches() {
		s := &schema.Schema{}
		if err := json.Unmarshal(b.GetSchema().GetColumns(), s); err != nil {
			return out, fault.New(fault.Corrupt, "reading the schema of decoded records: %w", err)
		}
		out.Batches = append(out.Batches, replay.Batch{Schema: s, Rows: b.GetRows(), Count: b.GetCount()})
	}
	for _, f := range resp.GetRefusals() {
		out.Refusals = append(out.Refusals, replay.Refused{Offset: f.GetOffset(), Reason: f.GetReason(), Text: f.GetError()})
	}
	return out, nil
}
