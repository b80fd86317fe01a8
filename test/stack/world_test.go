package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/devpeers/kafka"
	"github.com/icestream/icestream/internal/devpeers/registry"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/testkit"
	"github.com/icestream/icestream/services/buffer"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
	"github.com/icestream/icestream/services/readstate"
)

// soak makes the outage of the catalog as long as in production.
var soak = flag.Bool("soak", false, "run the outages at full length")

// patience bounds every wait of a test. It is far above what is needed on a busy machine.
const patience = 30 * time.Second

// roles in the order in which a stack starts.
var roles = []discovery.Role{discovery.Buffer, discovery.Readstate, discovery.Committer, discovery.Ingest}

// world is one suite with its peers.
type world struct {
	t        *testing.T
	dir      string
	ports    struct{ kafka, registry, catalog int }
	kafka    *kafka.Broker
	registry *registry.Server
	catalog  *catalog.Server
	settings *config.Config
	at       discovery.Static
	nodes    map[discovery.Role]*node
	log      *slog.Logger
	logs     *tail
	otherLog bool          // the log is not that of the table any more: verify does not look at it
	abrupt   bool          // services that start now do not drain when they end
	fs       file.FS       // of the buffer's journal
	redAfter time.Duration // of the committer; 0 is its default
}

// node is one running service.
type node struct {
	health  *obs.Health
	metrics *obs.Metrics
	cancel  context.CancelFunc
	ended   chan error
	abrupt  bool // it does not drain when it ends
}

// newWorld starts the peers; the services are started by start.
func newWorld(t *testing.T, text string, overrides ...config.Override) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), at: discovery.Static{}, nodes: map[discovery.Role]*node{}, logs: &tail{}}
	w.log = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	w.ports.kafka, w.ports.registry, w.ports.catalog = testkit.FreePort(t), testkit.FreePort(t), testkit.FreePort(t)
	for _, r := range roles {
		w.at[r] = local(testkit.FreePort(t))
	}
	t.Cleanup(w.close)
	w.startKafka()
	w.startRegistry()
	w.startCatalog()
	w.configure(text, overrides...)
	return w
}

// configure reads the pipelines and points them at the peers.
func (w *world) configure(text string, overrides ...config.Override) {
	w.t.Helper()
	base := []config.Override{
		{Path: "node.data_dir", Value: filepath.Join(w.dir, "data")},
		{Path: "services.ingest.listen", Value: w.at[discovery.Ingest]},
		{Path: "services.buffer.listen", Value: w.at[discovery.Buffer]},
		{Path: "services.committer.listen", Value: w.at[discovery.Committer]},
		{Path: "services.readstate.listen", Value: w.at[discovery.Readstate]},
		{Path: "kafka.bootstrap.servers", Value: local(w.ports.kafka)},
		{Path: "kafka.session.timeout", Value: "6s"},
		{Path: "registry.url", Value: "http://" + local(w.ports.registry)},
		{Path: "catalog.uri", Value: "http://" + local(w.ports.catalog)},
		{Path: "catalog.warehouse", Value: "file://" + filepath.Join(w.dir, "warehouse")},
	}
	c, _, err := config.Parse("test", []byte(text), nil, append(base, overrides...))
	require.NoError(w.t, err)
	w.settings = c
}

func (w *world) startKafka() {
	w.t.Helper()
	var err error
	w.kafka, err = kafka.Start(kafka.Config{Dir: filepath.Join(w.dir, "kafka"), Port: w.ports.kafka})
	require.NoError(w.t, err)
}

func (w *world) startRegistry() {
	w.t.Helper()
	var err error
	w.registry, err = registry.Start(registry.Config{File: filepath.Join(w.dir, "registry.json"), Port: w.ports.registry})
	require.NoError(w.t, err)
}

func (w *world) startCatalog() {
	w.t.Helper()
	var err error
	w.catalog, err = catalog.Start(w.t.Context(), catalog.Config{Dir: w.dir, Port: w.ports.catalog, Logger: w.log})
	require.NoError(w.t, err)
}

func (w *world) stopKafka() {
	w.t.Helper()
	require.NoError(w.t, w.kafka.Close())
	w.kafka = nil
}

