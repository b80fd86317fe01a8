package pull

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

func part(n int32) ident.Partition {
	return ident.Partition{Pipeline: "p", Topic: "t", Number: n}
}

// tableOf is a table with an id and further string columns, whose other field
// ids do not depend on them.
func tableOf(names ...string) *schema.Schema {
	s := &schema.Schema{Columns: append([]*schema.Node{{Name: "id", Type: schema.Of(schema.Long)}}, schema.MetadataColumns(true, true)...)}
	s.AssignIDs()
	for i, n := range names {
		added := &schema.Node{Name: n, Type: schema.Of(schema.String), FieldID: int32(100 + i)}
		s.Columns = append(s.Columns[:1+i], append([]*schema.Node{added}, s.Columns[1+i:]...)...)
	}
	return s
}

func schemaEvent(t *testing.T, s *schema.Schema) event.Schema {
	b, err := s.MarshalJSON()
	require.NoError(t, err)
	return event.Schema{Fingerprint: s.Fingerprint(), Columns: b}
}

// entryOf is an append of [first, next) with LSNs from 1000·epoch on: offsets
// divisible by 5 are poison, those by 7 tombstones, the others rows.
func entryOf(t *testing.T, s *schema.Schema, p ident.Partition, first, next, lsn int64) *event.Append {
	e := &event.Append{LSN: ident.LSN(lsn + first), Header: event.Header{
		Partition: p, Range: ident.Range{First: first, Next: next}, Fingerprint: s.Fingerprint(), LeaderEpoch: 1, MaxTime: next,
	}}
	var rows, bad []string
	for o := first; o < next; o++ {
		switch {
		case o%5 == 0:
			bad = append(bad, fmt.Sprintf(`{"offset":%d,"timestamp":null,"key":null,"value":"YmFk","headers":[],"schema_id":7,"reason":"r","error":"e"}`, o))
		case o%7 == 0:
			e.Skips = append(e.Skips, event.Skip{Range: ident.Range{First: o, Next: o + 1}, Reason: event.SkipTombstone})
		default:
			rows = append(rows, fmt.Sprintf(`{"id":%d,"offset":%d,"timestamp":null,"key":null,"headers":[],"schema_id":7}`, o, o))
		}
	}
	e.Rows, e.Quarantined = int64(len(rows)), int64(len(bad))
	e.RowBatch = batchOf(t, arrowx.RowSchema(s), rows)
	e.Quarantine = batchOf(t, arrowx.QuarantineSchema(), bad)
	return e
}

func batchOf(t *testing.T, s *arrow.Schema, rows []string) []byte {
	if len(rows) == 0 {
		return nil
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader("["+strings.Join(rows, ",")+"]"))
	require.NoError(t, err)
	defer rec.Release()
	b, err := arrowx.EncodeBytes(rec)
	require.NoError(t, err)
	return b
}

// memFiles keeps what is written in memory: ids of rows by file.
type memFiles struct {
	mu      sync.Mutex
	n       int
	files   map[string][]int64
	columns map[string]int
	fail    error
	shape   *schema.Schema // of the table
	breaks  int64          // id of a row that cannot be encoded
	by      string         // column of the table that it is partitioned by
	block   chan struct{}  // when set, writes wait for it
}

type memWriter struct {
	f       *memFiles
	path    string
	ids     []int64
	joined  []int64 // not encoded yet
	columns int
}

func (f *memFiles) NewWriter(_ context.Context, s *schema.Schema, _ ident.UUID, _ ident.WriterEpoch) (Writer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by != "" && !slices.ContainsFunc(s.Columns, func(n *schema.Node) bool { return n.Name == f.by }) {
		return nil, fault.New(fault.InvalidArgument, "the source column %s is not in the schema", f.by)
	}
	f.n++
	return &memWriter{f: f, path: fmt.Sprint("file-", f.n), columns: len(s.Columns)}, nil
}

func (f *memFiles) Shape() *schema.Schema { f.mu.Lock(); defer f.mu.Unlock(); return f.shape }

func (w *memWriter) Write(rec arrow.RecordBatch) error {
	w.f.mu.Lock()
	block, fail := w.f.block, w.f.fail
	w.f.mu.Unlock()
	if block != nil {
		<-block
	}
	if fail != nil {
		return fail
	}
	w.joined = append(w.joined, rec.Column(0).(*array.Int64).Int64Values()...)
	if len(w.joined) < 1000 {
		return nil
	}
	return w.Flush()
}

