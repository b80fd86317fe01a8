package commit

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
	"github.com/icestream/icestream/services/committer/internal/maintain"
)

// commits is the number of commits of TestCommitCostStaysFlat; from 500 on it also compares times and memory.
var commits = flag.Int("commits", 60, "commits of the cost test; `make commit-cost` makes 5000")

// costVersion is the format version of the table of TestCommitCostStaysFlat.
var costVersion = flag.String("format-version", "2", "version of the table format in the cost test")

// rowsEach is what a commit brings of each partition.
const rowsEach = 10

// costSource always holds the next rows of all partitions, until it has given enough batches.
type costSource struct {
	t     *testing.T
	lake  *lake.Table
	left  int
	next  ident.Vector
	epoch ident.LogEpoch
	lsn   ident.LSN
	on    bool
}

func (s *costSource) Load() cut.Load {
	if s.left == 0 || !s.on {
		return cut.Load{}
	}
	return cut.Load{Since: time.Now(), SinceRows: time.Now(), Rows: 1}
}

func (s *costSource) Seal(ctx context.Context, _ ident.Vector) (*Batch, error) {
	if s.left == 0 || !s.on {
		return nil, nil //nolint:nilnil // the contract of Seal
	}
	s.left--
	b := &Batch{ID: NewID(), Epoch: s.epoch, Parts: map[ident.Partition]*Advance{}, Opened: time.Now()}
	rows := int64(0)
	for p, at := range s.next {
		a := &Advance{Range: ident.Range{First: at, Next: at}, LeaderEpoch: 3, NewestTime: time.Now()}
		a.Add(ident.Range{First: at, Next: at + rowsEach}, rowsEach, 0, nil)
		b.Parts[p] = a
		s.next[p] = at + rowsEach
		s.lsn += rowsEach
		rows += rowsEach
	}
	b.NextLSN = s.lsn
	sch := s.lake.Head().Schema
	w, err := s.lake.NewWriter(ctx, sch, lake.WriterOptions{Attempt: b.ID, Epoch: 1})
	if err != nil {
		return nil, err
	}
	var columns []arrow.Array
	for _, f := range sch.Arrow().Fields() {
		columns = append(columns, array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, int(rows)))
	}
	if err := w.Write(array.NewRecordBatch(sch.Arrow(), columns, rows)); err != nil {
		return nil, err
	}
	b.Files, err = w.Close(ctx)
	return b, err
}

func (s *costSource) Rebase(at event.Commit, _ bool) {
	s.epoch, s.next, s.lsn, s.on = at.LogEpoch, at.Positions.Vector(), max(s.lsn, at.LSN.Next), at.LogEpoch > 0
}

func (s *costSource) HoldPoison(bool) {}

// costs are what commits took, as a whole without the closing of their files, and step by step.
type costs struct {
	each  []time.Duration
	steps map[Step][]time.Duration
}

func (c *costs) add(o costs) {
	c.each = append(c.each, o.each...)
	if c.steps == nil {
		c.steps = map[Step][]time.Duration{}
	}
	for s, list := range o.steps {
		c.steps[s] = append(c.steps[s], list...)
	}
}

// costMeter sums the steps of each commit until there are as many as wanted.
type costMeter struct {
	nothing
	mu   sync.Mutex
	took time.Duration
	costs
	want int
	made chan costs
}

func (m *costMeter) begin(want int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took, m.costs, m.want = 0, costs{steps: map[Step][]time.Duration{}}, want
}

func (m *costMeter) Stepped(s Step, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == 0 {
		return
	}
	m.steps[s] = append(m.steps[s], took)
	if s != StepClose {
		m.took += took
	}
	if s != StepReport {
		return
	}
	m.each = append(m.each, m.took)
	m.took = 0
	if len(m.each) == m.want {
		m.want = 0
		m.made <- m.costs
	}
}

// costBuffer keeps nothing of what it is told.
type costBuffer struct{ fakeBuffer }

func (*costBuffer) ReportCommit(context.Context, event.Commit) error { return nil }

func (*costBuffer) Visible(context.Context) (ident.Vector, error) { return nil, nil }

// costTable is a table that a pipeline feeds, so many commits at a time.
type costTable struct {
	t      *testing.T
	lake   *lake.Table
	table  *Table
	source *costSource
	meter  *costMeter
	ended  chan error
}

