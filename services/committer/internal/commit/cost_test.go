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

func (s *costSource) Seal(ctx context.Context, _ bool) (*Batch, error) {
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

// costMeter sums the steps of each commit, the closing of its files apart, and takes the memory in use now and then.
type costMeter struct {
	nothing
	mu    sync.Mutex
	took  time.Duration
	steps map[Step][]time.Duration
	each  []time.Duration
	heap  map[int]uint64
	done  chan struct{}
	want  int
	idle  func() // waits until what goes on beside the loop is done
}

func (m *costMeter) Stepped(s Step, took time.Duration) {
	if s == StepReport && m.weighs() {
		m.idle()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps[s] = append(m.steps[s], took)
	if s != StepClose {
		m.took += took
	}
	if s != StepReport || len(m.each) == m.want {
		return
	}
	m.each = append(m.each, m.took)
	m.took = 0
	if n := len(m.each); m.weighed(n) {
		runtime.GC()
		runtime.GC() // pools give up what they hold at the second
		var mem runtime.MemStats
		runtime.ReadMemStats(&mem)
		m.heap[n] = mem.HeapAlloc
	}
	if len(m.each) == m.want {
		close(m.done)
	}
}

func (m *costMeter) weighed(n int) bool { return n == m.want/10 || n == m.want }

// weighs reports whether the memory in use is taken at the end of this commit.
func (m *costMeter) weighs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.weighed(len(m.each) + 1)
}

// costBuffer keeps nothing of what it is told.
type costBuffer struct{ fakeBuffer }

func (*costBuffer) ReportCommit(context.Context, event.Commit) error { return nil }

// cost makes n commits to a table that a pipeline with so many partitions feeds, and returns what they took and how large
// the table's metadata file is at the end.
func cost(t *testing.T, partitions, n int) (*costMeter, int64) {
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
	source := &costSource{t: t, lake: tbl}
	meter := &costMeter{steps: map[Step][]time.Duration{}, heap: map[int]uint64{}, done: make(chan struct{}), want: n}
	keeper := maintain.New(maintain.Policy{}, tbl, func() (int64, bool) { return 0, true })
	table := New(Options{Name: "shop.orders", Policy: cut.Policy{Interval: time.Hour, Rows: 1}}, Ports{
		Lake: tbl, Outbox: tbl, Intents: tbl, Buffer: &costBuffer{fakeBuffer{want: &Wanted{Nonce: 1}}}, Source: source, Observe: meter, Maintain: keeper,
	})
	meter.idle = table.cleaning.Wait
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- table.Run(ctx) }()
	_, err = table.OpenPipeline(t.Context(), "me/cluster", "orders", starts)
	require.NoError(t, err)
	_, err = ask(t.Context(), table, func(context.Context) (struct{}, error) { // as the Commit event would
		source.Rebase(table.head.Event(), true)
		source.left = n
		meter.mu.Lock()
		meter.each, meter.took = nil, 0
		meter.mu.Unlock()
		return struct{}{}, nil
	})
	require.NoError(t, err)
	select {
	case <-meter.done:
	case err := <-ended:
		require.Fail(t, "the committer ended", "%v", err)
	}
	cancel()
	require.NoError(t, <-ended)
	metadata, err := os.Stat(tbl.Head().MetadataLocation[len("file://"):])
	require.NoError(t, err)
	return meter, metadata.Size()
}

// Issue 5, point 10: what a commit costs, and what the table's metadata weighs, does not depend on how many there were.
// Minutes lie between the two times, and others may use the machine: the file of each commit, which is the same work
// every time, says how fast it was.
func TestCommitCostStaysFlat(t *testing.T) {
	m, size := cost(t, 16, *commits)
	t.Logf("16 partitions: metadata %d KiB after %d commits", size>>10, *commits)
	require.Less(t, size, int64(256<<10))
	if *commits < 500 {
		return
	}
	grown := func(d []time.Duration) (early, late time.Duration, ratio float64) {
		early, late = median(d[50:100]), median(d[len(d)-50:])
		return early, late, float64(late) / float64(early)
	}
	early, late, raw := grown(m.each)
	_, _, machine := grown(m.steps[StepClose])
	ratio := raw / machine
	t.Logf("a commit takes %v after 50 and %v at the end (means %v and %v): ratio %.2f, where writing the same data file takes %.2f of what it took: %.2f",
		early, late, mean(m.each[50:100]), mean(m.each[len(m.each)-50:]), raw, machine, ratio)
	for _, s := range []Step{StepClose, StepStage, StepSend, StepLook, StepReport} {
		before, after, _ := grown(m.steps[s])
		t.Logf("  %-7s %v, then %v", s, before, after)
	}
	t.Logf("heap in use after %d commits: %d KiB, after %d: %d KiB", *commits/10, m.heap[*commits/10]>>10, *commits, m.heap[*commits]>>10)
	require.LessOrEqual(t, ratio, 1.2)
	require.LessOrEqual(t, float64(m.heap[*commits]), 1.2*float64(m.heap[*commits/10]))
	_, size = cost(t, 1000, 250)
	t.Logf("1000 partitions: metadata %d KiB after 250 commits", size>>10)
	require.Less(t, size, int64(2<<20))
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