func (w *memWriter) Flush() error {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.f.breaks != 0 && slices.Contains(w.joined, w.f.breaks) {
		return fault.New(fault.Corrupt, "the encoder panicked")
	}
	w.ids, w.joined = append(w.ids, w.joined...), nil
	return nil
}

func (w *memWriter) Bytes() int64 { return int64(len(w.ids)+len(w.joined)) * 10 }
func (w *memWriter) Open() int    { return 1 }

func (w *memWriter) Close(context.Context) ([]lake.File, error) {
	if err := w.Flush(); err != nil {
		return nil, err
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.files[w.path], w.f.columns[w.path] = w.ids, w.columns
	return []lake.File{{Path: w.path, Rows: int64(len(w.ids))}}, nil
}

func (w *memWriter) Abort(context.Context) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	delete(w.f.files, w.path)
}

// owner notes what it is told.
type owner struct {
	mu     sync.Mutex
	wanted []commit.Wanted
	failed []error
	reopen int

	unreadable []error
}

func (o *owner) Unreadable(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unreadable = append(o.unreadable, err)
}

func (o *owner) Want(w commit.Wanted) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = append(o.wanted, w)
}
func (o *owner) Reopen()          { o.mu.Lock(); defer o.mu.Unlock(); o.reopen++ }
func (o *owner) Wake()            {}
func (o *owner) Failed(err error) { o.mu.Lock(); defer o.mu.Unlock(); o.failed = append(o.failed, err) }

// rig is a puller whose stream the test plays itself.
type rig struct {
	t       *testing.T
	p       *Puller
	files   *memFiles
	owner   *owner
	budget  *Budget
	streams chan follow.Handler
	cancel  context.CancelFunc
	done    chan struct{}
}

func newRig(t *testing.T, budget int64) *rig {
	r := &rig{
		t: t, files: &memFiles{files: map[string][]int64{}, columns: map[string]int{}}, owner: &owner{}, budget: NewBudget(budget),
		streams: make(chan follow.Handler), done: make(chan struct{}),
	}
	r.p = New(Options{
		Table: "db.t", Files: r.files, Budget: r.budget,
		Follow: func(ctx context.Context, h follow.Handler) error {
			select {
			case r.streams <- h:
			case <-ctx.Done():
			}
			<-ctx.Done()
			return context.Cause(ctx)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { defer close(r.done); _ = r.p.Run(ctx, r.owner) }()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func at(epoch ident.LogEpoch, next ...int64) event.Commit {
	c := event.Commit{LogEpoch: epoch, WriterEpoch: 1, Positions: ident.Positions{}}
	for i, n := range next {
		c.Positions[part(int32(i))] = ident.Position{Next: n}
	}
	return c
}

func (r *rig) image(h follow.Handler, c event.Commit, s *schema.Schema, hot ...*event.Append) error {
	return h.Image(event.Image{Boot: ident.UUID{1}, Commit: c, Schemas: []event.Schema{schemaEvent(r.t, s)}, Hot: hot})
}

func (r *rig) append(h follow.Handler, e *event.Append) error { return h.Event(event.Event{Append: e}) }

func (r *rig) seal() *commit.Batch {
	b, err := r.p.Seal(r.t.Context(), ident.Vector{})
	require.NoError(r.t, err)
	return b
}

func (r *rig) ids(b *commit.Batch) []int64 {
	var out []int64
	for _, f := range b.Files {
		out = append(out, r.files.files[f.Path]...)
	}
	return out
}

func TestEntriesBecomeOneContiguousBatch(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 10, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 10, 0), s, entryOf(t, s, part(0), 10, 20, 1000)))
	require.NoError(t, r.append(h, entryOf(t, s, part(0), 10, 20, 1000)), "a repeat")
	require.NoError(t, r.append(h, entryOf(t, s, part(0), 15, 25, 1000)), "partly a repeat")
	require.NoError(t, r.append(h, entryOf(t, s, part(1), 0, 3, 5000)))
	gap := entryOf(t, s, part(1), 3, 4, 5000)
	gap.LeaderEpoch = -1
	require.NoError(t, r.append(h, gap))
	b := r.seal()
	require.Equal(t, ident.LogEpoch(1), b.Epoch)
	require.EqualValues(t, 1, b.Parts[part(0)].LeaderEpoch)
	require.EqualValues(t, -1, b.Parts[part(1)].LeaderEpoch, "that of the last entry, known or not")
	a := b.Parts[part(0)]
	require.Equal(t, ident.Range{First: 10, Next: 25}, a.Range)
	require.Equal(t, lake.Totals{Rows: 10, Quarantined: 3, Skipped: map[event.SkipReason]int64{event.SkipTombstone: 2}}, a.Count)
	require.Equal(t, []int64{11, 12, 13, 16, 17, 18, 19, 22, 23, 24, 1, 2, 3}, r.ids(b))
	require.Equal(t, ident.LSN(5004), b.NextLSN)
	require.Equal(t, int64(4), poisonIn(b))
	require.Nil(t, r.seal(), "nothing is left")
	b.Release()
}

func poisonIn(b *commit.Batch) (n int64) {
	for _, q := range b.Quarantine {
		n += q.Records.NumRows()
	}
	return n
}

func TestAGapAndAnUnknownPartitionFollowAnew(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), s))
	require.ErrorContains(t, r.append(h, entryOf(t, s, part(0), 1, 2, 0)), "0 is what comes next")
	require.Error(t, r.append(h, entryOf(t, s, part(4), 0, 2, 0)))
	require.NoError(t, h.Event(event.Event{Commit: &event.Commit{LogEpoch: 1, Positions: at(1, 0, 0, 0, 0, 0).Positions}}))
	require.NoError(t, r.append(h, entryOf(t, s, part(4), 0, 2, 0)), "a commit made it known")
}

