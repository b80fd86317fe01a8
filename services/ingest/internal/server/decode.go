package server

import (
	"context"

	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
)

// Decode implements icestream.ingest.v1.DecodeService. It is safe for concurrent
// use.
type Decode struct {
	ingestv1.UnimplementedDecodeServiceServer

	Pipelines map[string]*pipeline.Pipeline
}

// Decode makes rows of raw records with the codec of their pipeline.
func (d *Decode) Decode(ctx context.Context, r *ingestv1.DecodeRequest) (*ingestv1.DecodeResponse, error) {
	p := d.Pipelines[r.GetPipeline()]
	if p == nil {
		return nil, fault.New(fault.NotFound, "decoding records: there is no pipeline %q here: its records can only be decoded where it is configured", r.GetPipeline())
	}
	part, err := wire.PartitionFromProto(r.GetPartition())
	if err != nil {
		return nil, err
	}
	if part.Pipeline != r.GetPipeline() || r.GetTable() == "" {
		return nil, fault.New(fault.InvalidArgument, "decoding records of %s: pipeline %q and a table must be named", part, r.GetPipeline())
	}
	records, err := recordsOf(r.GetRecords())
	if err != nil {
		return nil, err
	}
	out, err := p.Decode(ctx, r.GetTable(), part, records, r.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := &ingestv1.DecodeResponse{}
	for i := range out.Batches {
		b := &out.Batches[i]
		resp.Batches = append(resp.Batches, &ingestv1.RowBatch{Schema: wire.SchemaToProto(&b.Schema), Rows: b.Rows, Count: b.Count})
	}
	for _, f := range out.Refusals {
		resp.Refusals = append(resp.Refusals, &ingestv1.Refusal{Offset: f.Offset, Reason: f.Reason, Error: f.Text})
	}
	return resp, nil
}

func recordsOf(in []*ingestv1.RawRecord) ([]batch.Record, error) {
	out := make([]batch.Record, len(in))
	for i, r := range in {
		if i > 0 && r.GetOffset() <= out[i-1].Offset {
			return nil, fault.New(fault.InvalidArgument, "decoding records: offset %d comes after %d", r.GetOffset(), out[i-1].Offset)
		}
		out[i] = batch.Record{Offset: r.GetOffset(), Time: r.GetTimestamp(), LeaderEpoch: -1, Key: r.Key, Value: r.Value} //nolint:protogetter // null differs from empty
		for _, h := range r.GetHeaders() {
			out[i].Headers = append(out[i].Headers, batch.Header{Key: h.GetKey(), Value: h.Value}) //nolint:protogetter // as above
		}
	}
	return out, nil
}
