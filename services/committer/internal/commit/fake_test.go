package commit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

var errLost = errors.New("connection reset by peer")

// fakeLake is an Iceberg table in memory: a chain of snapshots, compare-and-set
// on its head, and a catalog that can be told to misbehave.
type fakeLake struct {
	mu       sync.Mutex
	uuid     ident.UUID
	snaps    map[int64]*fakeSnapshot
	head     int64
	last     int64
	schema   *schema.Schema
	schemaID int32
	numbers  map[string]schema.NumberMap
	evolved  lake.Evolution
	staged   map[*lake.Staged]lake.Change
	schemaAt map[*lake.Staged]int32 // asserted where the change brings a schema
	inflight []func()               // requests that the catalog got and has not looked at
	deleted  map[string]bool
	written  map[ident.UUID][]string // files that exist, by attempt
	intents  map[ident.UUID]bool
	epochs   map[ident.UUID]ident.WriterEpoch         // of intents, where it is not 0
	applied  map[ident.UUID]int64                     // rows in the quarantine table, by commit
	marked   map[ident.Partition]map[int64]ident.UUID // replayed_in of the quarantine table
	broken   []string                                 // violations that the fake noticed
	rolled   error
	copied   *lake.Copy // what the property says after a roll-back

	// Faults. answer says what becomes of a request; nil means that all is well.
	answer func(kind string) mood
	reload func() error
	apply  func() error
	void   func() error
}

// mood of the catalog towards one request.
type mood uint8

const (
	fine mood = iota
	appliedLost
	neverArrived
	late
	refuses
	denies // a definite no: the request is bad
	crash  // it is applied, and the committer dies before it hears of it
	orphan // it is applied late, and the committer dies before it hears of it
)

type fakeSnapshot struct {
	id, parent int64
	own        bool
	kind       string
	change     lake.Change
	state      lake.State
	files      []string
}

func newFakeLake() *fakeLake {
	columns := &schema.Schema{Columns: schema.MetadataColumns(true, true)}
	columns.AssignIDs()
	return &fakeLake{
		uuid: ident.UUID{1}, snaps: map[int64]*fakeSnapshot{}, schema: columns, numbers: map[string]schema.NumberMap{},
		staged: map[*lake.Staged]lake.Change{}, schemaAt: map[*lake.Staged]int32{}, deleted: map[string]bool{}, written: map[ident.UUID][]string{},
		intents: map[ident.UUID]bool{}, applied: map[ident.UUID]int64{},
		marked: map[ident.Partition]map[int64]ident.UUID{},
	}
}

// chain yields the head and its ancestors.
func (f *fakeLake) chain() []*fakeSnapshot {
	var out []*fakeSnapshot
	for s := f.snaps[f.head]; s != nil; s = f.snaps[s.parent] {
		out = append(out, s)
	}
	return out
}

func (f *fakeLake) headLocked() lake.Head {
	h := lake.Head{
		Table: f.uuid, SnapshotID: f.head, Sequence: int64(len(f.chain())), SchemaID: f.schemaID, Schema: f.schema,
		Numbers: f.numbers, RolledBack: f.rolled, NextSchemaID: f.schemaID + 1, Evolution: f.evolved,
	}
	for _, s := range f.chain() {
		if s.own {
			h.State, h.StateSnapshot = s.state.Clone(), s.id
			break
		}
	}
	if h.Copy = f.copied; h.Copy != nil {
		c := h.Copy.State
		h.High = lake.High{WriterEpoch: c.WriterEpoch, LogEpoch: c.LogEpoch, Reserved: c.LSN.Reserved}
	}
	return h
}

// rollBack moves the head back by n snapshots, as another engine would.
func (f *fakeLake) rollBack(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	chain := f.chain()
	f.copied = &lake.Copy{State: chain[0].state.Clone(), Snapshot: chain[0].id}
	f.head = chain[n].id
	f.rolled = fault.New(fault.Stopped, "somebody rolled it back")
}