func TestANewEpochMakesWhatIsHeldVoid(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
	require.NoError(t, h.Event(event.Event{Epoch: &event.Epoch{Commit: at(2, 4)}}))
	require.NoError(t, r.append(h, entryOf(t, s, part(0), 4, 6, 100)))
	b := r.seal()
	require.Equal(t, ident.LogEpoch(2), b.Epoch)
	require.Equal(t, ident.Range{First: 4, Next: 6}, b.Parts[part(0)].Range)
	b.Release()
	require.Len(t, r.files.files, 1, "files of the old epoch are removed")
	require.Zero(t, r.p.o.Hot.Load())
	require.Zero(t, r.budget.Used())
}

func TestAnOldStreamSaysNothingAfterARebase(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 0), true)
	old := <-r.streams
	require.NoError(t, r.image(old, at(1, 0), s))
	r.p.Rebase(at(2, 0), false)
	h := <-r.streams
	require.ErrorIs(t, r.append(old, entryOf(t, s, part(0), 0, 3, 0)), errEnding, "row_epoch: these rows are of epoch 1")
	require.ErrorContains(t, r.image(h, at(1, 0), s), "log epoch 1")
	require.NoError(t, r.image(h, at(2, 0), s))
	require.Nil(t, r.seal())
}

func TestAnImageOfTheSameEpochCostsNothing(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
	h.Notice(follow.Notice{Down: errors.New("cut off")})
	require.Equal(t, 1, r.owner.reopen)
	require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0), entryOf(t, s, part(0), 9, 12, 0)))
	b := r.seal()
	require.Equal(t, ident.Range{First: 0, Next: 12}, b.Parts[part(0)].Range)
	require.Len(t, b.Files, 1)
	b.Release()
}

// G11: a buffer that was told of the table may die before the stream to it was open. The stream then opens at the next
// one, which knows nothing, and nothing breaks that would say so.
func TestABufferIsToldOfTheTableWheneverAStreamOpens(t *testing.T) {
	r := newRig(t, 0)
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	h.Notice(follow.Notice{Down: errors.New("the first buffer died")})
	require.Equal(t, 1, r.owner.reopen)
	h.Notice(follow.Notice{Up: true})
	require.Equal(t, 2, r.owner.reopen)
}

func TestWhatSomebodyElseCommittedIsDropped(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
	c := at(1, 50)
	require.Error(t, h.Event(event.Event{Commit: &c}))
	require.NoError(t, r.image(h, c, s, entryOf(t, s, part(0), 50, 53, 0)))
	b := r.seal()
	require.Equal(t, ident.Range{First: 50, Next: 53}, b.Parts[part(0)].Range)
	b.Release()
}

