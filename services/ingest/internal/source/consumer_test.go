package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/batch"
)

// member records what a consumer tells its handler.
type member struct {
	t        *testing.T
	c        *Consumer
	assigned chan *Cursor
	revoked  chan *Cursor
	mu       sync.Mutex
	trouble  error
	topics   map[string]Topic
}

func (m *member) Assigned(list []*Cursor) {
	for _, k := range list {
		m.assigned <- k
	}
}

func (m *member) Revoked(_ context.Context, list []*Cursor, _ bool) {
	for _, k := range list {
		m.revoked <- k
	}
}

func (m *member) Trouble(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trouble = err
}

func (m *member) Topics(t map[string]Topic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.topics = t
}

func (m *member) eventually(what string, ok func() bool) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return ok()
	}, 20*time.Second, 5*time.Millisecond, what)
}

// id is what the cluster said last of the topic.
func (m *member) id(topic string) ident.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics[topic].ID
}

func cluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func config(c *kfake.Cluster, topics ...string) Config {
	return Config{
		Brokers: c.ListenAddrs(), Group: "g", Topics: topics, Budget: 32 << 20, RecordMax: 1 << 20,
		Refresh: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	}
}

func join(t *testing.T, cfg Config) *member {
	t.Helper()
	m := &member{t: t, assigned: make(chan *Cursor, 1000), revoked: make(chan *Cursor, 1000)}
	c, err := New(cfg, m)
	require.NoError(t, err)
	m.c = c
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() {
		lctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer stop()
		require.NoError(t, c.Close(lctx))
		cancel()
		<-done
	})
	return m
}

func (m *member) cursor() *Cursor {
	m.t.Helper()
	select {
	case k := <-m.assigned:
		return k
	case <-time.After(20 * time.Second):
		require.Fail(m.t, "no partition was assigned")
		return nil
	}
}

func client(t *testing.T, c *kfake.Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func produce(t *testing.T, cl *kgo.Client, n int) {
	t.Helper()
	for i := range n {
		r := &kgo.Record{Topic: "t", Key: []byte("k"), Value: fmt.Appendf(nil, "v%d", i), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}}}
		require.NoError(t, cl.ProduceSync(t.Context(), r).FirstErr())
	}
}

// read takes records until n have come.
func read(t *testing.T, k *Cursor, n int) []batch.Record {
	t.Helper()
	var out []batch.Record
	deadline := time.After(20 * time.Second)
	for len(out) < n {
		f, err := k.Take()
		require.NoError(t, err)
		if f != nil {
			for r := range f.Records() {
				c := *r
				c.Key, c.Value, c.Headers = bytes.Clone(r.Key), bytes.Clone(r.Value), slices.Clone(r.Headers)
				out = append(out, c)
			}
			f.Release()
			continue
		}
		select {
		case <-k.Ready():
		case <-deadline:
			require.Failf(t, "records are missing", "%d of %d", len(out), n)
		}
	}
	return out
}

func takeError(t *testing.T, k *Cursor) error {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		f, err := k.Take()
		if err != nil {
			return err
		}
		if f != nil {
			f.Release()
			continue
		}
		select {
		case <-k.Ready():
		case <-deadline:
			require.Fail(t, "no error came")
		}
	}
}

func TestReadsFromExactlyWhereItIsSoughtWhateverTheGroupSays(t *testing.T) { // design section 4
	c := cluster(t, kfake.SeedTopics(1, "t"))
	cl := client(t, c)
	produce(t, cl, 10)
	adm := kadm.NewClient(cl)
	var offs kadm.Offsets
	offs.AddOffset("t", 0, 9, -1)
	_, err := adm.CommitOffsets(t.Context(), "g", offs)
	require.NoError(t, err)
	m := join(t, config(c, "t"))
	k := m.cursor()
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 4, -1))
	got := read(t, k, 6)
	require.EqualValues(t, 4, got[0].Offset)
	require.Equal(t, "v4", string(got[0].Value))
	require.Equal(t, []batch.Header{{Key: "h", Value: []byte("x")}}, got[0].Headers)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	require.EqualValues(t, 0, read(t, k, 10)[0].Offset, "nothing of the time before the seek comes")
	require.EqualValues(t, 10, k.Limits().StableEnd)
}