// VoidQuarantine forgets what commits applied that are in no history any more.
func (c *client) VoidQuarantine(context.Context) error {
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.void != nil {
		if err := f.void(); err != nil {
			return err
		}
	}
	have := map[ident.UUID]bool{}
	for _, s := range f.chain() {
		have[s.state.CommitID] = true
	}
	maps.DeleteFunc(f.applied, func(id ident.UUID, _ int64) bool { return !have[id] })
	return nil
}

func (f *fakeLake) view(read func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	read()
}

func (f *fakeLake) foreign() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	f.snaps[f.last] = &fakeSnapshot{id: f.last, parent: f.head}
	f.head = f.last
}

func (f *fakeLake) violate(format string, args ...any) {
	f.broken = append(f.broken, fmt.Sprintf(format, args...))
}

// land applies a request if it asserts the head.
func (f *fakeLake) land(st *lake.Staged, c lake.Change) bool {
	if f.head != st.Base || c.Schema != nil && f.schemaAt[st] != f.schemaID {
		return false
	}
	if f.snaps[st.SnapshotID] != nil {
		f.violate("snapshot %d landed twice", st.SnapshotID)
	}
	s := &fakeSnapshot{id: st.SnapshotID, parent: f.head, own: true, kind: c.Kind, change: c, state: c.State.Clone()}
	for _, file := range c.Files {
		if f.deleted[file.Path] {
			f.violate("G6: snapshot %d names deleted file %s", st.SnapshotID, file.Path)
		}
		s.files = append(s.files, file.Path)
	}
	f.snaps[s.id], f.head = s, s.id
	if c.Kind == lake.KindReset {
		f.rolled, f.copied = nil, nil
	}
	if c.Schema != nil {
		f.schema, f.schemaID = c.Schema, f.schemaID+1
	}
	maps.Copy(f.numbers, c.Numbers)
	if c.Evolution != nil {
		f.evolved = *c.Evolution
	}
	return true
}

// client is one committer's access to the lake; a crashed one has none.
type client struct {
	*fakeLake
	mu   sync.Mutex
	dead bool
	at   lake.Head
}

func (c *client) crash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
}

func (c *client) gone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return errors.New("this committer has crashed")
	}
	return nil
}

func (c *client) Reload(context.Context) (lake.Head, error) {
	if err := c.gone(); err != nil {
		return lake.Head{}, err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reload != nil {
		if err := f.reload(); err != nil {
			return lake.Head{}, err
		}
	}
	c.at = f.headLocked()
	return c.at, nil
}

func (c *client) Fate(_ context.Context, st *lake.Staged) (lake.Fate, error) {
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.at.SnapshotID == st.Base:
		return lake.Unproven, nil
	case c.holds(st.CommitID):
		return lake.Landed, nil
	default:
		return lake.Absent, nil
	}
}

// holds looks for a commit in the head that was loaded; f.mu is held.
func (c *client) holds(id ident.UUID) bool {
	for s := c.snaps[c.at.SnapshotID]; s != nil; s = c.snaps[s.parent] {
		if s.own && s.state.CommitID == id {
			return true
		}
	}
	return false
}

func (c *client) Stage(_ context.Context, ch lake.Change) (*lake.Staged, error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	st := &lake.Staged{CommitID: ch.CommitID, SnapshotID: f.last, Base: c.at.SnapshotID}
	ch.State = ch.State.Clone()
	ch.State.CommitID = ch.CommitID
	for _, p := range ch.State.Pipelines {
		for i := range p.Pending {
			if p.Pending[i].CommitID == ch.CommitID {
				p.Pending[i].Sequence = c.at.Sequence + 1
			}
		}
	}
	f.staged[st], f.schemaAt[st] = ch, c.at.SchemaID
	return st, nil
}

