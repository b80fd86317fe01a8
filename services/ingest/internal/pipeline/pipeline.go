// Package pipeline brings the topics of one pipeline into their tables: it joins Kafka source, decoders and append
// streams, one worker per topic partition.
//
// Where a partition goes on is always the table log's word (forward), never Kafka's group; the group only shares the
// partitions out among instances and is told the committed positions afterwards. A fault of one record goes by policy,
// a fault of a dependency makes the partitions that need it wait, a fault that only an operator can heal stops just
// the partition that met it; all of it heals without a restart.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/ingest/internal/forward"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// Config of one pipeline.
type Config struct {
	Pipeline   config.Pipeline
	Deployment string
	Instance   string
	Revision   uint64
	// RevisionOf is the revision under another policy for bad records than the
	// configured one; nil where the policy is never switched.
	RevisionOf func(policy string) uint64
	Source     source.Config
	Codec      Codec
	Key        Codec // of keys that become a column; nil for none
	BatchBytes int64 // of an entry, at the most
	Entries    int64 // bytes of entries that are not sent yet, of all partitions together
	RecordMax  int64
	MessageMax int64 // largest message on any hop
	Window     int64 // bytes sent and not yet acknowledged, all tables together
	// Committer and Buffer find the owners of a table; addr is what the committer said, "" to discover it. Buffer also returns
	// the address, for Moved: that waits until somebody else owns the table for a while, and says who; "" when ctx ended.
	Committer func(ctx context.Context, table string) (grpc.ClientConnInterface, error)
	Buffer    func(ctx context.Context, table, addr string) (conn grpc.ClientConnInterface, at string, err error)
	Moved     func(ctx context.Context, table, at string) string
	// Health is told whether the pipeline is ready, and why not.
	Health  func(ready bool, reason string)
	Metrics *obs.Metrics
	Log     *slog.Logger
}

const (
	leaveTimeout = 3 * time.Second // for leaving the group when nobody drained
	cutPatience  = 2 * time.Second // for a worker that was cut
)

// Pipeline is one pipeline of an ingest instance. All methods are safe for concurrent use.
type Pipeline struct {
	c        Config
	start    source.Start
	consumer *source.Consumer
	budget   *forward.Budget
	policy   atomic.Pointer[policy]

	ctx    context.Context //nolint:containedctx // the lifetime of Run, for what the source's callbacks start
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	workers map[source.TopicPartition]*worker
	tables  map[string]*table
	names   map[string]string // topic → table
	refused map[string]error  // topics without a table
	topics  map[string]source.Topic
	trouble error
	paused  bool
	ending  bool

	dirty   chan struct{}                   // has a token when committed positions wait to be committed to the group
	news    chan struct{}                   // has a token when a state has changed
	commits run.Turn                        // of commits to the group
	sent    map[source.TopicPartition]int64 // last position committed to the group, under mu
}

// New makes a pipeline; nothing is contacted yet.
func New(c Config) (*Pipeline, error) {
	p := &Pipeline{
		c: c, workers: map[source.TopicPartition]*worker{}, tables: map[string]*table{}, names: map[string]string{},
		refused: map[string]error{}, topics: map[string]source.Topic{}, dirty: make(chan struct{}, 1), news: make(chan struct{}, 1),
		commits: run.NewTurn(), sent: map[source.TopicPartition]int64{}, budget: forward.NewBudget(c.Window), trouble: errors.New("connecting to Kafka"),
		start: source.Start{Mode: c.Pipeline.Start.Mode, At: c.Pipeline.Start.At, Offsets: c.Pipeline.Start.Offsets},
	}
	if p.c.Health == nil {
		p.c.Health = func(bool, string) {}
	}
	p.policy.Store(&policy{name: c.Pipeline.OnInvalid, revision: c.Revision})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	consumer, err := source.New(c.Source, handler{p})
	if err != nil {
		p.cancel()
		return nil, fmt.Errorf("making pipeline %s: %w", c.Pipeline.Name, err)
	}
	p.consumer = consumer
	return p, nil
}

// Name of the pipeline.
func (p *Pipeline) Name() string { return p.c.Pipeline.Name }

