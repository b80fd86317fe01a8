//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

var (
	randomKills = flag.Int("random-kills", 0, "kill -9 so many random services under load; 0 skips the test")
	seed        = flag.Uint64("seed", 0, "of the random kills; 0 takes the time")
)

// perTable is how many services are killed before another table is taken: an audit looks at every file, and a table that
// is committed every second soon has many.
const perTable = 20

// mayhem is a suite under load with links before everything that it talks to.
type mayhem struct {
	*suite
	plan
	rng   *rand.Rand
	links map[string]*faulty.Link // by what is behind
	names []string                // of the links, in order
	admin *kadm.Client
	done  int // kills
	most  int
}

// G1, G2, G4, G6, G11: services are killed at random moments under load, alone, in pairs, frozen, and with links to
// Kafka, the catalog, the object store, buffer and committer cut, silent or slow. After each the rows that come then
// are hot and committed without a command, and the table is proven.
func TestRandomKillsUnderLoadLoseAndDoubleNothing(t *testing.T) {
	if *randomKills == 0 {
		t.Skip("runs with -random-kills n (make e2e-kills)")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", *seed)
	b, links := linkedBed(t)
	began, done, times, rows := time.Now(), 0, figures{}, int64(0)
	for table := 1; done < *randomKills; table++ {
		ok := t.Run(fmt.Sprintf("table %d", table), func(t *testing.T) {
			m := b.newMayhem(t, fmt.Sprintf("kills-%d", table), links)
			m.rng = rand.New(rand.NewPCG(*seed, uint64(table)))
			m.most = min(perTable, *randomKills-done)
			rows += m.run(times, func(what string, r recovery) {
				t.Logf("%3d kills, %v: %s: hot after %.2f s, cold after %.2f s",
					done+m.done, time.Since(began).Round(time.Second), what, r.hot.Seconds(), r.cold.Seconds())
			})
			done += m.done
		})
		require.True(t, ok)
	}
	t.Logf("%d kills in %v, seed %d: of %d rows none is lost, none doubled\n"+
		"from kill -9 under load until rows produced after it are there in every partition:\n%s", done, time.Since(began).Round(time.Second), *seed, rows, times)
}

// run kills until it is enough, and has the table judged; it returns its rows.
func (m *mayhem) run(times figures, note func(string, recovery)) int64 {
	producer := m.bed.produce(m.t, m.topic, filepath.Join(m.bed.dir, m.topic+".json"), false,
		"--count", "4000000", "--bad", "400", "--rate", "2000", "--fast")
	m.startAll()
	m.waitReady(90 * time.Second)
	m.admin = m.bed.broker(m.suite)
	m.eventually(time.Minute, "the first rows are committed", func() error {
		if m.committed(m.table()) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	for m.done < m.most {
		at, what, alone := m.strike()
		r := m.recovered(m.table(), at.ends, at.time, 2*time.Minute)
		if alone {
			times[what] = append(times[what], r)
		}
		note(what, r)
		m.audit(m.table())
	}
	made := producer.halt()
	m.committedIs(m.table(), []manifest{made}, 2*time.Minute)
	m.t.Log(m.audit(m.table(), "--against", "kafka"))
	v := m.bed.judge(m.t, m.table(), producer.file)
	require.Zero(m.t, v.Lost)
	require.Zero(m.t, v.Doubled)
	return v.Rows
}

// linkedBed starts the peers with links before them.
func linkedBed(t *testing.T) (*bed, map[string]*faulty.Link) {
	t.Helper()
	// Kafka tells clients where it is, so the link has a listener of its own behind it.
	base, inner, outer := testkit.FreePort(t), testkit.FreePort(t), testkit.FreePort(t)
	t.Setenv("KAFKA_PORT", fmt.Sprint(base))
	listeners := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,SASL_SSL://127.0.0.1:%d", base, base+20)
	b := startBed(t,
		"--set", fmt.Sprintf("listeners=%s,LINKED://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", listeners, inner, base+10),
		"--set", fmt.Sprintf("advertised.listeners=%s,LINKED://127.0.0.1:%d", listeners, outer),
		"--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT,LINKED:PLAINTEXT")
	return b, map[string]*faulty.Link{
		"Kafka":        faulty.NewLink(t, fmt.Sprintf("127.0.0.1:%d", outer), fmt.Sprintf("127.0.0.1:%d", inner)),
		"catalog":      faulty.NewLink(t, "127.0.0.1:0", strings.TrimPrefix(b.catalog, "http://")),
		"object store": faulty.NewLink(t, "127.0.0.1:0", strings.TrimPrefix(b.s3["S3_ENDPOINT"], "http://")),
	}
}

// newMayhem makes a suite for one topic.
func (b *bed) newMayhem(t *testing.T, topic string, links map[string]*faulty.Link) *mayhem {
	t.Helper()
	m := &mayhem{
		links: maps.Clone(links), names: []string{"Kafka", "catalog", "object store", "bufferd", "committerd"},
		plan: plan{
			name: topic, topic: topic, message: order, linked: true, interval: "1s",
			kafka: links["Kafka"].Address(), catalog: "http://" + links["catalog"].Address(), s3: "http://" + links["object store"].Address(),
			settings: "reads: { max_lease: 30s }\n",
		},
	}
	m.suite = b.newSuite(t, m.plan)
	maps.Copy(m.links, m.suite.links)
	return m
}

// moment is a time and where the topic ended then.
type moment struct {
	ends map[int32]int64
	time time.Time
}

func (m *mayhem) mark() moment {
	m.t.Helper()
	return moment{ends(m.suite, m.admin, m.topic), time.Now()}
}

// strike does something bad and ends when it is over; alone says that it was one kill and nothing else. What comes back
// is the moment from which on everything should be well again.
func (m *mayhem) strike() (at moment, what string, alone bool) {
	m.t.Helper()
	svc := services[m.rng.IntN(len(services))]
	m.waitABit(time.Second) // so that a strike meets every moment of a commit
	switch n := m.rng.IntN(20); {
	case n < 12 || m.done+1 == m.most:
		at = m.mark()
		m.kill(svc)
		return at, "kill -9 " + svc, true
	case n < 14:
		other := services[(index(svc)+1+m.rng.IntN(3))%len(services)]
		m.done++
		require.NoError(m.t, m.procs[svc].Process.Kill())
		m.kill(other)
		m.waitABit(time.Second)
		_ = m.procs[svc].Wait()
		at = m.mark()
		m.start(svc)
		return at, "kill -9 of " + svc + " and " + other, false
	case n < 16:
		m.signal(svc, syscall.SIGSTOP)
		m.waitABit(3 * time.Second)
		other := services[(index(svc)+1+m.rng.IntN(3))%len(services)]
		m.kill(other)
		at = m.mark()
		m.signal(svc, syscall.SIGCONT)
		return at, svc + " frozen, kill -9 " + other, false
	default:
		name := m.names[m.rng.IntN(len(m.names))]
		l := m.links[name]
		var how string
		switch m.rng.IntN(3) {
		case 0:
			l.Cut()
			how = "cut"
		case 1:
			l.Freeze()
			how = "silent"
		default:
			l.Slow(100*time.Millisecond, 200<<10)
			how = "slow"
		}
		m.waitABit(time.Second)
		m.kill(svc)
		m.waitABit(2 * time.Second)
		at = m.mark()
		l.Heal()
		return at, "link to " + name + " " + how + ", kill -9 " + svc, false
	}
}

func index(svc string) int {
	for i, s := range services {
		if s == svc {
			return i
		}
	}
	return 0
}

func (m *mayhem) kill(svc string) {
	m.t.Helper()
	m.done++
	require.NoError(m.t, m.procs[svc].Process.Kill())
	_ = m.procs[svc].Wait()
	m.start(svc)
}

// waitABit waits a random time up to most.
func (m *mayhem) waitABit(most time.Duration) {
	select {
	case <-time.After(time.Duration(m.rng.Int64N(int64(most)))):
	case <-m.t.Context().Done():
	}
}
