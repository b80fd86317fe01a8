package source

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/ident"
)

// Errors that a Cursor reports; they are wrapped with the partition.
var (
	ErrOutOfRange = errors.New("the offset is not in the log")
	ErrTruncated  = errors.New("the log was truncated below the position")
	ErrRecreated  = errors.New("the topic was deleted and created again")
	ErrGone       = errors.New("the topic does not exist")
)

// RecreatedError is ErrRecreated where the ids are known.
type RecreatedError struct {
	Topic    string
	Was, Now ident.UUID
}

func (e *RecreatedError) Error() string {
	return fmt.Sprintf("%v: %s had the id %s and now has %s", ErrRecreated, e.Topic, e.Was, e.Now)
}

// Unwrap returns ErrRecreated.
func (e *RecreatedError) Unwrap() error { return ErrRecreated }

// Classify turns an error of a Cursor into one of the sentinels above where it is one.
func Classify(err error) error {
	var loss *kgo.ErrDataLoss
	switch {
	case errors.As(err, &loss):
		return ErrTruncated
	case errors.Is(err, kerr.OffsetOutOfRange):
		return ErrOutOfRange
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		return ErrRecreated
	default:
		return err
	}
}

// DivergedAt is the offset from which on the log holds other records than those that were read, for an error that is
// ErrTruncated; 0 where that is not known.
func DivergedAt(err error) int64 {
	if loss, ok := errors.AsType[*kgo.ErrDataLoss](err); ok {
		return loss.ResetTo
	}
	return 0
}

// Handler is told about the group and the cluster. Its methods are called from the consumer's goroutines, one
// at a time each, and may block a rebalance.
type Handler interface {
	// Assigned brings partitions that this member reads from now on.
	Assigned([]*Cursor)
	// Revoked takes partitions away, after it returns another member may have them. Lost ones are gone already.
	Revoked(ctx context.Context, list []*Cursor, lost bool)
	// Trouble says what is wrong with the group or the cluster; nil when all is well again.
	Trouble(error)
	// Topics brings what the cluster says about the topics of the pipeline, at each look-up.
	Topics(map[string]Topic)
}

// Consumer reads the topics of one pipeline. Run drives it; the other methods are safe for concurrent use.
type Consumer struct {
	cfg   Config
	h     Handler
	whole *regexp.Regexp // of cfg.Pattern
	group *kgo.Client
	fetch *kgo.Client
	admin *kadm.Client
	seat  *seat // nil: none
	probe bool  // looks once
	sizes *sizes
	room  room

	closing atomic.Bool
	closed  chan struct{} // closed after Close

	polls  int64    // these belong to the polling goroutine
	shared []shared // oldest first

	mu       sync.Mutex
	cursors  map[TopicPartition]*Cursor
	commands []command
	wakePoll context.CancelFunc
	endRun   context.CancelFunc // nil before Run
	stopped  bool
	cluster  string
	topics   map[string]Topic
	adopted  map[string]Topic // ids under which partitions were handed out
	measured map[string]*measurement
}

type command struct {
	run  func()
	done chan struct{}
}

// groupHandler connects the group client's callbacks to a Consumer; it is made before the client it belongs to.
type groupHandler struct{ c *Consumer }

// New makes the clients; it does not wait for a broker.
func New(cfg Config, h Handler) (*Consumer, error) {
	if cfg.Refresh <= 0 {
		cfg.Refresh = defaultRefresh
	}
	c := &Consumer{cfg: cfg, h: h, closed: make(chan struct{}), cursors: map[TopicPartition]*Cursor{}, topics: map[string]Topic{}, adopted: map[string]Topic{}, measured: map[string]*measurement{}}
	if cfg.Pattern != nil {
		whole, err := regexp.Compile(wholeName(cfg.Pattern))
		if err != nil {
			return nil, fmt.Errorf("%w: pattern %q: %w", ErrConfig, cfg.Pattern, err)
		}
		c.whole = whole
	}
	c.room.size = cfg.Budget
	common, err := cfg.common()
	if err != nil {
		return nil, err
	}
	c.sizes = cfg.sizes()
	c.fit()
	if c.fetch, err = kgo.NewClient(append(cfg.fetchOptions(c.sizes), common...)...); err != nil {
		return nil, fmt.Errorf("making the Kafka client that fetches: %w", err)
	}
	c.sizes.mu.Lock()
	c.sizes.set = c.fetch.UpdateFetchMaxBytes
	c.sizes.mu.Unlock()
	if cfg.Seats != "" {
		if c.seat, err = takeSeat(cfg.Seats, cfg.Group); err != nil {
			cfg.Log.Warn("no member id is kept: after a kill the group waits for a session timeout", "error", err)
		}
	}
	if c.group, err = kgo.NewClient(append(cfg.groupOptions(groupHandler{c}), common...)...); err != nil {
		c.fetch.Close()
		c.seat.leave(false)
		return nil, fmt.Errorf("making the Kafka client of group %s: %w", cfg.Group, err)
	}
	c.admin = kadm.NewClient(c.fetch)
	return c, nil
}

