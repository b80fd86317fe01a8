package readview

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

var (
	tableID = ident.UUID{1}
	p0      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 0}
	p1      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 1}
)

func commitAt(seq int64, v ident.Vector) event.Commit {
	ps := ident.Positions{}
	for p, next := range v {
		ps[p] = ident.Position{Next: next, LeaderEpoch: 3}
	}
	return event.Commit{Table: tableID, SnapshotID: 1000 + seq, SequenceNumber: seq, LogEpoch: 1, WriterEpoch: 1, Positions: ps}
}

func entry(p ident.Partition, first, next int64, lsn ident.LSN) *event.Append {
	return &event.Append{Header: event.Header{Partition: p, Range: ident.Range{First: first, Next: next}, Rows: next - first, MaxTime: next}, LSN: lsn}
}

func loaded(v ident.Vector, hot ...*event.Append) *View {
	view := New()
	view.Load(event.Image{Boot: ident.UUID{7}, Seq: 4, Commit: commitAt(1, v), Hot: hot})
	return view
}

func TestNothingIsReadyBeforeAnImage(t *testing.T) {
	v := New()
	require.False(t, v.Ready())
	_, err := v.Resolve(Token{})
	require.ErrorIs(t, err, fault.Of(fault.NotReady))
}

func TestVisibleEndsAtTheFirstHoleOfAPartitionAndHoldsNobodyElse(t *testing.T) {
	v := loaded(ident.Vector{p0: 0, p1: 0}, entry(p0, 5, 9, 10), entry(p1, 0, 3, 20))
	require.Equal(t, ident.Vector{p0: 0, p1: 3}, v.Visible())
	require.Equal(t, ident.LSN(10), v.ReadableLSN())
	v.Apply(event.Event{Seq: 5, Append: entry(p0, 0, 5, 5)})
	require.Equal(t, ident.Vector{p0: 9, p1: 3}, v.Visible())
	require.Equal(t, ident.LSN(23), v.ReadableLSN())
	require.Equal(t, event.Seq(5), v.Seq())
	require.Len(t, v.Hot(nil, nil), 3)
	require.Len(t, v.Hot(ident.Vector{p0: 5}, ident.Vector{p0: 9}), 1)
}

// A read under way must not depend on what the log knows by then: a buffer without its journal comes back with the
// table's schemas only (G3).
func TestAPositionKeepsTheSchemasOfItsRowsWhateverComesAfter(t *testing.T) {
	a := entry(p0, 0, 4, 10)
	a.Fingerprint = "before"
	v := New()
	v.Load(event.Image{Commit: commitAt(1, ident.Vector{p0: 0}), Hot: []*event.Append{a}, Schemas: []event.Schema{{Fingerprint: "before", TableSchemaID: 1}}})
	pos := v.Position()
	res, err := v.Resolve(pos.Token())
	require.NoError(t, err)
	v.Load(event.Image{Commit: commitAt(2, ident.Vector{p0: 0}), Schemas: []event.Schema{{Fingerprint: "after", TableSchemaID: 2}}})
	require.Equal(t, "before", pos.Pieces()[0].Schema.Fingerprint)
	require.Equal(t, "before", res.Hot[0].Schema.Fingerprint)
}

func TestAppendHeldOrCommittedIsDropped(t *testing.T) {
	v := loaded(ident.Vector{p0: 4}, entry(p0, 4, 8, 1))
	for _, a := range []*event.Append{entry(p0, 4, 8, 1), entry(p0, 0, 4, 90), entry(p0, 5, 7, 91), entry(p0, 6, 12, 92)} {
		v.Apply(event.Event{Append: a})
	}
	require.Equal(t, int64(4), v.Rows())
	require.Equal(t, ident.Vector{p0: 8}, v.Visible())
	require.Equal(t, ident.LSN(5), v.NextLSN())
}