// Run works until ctx ends; call Drain before that for an orderly end.
func (p *Pipeline) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.cancel)
	defer stop()
	defer p.c.Metrics.GaugeFunc(fetchBuffer(), func() float64 { return float64(p.consumer.Buffered()) }, p.Name())()
	p.spawn(p.tick)
	p.spawn(p.commitLoop)
	err := p.consumer.Run(p.ctx)
	p.mu.Lock()
	p.ending = true // no worker starts any more
	p.mu.Unlock()
	lctx, leave := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer leave()
	if cerr := p.consumer.Close(lctx); cerr != nil {
		p.c.Log.Warn("leaving the Kafka group", "error", cerr)
	}
	p.group.Wait()
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// Drain stops fetching, sends what is open, waits for the log's answers, commits the committed positions and leaves
// the group, all within ctx.
func (p *Pipeline) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.ending = true
	workers := make([]*worker, 0, len(p.workers))
	for _, w := range p.workers {
		workers = append(workers, w)
	}
	p.mu.Unlock()
	err := p.finish(ctx, workers)
	return errors.Join(err, p.commitNow(ctx), p.consumer.Close(ctx))
}

// finish drains workers; those that are not done when ctx ends are cut.
func (p *Pipeline) finish(ctx context.Context, workers []*worker) error {
	for _, w := range workers {
		w.finish()
	}
	var late []string
	for _, w := range workers {
		select {
		case <-w.done:
		case <-ctx.Done():
			late = append(late, w.cursor.String())
		}
		w.cancel()
		t := time.NewTimer(cutPatience)
		select {
		case <-w.done:
		case <-t.C: // stuck in a write to a peer that does not read; keep-alive ends that
		}
		t.Stop()
	}
	if len(late) > 0 {
		return fmt.Errorf("draining pipeline %s: the log did not answer for %s in time; they are read again by the next owner", p.Name(), strings.Join(late, ", "))
	}
	return nil
}

// Pause stops or resumes fetching, by an operator's will. Resuming also lets stopped partitions try again at once.
func (p *Pipeline) Pause(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = on
	for _, w := range p.workers {
		w.cursor.Hold(on)
		if !on {
			w.retryNow()
		}
	}
	p.changed()
}

func (p *Pipeline) spawn(fn func(context.Context)) { p.group.Go(func() { fn(p.ctx) }) }

func (p *Pipeline) changed() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *Pipeline) commitSoon() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// tick reports progress each second and on change, and keeps metrics and readiness fresh.
func (p *Pipeline) tick(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		p.report()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-p.news:
		}
	}
}

func (p *Pipeline) report() {
	p.mu.Lock()
	workers := make([]*worker, 0, len(p.workers))
	for _, w := range p.workers {
		workers = append(workers, w)
	}
	tables := maps.Clone(p.tables)
	paused := p.paused
	p.mu.Unlock()
	by := map[string][]event.Progress{}
	for _, w := range workers {
		name, pr, ok := w.progress()
		if !ok {
			continue
		}
		if paused && pr.State == event.PartitionRunning {
			pr.State, pr.Reason = event.PartitionPaused, "paused by an operator"
		}
		by[name] = append(by[name], pr)
		w.m.state.Set(float64(pr.State))
		if acked := w.position(); acked >= 0 {
			w.m.lag.Set(float64(max(pr.StableEnd-acked, 0)))
		}
	}
	for name, list := range by {
		if t := tables[name]; t != nil {
			t.stream.Progress(list)
		}
	}
	for name, t := range tables {
		p.c.Metrics.Gauge(inFlight(), p.Name(), name).Set(float64(t.stream.InFlight()))
	}
	p.c.Health(p.health())
}

