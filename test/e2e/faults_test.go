//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/testkit/faulty"
)

var (
	faultTable = flag.Bool("fault-table", false, "run the fault table")
	outage     = flag.Duration("outage", time.Minute, "how long the catalog is away, and a committer frozen, in the fault table")
)

// scenario is one row of the fault table: what happened, and what became of the rows.
type scenario struct {
	*suite
	plan
	number    int
	manifests []string
	made      []manifest
	filled    []string
	pause     time.Duration // the longest time in which nothing was committed
	proxy     *faulty.Catalog
}

// The rows that the sink of Kafka Connect and K2I lose or double, and a few more, run against us on real peers. In every
// row nothing is lost, nothing doubled, and nobody had to do anything (G1, G2, G8, G10, G11).
func TestTheFaultTable(t *testing.T) {
	if !*faultTable {
		t.Skip("runs with -fault-table (make e2e-faults)")
	}
	b := startBed(t)
	var table strings.Builder
	fmt.Fprintf(&table, "%-62s %9s %6s %8s %12s %7s\n", "fault", "rows", "lost", "doubled", "quarantined", "pause")
	for i, row := range []struct {
		fault string
		run   func(s *scenario)
	}{
		{fmt.Sprintf("%d kinds of answers of the catalog to a commit, one by one", len(faulty.Answers())), answered},
		{"kill -9 of all four services, three times, restarts at once", allKilled},
		{"poison of every kind and tombstones among 20,000 rows", poisoned},
		{"a value of the wrong type for its column (JSON)", wrongTyped},
		{fmt.Sprintf("catalog away for %v at 1,000 rows/s", *outage), catalogAway},
		{"catalog away at the first commit, everything killed meanwhile", firstCommit},
		{"broker restarted (TERM, 5 s, start)", brokerRestarted},
		{"broker killed and started again", brokerKilled},
		{"object store killed and started again", storeKilled},
		{"partitions added under load", partitionsAdded},
		{"new field in a new schema id, old ids again later", evolved},
		{fmt.Sprintf("committer frozen for %v, another takes over, the first goes on", *outage), committerFrozen},
	} {
		topic := fmt.Sprintf("fault-%d", i+1)
		ok := t.Run(row.fault, func(t *testing.T) {
			p := plan{name: topic, topic: topic, message: order, interval: "2s"}
			s := &scenario{plan: p, proxy: faulty.NewCatalog(t, b.catalog)}
			switch i {
			case 0:
				s.catalog = s.proxy.URL()
			case 3:
				s.format = "    format: json\n    columns: \"order_id string, seq long, units long, price double\""
			}
			s.suite = b.newSuite(t, s.plan)
			row.run(s)
			s.committedIs(s.table(), s.made, 3*time.Minute)
			s.waitReady(time.Minute)
			s.audit(s.table(), "--against", "kafka")
			v := b.judge(t, s.table(), slices.Concat(s.filled, s.manifests)...)
			fmt.Fprintf(&table, "%-62s %9d %6d %8d %12d %6.1fs\n", row.fault, v.Rows, v.Lost, v.Doubled, v.Quarantined, s.pause.Seconds())
		})
		require.True(t, ok, "%s\n%s", row.fault, &table)
	}
	t.Logf("no manual step in any row; judged by audit --against kafka, pyiceberg and DuckDB\n%s", &table)
}

// produce starts the next production of the scenario.
func (s *scenario) produce(args ...string) *production {
	s.t.Helper()
	s.number++
	file := filepath.Join(filepath.Dir(s.config), fmt.Sprintf("manifest-%d.json", s.number))
	s.manifests = append(s.manifests, file)
	return s.bed.produce(s.t, s.topic, file, false, append([]string{"--fast", "--seed", strconv.Itoa(s.number)}, args...)...)
}

// load starts a production that goes on until it is halted.
func (s *scenario) load(rate int) *production {
	return s.produce("--count", "1000000", "--bad", "500", "--rate", strconv.Itoa(rate))
}

func (s *scenario) done(p *production) { s.made = append(s.made, p.wait()) }
func (s *scenario) halt(p *production) { s.made = append(s.made, p.halt()) }

