package readapi

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// read is one consistent position of a table and the parts that make it up. It
// is immutable once begun.
type read struct {
	table    string
	src      Source
	token    readview.Token
	cold     event.Commit // of the snapshot; its positions may be unknown for an old one
	sequence int64        // of the snapshot, 0 where it is not known here
	rest     *event.Commit
	restFrom ident.Vector
	restTo   ident.Vector
	pieces   []readview.Piece
	schema   event.Schema
	shape    *schema.Schema // of the rows: the columns asked for
	newest   time.Time
}

// begin finds the position that at means and its parts.
func (s *Server) begin(ctx context.Context, table string, at *readstatev1.At, columns []string) (*read, error) {
	src, err := s.opt.Tables.Table(table)
	if err != nil {
		return nil, err
	}
	r := &read{table: table, src: src}
	switch p := at.GetPosition().(type) {
	case nil:
		err = r.atLatest()
	case *readstatev1.At_Token:
		err = s.atToken(ctx, r, p.Token)
	case *readstatev1.At_Lsn:
		err = r.atLSN(ident.LSN(p.Lsn))
	case *readstatev1.At_Vector:
		err = r.atVector(p.Vector)
	case *readstatev1.At_SnapshotId:
		err = s.atSnapshot(ctx, r, p.SnapshotId)
	case *readstatev1.At_Time:
		err = s.atTime(ctx, r, p.Time.AsTime())
	default:
		err = fault.New(fault.Unsupported, "this version knows no such position: update the server")
	}
	if err != nil {
		return nil, err
	}
	return r, r.choose(columns)
}

// atLatest takes everything that is visible.
func (r *read) atLatest() error {
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	r.from(pos, pos.Vector)
	r.token.LSN = pos.NextLSN
	return nil
}

// from makes the read the part of pos below vector.
func (r *read) from(pos readview.Position, vector ident.Vector) {
	r.cold, r.sequence, r.schema, r.newest = pos.Commit, pos.Commit.SequenceNumber, pos.Schema, pos.NewestTime
	r.pieces = cut(pos.Pieces(), vector)
	r.token = pos.Token()
	r.token.Vector = vector
}

// cut leaves out what lies at or above the vector.
func cut(pieces []readview.Piece, below ident.Vector) []readview.Piece {
	out := make([]readview.Piece, 0, len(pieces))
	for _, p := range pieces {
		next, ok := below[p.Append.Partition]
		if p.Within.Next = min(p.Within.Next, next); ok && !p.Within.Empty() {
			out = append(out, p)
		}
	}
	return out
}

// atVector takes what is committed and the hot rows below the offsets asked for.
// Partitions that are not named stand at their committed position.
func (r *read) atVector(v *readstatev1.OffsetVector) error {
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	want, err := resolveVector(pos, v)
	if err != nil {
		return err
	}
	vector := pos.Commit.Positions.Vector()
	for p, next := range want {
		if have, ok := pos.Vector[p]; !ok || have < next {
			return notYet(p, have, next)
		}
		if done := vector[p]; next < done {
			return fault.New(fault.TooOld, "partition %s is committed up to %d, above the offset %d asked for: read by a token or a snapshot", p, done, next)
		}
		vector[p] = next
	}
	r.from(pos, vector)
	return nil
}

func notYet(p ident.Partition, have, want int64) error {
	return fault.New(fault.NotYet, "partition %s is visible up to %d, not yet to %d: wait and try again", p, have, want)
}

// atLSN takes what is committed and the hot rows below the LSN. A hole below it
// means that rows may still come there.
func (r *read) atLSN(lsn ident.LSN) error {
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	if lsn > pos.ReadableLSN {
		return fault.New(fault.NotYet, "rows below LSN %d are visible, not yet all below %d: wait and try again", pos.ReadableLSN, lsn)
	}
	vector := pos.Commit.Positions.Vector()
	for _, p := range pos.Pieces() {
		// The LSNs of a partition ascend with its offsets, so this is a prefix.
		end := p.Append.Range.First + max(int64(lsn-p.Append.LSN), 0)
		vector.Raise(p.Append.Partition, min(max(end, p.Within.First), p.Within.Next))
	}
	r.from(pos, vector)
	r.token.LSN = lsn
	return nil
}