func TestOlderShapesAreFilledAndNewerOnesCut(t *testing.T) {
	r := newRig(t, 0)
	old, wide := tableOf(), tableOf("city")
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), old, entryOf(t, old, part(0), 0, 4, 0)))
	w := schemaEvent(t, wide)
	require.NoError(t, h.Event(event.Event{Schema: &w}))
	require.NoError(t, r.append(h, entryOf(t, wide, part(0), 4, 9, 0)))
	require.NoError(t, r.append(h, entryOf(t, old, part(0), 9, 14, 0)))
	first := r.seal()
	require.Equal(t, ident.Range{First: 0, Next: 4}, first.Parts[part(0)].Range)
	second := r.seal()
	require.Equal(t, ident.Range{First: 4, Next: 14}, second.Parts[part(0)].Range)
	require.Equal(t, []int64{4, 6, 8, 9, 11, 12, 13}, r.ids(second))
	require.Equal(t, len(wide.Columns), r.files.columns[second.Files[0].Path])
	first.Release()
	second.Release()
}

// T7: others add a column and partition the table by it, while rows of the schema
// before that are hot.
func TestHotRowsFitAColumnThatOthersPartitionBy(t *testing.T) {
	r := newRig(t, 0)
	old, wide, foreign := tableOf(), tableOf("city"), tableOf("city", "region")
	r.files.shape, r.files.by = foreign, "region"
	r.p.Rebase(at(1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 0), old, entryOf(t, old, part(0), 0, 4, 0)))
	w := schemaEvent(t, wide)
	require.NoError(t, h.Event(event.Event{Schema: &w}))
	require.NoError(t, r.append(h, entryOf(t, wide, part(0), 4, 9, 0)))
	b := r.seal()
	require.Equal(t, ident.Range{First: 0, Next: 9}, b.Parts[part(0)].Range)
	require.Equal(t, []int64{1, 2, 3, 4, 6, 8}, r.ids(b), "one file holds both")
	require.Equal(t, len(foreign.Columns), r.files.columns[b.Files[0].Path])
	require.Empty(t, r.owner.failed)
	b.Release()
}

func TestFilesHaveTheSchemaOfTheTableOnlyWhereItHoldsTheRows(t *testing.T) {
	old, wide := tableOf(), tableOf("city")
	require.Same(t, wide, shapeFor(wide, old))
	require.Same(t, wide, shapeFor(old, wide), "the table is behind")
	require.Same(t, old, shapeFor(nil, old))
	require.Same(t, old, shapeFor(tableOf(), old), "the same needs no conversion")
	wide.Columns[1].Required = true
	require.Same(t, old, shapeFor(wide, old))
}

func TestPoisonWaitsWhileHeldAndComesAgain(t *testing.T) {
	r := newRig(t, 0)
	s := tableOf()
	r.p.Rebase(at(1, 1, 0), true)
	h := <-r.streams
	require.NoError(t, r.image(h, at(1, 1, 0), s))
	r.p.HoldPoison(true)
	require.NoError(t, r.append(h, entryOf(t, s, part(0), 1, 4, 0)))
	require.NoError(t, r.append(h, entryOf(t, s, part(1), 0, 4, 0)), "offset 0 is poison")
	require.NoError(t, r.append(h, entryOf(t, s, part(1), 4, 5, 0)), "waits behind it")
	require.NoError(t, r.append(h, entryOf(t, s, part(0), 4, 5, 0)), "others go on")
	b := r.seal()
	require.Equal(t, ident.Range{First: 1, Next: 5}, b.Parts[part(0)].Range)
	require.Nil(t, b.Parts[part(1)])
	b.Release()
	r.p.HoldPoison(false)
	h = <-r.streams
	require.NoError(t, r.image(h, at(1, 1, 0), s, entryOf(t, s, part(0), 1, 4, 0), entryOf(t, s, part(0), 4, 5, 0),
		entryOf(t, s, part(1), 0, 4, 0), entryOf(t, s, part(1), 4, 5, 0)))
	b = r.seal()
	require.Nil(t, b.Parts[part(0)])
	require.Equal(t, ident.Range{First: 0, Next: 5}, b.Parts[part(1)].Range)
	b.Release()
}

func TestAFailedWriteIsReadAgainFromTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		s := tableOf()
		r.p.Rebase(at(1, 0), true)
		h := <-r.streams
		r.files.fail = errors.New("the object store is away")
		require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
		h = <-r.streams // a new stream, after a pause
		require.Len(t, r.owner.failed, 1)
		require.Zero(t, r.budget.Used())
		r.files.mu.Lock()
		r.files.fail = nil
		r.files.mu.Unlock()
		require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
		b := r.seal()
		require.Equal(t, ident.Range{First: 0, Next: 9}, b.Parts[part(0)].Range)
		b.Release()
		r.cancel()
		<-r.done
	})
}

// G7: a slow store makes the stream wait, and one entry always passes.
func TestAFullBudgetHoldsTheStream(t *testing.T) {
	for name, own := range map[string]bool{"that of all tables": false, "what one table may read ahead": true} {
		t.Run(name, func(t *testing.T) { testAFullBudgetHoldsTheStream(t, own) })
	}
}

func testAFullBudgetHoldsTheStream(t *testing.T, own bool) {
	synctest.Test(t, func(t *testing.T) {
		s := tableOf()
		first := entryOf(t, s, part(0), 0, 9, 0)
		most := first.Bytes() + 10
		r := newRig(t, most)
		if own {
			*r.budget, *r.p.ahead = *NewBudget(0), *NewBudget(most)
		}
		r.p.Rebase(at(1, 0), true)
		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 0), s))
		r.files.block = make(chan struct{})
		require.NoError(t, r.append(h, first))
		synctest.Wait() // it is being written, and its place is taken
		require.NoError(t, r.append(h, entryOf(t, s, part(0), 9, 18, 0)), "an empty queue lets one in")
		third := make(chan error, 1)
		late := entryOf(t, s, part(0), 18, 27, 0)
		go func() { third <- h.Event(event.Event{Append: late}) }()
		<-time.After(time.Minute)
		select {
		case err := <-third:
			require.Fail(t, "the stream did not wait", "%v", err)
		default:
		}
		close(r.files.block)
		require.NoError(t, <-third)
		synctest.Wait()
		require.Zero(t, r.budget.Used())
		require.Zero(t, r.p.ahead.Used())
		b := r.seal()
		require.Equal(t, ident.Range{First: 0, Next: 27}, b.Parts[part(0)].Range)
		b.Release()
		r.cancel()
		<-r.done
	})
}

// An entry that is greater than the budget passes when what came before it is written.
func TestAGreatEntryBehindOthersPasses(t *testing.T) {
	for name, own := range map[string]bool{"that of all tables": false, "what one table may read ahead": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tableOf()
				great := entryOf(t, s, part(0), 18, 400, 0)
				r := newRig(t, great.Bytes()-1)
				if own {
					*r.budget, *r.p.ahead = *NewBudget(0), *NewBudget(great.Bytes() - 1)
				}
				r.p.Rebase(at(1, 0), true)
				h := <-r.streams
				require.NoError(t, r.image(h, at(1, 0), s))
				r.files.block = make(chan struct{})
				require.NoError(t, r.append(h, entryOf(t, s, part(0), 0, 9, 0)))
				synctest.Wait() // it is being written
				require.NoError(t, r.append(h, entryOf(t, s, part(0), 9, 18, 0)))
				taken := make(chan error, 1)
				go func() { taken <- h.Event(event.Event{Append: great}) }()
				synctest.Wait()
				close(r.files.block)
				require.NoError(t, <-taken)
				synctest.Wait()
				b := r.seal()
				require.Equal(t, ident.Range{First: 0, Next: 400}, b.Parts[part(0)].Range)
				b.Release()
				r.cancel()
				<-r.done
			})
		})
	}
}