// flowing starts the services and waits until rows are committed.
func (s *scenario) flowing() {
	s.t.Helper()
	s.startAll()
	s.waitReady(90 * time.Second)
	s.eventually(time.Minute, "the first rows are committed", func() error {
		if s.committed(s.table()) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
}

// suffer does something bad and notes how long nothing was committed, counted from the moment that do returns.
func (s *scenario) suffer(do func()) {
	s.t.Helper()
	admin := s.bed.broker(s.suite)
	do()
	began := time.Now()
	var from map[int32]int64
	s.eventually(time.Minute, "Kafka answers", func() error {
		list, err := admin.ListEndOffsets(s.t.Context(), s.topic)
		if err == nil {
			err = list.Error()
		}
		from = map[int32]int64{}
		list.Each(func(o kadm.ListedOffset) { from[o.Partition] = o.Offset })
		return err
	})
	s.pause = max(s.pause, s.recovered(s.table(), from, began, 3*time.Minute).cold)
}

// answered has the catalog answer commits and loads in every way (C1, C2, C4, C5, C10, C20).
func answered(s *scenario) {
	p := s.load(300)
	s.flowing()
	for _, a := range faulty.Answers() {
		s.suffer(func() { s.proxy.Give(a) })
		s.proxy.Heal()
	}
	s.halt(p)
	require.Empty(s.t, s.proxy.Missed(faulty.Answers()), "these never came to pass")
}

func allKilled(s *scenario) {
	p := s.load(4000)
	s.flowing()
	for range 3 {
		s.suffer(func() {
			for _, svc := range services {
				s.kill9(svc)
			}
		})
	}
	s.halt(p)
}

func poisoned(s *scenario) {
	p := s.produce("--count", "20000", "--bad", "80")
	s.flowing()
	s.done(p)
}

// wrongTyped makes JSON records, one of 1,000 with text where a number belongs.
func wrongTyped(s *scenario) {
	t := s.t
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.bed.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 4, 1, nil, s.topic)
	require.NoError(t, err)
	type part struct {
		Rows  int64 `json:"rows"`
		Seq   int64 `json:"sum_seq"`
		Units int64 `json:"sum_units"`
		End   int64 `json:"end_offset"`
	}
	parts, ids, bad := map[string]*part{}, []string{}, [][]any{}
	var records []*kgo.Record
	for i := range int64(20_000) {
		n := int32(i % 4)
		name := strconv.Itoa(int(n))
		if parts[name] == nil {
			parts[name] = &part{}
		}
		p := parts[name]
		id, price := fmt.Sprintf("j-%06d", i), "1.5"
		if i%1000 == 999 {
			price = `"abc"`
			bad = append(bad, []any{n, p.End, "wrong type"})
		} else {
			p.Rows, p.Seq, p.Units = p.Rows+1, p.Seq+i, p.Units+2*i
			ids = append(ids, id)
		}
		p.End++
		records = append(records, &kgo.Record{
			Topic: s.topic, Partition: n,
			Value: fmt.Appendf(nil, `{"order_id":%q,"seq":%d,"units":%d,"price":%s}`, id, i, 2*i, price),
		})
	}
	require.NoError(t, cl.ProduceSync(t.Context(), records...).FirstErr())
	var rows, seq, units int64
	for _, p := range parts {
		rows, seq, units = rows+p.Rows, seq+p.Seq, units+p.Units
	}
	slices.Sort(ids)
	sum := sha256.Sum256([]byte(strings.Join(ids, "\n")))
	text, err := json.Marshal(map[string]any{
		"rows": rows, "sum_seq": seq, "sum_units": units, "partitions": parts, "bad_offsets": bad, "ids_sha256": hex.EncodeToString(sum[:]),
	})
	require.NoError(t, err)
	file := filepath.Join(filepath.Dir(s.config), "manifest.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	var m manifest
	require.NoError(t, json.Unmarshal(text, &m))
	s.manifests, s.made = []string{file}, []manifest{m}
	s.flowing()
}

func catalogAway(s *scenario) {
	p := s.load(1000)
	s.flowing()
	s.suffer(func() {
		peer(s.t, "catalog", "down")
		s.wait(*outage)
		peer(s.t, "catalog", "up")
	})
	s.halt(p)
}

func firstCommit(s *scenario) {
	s.done(s.produce("--count", "130000"))
	s.startAll()
	s.eventually(time.Minute, "rows are hot", func() error {
		p, err := s.seen(s.table())
		if err == nil && !slices.ContainsFunc([]int32{0, 1, 2, 3}, func(n int32) bool { return p.visible[n] > 0 }) {
			err = fmt.Errorf("none of %v", p.visible)
		}
		return err
	})
	peer(s.t, "catalog", "down")
	for _, svc := range services {
		s.kill9(svc)
	}
	s.wait(15 * time.Second)
	s.kill9("ingestd")
	peer(s.t, "catalog", "up")
	began := time.Now()
	s.committedIs(s.table(), s.made, 2*time.Minute)
	s.pause = time.Since(began)
}

func brokerRestarted(s *scenario) {
	p := s.load(1000)
	s.flowing()
	s.suffer(func() {
		peer(s.t, "kafka", "down")
		s.wait(5 * time.Second)
		peer(s.t, "kafka", "up")
	})
	s.halt(p)
}

func brokerKilled(s *scenario) {
	p := s.load(1000)
	s.flowing()
	s.suffer(func() {
		peer(s.t, "kafka", "kill9")
		peer(s.t, "kafka", "up")
	})
	s.halt(p)
}

func storeKilled(s *scenario) {
	p := s.load(1000)
	s.flowing()
	s.suffer(func() {
		peer(s.t, "s3", "kill9")
		s.wait(5 * time.Second)
		peer(s.t, "s3", "up")
	})
	s.halt(p)
}

func partitionsAdded(s *scenario) {
	p := s.load(1000)
	s.flowing()
	_, err := s.bed.broker(s.suite).UpdatePartitions(s.t.Context(), 8, s.topic)
	require.NoError(s.t, err)
	next := s.produce("--count", "20000", "--rate", "2000", "--start", "2000000", "-X", "topic.metadata.refresh.interval.ms=500")
	s.done(next)
	s.halt(p)
}

func evolved(s *scenario) {
	s.done(s.produce("--count", "40000", "--evolve", "20000"))
	s.flowing()
	s.done(s.produce("--count", "10000", "--start", "40000"))
	s.filled = []string{"--filled", "coupon=20000"}
}

func committerFrozen(s *scenario) {
	p := s.load(1000)
	s.flowing()
	s.signal("committerd", syscall.SIGSTOP)
	s.suffer(func() { s.twin("committerd", "second committerd") })
	s.wait(*outage)
	s.signal("committerd", syscall.SIGCONT)
	s.suffer(func() {})
	s.eventually(time.Minute, "the first committer knows that it is fenced", func() error {
		text, err := os.ReadFile(s.logs["committerd"].Name())
		if err == nil && !strings.Contains(string(text), "another committer has taken the table over") {
			err = fmt.Errorf("it does not say so")
		}
		return err
	})
	// An operator who restarts the first gives it the table back, and fences the second.
	s.suffer(func() { s.kill9("committerd") })
	s.halt(p)
}

// wait lets time pass.
func (s *scenario) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.t.Context().Done():
	}
}