func (w *world) stopRegistry() {
	w.t.Helper()
	require.NoError(w.t, w.registry.Close())
	w.registry = nil
}

func (w *world) stopCatalog() {
	w.t.Helper()
	require.NoError(w.t, w.catalog.Close())
	w.catalog = nil
}

// start starts services, all when none is named.
func (w *world) start(which ...discovery.Role) {
	w.t.Helper()
	if len(which) == 0 {
		which = roles
	}
	for _, r := range which {
		require.Nil(w.t, w.nodes[r], "%s runs", r)
		w.nodes[r] = w.launch(r)
	}
}

// launch starts a service with the settings and addresses of now.
func (w *world) launch(r discovery.Role) *node {
	w.t.Helper()
	n := &node{metrics: obs.NewMetrics(nil), ended: make(chan error, 1), abrupt: w.abrupt}
	n.health = obs.NewHealth(n.metrics)
	var run func(context.Context) error
	w.eventually(func() (err error) { // one that ended abruptly may hold its lock for a moment
		run, err = w.build(r, n)
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go func() { n.ended <- run(ctx) }()
	return n
}

func (w *world) build(r discovery.Role, n *node) (func(context.Context) error, error) {
	ctx, s, at := w.t.Context(), w.settings, maps.Clone(w.at)
	drain := func(d time.Duration) time.Duration {
		switch {
		case !n.abrupt:
			return d
		case r == discovery.Buffer: // its journal holds a lock until it has ended
			return 300 * time.Millisecond
		default:
			return time.Millisecond
		}
	}
	log := w.log
	switch r {
	case discovery.Buffer:
		v, err := buffer.New(ctx, buffer.Config{Settings: s, Instance: "test", Drain: drain(5 * time.Second)},
			buffer.Deps{Log: log, Metrics: n.metrics, Health: n.health, Resolver: at, FS: w.fs})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	case discovery.Readstate:
		v, err := readstate.New(ctx, readstate.Config{Settings: s, Instance: "test", Drain: drain(5 * time.Second), Poll: 200 * time.Millisecond},
			readstate.Deps{Log: log, Metrics: n.metrics, Health: n.health, Resolver: at})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	case discovery.Committer:
		v, err := committer.New(ctx, committer.Config{Settings: s, Instance: "test", Drain: drain(15 * time.Second), RedAfter: w.redAfter},
			committer.Deps{Log: log, Metrics: n.metrics, Health: n.health, Resolver: at})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	default:
		v, err := ingest.New(ctx, ingest.Config{Settings: s, Instance: "test", Drain: drain(10 * time.Second), Refresh: time.Second},
			ingest.Deps{Log: log, Metrics: n.metrics, Health: n.health, Resolver: at})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	}
}

// stop ends services in order, as SIGTERM does.
func (w *world) stop(which ...discovery.Role) {
	w.t.Helper()
	if len(which) == 0 {
		which = []discovery.Role{discovery.Ingest, discovery.Committer, discovery.Readstate, discovery.Buffer}
	}
	for _, r := range which {
		n := w.nodes[r]
		if n == nil {
			continue
		}
		n.cancel()
		select {
		case err := <-n.ended:
			if !w.abrupt && !n.abrupt {
				require.NoError(w.t, err, "ending %s", r)
			}
		case <-time.After(patience):
			require.Fail(w.t, "a service does not end", "%s", r)
		}
		delete(w.nodes, r)
	}
}

// twin is another world over the same peers: same deployment, the pipeline of ordersText, with services, addresses and a data
// folder of its own. Nothing tells the two of each other.
func (w *world) twin(overrides ...config.Override) *world {
	w.t.Helper()
	v := &world{
		t: w.t, dir: w.t.TempDir(), ports: w.ports, kafka: w.kafka, registry: w.registry, catalog: w.catalog,
		at: discovery.Static{}, nodes: map[discovery.Role]*node{}, logs: w.logs, log: w.log.With("world", "twin"),
	}
	for _, r := range roles {
		v.at[r] = local(testkit.FreePort(w.t))
	}
	v.configure(ordersText, append([]config.Override{{Path: "catalog.warehouse", Value: w.settings.Catalog.Warehouse}}, overrides...)...)
	w.t.Cleanup(func() {
		v.catalog, v.registry, v.kafka = nil, nil, nil // the other one's
		v.close()
	})
	return v
}

func (w *world) restart(r discovery.Role) {
	w.t.Helper()
	w.stop(r)
	w.start(r)
}

func (w *world) close() {
	for _, r := range []discovery.Role{discovery.Ingest, discovery.Committer, discovery.Readstate, discovery.Buffer} {
		if n := w.nodes[r]; n != nil {
			n.cancel()
			select {
			case err := <-n.ended:
				if err != nil && !w.abrupt && !n.abrupt {
					w.t.Errorf("ending %s: %v", r, err)
				}
			case <-time.After(patience):
				w.t.Errorf("%s does not end", r)
			}
		}
	}
	if w.catalog != nil {
		_ = w.catalog.Close()
	}
	if w.registry != nil {
		_ = w.registry.Close()
	}
	if w.kafka != nil {
		_ = w.kafka.Close()
	}
	if path := os.Getenv("STACK_LOG"); path != "" {
		_ = os.WriteFile(path, w.logs.all(), 0o600)
	}
	if w.t.Failed() {
		w.t.Logf("warnings and errors:\n%s", w.logs.loud())
	}
}

// reasons are why a service is not ready, one a line; "" when it is.
func (w *world) reasons(r discovery.Role) string {
	n := w.nodes[r]
	if n == nil {
		return string(r) + " does not run"
	}
	var b strings.Builder
	for _, c := range n.health.Report("").Components {
		if !c.Ready {
			fmt.Fprintf(&b, "%s: %s\n", c.Name, c.Reason)
		}
	}
	return b.String()
}

// ready waits until services are ready, all when none is named.
func (w *world) ready(which ...discovery.Role) {
	w.t.Helper()
	if len(which) == 0 {
		which = roles
	}
	for _, r := range which {
		w.eventually(func() error {
			if why := w.reasons(r); why != "" {
				return fmt.Errorf("%s is not ready: %s", r, why)
			}
			return nil
		})
	}
}

// red waits until a service is not ready for a reason that holds all words.
func (w *world) red(r discovery.Role, words ...string) {
	w.t.Helper()
	w.eventually(func() error {
		why := w.reasons(r)
		for _, word := range words {
			if !strings.Contains(why, word) {
				return fmt.Errorf("%s is not ready for %q; looked for %q in it", r, why, word)
			}
		}
		return nil
	})
}

// eventually repeats check until it has no fault.
func (w *world) eventually(check func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			if os.Getenv("STACK_LOG") != "" {
				_ = pprof.Lookup("goroutine").WriteTo(w.logs, 1)
			}
			require.NoError(w.t, err, "after %v", patience)
		case <-tick.C:
		}
	}
}

