package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/ident"
)

const (
	defaultRefresh = 10 * time.Second
	adminTimeout   = 15 * time.Second
	// settingsEvery is the number of look-ups between two of the topics' settings.
	settingsEvery = 30
)

// watch looks the topics up regularly, finds re-created ones, and keeps the limits of the cursors fresh.
func (c *Consumer) watch(ctx context.Context) {
	known := map[string]settings{}
	for n := 0; ; n++ {
		if err := c.lookUp(ctx, known, n%settingsEvery == 0); err != nil && ctx.Err() == nil {
			c.h.Trouble(err)
		}
		id, _ := c.group.GroupMetadata()
		c.remember(id)
		t := time.NewTimer(c.nextLook(n))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// nextLook is short at first, so that a start does not wait for a whole period.
func (c *Consumer) nextLook(n int) time.Duration {
	return min(c.cfg.Refresh, time.Duration(1<<min(n, 10))*100*time.Millisecond)
}

func (c *Consumer) lookUp(ctx context.Context, known map[string]settings, all bool) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	topics, err := c.lookUpTopics(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(topics))
	for name := range topics {
		names = append(names, name)
	}
	if all && len(names) > 0 {
		c.lookUpSettings(ctx, names, known)
	}
	for name, t := range topics {
		t.Retention, t.Compacted = known[name].retention, known[name].compacted
		topics[name] = t
	}
	c.mu.Lock()
	c.topics = topics
	c.mu.Unlock()
	c.findRecreated(topics)
	c.h.Topics(topics)
	if err := c.lookUpLimits(ctx); err != nil {
		return err
	}
	if err := c.missing(topics); err != nil {
		return err
	}
	if _, generation := c.group.GroupMetadata(); generation >= 0 {
		c.h.Trouble(nil)
	}
	return nil
}

// missing names configured topics that do not exist.
func (c *Consumer) missing(topics map[string]Topic) error {
	if c.cfg.Pattern != nil {
		if len(topics) == 0 {
			return fmt.Errorf("%w: no topic matches the pattern %q; %s", ErrGone, c.cfg.Pattern, c.read("as soon as there is one"))
		}
		return nil
	}
	var gone []string
	for _, name := range c.cfg.Topics {
		if _, ok := topics[name]; !ok {
			gone = append(gone, strconv.Quote(name))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; %s", ErrGone, strings.Join(gone, ", "), c.read("as soon as it is created"))
}

func (c *Consumer) lookUpTopics(ctx context.Context) (map[string]Topic, error) {
	var names []string
	if c.cfg.Pattern == nil {
		names = c.cfg.Topics
	}
	md, err := c.admin.Metadata(ctx, names...)
	if err != nil {
		return nil, c.explainBroker(err)
	}
	out := map[string]Topic{}
	var denied error
	for name, t := range md.Topics {
		switch {
		case c.cfg.Pattern != nil && (t.IsInternal || !c.whole.MatchString(name)):
			continue
		case errors.Is(t.Err, kerr.TopicAuthorizationFailed):
			denied = fmt.Errorf("the user lacks the right DESCRIBE on topic %q: grant it, and READ: %w", name, t.Err)
			continue
		case t.Err != nil:
			continue
		}
		topic := Topic{Name: name, ID: ident.UUID(t.ID)}
		for n := range t.Partitions {
			topic.Partitions = append(topic.Partitions, n)
		}
		slices.Sort(topic.Partitions)
		out[name] = topic
	}
	c.mu.Lock()
	c.cluster = md.Cluster
	c.mu.Unlock()
	return out, denied
}

// explainBroker says what is wrong with the brokers, and what a consumer that runs does about it.
func (c *Consumer) explainBroker(err error) error {
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) {
		return c.explain(err)
	}
	if errors.Is(err, io.EOF) { // some brokers only hang up on a client that they do not like
		return fmt.Errorf("looking topics up at %s: the broker closes the connection: check security.protocol, sasl.mechanism, sasl.username and sasl.password: %w%s",
			strings.Join(c.cfg.Brokers, ","), err, c.again())
	}
	return fmt.Errorf("looking topics up at %s: %w%s", strings.Join(c.cfg.Brokers, ","), err, c.again())
}

// again is what becomes of an error of the brokers. A probe looks once, and promises nothing.
func (c *Consumer) again() string {
	if c.probe {
		return ""
	}
	return "; it is tried again by itself"
}

// read is when a topic is read that is not there.
func (c *Consumer) read(when string) string {
	if c.probe {
		return "create it, or correct the configuration; a running pipeline reads it " + when
	}
	return "it is read " + when
}

// settings are what matters of a topic's settings.
type settings struct {
	retention time.Duration
	compacted bool
}

// lookUpSettings fills in what the topics' settings say. Without the right to see them they stay unknown.
func (c *Consumer) lookUpSettings(ctx context.Context, names []string, into map[string]settings) {
	configs, err := c.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return
	}
	for _, rc := range configs {
		if rc.Err != nil {
			continue
		}
		var s settings
		for _, kv := range rc.Configs {
			switch kv.Key {
			case "retention.ms":
				if ms, err := strconv.ParseInt(kv.MaybeValue(), 10, 64); err == nil && ms > 0 && ms < int64(1<<40) {
					s.retention = time.Duration(ms) * time.Millisecond
				}
			case cleanupPolicy:
				s.compacted = compacts(kv.MaybeValue())
			}
		}
		into[rc.Name] = s
	}
}

const cleanupPolicy = "cleanup.policy"

// compacts reports whether records may leave a topic of that clean-up policy one by one.
func compacts(policy string) bool { return slices.Contains(strings.Split(policy, ","), "compact") }

// findRecreated fails the cursors of topics whose id is no longer the one they were handed out under: the client
// itself would read nothing from them, without an error.
func (c *Consumer) findRecreated(topics map[string]Topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tp, k := range c.cursors {
		old, known := c.adopted[tp.Topic]
		now, exists := topics[tp.Topic]
		switch {
		case !known:
			if exists {
				c.adopted[tp.Topic] = now
			}
		case exists && now.ID != old.ID:
			k.fail(&RecreatedError{Topic: tp.Topic, Was: old.ID, Now: now.ID})
		}
	}
}

// Readopt takes a re-created topic on under its new id: both clients forget the old one, and its partitions are
// revoked and assigned again.
func (c *Consumer) Readopt(topic string) {
	c.mu.Lock()
	delete(c.adopted, topic)
	c.mu.Unlock()
	c.fetch.PurgeTopicsFromConsuming(topic)
	c.group.PurgeTopicsFromConsuming(topic)
	if c.cfg.Pattern == nil {
		c.group.AddConsumeTopics(topic)
	}
}

func (c *Consumer) lookUpLimits(ctx context.Context) error {
	c.mu.Lock()
	names := map[string]bool{}
	for tp := range c.cursors {
		names[tp.Topic] = true
	}
	c.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	list := make([]string, 0, len(names))
	for n := range names {
		list = append(list, n)
	}
	starts, err := listed(c.admin.ListStartOffsets(ctx, list...))
	if err != nil {
		return c.explainBroker(err)
	}
	ends, err := listed(c.admin.ListCommittedOffsets(ctx, list...))
	if err != nil {
		return c.explainBroker(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed error
	for _, k := range c.cursors {
		if err := k.learn(starts, ends); err != nil && failed == nil {
			failed = c.explainBroker(fmt.Errorf("the offsets of %s: %w", k.TopicPartition, err))
		}
	}
	return failed
}

// listed keeps what the other brokers said when some did not answer: a partition without a leader holds no other. Its
// own error stands in the list then.
func listed(list kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	some, ok := errors.AsType[*kadm.ShardErrors](err)
	if !ok || some.AllFailed {
		return list, err
	}
	for _, e := range some.Errs {
		req, ok := e.Req.(*kmsg.ListOffsetsRequest)
		if !ok {
			return list, err
		}
		for _, t := range req.Topics {
			if list[t.Topic] == nil {
				list[t.Topic] = map[int32]kadm.ListedOffset{}
			}
			for _, p := range t.Partitions {
				list[t.Topic][p.Partition] = kadm.ListedOffset{Topic: t.Topic, Partition: p.Partition, Offset: -1, LeaderEpoch: -1, Err: e.Err}
			}
		}
	}
	return list, nil
}

func (k *Cursor) learn(starts, ends kadm.ListedOffsets) error {
	s, ok := starts.Lookup(k.Topic, k.Number)
	e, ok2 := ends.Lookup(k.Topic, k.Number)
	if err := errors.Join(s.Err, e.Err); err != nil || !ok || !ok2 {
		return err // one that is not listed was assigned meanwhile, or its topic is gone, which is said elsewhere
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limits.LogStart, k.limits.StableEnd = s.Offset, e.Offset
	if e.LeaderEpoch >= 0 {
		k.limits.LeaderEpoch = e.LeaderEpoch
	}
	return nil
}

// Measure asks the cluster for the limits of the cursor's partition now. Partitions of one topic that ask at the same
// time share the answer.
func (k *Cursor) Measure(ctx context.Context) (Limits, error) {
	asked := time.Now()
	m := k.c.measurement(k.Topic)
	select {
	case m.busy <- struct{}{}:
	case <-ctx.Done():
		return Limits{}, context.Cause(ctx)
	}
	defer func() { <-m.busy }()
	if m.began.Before(asked) {
		if err := m.take(ctx, k.c, k.Topic); err != nil {
			return Limits{}, err
		}
	}
	s, _ := m.starts.Lookup(k.Topic, k.Number)
	e, ok := m.ends.Lookup(k.Topic, k.Number)
	if err := errors.Join(s.Err, e.Err); err != nil || !ok {
		return Limits{}, fmt.Errorf("looking up the offsets of %s: %w", k.TopicPartition, orGone(err))
	}
	return Limits{LogStart: s.Offset, StableEnd: e.Offset, LeaderEpoch: e.LeaderEpoch}, nil
}

// orGone is err, or that the cluster did not name the partition.
func orGone(err error) error {
	if err == nil {
		return ErrGone
	}
	return err
}

// measurement is the last look-up of a topic's offsets; its fields belong to whoever is in busy.
type measurement struct {
	busy         chan struct{}
	began        time.Time
	starts, ends kadm.ListedOffsets
}

func (m *measurement) take(ctx context.Context, c *Consumer, topic string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	began := time.Now()
	if m.starts, err = listed(c.admin.ListStartOffsets(ctx, topic)); err != nil {
		return c.explainBroker(err)
	}
	if m.ends, err = listed(c.admin.ListEndOffsets(ctx, topic)); err != nil {
		return c.explainBroker(err)
	}
	m.began = began
	return nil
}

func (c *Consumer) measurement(topic string) *measurement {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.measured[topic]
	if m == nil {
		m = &measurement{busy: make(chan struct{}, 1)}
		c.measured[topic] = m
	}
	return m
}

// Topics returns what the last look-up found, and the cluster id; ok is false before the first.
func (c *Consumer) Topics() (topics map[string]Topic, cluster string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topics, c.cluster, c.cluster != "" || len(c.topics) > 0
}

const earliestMode = "earliest"

// Start says where partitions begin that no table knows.
type Start struct {
	Mode    string // earliest, latest, timestamp, offsets, group
	At      time.Time
	Offsets map[string]map[int32]int64
}

// Starts resolves a Start to the first offset of every partition of the topics. A partition without a leader is left out
// where it begins at the earliest record whenever it comes back; elsewhere it is an error, or it would begin there.
func (c *Consumer) Starts(ctx context.Context, s Start, topics []Topic) (map[TopicPartition]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name
	}
	earliest, err := listed(c.admin.ListStartOffsets(ctx, names...))
	if err != nil {
		return nil, c.explainBroker(err)
	}
	wanted, err := c.wanted(ctx, s, names)
	if err != nil {
		return nil, err
	}
	out := map[TopicPartition]int64{}
	for _, t := range topics {
		for _, n := range t.Partitions {
			first, ok := earliest.Lookup(t.Name, n)
			tp := TopicPartition{t.Name, n}
			if !ok || first.Err != nil {
				if s.Mode == earliestMode {
					continue
				}
				return nil, fmt.Errorf("looking up the first offset of %s: %w", tp, orGone(first.Err))
			}
			out[tp] = first.Offset
			if w, ok := wanted[tp]; ok {
				out[tp] = max(first.Offset, w)
			}
		}
	}
	return out, nil
}

// wanted is the offset that a start names per partition; partitions without one begin at the earliest.
func (c *Consumer) wanted(ctx context.Context, s Start, names []string) (map[TopicPartition]int64, error) {
	out := map[TopicPartition]int64{}
	switch s.Mode {
	case "offsets":
		for t, ps := range s.Offsets {
			for n, o := range ps {
				out[TopicPartition{t, n}] = o
			}
		}
		return out, nil
	case "group":
		got, err := c.admin.FetchOffsetsForTopics(ctx, c.cfg.Group, names...)
		if err != nil {
			return nil, c.explain(err)
		}
		var failed error
		got.Each(func(o kadm.OffsetResponse) {
			switch {
			case o.Err != nil:
				failed = fmt.Errorf("looking up the position of group %s in %s: %w", c.cfg.Group, ident.TopicPartition(o.Topic, o.Partition), o.Err)
			case o.At >= 0:
				out[TopicPartition{o.Topic, o.Partition}] = o.At
			}
		})
		return out, failed
	case "latest", "timestamp":
		return c.offsets(ctx, s, names)
	default:
		return out, nil
	}
}

func (c *Consumer) offsets(ctx context.Context, s Start, names []string) (map[TopicPartition]int64, error) {
	var got kadm.ListedOffsets
	var err error
	if s.Mode == "latest" {
		got, err = c.admin.ListCommittedOffsets(ctx, names...)
	} else {
		got, err = c.admin.ListOffsetsAfterMilli(ctx, s.At.UnixMilli(), names...)
	}
	if err != nil {
		return nil, c.explainBroker(err)
	}
	out := map[TopicPartition]int64{}
	var failed error
	got.Each(func(o kadm.ListedOffset) {
		switch {
		case o.Err != nil:
			failed = fmt.Errorf("looking up where %s starts (%s): %w", ident.TopicPartition(o.Topic, o.Partition), s.Mode, o.Err)
		case o.Offset >= 0:
			out[TopicPartition{o.Topic, o.Partition}] = o.Offset
		}
	})
	return out, failed
}