func (c *client) Send(_ context.Context, st *lake.Staged) error {
	if err := c.gone(); err != nil {
		return err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := f.staged[st]
	m := fine
	if f.answer != nil {
		m = f.answer(ch.Kind)
	}
	switch m {
	case appliedLost:
		f.land(st, ch)
		return errLost
	case neverArrived:
		return errLost
	case late:
		f.inflight = append(f.inflight, func() { f.land(st, ch) })
		return errLost
	case crash:
		f.land(st, ch)
		c.crash()
		return errLost
	case orphan:
		f.inflight = append(f.inflight, func() { f.land(st, ch) })
		c.crash()
		return errLost
	case denies:
		return fault.New(fault.InvalidArgument, "a column of that type is not supported here")
	case refuses:
		return fault.New(fault.Conflict, "the catalog is in a bad mood")
	default:
		if !f.land(st, ch) {
			return fault.New(fault.Conflict, "the head is not %d", st.Base)
		}
		return nil
	}
}

func (c *client) Discard(_ context.Context, st *lake.Staged) bool {
	fate, _ := c.Fate(context.Background(), st)
	return fate == lake.Absent
}

func (c *client) Freed(*lake.Staged) func(context.Context) error { return nil }

func (c *client) WriteQuarantine(_ context.Context, o lake.WriterOptions, recs ...arrow.RecordBatch) ([]lake.QuarantineFile, error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	var rows int64
	for _, r := range recs {
		rows += r.NumRows()
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	path := "q-" + o.Attempt.String()
	f.intents[o.Attempt] = true
	f.written[o.Attempt] = append(f.written[o.Attempt], path)
	return []lake.QuarantineFile{{Path: path, Rows: rows}}, nil
}

func (c *client) ApplyQuarantine(_ context.Context, pending []lake.PendingQuarantine) error {
	if err := c.gone(); err != nil {
		return err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range pending {
		if f.apply != nil {
			if err := f.apply(); err != nil {
				return err
			}
		}
		for _, file := range q.Files {
			if f.deleted[file.Path] {
				f.violate("G6: quarantine file %s was deleted", file.Path)
			}
		}
		f.applied[q.CommitID] = q.Rows() // once, by commit id
		f.mark(q)
	}
	return nil
}

// mark sets replayed_in where it is null.
func (f *fakeLake) mark(q lake.PendingQuarantine) {
	for part, ranges := range q.Replayed {
		for _, r := range ranges {
			for o := r.First; o < r.Next; o++ {
				if f.marked[part] == nil {
					f.marked[part] = map[int64]ident.UUID{}
				}
				if other, done := f.marked[part][o]; done && other != q.CommitID {
					f.violate("G1: %v offset %d was replayed by %v and by %v", part, o, other, q.CommitID)
				}
				f.marked[part][o] = q.CommitID
			}
		}
	}
}

func (c *client) Intents(context.Context) ([]lake.Intent, error) {
	if err := c.gone(); err != nil {
		return nil, err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []lake.Intent
	for id := range f.intents {
		out = append(out, lake.Intent{Attempt: id, Epoch: f.epochs[id]})
	}
	slices.SortFunc(out, func(a, b lake.Intent) int { return slices.Compare(a.Attempt[:], b.Attempt[:]) })
	return out, nil
}

func (c *client) Undo(_ context.Context, in lake.Intent) error {
	if err := c.gone(); err != nil {
		return err
	}
	f := c.fakeLake
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.holds(in.Attempt) {
		delete(f.intents, in.Attempt)
		return nil
	}
	for _, path := range f.written[in.Attempt] {
		f.deleted[path] = true
		for _, s := range f.snaps {
			if slices.Contains(s.files, path) {
				f.violate("G6: file %s of snapshot %d was deleted", path, s.id)
			}
		}
	}
	delete(f.intents, in.Attempt)
	return nil
}

func (c *client) RemoveIntent(_ context.Context, id ident.UUID) {
	if c.gone() != nil {
		return
	}
	c.view(func() { delete(c.intents, id) })
}
