//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/internal/testkit/faulty"
)

var (
	randomKills = flag.Int("random-kills", 0, "kill -9 so many random services under load; 0 skips the test")
	seed        = flag.Uint64("seed", 0, "of the random kills; 0 takes the time")
)

// mayhem is a suite under load with links before everything that it talks to.
type mayhem struct {
	*suite
	rng   *rand.Rand
	links map[string]*faulty.Link // by what is behind
	names []string                // of the links, in order
	table string
	done  int // kills
	now   figures
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
	m := newMayhem(t)
	producer := m.bed.produce(t, "kills", filepath.Join(m.bed.dir, "kills.json"), false,
		"--count", "4000000", "--bad", "4000", "--rate", "2000", "--fast")
	m.startAll()
	m.waitReady(90 * time.Second)
	admin := m.bed.broker(m.suite)
	m.eventually(time.Minute, "the first rows are committed", func() error {
		if m.committed(m.table) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	began := time.Now()
	for m.done < *randomKills {
		from, at := ends(m.suite, admin, "kills"), time.Now()
		what, alone := m.strike()
		r := m.recovered(m.table, from, at, 2*time.Minute)
		if alone {
			m.now[what] = append(m.now[what], r)
		}
		m.audit(m.table)
		t.Logf("%3d kills, %v: %s: hot after %.2f s, cold after %.2f s", m.done, time.Since(began).Round(time.Second), what, r.hot.Seconds(), r.cold.Seconds())
	}
	t.Logf("%d kills in %v", m.done, time.Since(began).Round(time.Second))
	made := producer.halt()
	m.committedIs(m.table, []manifest{made}, 2*time.Minute)
	t.Log(m.audit(m.table, "--deep"))
	m.bed.judge(t, m.table, producer.file)
	t.Logf("recovery, from kill -9 under load until rows produced after it are there in every partition:\n%s", m.now)
}

// newMayhem starts the peers with links before them.
func newMayhem(t *testing.T) *mayhem {
	t.Helper()
	// Kafka tells clients where it is, so the link has a listener of its own behind it.
	base, inner, outer := testkit.FreePort(t), testkit.FreePort(t), testkit.FreePort(t)
	t.Setenv("KAFKA_PORT", fmt.Sprint(base))
	listeners := fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,SASL_SSL://127.0.0.1:%d", base, base+20)
	b := startBed(t,
		"--set", fmt.Sprintf("listeners=%s,LINKED://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", listeners, inner, base+10),
		"--set", fmt.Sprintf("advertised.listeners=%s,LINKED://127.0.0.1:%d", listeners, outer),
		"--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT,LINKED:PLAINTEXT")
	m := &mayhem{
		rng: rand.New(rand.NewPCG(*seed, 1)), table: "shop.kills", now: figures{},
		links: map[string]*faulty.Link{
			"Kafka":        faulty.NewLink(t, fmt.Sprintf("127.0.0.1:%d", outer), fmt.Sprintf("127.0.0.1:%d", inner)),
			"catalog":      faulty.NewLink(t, "127.0.0.1:0", strings.TrimPrefix(b.catalog, "http://")),
			"object store": faulty.NewLink(t, "127.0.0.1:0", strings.TrimPrefix(b.s3["S3_ENDPOINT"], "http://")),
		},
		names: []string{"Kafka", "catalog", "object store", "bufferd", "committerd"},
	}
	m.suite = b.newSuite(t, plan{
		name: "kills", topic: "kills", message: order, linked: true, interval: "1s",
		kafka: m.links["Kafka"].Address(), catalog: "http://" + m.links["catalog"].Address(), s3: "http://" + m.links["object store"].Address(),
		settings: "reads: { max_lease: 30s }\n",
	})
	for svc, l := range m.suite.links {
		m.links[svc] = l
	}
	return m
}

// strike does something bad and ends when it is over; alone says that it was one kill and nothing else.
func (m *mayhem) strike() (what string, alone bool) {
	svc := services[m.rng.IntN(len(services))]
	m.waitABit(300 * time.Millisecond) // so that a strike meets every moment of a commit
	switch n := m.rng.IntN(20); {
	case n < 12 || m.done+1 == *randomKills:
		m.kill(svc)
		return "kill -9 " + svc, true
	case n < 14:
		other := services[m.rng.IntN(len(services))]
		m.done++
		require.NoError(m.t, m.procs[svc].Process.Kill())
		if other != svc {
			m.kill(other)
			m.waitABit(time.Second)
		}
		_ = m.procs[svc].Wait()
		m.start(svc)
		return "kill -9 of " + svc + " and " + other, false
	case n < 16:
		m.signal(svc, syscall.SIGSTOP)
		m.waitABit(3 * time.Second)
		if m.rng.IntN(2) == 0 {
			m.kill(services[(m.rng.IntN(3)+index(svc)+1)%len(services)])
		}
		m.signal(svc, syscall.SIGCONT)
		return svc + " frozen, and perhaps another killed", false
	default:
		name := m.names[m.rng.IntN(len(m.names))]
		l := m.links[name]
		how := ""
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
		l.Heal()
		return "link to " + name + " " + how + ", kill -9 " + svc, false
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