// atToken takes what an earlier read stood for (G3).
func (s *Server) atToken(ctx context.Context, r *read, text string) error {
	tok, err := readview.ParseToken(text)
	if err != nil {
		return err
	}
	res, err := r.src.Resolve(tok)
	if err != nil {
		return err
	}
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	r.token, r.cold, r.sequence = tok, res.Cold, res.Cold.SequenceNumber
	r.rest, r.restFrom, r.restTo, r.pieces = res.Rest, res.RestFrom, res.RestTo, res.Hot
	r.newest = newestOf(res.Hot)
	if r.schema, err = schemaOf(r.src, tok.SchemaID, pos.Schema); err != nil {
		return err
	}
	if s.opt.Cold != nil && r.sequence == 0 && r.cold.SnapshotID != 0 {
		snap, err := s.opt.Cold.Snapshot(ctx, r.table, r.cold.MetadataLocation, r.cold.SnapshotID)
		if err != nil {
			return err
		}
		r.sequence = snap.Sequence
	}
	return nil
}

func newestOf(pieces []readview.Piece) time.Time {
	var newest int64
	for _, p := range pieces {
		newest = max(newest, p.Append.MaxTime)
	}
	if newest == 0 {
		return time.Time{}
	}
	return time.UnixMilli(newest).UTC()
}

// atSnapshot takes the rows of one snapshot, cold rows only.
func (s *Server) atSnapshot(ctx context.Context, r *read, id int64) error {
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	if id == pos.Commit.SnapshotID {
		r.from(pos, pos.Commit.Positions.Vector())
		return nil
	}
	if s.opt.Cold == nil {
		return s.wrongDoor("a read at an older snapshot")
	}
	snap, err := s.opt.Cold.Snapshot(ctx, r.table, pos.Commit.MetadataLocation, id)
	if err != nil {
		return err
	}
	return r.fromSnapshot(pos, snap)
}

// atTime takes the newest snapshot that was committed at or before t.
func (s *Server) atTime(ctx context.Context, r *read, t time.Time) error {
	pos, err := r.src.Position()
	if err != nil {
		return err
	}
	if s.opt.Cold == nil {
		return s.wrongDoor("a read at a time")
	}
	snap, err := s.opt.Cold.SnapshotAt(ctx, r.table, pos.Commit.MetadataLocation, t)
	if err != nil {
		return err
	}
	return r.fromSnapshot(pos, snap)
}

// fromSnapshot makes the read all rows of a snapshot. Its vector is not known
// here, and not needed: without hot rows the snapshot alone is the answer.
func (r *read) fromSnapshot(pos readview.Position, snap Snapshot) (err error) {
	if snap.ID == pos.Commit.SnapshotID {
		r.from(pos, pos.Commit.Positions.Vector())
		return nil
	}
	r.cold = event.Commit{
		Table: pos.Commit.Table, SnapshotID: snap.ID, SequenceNumber: snap.Sequence, CommitTime: snap.Time,
		MetadataLocation: pos.Commit.MetadataLocation, LogEpoch: pos.Commit.LogEpoch,
	}
	r.sequence = snap.Sequence
	if r.schema, err = schemaOf(r.src, snap.SchemaID, pos.Schema); err != nil {
		return err
	}
	r.token = readview.Token{
		Table: pos.Commit.Table, Epoch: pos.Commit.LogEpoch, SchemaID: r.schema.TableSchemaID, SnapshotID: snap.ID,
		Base: ident.Vector{}, Vector: ident.Vector{},
	}
	return nil
}

// choose fixes the shape of the rows, and refuses a read whose rows could not be
// told apart without the column _kafka.
func (r *read) choose(columns []string) error {
	full, err := parseSchema(r.schema)
	if err != nil {
		return err
	}
	if r.rest != nil && full.Column(schema.KafkaColumn) == nil {
		return fault.New(fault.TooOld, "the hot rows of the token are committed since, and table %s has no column %s to find them by: begin the read again",
			r.table, schema.KafkaColumn)
	}
	r.shape, err = project(full, columns)
	return err
}

