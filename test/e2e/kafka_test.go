//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/stack"
	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/services/committer"
)

// brokers are three Apache Kafka brokers, an embedded catalog, and Icestream in this process: what only real brokers show.
type brokers struct {
	t       *testing.T
	seeds   []string
	dir     string
	catalog *catalog.Server
	port    int
	client  *kgo.Client
	admin   *kadm.Client
}

func startBrokers(t *testing.T) *brokers {
	t.Helper()
	b := &brokers{t: t, dir: t.TempDir(), port: testkit.FreePort(t)}
	t.Setenv("TESTBED_RUN", filepath.Join(b.dir, "peers"))
	t.Setenv("KAFKA_PORT", "29092") // beside another bed
	peer(t, "kafka", "install")
	t.Cleanup(func() {
		cmd := exec.Command("./peers/kafka", "wipe") //nolint:noctx // the test's context has ended
		_ = cmd.Run()
	})
	args := []string{"up", "3"}
	for _, s := range []string{
		"broker.session.timeout.ms=4000", "replica.lag.time.max.ms=2000", "log.cleaner.backoff.ms=500", "log.initial.task.delay.ms=1000",
		"offsets.retention.minutes=1", "offsets.retention.check.interval.ms=2000", "leader.imbalance.check.interval.seconds=3600",
	} {
		args = append(args, "--set", s)
	}
	b.seeds = strings.Split(peer(t, "kafka", args...)["KAFKA_BOOTSTRAP"], ",")
	var err error
	b.catalog, err = catalog.Start(t.Context(), catalog.Config{Dir: b.dir, Port: b.port, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.catalog.Close() })
	b.client = b.dial()
	b.admin = kadm.NewClient(b.client)
	return b
}

func (b *brokers) dial(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(b.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(200 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
	}, opts...)...)
	require.NoError(b.t, err)
	b.t.Cleanup(cl.Close)
	return cl
}

// topic is a topic of its own, with its pipeline of text and its table.
type topic struct {
	*brokers
	name     string
	settings *config.Config
}

func (b *brokers) topic(t *testing.T, name string, partitions int32, replicas int16, configs map[string]string) *topic {
	t.Helper()
	b.t = t
	c := map[string]*string{}
	for k, v := range configs {
		c[k] = &v
	}
	resp, err := b.admin.CreateTopic(t.Context(), partitions, replicas, c, name)
	require.NoError(t, errors.Join(err, resp.Err))
	at := func() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t))) }
	ingest, buffer, writer, reader := at(), at(), at(), at()
	text := fmt.Sprintf(`deployment: e2e
node: { data_dir: %q, metrics: "" }
services: { ingest: {listen: %q}, buffer: {listen: %q}, committer: {listen: %q}, readstate: {listen: %q} }
discovery: { type: static, ingest: %q, buffer: %q, committer: %q, readstate: %q }
kafka: { bootstrap.servers: %q, session.timeout: 6s }
catalog: { type: rest, uri: "http://127.0.0.1:%d", warehouse: "file://%s" }
defaults: { commit: { interval: 1s } }
pipelines:
  - { name: %s, topics: [%s], table: shop.%s, format: string }
`, filepath.Join(b.dir, name), ingest, buffer, writer, reader, ingest, buffer, writer, reader,
		strings.Join(b.seeds, ","), b.port, filepath.Join(b.dir, "warehouse"), name, name, name)
	s, _, err := config.Parse("e2e", []byte(text), nil, nil)
	require.NoError(t, err)
	return &topic{brokers: b, name: name, settings: s}
}

