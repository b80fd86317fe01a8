package readview

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// at is one row of the naive model: where it came from and the LSN it had.
type at struct {
	p      ident.Partition
	offset int64
	lsn    ident.LSN
}

// world is a naive model of a buffer with a table: every row is kept for ever,
// and every snapshot remembers its rows.
type world struct {
	r        *rand.Rand
	parts    []ident.Partition
	next     map[ident.Partition]int64
	rows     map[ident.Partition][]at // by offset
	entries  []*event.Append          // of the epoch
	lsn      ident.LSN
	commit   event.Commit
	snaps    map[int64][]at
	snapVec  map[int64]ident.Vector
	log      []event.Event
	ended    []event.EndedEpoch
	snapshot int64
}

func newWorld(seed uint64) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 1)), parts: []ident.Partition{p0, p1, {Pipeline: "second", Topic: "t"}},
		next: map[ident.Partition]int64{}, rows: map[ident.Partition][]at{}, snaps: map[int64][]at{}, snapVec: map[int64]ident.Vector{},
	}
	w.land(w.zero())
	return w
}

func (w *world) zero() ident.Vector {
	v := ident.Vector{}
	for _, p := range w.parts {
		v[p] = 0
	}
	return v
}

// land makes a snapshot with all rows below vec.
func (w *world) land(vec ident.Vector) {
	w.snapshot++
	c := commitAt(w.snapshot, vec)
	c.SnapshotID = w.snapshot
	c.LogEpoch = max(1, w.commit.LogEpoch)
	c.LSN.Next = w.lsn
	w.commit = c
	for _, p := range w.parts {
		w.snaps[w.snapshot] = append(w.snaps[w.snapshot], w.rows[p][:vec[p]]...)
	}
	w.snapVec[w.snapshot] = vec
}

func (w *world) emit(ev event.Event) {
	ev.Seq = event.Seq(len(w.log) + 1)
	w.log = append(w.log, ev)
}

func (w *world) step() {
	switch x := w.r.IntN(20); {
	case x < 13:
		p := w.parts[w.r.IntN(len(w.parts))]
		a := entry(p, w.next[p], w.next[p]+1+w.r.Int64N(5), w.lsn)
		for o := a.Range.First; o < a.Range.Next; o++ {
			w.rows[p] = append(w.rows[p], at{p, o, a.LSN + ident.LSN(o-a.Range.First)})
		}
		w.next[p] = a.Range.Next
		w.lsn += ident.LSN(a.Range.Len() + w.r.Int64N(3))
		w.entries = append(w.entries, a)
		w.emit(event.Event{Append: a})
	case x < 19:
		vec := w.commit.Positions.Vector()
		for _, p := range w.parts {
			vec[p] += w.r.Int64N(w.next[p] - vec[p] + 1) // cuts may fall inside an entry
		}
		w.land(vec)
		c := w.commit
		w.emit(event.Event{Commit: &c})
	default:
		w.fence()
	}
}

// fence starts a new epoch: what is not committed is read again, with new LSNs.
func (w *world) fence() {
	base := w.commit.Positions.Vector()
	w.ended = append(w.ended, event.EndedEpoch{Epoch: w.commit.LogEpoch, Base: base})
	w.lsn += 1000
	w.land(base)
	w.commit.LogEpoch++
	w.commit.LSN.Start = w.lsn
	for _, p := range w.parts {
		w.rows[p] = slices.Clone(w.rows[p][:base[p]])
		w.next[p] = base[p]
	}
	w.entries = nil
	c := w.commit
	w.emit(event.Event{Epoch: &event.Epoch{Commit: c}})
}

// image is the state after event n, built naively.
func (w *world) image(n int) event.Image {
	img := event.Image{Boot: ident.UUID{7}, Seq: event.Seq(n), Commit: commitAt(0, w.zero())}
	img.Commit.SnapshotID, img.Commit.LogEpoch = 1, 1
	img.Commit.SequenceNumber = 1
	for _, ev := range w.log[:n] {
		switch {
		case ev.Append != nil:
			img.Hot = append(img.Hot, ev.Append)
		case ev.Commit != nil:
			img.Commit = *ev.Commit
		case ev.Epoch != nil:
			img.Ended = append(img.Ended, event.EndedEpoch{Epoch: img.Commit.LogEpoch, Base: ev.Epoch.Commit.Positions.Vector()})
			img.Commit, img.Hot = ev.Epoch.Commit, nil
		}
	}
	return img
}