// Run polls until ctx ends or Close is called. It does not leave the group by itself.
func (c *Consumer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	c.endRun = cancel
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { c.dismiss(ctx) })
	wg.Go(func() { c.watch(ctx) })
	wg.Go(func() { c.pollGroup(ctx) })
	c.poll(ctx)
	wg.Wait()
	return context.Cause(ctx)
}

// Close leaves the group within ctx and closes the clients. Closing again only waits, within ctx, until that is done.
func (c *Consumer) Close(ctx context.Context) error {
	if c.closing.Swap(true) {
		select {
		case <-c.closed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer close(c.closed)
	return c.close(ctx)
}

func (c *Consumer) close(ctx context.Context) error {
	err := c.group.LeaveGroupContext(ctx)
	c.mu.Lock()
	endRun := c.endRun
	c.mu.Unlock()
	if endRun != nil {
		endRun()
	}
	c.group.Close()
	c.fetch.Close()
	c.seat.leave(err == nil)
	if err != nil {
		return fmt.Errorf("leaving group %s: %w", c.cfg.Group, err)
	}
	return nil
}

// Buffered is the memory of records that were fetched and that no worker is done with.
func (c *Consumer) Buffered() int64 {
	return c.fetch.BufferedFetchBytes() + c.fetch.BufferedFetchRecords()*recordOverhead + c.room.held.Load()
}

// queueLimits are the bounds of a queue: its own, and what the others leave of the budget.
func (c *Consumer) queueLimits() (own, free int64) {
	return c.sizes.queue(min(c.cfg.Budget/4, maxQueue)), c.room.free(c.sizes)
}

// poll hands fetched records to cursors and runs commands between two polls, so that a command never meets records
// of the time before it.
func (c *Consumer) poll(ctx context.Context) {
	defer c.stop()
	for ctx.Err() == nil {
		pctx, cancel := context.WithCancel(ctx)
		for _, cmd := range c.takeCommands(cancel) {
			cmd.run()
			close(cmd.done)
		}
		fetches := c.fetch.PollFetches(pctx)
		cancel()
		c.unshare()
		for _, f := range fetches {
			c.deliver(f)
		}
		c.fit()
	}
}

// fit tells brokers how much may come.
func (c *Consumer) fit() {
	c.mu.Lock()
	n := len(c.cursors)
	c.mu.Unlock()
	c.sizes.fit(c.room.fetches(c.sizes, n))
}

// deliver hands out one response.
func (c *Consumer) deliver(response kgo.Fetch) {
	first := len(c.shared)
	for _, t := range response.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if p.Partition < 0 { // an error of the client itself, such as the end of the poll's context
				continue
			}
			c.mu.Lock()
			k := c.cursors[TopicPartition{t.Topic, p.Partition}]
			c.mu.Unlock()
			if k == nil {
				recycle(p.Records)
				continue
			}
			if f := k.deliver(t.TopicID, p); f != nil && !f.compressed {
				c.shared = append(c.shared, shared{k: k, f: f, poll: c.polls})
			}
		}
	}
	c.share(first)
}

// takeCommands returns the waiting commands; a later one calls wake.
func (c *Consumer) takeCommands(wake context.CancelFunc) []command {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.commands
	c.commands = nil
	c.wakePoll = wake
	return list
}

