package readview

import (
	"slices"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Position is one consistent position of a table: the cold rows of Commit's
// snapshot, plus the hot rows from that snapshot's vector up to Vector. It is
// immutable: nothing in it may be written to.
type Position struct {
	Commit    event.Commit
	Vector    ident.Vector    // visible
	Hot       []*event.Append // entries that overlap [committed, visible), by partition, then offset
	Schema    event.Schema    // newest
	HasSchema bool            // false before the first schema was published
	NextLSN   ident.LSN
	// ReadableLSN is at or below NextLSN: no entry below it waits to become visible.
	ReadableLSN ident.LSN
	NewestTime  time.Time // of the newest record seen in this epoch; zero when unknown

	schemas []event.Schema // all that were known, shared and never written to
}

// Piece is the part of an entry that a read includes, with the schema of its
// rows: the log may know other schemas by the time the rows are read, since a
// buffer that comes back without its journal starts with those of the table.
type Piece struct {
	Append *event.Append
	Within ident.Range  // never empty, inside Append.Range
	Schema event.Schema // the zero value for an entry without rows
}

// Position returns the newest consistent position. Calls between two events
// share one answer.
func (v *View) Position() Position {
	if v.position == nil {
		schema, ok := v.LatestSchema()
		v.position = &Position{
			Commit: v.commit, Vector: v.visible.Clone(), Hot: v.Hot(v.committed, v.visible),
			Schema: schema, HasSchema: ok, NextLSN: v.nextLSN, ReadableLSN: v.ReadableLSN(), NewestTime: v.newestTime(),
			schemas: v.schemas,
		}
	}
	return *v.position
}

// Pieces returns the hot rows of the position with exact bounds.
func (p Position) Pieces() []Piece {
	return pieces(p.Hot, p.schemas, p.Commit.Positions.Vector(), p.Vector)
}

// Token returns the token that stands for the position.
func (p Position) Token() Token {
	return Token{
		Table: p.Commit.Table, Epoch: p.Commit.LogEpoch, SchemaID: p.Schema.TableSchemaID,
		SnapshotID: p.Commit.SnapshotID, Base: p.Commit.Positions.Vector(), Vector: p.Vector, LSN: p.NextLSN,
	}
}

// pieces cuts entries to [from, to) per partition and leaves out what is empty.
func pieces(hot []*event.Append, schemas []event.Schema, from, to ident.Vector) []Piece {
	out := make([]Piece, 0, len(hot))
	var s event.Schema // most entries share theirs with the one before
	for _, a := range hot {
		within := a.Range
		if lo, ok := from[a.Partition]; ok {
			within.First = max(within.First, lo)
		}
		hi, ok := to[a.Partition]
		if !ok {
			continue
		}
		if within.Next = min(within.Next, hi); !within.Empty() {
			if s.Fingerprint != a.Fingerprint {
				s, _ = find(schemas, a.Fingerprint)
			}
			out = append(out, Piece{Append: a, Within: within, Schema: s})
		}
	}
	return out
}

// Resolved says which rows a token stands for, as of now:
//
//   - the rows of snapshot Cold;
//   - when Rest is set, the rows that snapshots of ours after Cold added, up to
//     and including Rest, whose _kafka position lies in [RestFrom, RestTo) of
//     their partition: they were hot when the token was made;
//   - the pieces of Hot.
//
// Cold.MetadataLocation is the newest metadata file, which still lists older
// snapshots; only its SnapshotID, Table, LogEpoch and the Next of its Positions
// are those of the token.
type Resolved struct {
	Cold     event.Commit
	Rest     *event.Commit
	RestFrom ident.Vector
	RestTo   ident.Vector
	Hot      []Piece
	Vector   ident.Vector // of the token
}

// Resolve finds the rows of a token. Its errors are Fenced (a token of
// another table), NotReady, NotYet (its rows are not visible here yet),
// EpochChanged (its log epoch ended before the table covered it) and TooOld
// (that epoch is no longer remembered).
func (v *View) Resolve(tok Token) (Resolved, error) {
	if !v.ready {
		return Resolved{}, fault.New(fault.NotReady, "the table log has no state yet: try again")
	}
	if tok.Table != v.commit.Table {
		return Resolved{}, fault.New(fault.Fenced, "the token belongs to table uuid %s, this table is %s", tok.Table, v.commit.Table)
	}
	if err := v.answerable(tok); err != nil {
		return Resolved{}, err
	}
	r := Resolved{Cold: v.coldOf(tok), Vector: tok.Vector.Clone()}
	r.RestFrom, r.RestTo = v.rest(tok)
	if len(r.RestTo) > 0 {
		c := v.commit
		r.Rest = &c
	}
	from := v.committed.Clone()
	for p, off := range tok.Base {
		from.Raise(p, off)
	}
	r.Hot = pieces(v.Hot(from, tok.Vector), v.schemas, from, tok.Vector)
	return r, nil
}

// answerable decides whether the token's rows can be told exactly.
func (v *View) answerable(tok Token) error {
	if tok.Base.Covers(tok.Vector) {
		return nil // its snapshot alone answers, whatever became of the log
	}
	epoch := v.commit.LogEpoch
	switch {
	case tok.Epoch > epoch:
		return fault.New(fault.NotYet, "the token is of log epoch %d, this view is at %d: try again", tok.Epoch, epoch)
	case tok.Epoch < epoch:
		i := slices.IndexFunc(v.ended, func(e event.EndedEpoch) bool { return e.Epoch == tok.Epoch })
		if i < 0 {
			return fault.New(fault.TooOld, "the end of log epoch %d is no longer remembered: begin the read again", tok.Epoch)
		}
		if !v.ended[i].Base.Covers(tok.Vector) || !v.committed.Covers(tok.Vector) {
			return fault.New(fault.EpochChanged, "log epoch %d ended before the table covered the token: begin the read again", tok.Epoch)
		}
		return nil
	}
	for _, p := range tok.Vector.Partitions() {
		if next, ok := v.visible[p]; !ok || next < tok.Vector[p] {
			return fault.New(fault.NotYet, "partition %s is visible up to %d, the token needs %d: try again", p, next, tok.Vector[p])
		}
	}
	return nil
}

// coldOf describes the token's snapshot.
func (v *View) coldOf(tok Token) event.Commit {
	if tok.SnapshotID == v.commit.SnapshotID {
		return v.commit
	}
	c := event.Commit{
		Table: tok.Table, SnapshotID: tok.SnapshotID, MetadataLocation: v.commit.MetadataLocation,
		LogEpoch: tok.Epoch, Positions: make(ident.Positions, len(tok.Base)),
	}
	for p, next := range tok.Base {
		pos := v.commit.Positions[p]
		c.Positions[p] = ident.Position{Start: pos.Start, Next: next, LeaderEpoch: -1}
	}
	return c
}

// rest returns the bounds of rows that were hot for the token and are committed
// now; both are empty when there are none.
func (v *View) rest(tok Token) (from, to ident.Vector) {
	from, to = ident.Vector{}, ident.Vector{}
	for p, next := range tok.Vector {
		lo, ok := tok.Base[p]
		if !ok {
			lo = v.commit.Positions[p].Start
		}
		if hi := min(next, v.committed[p]); lo < hi {
			from[p], to[p] = lo, hi
		}
	}
	return from, to
}