// run runs all services until stop is called; reasons says why they are not ready.
func (p *topic) run() (stop func(), reasons func() string) {
	p.t.Helper()
	var logs bytes.Buffer
	p.t.Cleanup(func() { // after they have ended
		if p.t.Failed() {
			p.t.Logf("the services said:\n%s", &logs)
		}
	})
	proc, err := boot.Open(p.t.Context(), p.settings, &logs)
	require.NoError(p.t, err)
	_, err = stack.New(p.t.Context(), proc)
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proc.Group.Run(ctx) }()
	stop = func() {
		if cancel == nil {
			return
		}
		cancel()
		cancel = nil
		if err := <-ended; err != nil {
			p.t.Errorf("ending the services: %v", err)
		}
	}
	p.t.Cleanup(stop)
	return stop, func() string {
		var out strings.Builder
		for _, c := range proc.Health.Report("").Components {
			if !c.Ready {
				fmt.Fprintf(&out, "%s: %s\n", c.Name, c.Reason)
			}
		}
		return out.String()
	}
}

// send produces values with their own text as key.
func (p *topic) send(cl *kgo.Client, partition int32, prefix string, n int) (want []string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	var records []*kgo.Record
	for i := range n {
		v := fmt.Sprintf("%s-%04d", prefix, i)
		want = append(want, v)
		records = append(records, &kgo.Record{Topic: p.name, Partition: partition, Key: []byte(v), Value: []byte(v)})
	}
	require.NoError(p.t, cl.ProduceSync(ctx, records...).FirstErr())
	return want
}

// committed are the positions that the table holds.
func (p *topic) committed() map[int32]int64 {
	report, err := committer.Audit(p.t.Context(), p.settings, "shop."+p.name, committer.AuditOptions{})
	if err != nil {
		return nil
	}
	out := map[int32]int64{}
	for _, part := range report.Partitions {
		out[part.Partition] = part.Next
	}
	return out
}

func (p *topic) await(within time.Duration, what string, check func() error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			p.t.Fatalf("waited %v until %s: %v", within, what, err)
		case <-tick.C:
		}
	}
}

func (p *topic) standsAt(want map[int32]int64) {
	p.t.Helper()
	p.await(time.Minute, "the table stands where it should", func() error {
		if have := p.committed(); !maps.Equal(have, want) {
			return fmt.Errorf("it stands at %v, not at %v", have, want)
		}
		return nil
	})
}

// requireRows compares the rows of the table, in any order, and audits it against the log; it returns what was skipped, by
// reason.
func (p *topic) requireRows(want []string) map[string]int64 {
	p.t.Helper()
	p.requireValues(want)
	report := p.auditAgainstKafka()
	p.requireVerdict(committer.Proven, report)
	skipped := map[string]int64{}
	for _, part := range report.Partitions {
		for reason, n := range part.Skipped {
			skipped[reason] += n
		}
	}
	return skipped
}

func (p *topic) audit(o committer.AuditOptions) committer.Report {
	p.t.Helper()
	report, err := committer.Audit(p.t.Context(), p.settings, "shop."+p.name, o)
	require.NoError(p.t, err)
	p.t.Log(report)
	return report
}

// auditAgainstKafka has every offset of the table read and compared with the log.
func (p *topic) auditAgainstKafka() committer.Report {
	p.t.Helper()
	log, err := stack.OpenKafkaLog(p.settings)
	require.NoError(p.t, err)
	defer log.Close()
	return p.audit(committer.AuditOptions{Kafka: log})
}

func (p *topic) requireVerdict(want committer.Verdict, report committer.Report) {
	p.t.Helper()
	require.Equal(p.t, want, report.Verdict, "%s", report)
}

// requireValues compares the rows of the table, in any order.
func (p *topic) requireValues(want []string) {
	p.t.Helper()
	var have []string
	require.NoError(p.t, p.catalog.Scan(p.t.Context(), []string{"shop", p.name}, func(rec arrow.RecordBatch) error {
		col, ok := rec.Column(rec.Schema().FieldIndices("value")[0]).(array.StringLike)
		require.True(p.t, ok)
		for i := range int(rec.NumRows()) {
			have = append(have, strings.Clone(col.Value(i)))
		}
		return nil
	}))
	slices.Sort(have)
	want = slices.Sorted(slices.Values(want))
	require.Equal(p.t, want, have)
}