// pause waits a while in which the world goes on.
func (w *world) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.t.Context().Done():
	}
}

// register puts a Protobuf schema under a subject and returns its id.
func (w *world) register(subject, text string) uint32 {
	w.t.Helper()
	body, err := json.Marshal(map[string]string{"schemaType": "PROTOBUF", "schema": text})
	require.NoError(w.t, err)
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://"+local(w.ports.registry)+"/subjects/"+subject+"/versions", bytes.NewReader(body))
	require.NoError(w.t, err)
	req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	require.NoError(w.t, err)
	require.Equal(w.t, http.StatusOK, res.StatusCode, "%s", answer)
	var id struct {
		ID uint32 `json:"id"`
	}
	require.NoError(w.t, json.Unmarshal(answer, &id))
	return id.ID
}

// client is a plain Kafka client whose records name their partition.
func (w *world) client() *kgo.Client {
	w.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(local(w.ports.kafka)), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(39<<20), kgo.MaxBufferedBytes(200<<20), kgo.ProducerLinger(0))
	require.NoError(w.t, err)
	w.t.Cleanup(cl.Close)
	return cl
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tail keeps the log of a world.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *tail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *tail) all() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.buf.Bytes())
}

// loud returns the last warnings and errors.
func (l *tail) loud() string {
	var lines []string
	for line := range strings.Lines(string(l.all())) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-60):], "")
}