func TestCommitsAreBelievedInOrderOfWriterEpochAndSequenceNumber(t *testing.T) {
	newer := func(change func(*event.Commit)) event.Commit {
		c := commitAt(9, ident.Vector{p0: 6})
		change(&c)
		return c
	}
	for name, c := range map[string]event.Commit{
		"older sequence number": newer(func(c *event.Commit) { c.SequenceNumber = 4 }),
		"same sequence number":  newer(func(c *event.Commit) { c.SequenceNumber = 5 }),
		"older writer epoch":    newer(func(c *event.Commit) { c.WriterEpoch = 0 }),
		"other log epoch":       newer(func(c *event.Commit) { c.LogEpoch = 2 }),
		"other table":           newer(func(c *event.Commit) { c.Table = ident.UUID{2} }),
		"moves back":            newer(func(c *event.Commit) { c.Positions[p0] = ident.Position{Next: 1} }),
		"forgets a partition":   newer(func(c *event.Commit) { delete(c.Positions, p0) }),
	} {
		t.Run(name, func(t *testing.T) {
			v := loaded(ident.Vector{p0: 0}, entry(p0, 0, 4, 1), entry(p0, 4, 8, 5))
			five := commitAt(5, ident.Vector{p0: 2})
			v.Apply(event.Event{Commit: &five})
			v.Apply(event.Event{Commit: &c})
			require.Equal(t, five, v.Commit())
			require.Equal(t, int64(8), v.Rows(), "an entry that straddles the committed position is kept")
		})
	}
	v := loaded(ident.Vector{p0: 0}, entry(p0, 0, 4, 1), entry(p0, 4, 8, 5))
	foreign := commitAt(6, ident.Vector{p0: 0})
	v.Apply(event.Event{Commit: &foreign})
	require.Equal(t, foreign, v.Commit(), "a snapshot of others has the same vector")
	takeover := newer(func(c *event.Commit) { c.WriterEpoch, c.SequenceNumber = 2, 1 })
	v.Apply(event.Event{Commit: &takeover})
	require.Equal(t, takeover, v.Commit())
	require.Equal(t, int64(4), v.Rows())
}

func TestEpochVoidsWhatIsHotAndRemembersWhatTheTableCovered(t *testing.T) {
	v := loaded(ident.Vector{p0: 0}, entry(p0, 0, 4, 1))
	inside := v.Position().Token()
	c := commitAt(2, ident.Vector{p0: 2})
	c.LogEpoch, c.LSN = 2, ident.LSNState{Start: 500, Next: 500, Reserved: 900}
	v.Apply(event.Event{Seq: 8, Epoch: &event.Epoch{Commit: c}})
	require.Equal(t, ident.Vector{p0: 2}, v.Visible())
	require.Zero(t, v.Bytes())
	require.Equal(t, ident.LSN(500), v.NextLSN())
	require.Equal(t, []event.EndedEpoch{{Epoch: 1, Base: ident.Vector{p0: 2}}}, v.Ended())

	_, err := v.Resolve(inside)
	require.ErrorIs(t, err, fault.Of(fault.EpochChanged))
	inside.Vector = ident.Vector{p0: 2}
	r, err := v.Resolve(inside)
	require.NoError(t, err, "the table covered the token when its epoch ended")
	require.Equal(t, ident.Vector{p0: 0}, r.RestFrom)
	require.Equal(t, ident.Vector{p0: 2}, r.RestTo)
	inside.Epoch = 0
	_, err = v.Resolve(inside)
	require.ErrorIs(t, err, fault.Of(fault.TooOld))
	inside.Epoch = 3
	_, err = v.Resolve(inside)
	require.ErrorIs(t, err, fault.Of(fault.NotYet))
	inside.Vector = ident.Vector{p0: 0}
	_, err = v.Resolve(inside)
	require.NoError(t, err, "a token without hot rows is answered by its snapshot alone")
	inside.Table = ident.UUID{5}
	_, err = v.Resolve(inside)
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
}

func TestLatestSchemaIsTheHighestIDPublishedLast(t *testing.T) {
	v := loaded(ident.Vector{})
	_, ok := v.LatestSchema()
	require.False(t, ok)
	for _, s := range []event.Schema{{Fingerprint: "a", TableSchemaID: 1}, {Fingerprint: "b", TableSchemaID: 2}, {Fingerprint: "c", TableSchemaID: 2}, {Fingerprint: "a", TableSchemaID: 1}} {
		v.Apply(event.Event{Schema: &s})
	}
	latest, ok := v.LatestSchema()
	require.True(t, ok)
	require.Equal(t, "c", latest.Fingerprint)
	_, ok = v.Schema("a")
	require.True(t, ok)
	require.Len(t, v.Schemas(), 3)
}

func TestTokenTextRoundTripsAndRefusesWhatIsDamaged(t *testing.T) {
	tok := Token{
		Table: tableID, Epoch: 3, SchemaID: 2, SnapshotID: -5577006791947779410, LSN: 1 << 50,
		Base:   ident.Vector{p0: 10, {Pipeline: "x", Topic: "gone", Number: 4}: 8},
		Vector: ident.Vector{p0: 25, p1: 1 << 40, {Pipeline: "x", Topic: "y", Number: 1 << 30}: 0},
	}
	s := tok.String()
	back, err := ParseToken(s)
	require.NoError(t, err)
	require.Equal(t, tok, back)
	for i := range len(s) {
		b := []byte(s)
		b[i] ^= 1
		if got, err := ParseToken(string(b)); err == nil {
			require.Equal(t, tok, got)
			t.Fatalf("a flipped bit at %d was not noticed", i)
		}
		_, err := ParseToken(s[:i])
		require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(Token{Base: ident.Vector{p0: 1}, Vector: ident.Vector{p0: 4}}.String())
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil {
			return
		}
		again, err := ParseToken(tok.String())
		require.NoError(t, err)
		require.Equal(t, tok, again)
	})
}