// group is where the pipeline's consumer group stands.
func (p *topic) group() map[int32]int64 {
	p.t.Helper()
	got, err := p.admin.FetchOffsets(p.t.Context(), "icestream."+p.name)
	if err != nil {
		return map[int32]int64{-1: -1}
	}
	out := map[int32]int64{}
	got.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			out[o.Partition] = o.At
		}
	})
	return out
}

func (p *topic) groupAt(within time.Duration, want map[int32]int64) {
	p.t.Helper()
	p.await(within, "the group stands where it should", func() error {
		if have := p.group(); !maps.Equal(have, want) {
			return fmt.Errorf("it stands at %v, not at %v", have, want)
		}
		return nil
	})
}

// TestKafkaSemantics is issue 5 point 5 on Apache Kafka: transactions and their last stable offset, compaction that
// deletes, a leader that dies, a log that an unclean election replaces, and group positions that operators move and
// brokers let expire (G1, G2, G9, G11; K2, K5, K10, K13, K14).
func TestKafkaSemantics(t *testing.T) {
	b := startBrokers(t)
	for name, run := range map[string]func(*testing.T, *brokers){
		"transactions": transactions, "compaction": compaction, "group positions": groupPositions,
	} {
		t.Run(name, func(t *testing.T) { run(t, b) })
	}
	t.Run("a leader dies", func(t *testing.T) { leaderDies(t, b) })
	t.Run("an unclean election", func(t *testing.T) { uncleanElection(t, b) })
}

func transactions(t *testing.T, b *brokers) {
	p := b.topic(t, "tx", 2, 3, nil)
	begin := func(id string) *kgo.Client {
		cl := b.dial(kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute)) // the broker aborts it after 40 s else
		require.NoError(t, cl.BeginTransaction())
		return cl
	}
	aborted, landed, open := begin("a"), begin("b"), begin("c")
	want := p.send(b.client, 0, "first", 10)
	p.send(aborted, 0, "aborted", 50)
	want = append(want, p.send(landed, 0, "landed", 50)...)
	require.NoError(t, aborted.EndTransaction(t.Context(), kgo.TryAbort))
	require.NoError(t, landed.EndTransaction(t.Context(), kgo.TryCommit))
	p.await(time.Minute, "the markers are in the log", func() error { // an end is answered before: alone they would not be worth a commit
		ends, err := b.admin.ListCommittedOffsets(t.Context(), p.name)
		if err != nil {
			return err
		}
		if end, _ := ends.Lookup(p.name, 0); end.Offset != 112 {
			return fmt.Errorf("it ends at %d", end.Offset)
		}
		return nil
	})
	waiting := append(p.send(open, 0, "open", 20), p.send(b.client, 0, "behind", 5)...)
	want = append(want, p.send(b.client, 1, "beside", 5)...)
	_, reasons := p.run()
	p.standsAt(map[int32]int64{0: 112, 1: 5})
	require.Empty(t, reasons(), "an open transaction is no fault")
	p.requireRows(want)
	require.NoError(t, open.EndTransaction(t.Context(), kgo.TryCommit))
	p.standsAt(map[int32]int64{0: 138, 1: 5})
	skipped := p.requireRows(append(want, waiting...))
	require.Equal(t, map[string]int64{"absent": 50, "control": 3}, skipped)
	p.groupAt(time.Minute, map[int32]int64{0: 138, 1: 5})
}