// health is ready when the group works, every topic has a table, and no partition is stopped. Of several reasons it gives
// the first by name, always the same one, and names what else waits.
func (p *Pipeline) health() (ready bool, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble != nil {
		return false, p.trouble.Error()
	}
	var waits waiting
	for _, topic := range slices.Sorted(maps.Keys(p.refused)) {
		waits.add("topic "+topic, "topic %s is not read: %v", topic, p.refused[topic])
	}
	for _, name := range slices.Sorted(maps.Keys(p.tables)) {
		t := p.tables[name]
		t.mu.Lock()
		down := t.down
		t.mu.Unlock()
		if down != nil {
			waits.add("table "+name, "%v", down)
		}
	}
	still := map[source.TopicPartition]string{}
	for at, w := range p.workers {
		w.mu.Lock()
		if w.state == event.PartitionStopped || w.state == event.PartitionWaiting {
			still[at] = w.reason
		}
		w.mu.Unlock()
	}
	for _, at := range slices.SortedFunc(maps.Keys(still), source.TopicPartition.Compare) {
		waits.add(at.String(), "%s: %s", at, still[at])
	}
	return waits.first == "", waits.String()
}

// waiting is what a pipeline waits for.
type waiting struct {
	first string   // reason
	more  []string // what else waits
}

func (w *waiting) add(what, format string, args ...any) {
	if w.first == "" {
		w.first = fmt.Sprintf(format, args...)
		return
	}
	w.more = append(w.more, what)
}

// namedAtMost bounds how many are named beside the first.
const namedAtMost = 8

func (w *waiting) String() string {
	named := w.more[:min(len(w.more), namedAtMost)]
	switch rest := len(w.more) - len(named); {
	case len(named) == 0:
		return w.first
	case rest == 0:
		return w.first + "; also waiting: " + strings.Join(named, ", ")
	default:
		return fmt.Sprintf("%s; also waiting: %s and %d more", w.first, strings.Join(named, ", "), rest)
	}
}

// PartitionStatus is one line of Status.
type PartitionStatus struct {
	Topic  string
	Number int32
	State  event.PartitionState
	Reason string
	Acked  int64 // offset below which the log holds everything, -1 unknown
	End    int64 // stable end
}

// Status lists the partitions that this instance reads, by topic and number.
func (p *Pipeline) Status() []PartitionStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []PartitionStatus
	for tp, w := range p.workers {
		w.mu.Lock()
		s := PartitionStatus{Topic: tp.Topic, Number: tp.Number, State: w.state, Reason: w.reason, Acked: w.ackedNext}
		w.mu.Unlock()
		if p.paused && s.State == event.PartitionRunning {
			s.State = event.PartitionPaused
		}
		s.End = w.cursor.Limits().StableEnd
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b PartitionStatus) int {
		return source.TopicPartition{Topic: a.Topic, Number: a.Number}.Compare(source.TopicPartition{Topic: b.Topic, Number: b.Number})
	})
	return out
}

// leastEntry is what a partition may gather at the least, however many there are.
const leastEntry = 64 << 10

// entryBytes is what a partition may gather before it sends: all of them wait with what they have while the log is away.
func (p *Pipeline) entryBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.c.BatchBytes, max(p.c.Entries/int64(max(len(p.workers), 1)), leastEntry))
}

// partition is the identity of a topic partition in the table's state.
func (p *Pipeline) partition(t source.Topic, n int32) ident.Partition {
	return ident.Partition{Pipeline: p.Name(), Topic: t.Name, TopicID: t.ID, Number: n}
}

func (p *Pipeline) owner() string {
	_, cluster, _ := p.consumer.Topics()
	return p.c.Deployment + "/" + cluster
}

func (p *Pipeline) topic(name string) (source.Topic, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.topics[name]
	if !ok {
		return t, fault.New(fault.Unavailable, "topic %s has not been looked up yet", name)
	}
	return t, nil
}

// tableOf returns the table that a topic feeds, made at its first use.
func (p *Pipeline) tableOf(topic string) (*table, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, ok := p.names[topic]
	if !ok {
		if err := p.refused[topic]; err != nil {
			return nil, err
		}
		return nil, fault.New(fault.Unavailable, "topic %s has not been looked up yet", topic)
	}
	t := p.tables[name]
	if t == nil {
		t = newTable(p, name)
		p.tables[name] = t
	}
	return t, nil
}

// topicsOf returns the topics that feed a table.
func (p *Pipeline) topicsOf(table string) []source.Topic {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []source.Topic
	for topic, name := range p.names {
		if name == table {
			out = append(out, p.topics[topic])
		}
	}
	return out
}