func TestAbortedRecordsAreGapsAndMarkersAreSeen(t *testing.T) { // K14, K2
	c := cluster(t, kfake.SeedTopics(1, "t"))
	tx := client(t, c, kgo.TransactionalID("x"))
	for _, how := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		require.NoError(t, tx.BeginTransaction())
		produce(t, tx, 3)
		require.NoError(t, tx.EndTransaction(t.Context(), how))
	}
	m := join(t, config(c, "t"))
	k := m.cursor()
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	var kinds []string
	for _, r := range read(t, k, 5) {
		kinds = append(kinds, fmt.Sprintf("%d %v", r.Offset, r.Control))
	}
	require.Equal(t, []string{"3 true", "4 false", "5 false", "6 false", "7 true"}, kinds)
	l, err := k.Measure(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 8, l.StableEnd, "the position behind the last marker is the end")
}

func TestOffsetBelowTheLogStartIsReportedNotSkipped(t *testing.T) { // K1, K5
	c := cluster(t, kfake.SeedTopics(1, "t"))
	cl := client(t, c)
	produce(t, cl, 10)
	var offs kadm.Offsets
	offs.AddOffset("t", 0, 6, -1)
	_, err := kadm.NewClient(cl).DeleteRecords(t.Context(), offs)
	require.NoError(t, err)
	m := join(t, config(c, "t"))
	k := m.cursor()
	l, err := k.Measure(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 6, l.LogStart)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 2, -1))
	require.ErrorIs(t, Classify(takeError(t, k)), ErrOutOfRange)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 6, -1))
	require.Len(t, read(t, k, 4), 4)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 50, -1))
	require.ErrorIs(t, Classify(takeError(t, k)), ErrOutOfRange, "a position beyond the end is no place to wait at")
}

func TestNewPartitionsAreAssigned(t *testing.T) { // K7
	c := cluster(t, kfake.SeedTopics(1, "t"))
	m := join(t, config(c, "t"))
	require.EqualValues(t, 0, m.cursor().Number)
	adm := kadm.NewClient(client(t, c))
	_, err := adm.CreatePartitions(t.Context(), 2, "t")
	require.NoError(t, err)
	seen := map[int32]bool{m.cursor().Number: true, m.cursor().Number: true}
	require.Equal(t, map[int32]bool{1: true, 2: true}, seen)
	m.eventually("topic", func() bool { return len(m.topics["t"].Partitions) == 3 && !m.topics["t"].ID.IsZero() })
}

func TestTopicsOfAPatternAreFoundAndMustMatchWhole(t *testing.T) {
	c := cluster(t, kfake.SeedTopics(1, "shop.a", "myshop.a"))
	cfg := config(c)
	cfg.Pattern = regexp.MustCompile(`shop\..*|x`)
	m := join(t, cfg)
	require.Equal(t, "shop.a", m.cursor().Topic)
	_, err := kadm.NewClient(client(t, c)).CreateTopic(t.Context(), 1, 1, nil, "shop.b")
	require.NoError(t, err)
	require.Equal(t, "shop.b", m.cursor().Topic)
}

func TestMissingTopicIsNamedUntilItIsCreated(t *testing.T) {
	c := cluster(t)
	m := join(t, config(c, "later"))
	m.eventually("named", func() bool { return m.trouble != nil && regexp.MustCompile(`"later"`).MatchString(m.trouble.Error()) })
	_, err := kadm.NewClient(client(t, c)).CreateTopic(t.Context(), 1, 1, nil, "later")
	require.NoError(t, err)
	require.Equal(t, "later", m.cursor().Topic)
	m.eventually("well", func() bool { return m.trouble == nil })
}

