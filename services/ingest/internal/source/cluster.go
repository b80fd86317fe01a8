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

	"github.com/icestream/icestream/internal/ident"
)

const (
	defaultRefresh = 10 * time.Second
	adminTimeout   = 15 * time.Second
	// retentionEvery is the number of look-ups between two of the topics' settings.
	retentionEvery = 30
)

// watch looks the topics up regularly, finds re-created ones, and keeps the limits of the cursors fresh.
func (c *Consumer) watch(ctx context.Context) {
	retention := map[string]time.Duration{}
	for n := 0; ; n++ {
		if err := c.lookUp(ctx, retention, n%retentionEvery == 0); err != nil && ctx.Err() == nil {
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

func (c *Consumer) lookUp(ctx context.Context, retention map[string]time.Duration, settings bool) error {
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
	if settings && len(names) > 0 {
		c.lookUpRetention(ctx, names, retention)
	}
	for name, t := range topics {
		t.Retention = retention[name]
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
			return fmt.Errorf("%w: no topic matches the pattern %q; it is read as soon as there is one", ErrGone, c.cfg.Pattern)
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
	return fmt.Errorf("%w: %s; it is read as soon as it is created", ErrGone, strings.Join(gone, ", "))
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

func (c *Consumer) explainBroker(err error) error {
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) {
		return c.explain(err)
	}
	if errors.Is(err, io.EOF) { // some brokers only hang up on a client that they do not like
		return fmt.Errorf("looking topics up at %s: the broker closes the connection: check security.protocol, sasl.mechanism, sasl.username and sasl.password: %w; it is tried again by itself",
			strings.Join(c.cfg.Brokers, ","), err)
	}
	return fmt.Errorf("looking topics up at %s: %w; it is tried again by itself", strings.Join(c.cfg.Brokers, ","), err)
}

// lookUpRetention fills in retention.ms. Without the right to see settings it stays unknown.
func (c *Consumer) lookUpRetention(ctx context.Context, names []string, into map[string]time.Duration) {
	configs, err := c.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return
	}
	for _, rc := range configs {
		for _, kv := range rc.Configs {
			if kv.Key != "retention.ms" || kv.Value == nil {
				continue
			}
			if ms, err := strconv.ParseInt(*kv.Value, 10, 64); err == nil && ms > 0 && ms < int64(1<<40) {
				into[rc.Name] = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

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
			k.fail(fmt.Errorf("%w: %s had the id %s and now has %s", ErrRecreated, tp.Topic, old.ID, now.ID))
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
	starts, err := c.admin.ListStartOffsets(ctx, list...)
	if err != nil {
		return c.explainBroker(err)
	}
	ends, err := c.admin.ListCommittedOffsets(ctx, list...)
	if err != nil {
		return c.explainBroker(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.cursors {
		k.learn(starts, ends)
	}
	return nil
}

func (k *Cursor) learn(starts, ends kadm.ListedOffsets) {
	s, ok := starts.Lookup(k.Topic, k.Number)
	e, ok2 := ends.Lookup(k.Topic, k.Number)
	if !ok || !ok2 || s.Err != nil || e.Err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.limits.LogStart, k.limits.StableEnd = s.Offset, e.Offset
	if e.LeaderEpoch >= 0 {
		k.limits.LeaderEpoch = e.LeaderEpoch
	}
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
		return Limits{}, fmt.Errorf("looking up the offsets of %s: %w", k.TopicPartition, errors.Join(err, ErrGone))
	}
	return Limits{LogStart: s.Offset, StableEnd: e.Offset, LeaderEpoch: e.LeaderEpoch}, nil
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
	if m.starts, err = c.admin.ListStartOffsets(ctx, topic); err != nil {
		return c.explainBroker(err)
	}
	if m.ends, err = c.admin.ListEndOffsets(ctx, topic); err != nil {
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

// Start says where partitions begin that no table knows.
type Start struct {
	Mode    string // earliest, latest, timestamp, offsets, group
	At      time.Time
	Offsets map[string]map[int32]int64
}

// Starts resolves a Start to the first offset of every partition of the topics.
func (c *Consumer) Starts(ctx context.Context, s Start, topics []Topic) (map[TopicPartition]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name
	}
	earliest, err := c.admin.ListStartOffsets(ctx, names...)
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
			if !ok || first.Err != nil {
				return nil, fmt.Errorf("looking up the first offset of %s[%d]: %w", t.Name, n, errors.Join(first.Err, ErrGone))
			}
			tp := TopicPartition{t.Name, n}
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
		got.Each(func(o kadm.OffsetResponse) {
			if o.Err == nil && o.At >= 0 {
				out[TopicPartition{o.Topic, o.Partition}] = o.At
			}
		})
		return out, nil
	case "latest", "timestamp":
		return c.listed(ctx, s, names)
	default:
		return out, nil
	}
}

func (c *Consumer) listed(ctx context.Context, s Start, names []string) (map[TopicPartition]int64, error) {
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
	got.Each(func(o kadm.ListedOffset) {
		if o.Err == nil && o.Offset >= 0 {
			out[TopicPartition{o.Topic, o.Partition}] = o.Offset
		}
	})
	return out, nil
}