func compaction(t *testing.T, b *brokers) {
	p := b.topic(t, "compacted", 1, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0", "max.compaction.lag.ms": "1000",
	})
	keyed := func(key, value string) {
		r := &kgo.Record{Topic: p.name, Key: []byte(key)}
		if value != "" {
			r.Value = []byte(value)
		}
		require.NoError(t, b.client.ProduceSync(t.Context(), r).FirstErr())
	}
	for i := range 200 {
		keyed(fmt.Sprintf("k%d", i%4), fmt.Sprintf("old-%d", i))
	}
	keyed("k0", "") // its tombstone goes, too
	for i := 1; i < 4; i++ {
		keyed(fmt.Sprintf("k%d", i), fmt.Sprintf("new-%d", i))
	}
	left := func() (n int) { // records that the brokers still have
		cl := b.dial(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.name: {0: kgo.NewOffset().AtStart()}}))
		defer cl.Close()
		ends, err := b.admin.ListEndOffsets(t.Context(), p.name)
		require.NoError(t, err)
		end, _ := ends.Lookup(p.name, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for at := int64(0); at < end.Offset && ctx.Err() == nil; {
			cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { n, at = n+1, r.Offset+1 })
		}
		return n
	}
	extra := 0
	p.await(time.Minute, "the brokers have compacted the log", func() error {
		keyed("last", fmt.Sprintf("last-%d", extra)) // a segment is begun by a record
		extra++
		if n := left(); n > 20 {
			return fmt.Errorf("%d records are left", n)
		}
		return nil
	})
	_, reasons := p.run()
	p.standsAt(map[int32]int64{0: int64(204 + extra)})
	require.Empty(t, reasons())
	report := p.auditAgainstKafka()
	p.requireVerdict(committer.Proven, report)
	part := report.Partitions[0]
	require.Greater(t, part.Skipped["absent"], int64(150), "gaps are accounted for, and are no loss")
	require.Zero(t, part.Skipped["lost"])
	require.Equal(t, part.Next, part.Rows+part.Skipped["absent"]+part.Skipped["tombstone"])
}

func groupPositions(t *testing.T, b *brokers) {
	p := b.topic(t, "positions", 2, 3, nil)
	want := append(p.send(b.client, 0, "one", 100), p.send(b.client, 1, "two", 50)...)
	stop, _ := p.run()
	p.standsAt(map[int32]int64{0: 100, 1: 50})
	p.groupAt(time.Minute, map[int32]int64{0: 100, 1: 50})
	at := int64(100)
	for _, how := range []string{"--to-latest", "--to-earliest", "expired"} {
		stop()
		want = append(want, p.send(b.client, 0, how, 10)...)
		at += 10
		if how == "expired" {
			p.groupAt(3*time.Minute, map[int32]int64{})
		} else {
			p.await(time.Minute, "the group can be moved", func() error { // members that left may count for a moment
				peer(t, "kafka", "tool", "ConsumerGroupCommand", "--group", "icestream."+p.name, "--topic", p.name, "--reset-offsets", how, "--execute")
				moved := map[string]int64{"--to-latest": at, "--to-earliest": 0}[how]
				if have := p.group(); have[0] != moved {
					return fmt.Errorf("it stands at %v", have)
				}
				return nil
			})
		}
		stop, _ = p.run()
		p.standsAt(map[int32]int64{0: at, 1: 50})
		p.groupAt(time.Minute, map[int32]int64{0: at, 1: 50})
	}
	require.Empty(t, p.requireRows(want))
}

// leaderOf is the broker that leads the first partition, and who is in sync. A broker that was killed a moment ago may be
// asked first.
func (p *topic) leaderOf() (leader int32, isr []int32) {
	p.t.Helper()
	p.await(time.Minute, "a broker answers", func() error {
		md, err := p.admin.Metadata(p.t.Context(), p.name)
		if err == nil {
			part := md.Topics[p.name].Partitions[0]
			leader, isr = part.Leader, part.ISR
		}
		return err
	})
	return leader, isr
}