// recreateTopic deletes topic t and makes it again, with one partition.
func recreateTopic(t *testing.T, cl *kgo.Client) {
	t.Helper()
	adm := kadm.NewClient(cl)
	_, err := adm.DeleteTopic(t.Context(), "t")
	require.NoError(t, err)
	_, err = adm.CreateTopic(t.Context(), 1, 1, nil, "t")
	require.NoError(t, err)
}

func TestRecreatedTopicIsNoticed(t *testing.T) { // G9; the client alone would read nothing, without an error
	c := cluster(t, kfake.SeedTopics(1, "t"))
	cl := client(t, c)
	produce(t, cl, 3)
	m := join(t, config(c, "t"))
	k := m.cursor()
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	read(t, k, 3)
	m.eventually("looked up", func() bool { return len(m.topics) == 1 })
	old := m.id("t")
	recreateTopic(t, cl)
	require.ErrorIs(t, Classify(takeError(t, k)), ErrRecreated)
	m.c.Readopt("t")
	k = m.cursor()
	m.eventually("new id", func() bool { return m.topics["t"].ID != old })
	cl2 := client(t, c)
	produce(t, cl2, 2)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	require.Len(t, read(t, k, 2), 2)
}

func TestCommitsTheNextOffsetWithItsLeaderEpoch(t *testing.T) { // K4, K13
	c := cluster(t, kfake.SeedTopics(1, "t"))
	cl := client(t, c)
	produce(t, cl, 5)
	m := join(t, config(c, "t"))
	k := m.cursor()
	var at atomicRequest
	c.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		at.set(r.(*kmsg.OffsetCommitRequest))
		return nil, nil, false
	})
	require.NoError(t, m.c.Commit(t.Context(), map[TopicPartition]Position{k.TopicPartition: {Next: 5, LeaderEpoch: 0}}))
	p := at.get().Topics[0].Partitions[0]
	require.EqualValues(t, 5, p.Offset)
	require.EqualValues(t, 0, p.LeaderEpoch)
	got, err := kadm.NewClient(cl).FetchOffsets(t.Context(), "g")
	require.NoError(t, err)
	o, ok := got.Lookup("t", 0)
	require.True(t, ok)
	require.EqualValues(t, 5, o.At)
}

type atomicRequest struct {
	mu sync.Mutex
	r  *kmsg.OffsetCommitRequest
}

func (a *atomicRequest) set(r *kmsg.OffsetCommitRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.r = r
}

func (a *atomicRequest) get() *kmsg.OffsetCommitRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.r
}

func TestMissingRightNamesResourceAndOperation(t *testing.T) { // O10
	c := cluster(t, kfake.SeedTopics(1, "t"))
	c.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	m := join(t, config(c, "t"))
	m.eventually("named", func() bool {
		return m.trouble != nil && regexp.MustCompile(`right READ on consumer group "g"`).MatchString(m.trouble.Error())
	})
}

func TestUnreachableBrokerIsReported(t *testing.T) { // G11
	cfg := config(cluster(t), "t")
	cfg.Brokers = []string{"127.0.0.1:1"}
	m := &member{t: t, assigned: make(chan *Cursor, 1), revoked: make(chan *Cursor, 1)}
	c, err := New(cfg, m)
	require.NoError(t, err, "the service starts without a broker")
	err = c.lookUp(t.Context(), map[string]settings{}, false)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.ErrorContains(t, err, "tried again by itself")
	c.group.Close()
	c.fetch.Close()

	// Who looks once, as `icestream check` does, is not told that it is tried again.
	_, _, err = Probe(t.Context(), cfg)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "by itself")
	_, _, err = Probe(t.Context(), config(cluster(t), "nope"))
	require.ErrorIs(t, err, ErrGone)
	require.ErrorContains(t, err, "create it, or correct the configuration")
}

