package readapi

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/readview"
)

// Words for Meter.Sent.
const (
	partHot  = "hot"
	partCold = "cold"
)

// ReadHot streams the hot rows of a ticket. Within the lease the same ticket
// brings the same bytes.
func (s *Server) ReadHot(req *readstatev1.ReadHotRequest, out grpc.ServerStreamingServer[readstatev1.ReadHotResponse]) error {
	r, pieces, err := s.leases.ticket(req.GetTicket())
	if err != nil {
		return s.counted("hot", err)
	}
	g := guard{ctx: out.Context(), limit: s.opt.Stall}
	stream := newArrowStream(r.shape, s.opt.Meter, func(c *readstatev1.ArrowChunk) error {
		return g.send(func() error { return out.Send(&readstatev1.ReadHotResponse{Chunk: c}) })
	})
	if err = writePieces(stream, r, pieces, nil); err == nil {
		err = stream.end()
	}
	return s.counted("hot", err)
}

// writePieces writes the rows of hot pieces, up to the limit.
func writePieces(stream *arrowStream, r *read, pieces []readview.Piece, limit *rowLimit) error {
	for _, p := range pieces {
		if p.Append.Rows == 0 {
			continue
		}
		if limit.reached() {
			return nil
		}
		rec, err := rowsOf(p, r.shape)
		if err != nil {
			return err
		}
		rec = limit.cut(rec)
		err = stream.write(partHot, rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// rowLimit counts down the rows that may still be sent; nil is no limit.
type rowLimit struct{ left int64 }

func newRowLimit(n int64) *rowLimit {
	if n == 0 {
		return nil
	}
	return &rowLimit{left: n}
}

func (l *rowLimit) reached() bool { return l != nil && l.left == 0 }

// cut takes over rec and returns as much of it as the limit allows.
func (l *rowLimit) cut(rec arrow.RecordBatch) arrow.RecordBatch {
	if l == nil {
		return rec
	}
	if n := rec.NumRows(); n <= l.left {
		l.left -= n
		return rec
	}
	part := rec.NewSlice(0, l.left)
	rec.Release()
	l.left = 0
	return part
}

// Scan streams the union of cold and hot rows of one position, as one Arrow IPC
// stream behind a message that describes the position.
func (s *Server) Scan(req *readstatev1.ScanRequest, out grpc.ServerStreamingServer[readstatev1.ScanResponse]) error {
	return s.counted("scan", s.scan(req, out))
}

func (s *Server) scan(req *readstatev1.ScanRequest, out grpc.ServerStreamingServer[readstatev1.ScanResponse]) error {
	if s.opt.Cold == nil {
		return s.wrongDoor("Scan")
	}
	if req.GetLimit() < 0 {
		return fault.New(fault.InvalidArgument, "a limit of %d rows: give a positive number, or 0 for all", req.GetLimit())
	}
	ctx := out.Context()
	r, err := s.begin(ctx, req.GetTable(), req.GetAt(), req.GetColumns())
	if err != nil {
		return err
	}
	le, err := s.leases.add(r, s.opt.MaxLease)
	if err != nil {
		return err
	}
	defer s.leases.end(le.id)
	head, err := r.describe(le)
	if err != nil {
		return err
	}
	g := guard{ctx: ctx, limit: s.opt.Stall}
	err = g.send(func() error {
		return out.Send(&readstatev1.ScanResponse{Message: &readstatev1.ScanResponse_Begin{Begin: head}})
	})
	if err != nil {
		return err
	}
	stream := newArrowStream(r.shape, s.opt.Meter, func(c *readstatev1.ArrowChunk) error {
		// As long as its reader takes rows, a scan keeps its snapshot. Without the
		// lease (the server drains) it goes on with what it holds.
		_, _ = s.leases.renew(le.id, s.opt.MaxLease)
		return g.send(func() error {
			return out.Send(&readstatev1.ScanResponse{Message: &readstatev1.ScanResponse_Chunk{Chunk: c}})
		})
	})
	limit := newRowLimit(req.GetLimit())
	if req.GetPart() != readstatev1.ScanPart_SCAN_PART_HOT {
		if err := s.writeCold(ctx, stream, r, limit); err != nil {
			return err
		}
	}
	if req.GetPart() != readstatev1.ScanPart_SCAN_PART_COLD {
		if err := writePieces(stream, r, r.pieces, limit); err != nil {
			return err
		}
	}
	return stream.end()
}

// writeCold writes the rows of the snapshot, and of later ones what the token
// counted among its hot rows.
func (s *Server) writeCold(ctx context.Context, stream *arrowStream, r *read, limit *rowLimit) error {
	if r.cold.SnapshotID == 0 {
		return nil
	}
	scan := ColdScan{Table: r.table, Location: r.cold.MetadataLocation, Snapshot: r.cold.SnapshotID, Target: r.shape}
	if err := s.writeScan(ctx, stream, scan, limit); err != nil || r.rest == nil {
		return err
	}
	scan = ColdScan{
		Table: r.table, Location: r.rest.MetadataLocation, Snapshot: r.rest.SnapshotID, Since: r.cold.SnapshotID,
		Target: r.shape, From: r.restFrom, Below: r.restTo,
	}
	return s.writeScan(ctx, stream, scan, limit)
}

func (s *Server) writeScan(ctx context.Context, stream *arrowStream, scan ColdScan, limit *rowLimit) error {
	if limit.reached() {
		return nil
	}
	for rec, err := range s.opt.Cold.Scan(ctx, scan) {
		if err != nil {
			return err
		}
		rec = limit.cut(rec)
		err = stream.write(partCold, rec)
		rec.Release()
		if err != nil {
			return err
		}
		if limit.reached() {
			return nil
		}
	}
	return nil
}
