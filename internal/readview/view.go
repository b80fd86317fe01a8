// Package readview is the pure state machine that turns the events of a table
// log into one consistent view of the table: which rows are hot, up to which
// offset each topic partition is visible, and what a read token stands for
// (design sections 2 and 6). The buffer and every follower run the same machine.
//
// The offset vector decides: a row is hot iff its offset is at or above the
// committed position of its partition, and visible iff everything from the
// committed position up to it is held. The LSN is only a name.
//
// A View is not safe for concurrent use: its owner locks. What it hands out
// (Position, Resolved, Image) is immutable and may be kept without the lock.
package readview

import (
	"maps"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// keepEnded bounds the memory for ended epochs; tokens of older ones are TOO_OLD.
const keepEnded = 256

// View is the state of one table log. The zero value is not usable: see New.
type View struct {
	ready     bool
	boot      ident.UUID
	seq       event.Seq
	commit    event.Commit
	committed ident.Vector
	visible   ident.Vector
	schemas   []event.Schema
	ended     []event.EndedEpoch
	hot       map[ident.Partition][]*event.Append // ascending by first offset, disjoint
	rows      int64
	bytes     int64
	nextLSN   ident.LSN
	newest    int64     // largest record time seen in this epoch, milliseconds
	position  *Position // made on demand, dropped by every change
}

// New returns an empty View that is not ready before Load.
func New() *View {
	v := &View{}
	v.clear()
	return v
}

func (v *View) clear() {
	v.hot = map[ident.Partition][]*event.Append{}
	v.rows, v.bytes, v.newest, v.position = 0, 0, 0, nil
}

// Load replaces everything the view holds by the image.
func (v *View) Load(img event.Image) {
	v.clear()
	v.ready, v.boot, v.seq = true, img.Boot, img.Seq
	v.schemas = nil
	for _, s := range img.Schemas {
		v.addSchema(s)
	}
	v.ended = slices.Clone(img.Ended)
	v.reset(img.Commit)
	for _, a := range img.Hot {
		v.add(a)
	}
}

// reset makes c the committed state and everything hot void.
func (v *View) reset(c event.Commit) {
	v.clear()
	v.commit = c
	v.committed = c.Positions.Vector()
	v.visible = v.committed.Clone()
	v.nextLSN = max(c.LSN.Next, c.LSN.Start)
}

// Apply takes in one event of the log. Appends are merged by offset: what the
// view holds already or what lies below the committed position is dropped.
// Commits that are older by (writer epoch, sequence number), that belong to
// another log epoch or that would move a partition back are ignored; the same
// snapshot again is taken in when it names more partitions. An Epoch voids
// everything hot.
func (v *View) Apply(ev event.Event) {
	v.position = nil
	if ev.Seq != 0 {
		v.seq = ev.Seq
	}
	switch {
	case ev.Append != nil:
		v.add(ev.Append)
	case ev.Commit != nil:
		v.take(*ev.Commit)
	case ev.Schema != nil:
		v.addSchema(*ev.Schema)
	case ev.Epoch != nil:
		v.startEpoch(ev.Epoch.Commit)
	}
}

func (v *View) startEpoch(c event.Commit) {
	// A jump over an epoch tells nothing about where the one before it ended.
	if v.ready && c.LogEpoch == v.commit.LogEpoch+1 && c.Table == v.commit.Table {
		v.ended = append(v.ended, event.EndedEpoch{Epoch: v.commit.LogEpoch, Base: c.Positions.Vector()})
		if n := len(v.ended) - keepEnded; n > 0 {
			v.ended = slices.Clone(v.ended[n:])
		}
	}
	v.ready = true
	v.reset(c)
}

// Newer reports whether c comes after the commit b by (writer epoch, sequence
// number), the order in which a table log believes reports.
func Newer(c, b event.Commit) bool {
	if c.WriterEpoch != b.WriterEpoch {
		return c.WriterEpoch > b.WriterEpoch
	}
	return c.SequenceNumber > b.SequenceNumber
}

func (v *View) take(c event.Commit) {
	next := c.Positions.Vector()
	if c.Table != v.commit.Table || c.LogEpoch != v.commit.LogEpoch || !next.Covers(v.committed) {
		return
	}
	if !Newer(c, v.commit) && (Newer(v.commit, c) || len(next) == len(v.committed)) {
		return
	}
	v.commit, v.committed = c, next
	v.nextLSN = max(v.nextLSN, c.LSN.Next)
	for p, off := range next {
		v.release(p, off)
		v.visible.Raise(p, off)
		v.advance(p)
	}
}

// release drops the entries of p that lie wholly below off.
func (v *View) release(p ident.Partition, off int64) {
	list := v.hot[p]
	n := 0
	for n < len(list) && list[n].Range.Next <= off {
		v.rows -= list[n].Rows
		v.bytes -= list[n].Bytes()
		n++
	}
	switch {
	case n == 0:
	case n == len(list):
		delete(v.hot, p)
	default:
		v.hot[p] = slices.Clone(list[n:]) // the array of the released ones must be collectable
	}
}

// add merges one entry. An entry that overlaps a held one without being inside
// it cannot come from one log epoch; it is dropped, so that no offset is ever
// shown twice.
func (v *View) add(a *event.Append) {
	p := a.Partition
	if off, ok := v.committed[p]; a.Range.Empty() || ok && a.Range.Next <= off {
		return
	}
	list := v.hot[p]
	i, found := slices.BinarySearchFunc(list, a.Range.First, func(e *event.Append, first int64) int {
		return cmpOffset(e.Range.First, first)
	})
	if found || i > 0 && list[i-1].Range.Overlaps(a.Range) || i < len(list) && list[i].Range.Overlaps(a.Range) {
		return
	}
	v.hot[p] = slices.Insert(list, i, a)
	v.rows += a.Rows
	v.bytes += a.Bytes()
	_, end := a.LSNRange()
	v.nextLSN = max(v.nextLSN, end)
	v.newest = max(v.newest, a.MaxTime)
	if _, ok := v.visible[p]; !ok {
		// A partition the table has never committed begins where its first entry does.
		v.visible[p] = a.Range.First
	}
	v.advance(p)
}

func cmpOffset(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// advance moves the visible position of p over the entries that touch it.
func (v *View) advance(p ident.Partition) {
	list, at := v.hot[p], v.visible[p]
	i, _ := slices.BinarySearchFunc(list, at, func(e *event.Append, off int64) int {
		return cmpOffset(e.Range.Next, off)
	})
	for ; i < len(list) && list[i].Range.First <= at; i++ {
		at = max(at, list[i].Range.Next)
	}
	v.visible[p] = at
}

func (v *View) addSchema(s event.Schema) {
	for i, have := range v.schemas {
		if have.Fingerprint == s.Fingerprint {
			v.schemas = slices.Clone(v.schemas)
			v.schemas[i] = s
			return
		}
	}
	v.schemas = append(slices.Clip(v.schemas), s)
}

// Ready reports whether an image or an epoch was taken in; before that the view
// has nothing to say.
func (v *View) Ready() bool { return v.ready }

// Boot is the boot id of the buffer process whose events these are.
func (v *View) Boot() ident.UUID { return v.boot }

// Seq is the number of the last event taken in.
func (v *View) Seq() event.Seq { return v.seq }

// Commit is the newest committed state.
func (v *View) Commit() event.Commit { return v.commit }

// Committed is a copy of the committed vector.
func (v *View) Committed() ident.Vector { return v.committed.Clone() }

// Visible is a copy of the vector up to which rows are served: never below the
// committed one.
func (v *View) Visible() ident.Vector { return v.visible.Clone() }

// VisibleAt is the visible position of one partition.
func (v *View) VisibleAt(p ident.Partition) (next int64, known bool) {
	next, known = v.visible[p]
	return next, known
}

// Epoch is the log epoch.
func (v *View) Epoch() ident.LogEpoch { return v.commit.LogEpoch }

// Schema returns the schema with that fingerprint.
func (v *View) Schema(fingerprint string) (event.Schema, bool) { return find(v.schemas, fingerprint) }

func find(schemas []event.Schema, fingerprint string) (event.Schema, bool) {
	for _, s := range schemas {
		if s.Fingerprint == fingerprint {
			return s, true
		}
	}
	return event.Schema{}, false
}

// LatestSchema returns the schema with the highest table schema id, the one
// published last among equals.
func (v *View) LatestSchema() (event.Schema, bool) {
	var best event.Schema
	for i, s := range v.schemas {
		if i == 0 || s.TableSchemaID >= best.TableSchemaID {
			best = s
		}
	}
	return best, len(v.schemas) > 0
}

// Schemas returns every known schema in the order they were published.
func (v *View) Schemas() []event.Schema { return slices.Clone(v.schemas) }

// Hot returns the entries that overlap [from, to) in their partition, by
// partition, then offset. A partition that from does not name begins at its
// committed position; a nil to means the visible vector, and a partition that to
// does not name is left out.
func (v *View) Hot(from, to ident.Vector) []*event.Append {
	if to == nil {
		to = v.visible
	}
	var out []*event.Append
	for _, p := range v.partitions() {
		lo, ok := from[p]
		if !ok {
			lo = v.committed[p]
		}
		hi, ok := to[p]
		if !ok {
			continue
		}
		for _, a := range v.hot[p] {
			if a.Range.Overlaps(ident.Range{First: lo, Next: hi}) {
				out = append(out, a)
			}
		}
	}
	return out
}

func (v *View) partitions() []ident.Partition {
	return slices.SortedFunc(maps.Keys(v.hot), ident.Partition.Compare)
}

// EachHot calls f with the held entries of each partition that has any, by offset.
func (v *View) EachHot(f func(p ident.Partition, list []*event.Append)) {
	for p, list := range v.hot {
		f(p, list)
	}
}

// Rows is the number of rows in the held entries.
func (v *View) Rows() int64 { return v.rows }

// Bytes is what the held entries count in byte budgets.
func (v *View) Bytes() int64 { return v.bytes }

// NextLSN is the LSN after the highest one the view has seen.
func (v *View) NextLSN() ident.LSN { return v.nextLSN }

// RaiseLSN tells the view that LSNs below next were given, which it may not be
// able to see from the entries it holds (an image after a restart).
func (v *View) RaiseLSN(next ident.LSN) {
	if next > v.nextLSN {
		v.nextLSN, v.position = next, nil
	}
}

// ReadableLSN is the LSN below which the view holds no entry that is not yet
// visible: everything it has heard of below that LSN can be read.
func (v *View) ReadableLSN() ident.LSN {
	lsn := v.nextLSN
	for p, list := range v.hot {
		for i := len(list) - 1; i >= 0 && list[i].Range.First >= v.visible[p]; i-- {
			lsn = min(lsn, list[i].LSN)
		}
	}
	return lsn
}

// Ended returns the ended epochs the view remembers, oldest first.
func (v *View) Ended() []event.EndedEpoch { return slices.Clone(v.ended) }

// Image is the state as one atomic image: what a new follower starts from.
func (v *View) Image() event.Image {
	img := event.Image{Boot: v.boot, Seq: v.seq, Commit: v.commit, Schemas: v.Schemas(), Ended: v.Ended()}
	for _, p := range v.partitions() {
		img.Hot = append(img.Hot, v.hot[p]...)
	}
	return img
}

func (v *View) newestTime() time.Time {
	if v.newest == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v.newest).UTC()
}