func TestFullQueueIsPausedAndGoesOn(t *testing.T) { // G7
	big := make([]byte, 64<<10)
	for name, r := range map[string]kgo.Record{
		"values": {Topic: "t", Value: big}, "headers": {Topic: "t", Headers: []kgo.RecordHeader{{Key: "h", Value: big}}},
	} {
		t.Run(name, func(t *testing.T) {
			k := fullCursor(t, config(cluster(t, kfake.SeedTopics(1, "t")), "t"), r)
			require.Less(t, k.c.Buffered(), int64(2<<20))
			require.Len(t, read(t, k, 100), 100)
		})
	}
}

// fullCursor reads 100 records of 64 KiB until its queue is full.
func fullCursor(t *testing.T, cfg Config, r kgo.Record) *Cursor {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Brokers...), kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	for range 100 {
		rec := r
		require.NoError(t, cl.ProduceSync(t.Context(), &rec).FirstErr())
	}
	cfg.Budget = 1 << 20
	m := join(t, cfg)
	k := m.cursor()
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	require.Eventually(t, k.stands, 20*time.Second, time.Millisecond)
	return k
}

func (k *Cursor) stands() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.paused
}

// G11: the client remembers what is paused, and the cursor that a partition gets when it comes back does not know of it.
func TestAPartitionThatLeftWhileItStoodStillIsReadWhenItComesBack(t *testing.T) { // K10
	for name, leave := range map[string]func(k *Cursor){
		"its queue was full":  func(*Cursor) {},
		"an operator held it": func(k *Cursor) { k.Hold(true) },
	} {
		t.Run(name, func(t *testing.T) {
			k := fullCursor(t, config(cluster(t, kfake.SeedTopics(1, "t")), "t"), kgo.Record{Topic: "t", Value: make([]byte, 64<<10)})
			c := k.c
			m := c.h.(*member)
			leave(k)
			g := groupHandler{c}
			g.revoked(t.Context(), c.group, map[string][]int32{"t": {0}})
			g.assigned(t.Context(), c.group, map[string][]int32{"t": {0}})
			back := m.cursor()
			require.NotSame(t, k, back)
			require.NoError(t, back.Seek(t.Context(), ident.UUID{}, 0, -1))
			require.Len(t, read(t, back, 100), 100)
		})
	}
}

func TestASeekDoesNotLiftAnOperatorsHold(t *testing.T) {
	k := fullCursor(t, config(cluster(t, kfake.SeedTopics(1, "t")), "t"), kgo.Record{Topic: "t", Value: make([]byte, 64<<10)})
	k.Hold(true)
	require.NoError(t, k.Seek(t.Context(), ident.UUID{}, 0, -1))
	require.True(t, k.stands())
	require.Contains(t, k.c.fetch.PauseFetchPartitions(nil), "t")
	k.Hold(false)
	require.Len(t, read(t, k, 100), 100)
}

// G1: a position of the topic that was must not be taken for one of the topic that is. The look-up may be old, and an
// error that it reported is forgotten with the next seek.
func TestNothingIsReadOfATopicThatWasCreatedAgainSinceItWasLookedUp(t *testing.T) { // G9
	c := cluster(t, kfake.SeedTopics(1, "t"))
	cfg := config(c, "t")
	cfg.Refresh = time.Minute
	m := join(t, cfg)
	k := m.cursor()
	m.eventually("looked up", func() bool { return len(m.topics) == 1 })
	old := m.id("t")
	recreateTopic(t, client(t, c))
	produce(t, client(t, c), 5)
	require.NoError(t, k.Seek(t.Context(), old, 2, -1))
	select {
	case <-k.Ready():
	case <-time.After(20 * time.Second):
		require.Fail(t, "nothing came")
	}
	f, err := k.Take()
	require.Nil(t, f)
	require.ErrorIs(t, Classify(err), ErrRecreated)
	m.eventually("looked up", func() bool { return m.topics["t"].ID != old })
	id := m.id("t")
	require.NoError(t, k.Seek(t.Context(), id, 2, -1))
	require.Len(t, read(t, k, 3), 3)
}