// TestRandomStreams cuts, repeats and restarts streams at random: whatever comes,
// the batches tile each partition from its committed position on, and hold each
// row once.
func TestRandomStreams(t *testing.T) {
	s := tableOf()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			r := newRig(t, 1<<20)
			var log []*event.Append
			end := ident.Vector{part(0): 0, part(1): 0}
			committed := at(1, 0, 0)
			seen := map[string]bool{}
			r.p.Rebase(committed, true)
			h := <-r.streams
			require.NoError(t, r.image(h, committed, s))
			restart := func() {
				hot := make([]*event.Append, 0, len(log))
				for _, e := range log {
					if e.Range.Next > committed.Positions[e.Partition].Next {
						hot = append(hot, e)
					}
				}
				require.NoError(t, r.image(h, committed, s, hot...))
			}
			for range 60 {
				switch rnd.IntN(6) {
				case 0: // the stream broke
					restart()
				case 1: // the committer starts anew
					r.p.Rebase(committed, true)
					h = <-r.streams
					restart()
				case 2: // a cut
					b := r.seal()
					if b == nil {
						continue
					}
					for p, a := range b.Parts {
						require.Equal(t, committed.Positions[p].Next, a.Range.First, "G1: %v", p)
						require.Equal(t, a.Range.Len(), a.Count.Len())
						committed.Positions[p] = ident.Position{Next: a.Range.Next}
					}
					require.Len(t, r.ids(b), int(b.Rows()))
					for _, f := range b.Files {
						require.False(t, seen[f.Path])
						seen[f.Path] = true
					}
					b.Release()
				default:
					p := part(rnd.Int32N(2))
					e := entryOf(t, s, p, end[p], end[p]+1+rnd.Int64N(8), 0)
					end[p] = e.Range.Next
					log = append(log, e)
					require.NoError(t, r.append(h, e))
					if rnd.IntN(3) == 0 {
						require.NoError(t, r.append(h, log[rnd.IntN(len(log))]), "a repeat")
					}
				}
			}
		})
	}
}

// upTo seals up to offsets of partition 0, 1 and so on beside the test.
func (r *rig) upTo(next ...int64) <-chan *commit.Batch {
	out := make(chan *commit.Batch, 1)
	go func() {
		b, err := r.p.Seal(r.t.Context(), at(1, next...).Positions.Vector())
		require.NoError(r.t, err)
		out <- b
	}()
	return out
}

// G7: the last commit takes what readers have seen, also what the stream has still to bring: a
// table is read no further ahead than its share.
func TestASealTakesWhatReadersHaveSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tableOf()
		entries := []*event.Append{entryOf(t, s, part(0), 0, 9, 0), entryOf(t, s, part(0), 9, 18, 0), entryOf(t, s, part(0), 18, 27, 0), entryOf(t, s, part(0), 27, 36, 0)}
		r := newRig(t, 0)
		*r.p.ahead = *NewBudget(entries[0].Bytes())
		r.p.Rebase(at(1, 0), true)
		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 0), s))
		r.files.block = make(chan struct{})
		brought := make(chan error, 1)
		go func() {
			for _, e := range entries {
				if err := h.Event(event.Event{Append: e}); err != nil {
					brought <- err
					return
				}
				<-time.After(arrival / 2)
			}
			brought <- nil
		}()
		synctest.Wait() // the first is being written
		sealed := r.upTo(27)
		close(r.files.block)
		b := <-sealed
		require.Equal(t, ident.Range{First: 0, Next: 27}, b.Parts[part(0)].Range)
		b.Release()
		require.NoError(t, <-brought)
		r.cancel()
		<-r.done
		require.Zero(t, r.budget.Used(), "a puller that ended leaves the budget to others")
		require.Zero(t, r.p.ahead.Used())
	})
}

// What cannot come holds no seal: without a stream nothing does, nor of a partition that stands
// still, and a stream that brings nothing is not waited for for ever (G11).
func TestASealWaitsOnlyForWhatCanCome(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(r *rig, h follow.Handler)
		within  time.Duration
	}{
		"the stream is down":        {func(_ *rig, h follow.Handler) { h.Notice(follow.Notice{Down: errEnding}) }, 0},
		"the partition is held":     {func(r *rig, _ follow.Handler) { r.p.tracker.held = map[ident.Partition]bool{part(0): true} }, 0},
		"it cannot be read":         {func(r *rig, _ follow.Handler) { r.p.troubles[part(0)] = &trouble{held: true} }, 0},
		"the stream brings no more": {func(*rig, follow.Handler) {}, arrival},
		"nobody brings it anew":     {func(r *rig, _ follow.Handler) { r.p.Rebase(at(1, 9), true) }, arrival},
		"the epoch is another":      {func(r *rig, _ follow.Handler) { r.p.Rebase(at(2, 9), false) }, arrival},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tableOf()
				r := newRig(t, 0)
				r.p.Rebase(at(1, 0), true)
				h := <-r.streams
				require.NoError(t, r.image(h, at(1, 0), s, entryOf(t, s, part(0), 0, 9, 0)))
				synctest.Wait()
				c.prepare(r, h)
				begun := time.Now()
				if b := <-r.upTo(18); b != nil {
					require.Equal(t, int64(9), b.Parts[part(0)].Range.Next)
					b.Release()
				}
				require.Equal(t, c.within, time.Since(begun))
			})
		})
	}
}

