package readapi

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/grpc"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

const (
	// tailRound bounds the hot bytes that one round of a tail takes hold of.
	// Between rounds it holds nothing, so a slow reader keeps no released rows.
	tailRound = 4 << 20
	// gapRows bounds the offsets of one cold window over all partitions.
	gapRows = 128 << 10
)

// Tail streams rows as they become visible and a mark for each commit whose rows
// it has sent. It ends only with an error or with its reader.
//
// The cursor is the next offset per topic partition and the only state: every
// message carries it, and a tail that begins there goes on without a repeat.
// Rows that are committed before the tail has read them come from the lake.
func (s *Server) Tail(req *readstatev1.TailRequest, out grpc.ServerStreamingServer[readstatev1.TailResponse]) error {
	return s.counted("tail", s.tail(req, out))
}

func (s *Server) tail(req *readstatev1.TailRequest, out grpc.ServerStreamingServer[readstatev1.TailResponse]) error {
	src, err := s.opt.Tables.Table(req.GetTable())
	if err != nil {
		return err
	}
	ctx := out.Context()
	t := &tail{
		server: s, req: req, src: src, out: out,
		guard: guard{ctx: ctx, limit: s.opt.Stall, closed: s.closed},
	}
	for {
		changed := src.Changed()
		moved, err := t.round(ctx)
		if err != nil && fault.ReasonOf(err) != fault.NotReady {
			return err
		}
		if moved {
			continue
		}
		// A table that recovers is waited for: a tail survives restarts.
		select {
		case <-changed:
		case <-s.closed:
			return errClosed()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tail is one stream. It belongs to one goroutine.
type tail struct {
	server *Server
	req    *readstatev1.TailRequest
	src    Source
	out    grpc.ServerStreamingServer[readstatev1.TailResponse]
	guard  guard

	table  ident.UUID   // of the first position
	cursor ident.Vector // nil before the first position
	marked int64        // snapshot of the last commit mark
	base   int64        // snapshot below whose vector everything was sent; 0 unknown

	fingerprint string         // of the schema that shape is made from
	shape       *schema.Schema // of the rows
	hasKafka    bool
}

// round sends what is there to be sent, up to a bound, and says whether there
// may be more at once.
func (t *tail) round(ctx context.Context) (bool, error) {
	pos, err := t.src.Position()
	if err != nil {
		return false, err
	}
	if err := t.place(pos); err != nil {
		return false, err
	}
	if behind := t.behind(pos); len(behind) > 0 {
		err := t.fillGap(ctx, pos, behind)
		if fault.ReasonOf(err) == fault.SnapshotGone && t.moved(pos) {
			return true, nil // expired while it was read: the newer one has the rows too
		}
		return true, err
	}
	t.base = pos.Commit.SnapshotID
	if err := t.mark(pos); err != nil {
		return false, err
	}
	return t.sendHot(pos)
}

// moved reports whether the table has another snapshot by now.
func (t *tail) moved(pos readview.Position) bool {
	now, err := t.src.Position()
	return err == nil && now.Commit.SnapshotID != pos.Commit.SnapshotID
}

// place fixes where the tail stands, and takes in partitions and schemas that
// are new.
func (t *tail) place(pos readview.Position) error {
	if t.cursor == nil {
		from, err := resolveVector(pos, t.req.GetFrom())
		if err != nil {
			return err
		}
		t.table, t.cursor = pos.Commit.Table, from
		for p, c := range pos.Commit.Positions {
			if _, named := t.cursor[p]; named {
				continue
			}
			if t.cursor[p] = c.Next; t.req.GetFromStart() {
				t.cursor[p] = c.Start
			}
		}
	}
	if t.table != pos.Commit.Table {
		return fault.New(fault.Fenced, "table %s was dropped and made anew: begin a new tail", t.req.GetTable())
	}
	for p, c := range pos.Commit.Positions { // found since: from their first row on
		if _, known := t.cursor[p]; !known {
			t.cursor[p] = c.Start
		}
	}
	for _, a := range pos.Hot { // ordered by offset: the first entry of a partition comes first
		if _, known := t.cursor[a.Partition]; !known {
			t.cursor[a.Partition] = a.Range.First
		}
	}
	return t.look(pos.Schema)
}

// look fixes the shape of the rows for the newest schema.
func (t *tail) look(s event.Schema) error {
	if t.shape != nil && t.fingerprint == s.Fingerprint {
		return nil
	}
	full, err := parseSchema(s)
	if err != nil {
		return err
	}
	shape, err := project(full, t.req.GetColumns())
	switch {
	case err != nil && t.shape != nil:
		return fault.New(fault.SchemaChanged, "the schema changed under the tail: %w", err)
	case err != nil && s.Fingerprint == "":
		shape = &schema.Schema{} // no schema yet, and so no rows; the columns are checked when there is one
		full = shape
	case err != nil:
		return err
	}
	t.fingerprint, t.shape = s.Fingerprint, shape
	t.hasKafka = full.Column(schema.KafkaColumn) != nil
	return nil
}

// behind returns the partitions whose committed position is above the cursor.
func (t *tail) behind(pos readview.Position) []ident.Partition {
	var out []ident.Partition
	for p, c := range pos.Commit.Positions {
		if t.cursor[p] < c.Next {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, ident.Partition.Compare)
	return out
}

// fillGap sends one window of rows that are cold already. Within a window the
// rows of a partition come in offset order as one message, so that the cursor
// stays exact.
func (t *tail) fillGap(ctx context.Context, pos readview.Position, behind []ident.Partition) error {
	cold := t.server.opt.Cold
	if cold == nil {
		return t.server.wrongDoor("a tail from an offset that is committed already")
	}
	if !t.hasKafka {
		return fault.New(fault.TooOld, "partition %s is committed above offset %d, and table %s has no column %s to find the rows by: read the snapshot, then tail from its positions",
			behind[0], t.cursor[behind[0]], t.req.GetTable(), schema.KafkaColumn)
	}
	scan := ColdScan{
		Table: t.req.GetTable(), Location: pos.Commit.MetadataLocation, Snapshot: pos.Commit.SnapshotID,
		Since: t.base, Target: t.shape, From: ident.Vector{}, Below: ident.Vector{},
	}
	width := max(gapRows/int64(len(behind)), 1024)
	for _, p := range behind {
		scan.From[p] = t.cursor[p]
		scan.Below[p] = min(t.cursor[p]+width, pos.Commit.Positions[p].Next)
	}
	rows, err := cold.Window(ctx, scan)
	if t.base != 0 && (fault.ReasonOf(err) == fault.TooOld || fault.ReasonOf(err) == fault.SnapshotGone) {
		t.base, scan.Since = 0, 0 // the history since is gone: look through the whole snapshot
		rows, err = cold.Window(ctx, scan)
	}
	if err != nil {
		return err
	}
	defer func() {
		for _, r := range rows {
			r.Rows.Release()
		}
	}()
	for _, r := range rows {
		t.cursor[r.Partition] = scan.Below[r.Partition]
		data, err := arrowx.StreamBytes(r.Rows.Schema(), r.Rows)
		if err != nil {
			return err
		}
		if err := t.sendRows(partCold, data, r.Rows.NumRows()); err != nil {
			return err
		}
	}
	for p, next := range scan.Below { // windows that held no row
		t.cursor.Raise(p, next)
	}
	return nil
}

// sendHot sends hot rows in the order of their LSNs, up to a bound.
func (t *tail) sendHot(pos readview.Position) (more bool, err error) {
	var todo []readview.Piece
	for _, p := range pos.Pieces() {
		p.Within.First = max(p.Within.First, t.cursor[p.Append.Partition])
		if !p.Within.Empty() {
			todo = append(todo, p)
		}
	}
	slices.SortFunc(todo, func(a, b readview.Piece) int { return cmp.Compare(a.Append.LSN, b.Append.LSN) })
	var size int64
	for i, p := range todo {
		if size >= tailRound {
			return true, nil
		}
		size += p.Append.Bytes()
		if err := t.sendPiece(p); err != nil {
			return false, err
		}
		todo[i] = readview.Piece{} // sent: no reason to hold it
	}
	return len(todo) > 0, nil
}

func (t *tail) sendPiece(p readview.Piece) error {
	if p.Append.Rows == 0 {
		t.cursor.Raise(p.Append.Partition, p.Within.Next)
		return nil
	}
	rec, err := rowsOf(p, t.shape)
	if err != nil {
		return err
	}
	defer rec.Release()
	t.cursor.Raise(p.Append.Partition, p.Within.Next)
	if rec.NumRows() == 0 {
		return nil
	}
	data, err := arrowx.StreamBytes(rec.Schema(), rec)
	if err != nil {
		return err
	}
	return t.sendRows(partHot, data, rec.NumRows())
}

// mark says once for each snapshot that all its rows have been sent. Several
// commits between two rounds give one mark, of the newest.
func (t *tail) mark(pos readview.Position) error {
	if pos.Commit.SnapshotID == t.marked {
		return nil
	}
	t.marked = pos.Commit.SnapshotID
	return t.send(&readstatev1.TailResponse{Message: &readstatev1.TailResponse_Commit{Commit: wire.CommitToProto(&pos.Commit)}})
}

func (t *tail) sendRows(part string, data []byte, rows int64) error {
	t.server.opt.Meter.Sent(part, rows, int64(len(data)))
	return t.send(&readstatev1.TailResponse{Message: &readstatev1.TailResponse_Rows{
		Rows: &readstatev1.TailRows{Data: data, Rows: rows, Fingerprint: t.fingerprint},
	}})
}

// send sends a message with the cursor behind it.
func (t *tail) send(m *readstatev1.TailResponse) error {
	m.Position = &readstatev1.OffsetVector{Offsets: wire.VectorToProto(t.cursor)}
	return t.guard.send(func() error { return t.out.Send(m) })
}