// leaderless makes the cluster say that partition 1 of topic t has no leader.
func leaderless(t *testing.T, c *kfake.Cluster) {
	t.Helper()
	cl := client(t, c)
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = new("t")
	req.Topics = append(req.Topics, topic)
	was, err := req.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	for i := range was.Topics[0].Partitions {
		if p := &was.Topics[0].Partitions[i]; p.Partition == 1 {
			p.ErrorCode, p.Leader = kerr.LeaderNotAvailable.Code, -1
		}
	}
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := *was
		resp.SetVersion(r.GetVersion())
		return &resp, nil, true
	})
}

// G11: a partition without a leader holds no other.
func TestAPartitionWithoutALeaderHoldsNoOther(t *testing.T) {
	c := cluster(t, kfake.SeedTopics(2, "t"))
	cl := client(t, c)
	produce(t, cl, 5)
	m := join(t, config(c, "t"))
	cursors := map[int32]*Cursor{}
	for range 2 {
		k := m.cursor()
		cursors[k.Number] = k
	}
	m.eventually("looked up", func() bool { return len(m.topics) == 1 })
	leaderless(t, c)
	require.Eventually(t, func() bool {
		_, err := cursors[1].Measure(t.Context())
		return errors.Is(err, kerr.LeaderNotAvailable)
	}, 60*time.Second, time.Millisecond)
	l, err := cursors[0].Measure(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(5), l.StableEnd)
	m.eventually("the partition is named", func() bool { return m.trouble != nil && strings.Contains(m.trouble.Error(), "t[1]") })

	topics := []Topic{{Name: "t", Partitions: []int32{0, 1}}}
	at, err := m.c.Starts(t.Context(), Start{Mode: earliestMode}, topics)
	require.NoError(t, err)
	require.Equal(t, map[TopicPartition]int64{{"t", 0}: 0}, at)
	_, err = m.c.Starts(t.Context(), Start{Mode: "latest"}, topics)
	require.ErrorIs(t, err, kerr.LeaderNotAvailable, "it would begin at the earliest record")
}

func TestStartsAreResolved(t *testing.T) { // K8
	c := cluster(t, kfake.SeedTopics(2, "t"))
	cl := client(t, c)
	base := time.UnixMilli(1_000_000)
	for i := range 10 {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x"), Timestamp: base.Add(time.Duration(i) * time.Second)}).FirstErr())
	}
	adm := kadm.NewClient(cl)
	var offs kadm.Offsets
	offs.AddOffset("t", 0, 2, -1)
	_, err := adm.DeleteRecords(t.Context(), offs)
	require.NoError(t, err)
	var group kadm.Offsets
	group.AddOffset("t", 0, 7, -1)
	_, err = adm.CommitOffsets(t.Context(), "g", group)
	require.NoError(t, err)
	m := join(t, config(c, "t"))
	topic := Topic{Name: "t", Partitions: []int32{0, 1}}
	for name, tc := range map[string]struct {
		s    Start
		want int64
	}{
		"earliest":  {Start{Mode: "earliest"}, 2},
		"latest":    {Start{Mode: "latest"}, 10},
		"timestamp": {Start{Mode: "timestamp", At: base.Add(4500 * time.Millisecond)}, 5},
		"group":     {Start{Mode: "group"}, 7},
		"offsets":   {Start{Mode: "offsets", Offsets: map[string]map[int32]int64{"t": {0: 6}}}, 6},
		"too early": {Start{Mode: "offsets", Offsets: map[string]map[int32]int64{"t": {0: 1}}}, 2},
	} {
		got, err := m.c.Starts(t.Context(), tc.s, []Topic{topic})
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got[TopicPartition{"t", 0}], name)
		require.EqualValues(t, 0, got[TopicPartition{"t", 1}], name)
	}
}