func newCostTable(t *testing.T, partitions int) *costTable {
	dir := t.TempDir()
	l, err := lake.Open(t.Context(), lake.Config{Type: "sql", URI: filepath.Join(dir, "catalog.db"), Warehouse: "file://" + dir}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	tbl, err := l.Create(t.Context(), "shop.orders", lake.Settings{LSN: true, Kafka: true, Owner: "me", Properties: map[string]string{"format-version": *costVersion}})
	require.NoError(t, err)
	starts := ident.Vector{}
	for p := range partitions {
		starts[ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{7}, Number: int32(p)}] = 0
	}
	c := &costTable{t: t, lake: tbl, source: &costSource{t: t, lake: tbl}, meter: &costMeter{made: make(chan costs, 1)}, ended: make(chan error, 1)}
	keeper := maintain.New(maintain.Policy{}, tbl, func() (int64, bool) { return 0, true })
	c.table = New(Options{Name: "shop.orders", Policy: cut.Policy{Interval: time.Hour, Rows: 1}}, Ports{
		Lake: tbl, Outbox: tbl, Intents: tbl, Buffer: &costBuffer{fakeBuffer{want: &Wanted{Nonce: 1}}}, Source: c.source, Observe: c.meter, Maintain: keeper,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { c.ended <- c.table.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-c.ended)
	})
	_, err = c.table.OpenPipeline(t.Context(), "me/cluster", "orders", starts)
	require.NoError(t, err)
	_, err = ask(t.Context(), c.table, func(context.Context) (struct{}, error) { // as the Commit event would
		c.source.Rebase(c.table.head.Event(), true)
		return struct{}{}, nil
	})
	require.NoError(t, err)
	return c
}

// commit makes n commits, and waits until what goes on beside the loop is done.
func (c *costTable) commit(n int) costs {
	c.t.Helper()
	_, err := ask(c.t.Context(), c.table, func(context.Context) (struct{}, error) {
		c.meter.begin(n)
		c.source.left = n
		return struct{}{}, nil
	})
	require.NoError(c.t, err)
	select {
	case made := <-c.meter.made:
		c.table.cleaning.Wait()
		return made
	case err := <-c.ended:
		c.ended <- err
		require.Fail(c.t, "the committer ended", "%v", err)
		return costs{}
	}
}

// weight is the size of the table's metadata file.
func (c *costTable) weight() int64 {
	c.t.Helper()
	var at string
	_, err := ask(c.t.Context(), c.table, func(context.Context) (struct{}, error) {
		at = c.lake.Head().MetadataLocation
		return struct{}{}, nil
	})
	require.NoError(c.t, err)
	metadata, err := os.Stat(at[len("file://"):])
	require.NoError(c.t, err)
	return metadata.Size()
}

// heapInUse is the memory in use, without what pools hold.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // pools give up what they hold at the second
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.HeapAlloc
}

// Issue 5, point 10: what a commit costs, and what the table's metadata weighs, does not depend on how many there were.
// Others may use the machine: the commits that are compared are made in turns, to the old table and to one that has 50.
func TestCommitCostStaysFlat(t *testing.T) {
	old := newCostTable(t, 16)
	if *commits < 500 {
		old.commit(*commits)
		require.Less(t, old.weight(), int64(256<<10))
		return
	}
	old.commit(*commits / 10)
	before := heapInUse()
	old.commit(*commits - *commits/10)
	after, weight := heapInUse(), old.weight()
	t.Logf("16 partitions: metadata %d KiB after %d commits", weight>>10, *commits)
	t.Logf("heap in use after %d commits: %d KiB, after %d: %d KiB", *commits/10, before>>10, *commits, after>>10)
	young := newCostTable(t, 16)
	young.commit(50)
	var early, late costs
	for range 10 {
		early.add(young.commit(5))
		late.add(old.commit(5))
	}
	ratio := float64(median(late.each)) / float64(median(early.each))
	t.Logf("a commit takes %v after 50 and %v after %d (means %v and %v): ratio %.2f",
		median(early.each), median(late.each), *commits, mean(early.each), mean(late.each), ratio)
	for _, s := range []Step{StepClose, StepStage, StepSend, StepLook, StepReport} {
		t.Logf("  %-7s %v, then %v", s, median(early.steps[s]), median(late.steps[s]))
	}
	wide := newCostTable(t, 1000)
	wide.commit(250)
	t.Logf("1000 partitions: metadata %d KiB after 250 commits", wide.weight()>>10)
	require.LessOrEqual(t, ratio, 1.2)
	require.LessOrEqual(t, float64(after), 1.2*float64(before))
	require.Less(t, weight, int64(256<<10))
	require.Less(t, wide.weight(), int64(2<<20))
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2].Round(10 * time.Microsecond)
}

func mean(d []time.Duration) time.Duration {
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return (sum / time.Duration(len(d))).Round(10 * time.Microsecond)
}