// schemaOf returns the schema with the given id as rows can be shown in it now:
// its columns, in the types they were widened to since, because rows that were
// hot then may have been written with the wider type. Where the id is not known
// any more, that is the newest schema.
func schemaOf(src Source, id int32, newest event.Schema) (event.Schema, error) {
	s, known := src.SchemaByID(id)
	if !known || s.TableSchemaID == newest.TableSchemaID {
		return newest, nil
	}
	old, err := parseSchema(s)
	if err != nil {
		return s, err
	}
	now, err := parseSchema(newest)
	if err != nil || !widen(old.Columns, now.Columns) {
		return s, err
	}
	s.Fingerprint = old.Fingerprint()
	if s.Columns, err = json.Marshal(old); err != nil {
		return s, fault.New(fault.Internal, "writing a widened schema: %w", err)
	}
	return s, nil
}

// widen gives old the types of now, matched by field id, and says whether that
// changed any.
func widen(old, now []*schema.Node) bool {
	changed := false
	for _, o := range old {
		for _, n := range now {
			if n.FieldID != o.FieldID {
				continue
			}
			if o.Type != n.Type {
				o.Type, changed = n.Type, true
			}
			changed = widen(o.Kids, n.Kids) || changed
		}
	}
	return changed
}

// parseSchema reads the columns of a schema; a table without a schema has none.
func parseSchema(s event.Schema) (*schema.Schema, error) {
	out := &schema.Schema{}
	if len(s.Columns) == 0 {
		return out, nil
	}
	if err := json.Unmarshal(s.Columns, out); err != nil {
		return nil, fault.New(fault.Corrupt, "reading schema %s: %w", s.Fingerprint, err)
	}
	return out, nil
}

// project returns the named top-level columns in the order given, all without names.
func project(full *schema.Schema, columns []string) (*schema.Schema, error) {
	if len(columns) == 0 {
		return full, nil
	}
	out := &schema.Schema{LastID: full.LastID}
	for _, name := range columns {
		c := full.Column(name)
		if c == nil {
			return nil, fault.New(fault.InvalidArgument, "the table has no column %q; its columns are %s", name, columnNames(full))
		}
		if slices.Contains(out.Columns, c) {
			return nil, fault.New(fault.InvalidArgument, "column %q is asked for twice", name)
		}
		out.Columns = append(out.Columns, c)
	}
	return out, nil
}

func columnNames(s *schema.Schema) string {
	names := make([]string, len(s.Columns))
	for i, c := range s.Columns {
		names[i] = c.Name
	}
	return strings.Join(names, ", ")
}

// resolveVector reads the offsets of a request against the partitions of pos. A
// producer knows topic, partition and offset only: an entry without a pipeline
// or a topic id means the one partition that fits the rest.
func resolveVector(pos readview.Position, v *readstatev1.OffsetVector) (ident.Vector, error) {
	given, err := wire.VectorFromProto(v.GetOffsets())
	if err != nil {
		return nil, err
	}
	out := make(ident.Vector, len(given))
	for p, next := range given {
		if next < 0 {
			return nil, fault.New(fault.InvalidArgument, "partition %s is asked for up to offset %d: offsets begin at 0", p, next)
		}
		full, err := resolvePartition(pos, p)
		if err != nil {
			return nil, err
		}
		out.Raise(full, next)
	}
	return out, nil
}

func resolvePartition(pos readview.Position, p ident.Partition) (ident.Partition, error) {
	if _, ok := pos.Vector[p]; ok || p.Pipeline != "" && !p.TopicID.IsZero() {
		return p, nil
	}
	found := p
	n := 0
	for q := range pos.Vector {
		if q.Topic == p.Topic && q.Number == p.Number && (p.Pipeline == "" || q.Pipeline == p.Pipeline) &&
			(p.TopicID.IsZero() || q.TopicID == p.TopicID) {
			found = q
			n++
		}
	}
	if n > 1 {
		return p, fault.New(fault.InvalidArgument, "%d partitions of the table are %s: name the pipeline and the topic id too", n, ident.TopicPartition(p.Topic, p.Number))
	}
	return found, nil
}