// command runs fn on the polling goroutine and waits for it.
func (c *Consumer) command(ctx context.Context, fn func()) error {
	cmd := command{run: fn, done: make(chan struct{})}
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return context.Canceled
	}
	c.commands = append(c.commands, cmd)
	if c.wakePoll != nil {
		c.wakePoll()
	}
	c.mu.Unlock()
	select {
	case <-cmd.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop runs what still waits and refuses the rest.
func (c *Consumer) stop() {
	c.mu.Lock()
	c.stopped = true
	list := c.commands
	c.commands = nil
	c.mu.Unlock()
	for _, cmd := range list {
		cmd.run()
		close(cmd.done)
	}
}

// pollGroup only drains the errors that the group client injects; its partitions are paused for ever.
func (c *Consumer) pollGroup(ctx context.Context) {
	for ctx.Err() == nil {
		for _, e := range c.group.PollFetches(ctx).Errors() {
			if ctx.Err() != nil || e.Topic != "" && errors.Is(e.Err, kerr.UnknownTopicOrPartition) {
				continue // the look-up of topics says it better
			}
			c.h.Trouble(c.explain(e.Err))
		}
	}
}

// explain names the resource and the operation of a missing right.
func (c *Consumer) explain(err error) error {
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("the user lacks the right READ on consumer group %q: grant it: %w", c.cfg.Group, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("the user lacks the rights READ and DESCRIBE on the topics of the pipeline: grant them: %w", err)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("the brokers refuse user or password: check sasl.username and sasl.password: %w", err)
	default:
		return fmt.Errorf("taking part in group %s: %w", c.cfg.Group, err)
	}
}

// OnGroupManageError implements kgo.HookGroupManageError.
func (g groupHandler) OnGroupManageError(err error) { g.c.h.Trouble(g.c.explain(err)) }

func (g groupHandler) assigned(_ context.Context, cl *kgo.Client, m map[string][]int32) {
	cl.PauseFetchPartitions(m) // this client never fetches
	c := g.c
	id, _ := cl.GroupMetadata()
	c.remember(id)
	c.mu.Lock()
	var list []*Cursor
	for topic, ps := range m {
		for _, n := range ps {
			tp := TopicPartition{topic, n}
			k := &Cursor{TopicPartition: tp, c: c, ready: make(chan struct{}, 1), limits: Limits{LeaderEpoch: -1}}
			c.cursors[tp] = k
			list = append(list, k)
		}
	}
	c.mu.Unlock()
	c.fit()
	c.h.Trouble(nil)
	if len(list) > 0 {
		c.h.Assigned(list)
	}
}

func (g groupHandler) revoked(ctx context.Context, _ *kgo.Client, m map[string][]int32) {
	g.c.release(ctx, m, false)
}

func (g groupHandler) lost(ctx context.Context, _ *kgo.Client, m map[string][]int32) {
	g.c.release(ctx, m, true)
}

func (c *Consumer) release(ctx context.Context, m map[string][]int32, lost bool) {
	c.mu.Lock()
	var list []*Cursor
	for topic, ps := range m {
		for _, n := range ps {
			if k := c.cursors[TopicPartition{topic, n}]; k != nil {
				list = append(list, k)
			}
		}
	}
	c.mu.Unlock()
	if len(list) == 0 {
		return
	}
	c.h.Revoked(ctx, list, lost)
	for _, k := range list {
		// An error means that the polling goroutine ends, and then nothing is read any more.
		_ = k.Halt(ctx)
		c.mu.Lock()
		if c.cursors[k.TopicPartition] == k {
			delete(c.cursors, k.TopicPartition)
		}
		c.mu.Unlock()
	}
}

// Position is what is committed to the group: the next offset, and the leader epoch of the record before it.
type Position struct {
	Next        int64
	LeaderEpoch int32
}

// Commit commits positions to the group: the next offset with the leader epoch of the record before it. It is
// synchronous and may be called for partitions of this member only.
func (c *Consumer) Commit(ctx context.Context, at map[TopicPartition]Position) error {
	m := map[string]map[int32]kgo.EpochOffset{}
	for tp, o := range at {
		if m[tp.Topic] == nil {
			m[tp.Topic] = map[int32]kgo.EpochOffset{}
		}
		m[tp.Topic][tp.Number] = kgo.EpochOffset{Epoch: o.LeaderEpoch, Offset: o.Next}
	}
	var failed error
	c.group.CommitOffsetsSync(ctx, m, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil || resp == nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if perr := kerr.ErrorForCode(p.ErrorCode); perr != nil && failed == nil {
					failed = fmt.Errorf("%s: %w", ident.TopicPartition(t.Topic, p.Partition), perr)
				}
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("committing offsets of group %s: %w", c.cfg.Group, failed)
	}
	return nil
}