func rowsOf(pieces []Piece) []at {
	var out []at
	for _, pc := range pieces {
		for o := pc.Within.First; o < pc.Within.Next; o++ {
			out = append(out, at{pc.Append.Partition, o, pc.Append.LSN + ident.LSN(o-pc.Append.Range.First)})
		}
	}
	return out
}

func sorted(rows []at) []at {
	slices.SortFunc(rows, func(a, b at) int {
		if c := a.p.Compare(b.p); c != 0 {
			return c
		}
		return cmpOffset(a.offset, b.offset)
	})
	return rows
}

// union reads a position as a reader would: the snapshot plus the hot pieces.
func (w *world) union(pos Position) []at {
	return sorted(append(slices.Clone(w.snaps[pos.Commit.SnapshotID]), rowsOf(pos.Pieces())...))
}

// reread reads what a token resolves to.
func (w *world) reread(r Resolved) []at {
	rows := slices.Clone(w.snaps[r.Cold.SnapshotID])
	if r.Rest != nil {
		for _, row := range w.snaps[r.Rest.SnapshotID] {
			if to, ok := r.RestTo[row.p]; ok && r.RestFrom[row.p] <= row.offset && row.offset < to {
				rows = append(rows, row)
			}
		}
	}
	return sorted(append(rows, rowsOf(r.Hot)...))
}

// held is a token with the answer its first reader got.
type held struct {
	tok  Token
	rows []at
}

// G3, G4: views that start, lag, cut off and resume at random moments always
// show each row exactly once, and a token always gives the rows it gave first.
func TestRandomHandOversShowEachRowOnceAndTokensKeepTheirAnswer(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(seed)
		views := []*View{New(), New(), New()}
		for _, v := range views {
			v.Load(w.image(0))
		}
		var tokens []held
		answered := 0
		for range 120 {
			w.step()
			v := views[w.r.IntN(len(views))]
			switch w.r.IntN(8) {
			case 0: // comes back by image
				v.Load(w.image(w.r.IntN(len(w.log) + 1)))
			case 1: // hears again what it has heard
				for i := max(0, int(v.Seq())-5); i < int(v.Seq()); i++ {
					if w.log[i].Epoch == nil && !epochBetween(w.log[i:v.Seq()]) {
						again := w.log[i]
						again.Seq = 0
						v.Apply(again)
					}
				}
			default:
				for n := w.r.IntN(8); n > 0 && int(v.Seq()) < len(w.log); n-- {
					v.Apply(w.log[v.Seq()])
				}
			}
			tokens = append(tokens, w.check(t, seed, v))
			h := tokens[w.r.IntN(len(tokens))]
			r, err := v.Resolve(h.tok)
			if err != nil {
				require.Contains(t, []fault.Reason{fault.NotYet, fault.EpochChanged}, fault.ReasonOf(err))
				continue
			}
			answered++
			if got := w.reread(r); !slices.Equal(h.rows, got) {
				require.Equal(t, h.rows, got, "seed %d: G3", seed)
			}
		}
		require.Positive(t, answered)
	}
}

func epochBetween(evs []event.Event) bool {
	return slices.ContainsFunc(evs, func(e event.Event) bool { return e.Epoch != nil })
}

// check compares the view with the naive model at the view's own place in the log.
func (w *world) check(t *testing.T, seed uint64, v *View) held {
	t.Helper()
	img := w.image(int(v.Seq()))
	require.Equal(t, img.Commit, v.Commit(), "seed %d", seed)
	want := img.Commit.Positions.Vector()
	var bytes int64
	for _, a := range img.Hot {
		if a.Range.Next > img.Commit.Positions[a.Partition].Next {
			bytes += a.Bytes()
		}
		want.Raise(a.Partition, a.Range.Next)
	}
	require.Equal(t, want, v.Visible(), "seed %d", seed)
	require.Equal(t, bytes, v.Bytes(), "seed %d", seed)
	rows := w.union(v.Position())
	i := 0
	for _, p := range sortedParts(w.parts) { // G4: each offset below the position once
		for o := range want[p] {
			if i >= len(rows) || rows[i].p != p || rows[i].offset != o {
				t.Fatalf("seed %d: G4: row %d is not offset %d of %s", seed, i, o, p)
			}
			i++
		}
	}
	require.Len(t, rows, i, "seed %d: G4", seed)
	tok, err := ParseToken(v.Position().Token().String())
	require.NoError(t, err)
	return held{tok, rows}
}

func sortedParts(ps []ident.Partition) []ident.Partition {
	return slices.SortedFunc(slices.Values(ps), ident.Partition.Compare)
}