// G7: a stop in the moment in which the stream is restarted waits for what it brings.
func TestASealWaitsForAStreamThatIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tableOf()
		r := newRig(t, 0)
		e := entryOf(t, s, part(0), 0, 9, 0)
		r.p.Rebase(at(1, 0), true)
		require.NoError(t, r.image(<-r.streams, at(1, 0), s, e))
		synctest.Wait()
		r.p.Rebase(at(1, 0), true)
		sealed := r.upTo(9)
		<-time.After(20 * time.Millisecond)
		require.NoError(t, r.image(<-r.streams, at(1, 0), s, e))
		b := <-sealed
		require.Equal(t, ident.Range{First: 0, Next: 9}, b.Parts[part(0)].Range)
		b.Release()
	})
}

// G11: what other partitions bring does not prolong the wait for one that brings nothing, an epoch
// that begins ends it, and so does the caller.
func TestASealDoesNotWaitForOneWhileOthersFlow(t *testing.T) {
	for name, c := range map[string]struct {
		within time.Duration
		change func(h follow.Handler, cancel func())
	}{
		"without any of it":      {arrival, func(follow.Handler, func()) {}},
		"in another epoch":       {time.Second, func(h follow.Handler, _ func()) { _ = h.Event(event.Event{Epoch: &event.Epoch{Commit: at(2, 0, 0)}}) }},
		"when the caller leaves": {time.Second, func(_ follow.Handler, cancel func()) { cancel() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tableOf()
				r := newRig(t, 0)
				r.p.Rebase(at(1, 0, 0), true)
				h := <-r.streams
				require.NoError(t, r.image(h, at(1, 0, 0), s))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begun, sealed := time.Now(), make(chan time.Duration, 1)
				go func() {
					b, err := r.p.Seal(ctx, at(1, 18, 0).Positions.Vector())
					assert.NoError(t, err)
					if b != nil {
						b.Release()
					}
					sealed <- time.Since(begun)
				}()
				for n := range int64(30) {
					<-time.After(100 * time.Millisecond)
					_ = r.append(h, entryOf(t, s, part(1), n*9, n*9+9, 0))
					if n == 8 {
						c.change(h, cancel)
					}
				}
				require.LessOrEqual(t, <-sealed, c.within)
			})
		})
	}
}

// A seal that waits for much ends in time for its commit.
func TestASealThatGoesOnAndOnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tableOf()
		r := newRig(t, 0)
		r.p.Rebase(at(1, 0), true)
		h := <-r.streams
		require.NoError(t, r.image(h, at(1, 0), s))
		begun, sealed := time.Now(), r.upTo(9_000)
		var b *commit.Batch
		for n := int64(0); b == nil; n += 9 {
			require.NoError(t, r.append(h, entryOf(t, s, part(0), n, n+9, 0)))
			select {
			case b = <-sealed:
			case <-time.After(time.Second):
			}
		}
		require.InDelta(t, enough, time.Since(begun), float64(2*time.Second))
		require.Positive(t, b.Parts[part(0)].Range.Next)
		b.Release()
	})
}

// What is given back between the question whether an entry is alone and the wait is heard.
func TestABudgetHearsWhatIsGivenWhileItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(10)
		require.True(t, b.take(nil, 5, func() bool { return true }))
		queued := true
		require.True(t, b.take(t.Context().Done(), 20, func() bool {
			alone := !queued
			if queued { // the filler pops, writes and gives right behind the answer
				queued = false
				b.give(5)
			}
			return alone
		}))
	})
}