func leaderDies(t *testing.T, b *brokers) {
	p := b.topic(t, "leaders", 1, 3, map[string]string{"min.insync.replicas": "2"})
	_, reasons := p.run()
	want := p.send(b.client, 0, "before", 500)
	for round := range 2 {
		leader, _ := p.leaderOf()
		peer(t, "kafka", "kill9", strconv.Itoa(int(leader)))
		want = append(want, p.send(b.client, 0, fmt.Sprintf("without-%d", round), 500)...)
		p.standsAt(map[int32]int64{0: int64(len(want))})
		peer(t, "kafka", "up")
		p.await(time.Minute, "all replicas are in sync", func() error {
			if _, isr := p.leaderOf(); len(isr) < 3 {
				return fmt.Errorf("in sync are %v", isr)
			}
			return nil
		})
	}
	p.await(time.Minute, "all is well", func() error {
		if why := reasons(); why != "" {
			return errors.New(why)
		}
		return nil
	})
	require.Empty(t, p.requireRows(want))
}

func uncleanElection(t *testing.T, b *brokers) {
	p := b.topic(t, "unclean", 1, 2, map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
	fast := b.dial(kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	leader, isr := p.leaderOf()
	require.Len(t, isr, 2)
	follower := isr[0] + isr[1] - leader
	want := p.send(fast, 0, "kept", 50)
	stop, reasons := p.run()
	p.standsAt(map[int32]int64{0: 50})
	node := func(n int32) string { return strconv.Itoa(int(n)) }
	peer(t, "kafka", "freeze", node(follower))
	p.await(time.Minute, "the follower is out of sync", func() error {
		if _, isr := p.leaderOf(); len(isr) != 1 {
			return fmt.Errorf("in sync are %v", isr)
		}
		return nil
	})
	want = append(want, p.send(fast, 0, "taken back", 100)...)
	p.standsAt(map[int32]int64{0: 150})
	peer(t, "kafka", "kill9", node(leader))
	peer(t, "kafka", "thaw", node(follower))
	p.await(2*time.Minute, "the follower leads", func() error {
		if now, _ := p.leaderOf(); now != follower {
			_, err := p.admin.ElectLeaders(t.Context(), kadm.ElectLiveReplica, kadm.TopicsSet{p.name: {0: {}}})
			if err != nil && !errors.Is(err, kerr.ElectionNotNeeded) {
				return fmt.Errorf("%d leads: %w", now, err)
			}
			return fmt.Errorf("%d leads", now)
		}
		return nil
	})
	p.send(fast, 0, "instead", 300) // the log grows beyond the position: only the leader epoch tells
	red := func() {
		t.Helper()
		p.await(time.Minute, "the partition is stopped", func() error {
			if why := reasons(); !strings.Contains(why, "other records from offset 50 on than those that were read up to 150") {
				return errors.New("the reasons are " + why)
			}
			return nil
		})
	}
	red()
	peer(t, "kafka", "up")
	stop()
	stop, reasons = p.run() // another reader finds the same
	red()
	p.requireValues(want)
	require.Equal(t, map[int32]int64{0: 150}, p.committed())
	// The table is whole; that its rows are of records that the log has no more, the log shows.
	p.requireVerdict(committer.Proven, p.audit(committer.AuditOptions{Deep: true}))
	replaced := p.auditAgainstKafka()
	p.requireVerdict(committer.Violated, replaced)
	require.Contains(t, replaced.Text(), "unclean[0]: rows of offsets 0 to 149 have other timestamps than the records of the log")

	stop()
	p.settings.Pipelines[0].OnDataLoss = "continue"
	p.run()
	p.standsAt(map[int32]int64{0: 350})
	want = append(want, slices.Collect(func(yield func(string) bool) {
		for i := 100; i < 300; i++ {
			if !yield(fmt.Sprintf("instead-%04d", i)) {
				return
			}
		}
	})...)
	p.requireValues(want)
	p.requireVerdict(committer.Proven, p.audit(committer.AuditOptions{Deep: true}))
	// The loss is accepted now, and the table records it.
	accepted := p.auditAgainstKafka()
	p.requireVerdict(committer.Proven, accepted)
	require.Contains(t, accepted.Text(), "unclean[0]: offsets 50 to 149, 100 of them, are others in Kafka now")
	require.Contains(t, accepted.Text(), "unclean[0]: 100 records of the log took the offsets of others")
}
