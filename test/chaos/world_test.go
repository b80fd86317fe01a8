//go:build synctests

package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
	"github.com/icestream/icestream/services/readstate"
)

const (
	topic      = "orders"
	group      = "icestream.orders"
	namespace  = "shop"
	tableName  = "orders"
	tablePath  = namespace + "." + tableName
	partitions = 3
	broker     = "kafka:9092"

	longestRepeat = 10 * time.Second

	// keptLines of the services' logs are there when a seed fails.
	keptLines = 20_000
)

// roles in the order in which they are ended and started.
var roles = []discovery.Role{discovery.Ingest, discovery.Committer, discovery.Readstate, discovery.Buffer}

// sides are the two places that every service has.
var sides = []string{"a", "b"}

// world is one suite with its peers, in a bubble. Its fields are the driver's, except for those under mu.
type world struct {
	ctx     context.Context
	seed    uint64
	dir     string
	rng     *rand.Rand
	plan    plan
	fabric  *fabric
	kafka   *kfake.Cluster
	lake    *catalog.Server
	sea     *sea
	client  *kgo.Client
	admin   *kadm.Client
	conns   *rpc.Pool
	slots   map[string]*slot
	book    *book
	log     *slog.Logger
	logs    *lines
	rev     int            // of the pipeline's settings
	late    sync.WaitGroup // of what happens on its own
	joining time.Time      // since when the group has been seen to wait for members; zero: it does not

	mu      sync.Mutex
	chaos   bool
	hooks   *rand.Rand // decides at step points
	owner   map[discovery.Role]string
	dying   []*node
	trace   []string
	broken  error
	reached map[string]int // step points and faults
}

// slot is the place of one instance of a service; it comes back after it was killed.
type slot struct {
	name string
	role discovery.Role
	side string
	fs   *file.Mem // of a buffer, under world.mu
	old  *oldDisk  // an older state of it
	node *node     // nil while it does not run, under world.mu
	gen  int
	// shadowed says that another committer ran beside this one, started later or still on its way to take the table over,
	// and may have fenced it: it stops then, until somebody restarts it.
	shadowed bool
	// diskDown says that an error of the disk ended what ran here, or kept it from starting: a supervisor starts it again.
	diskDown bool // under world.mu
}

// oldDisk is a copy of a journal and what the world was like then.
type oldDisk struct {
	fs   *file.Mem
	log  int64
	ends [partitions]int64
}

// node is one running instance.
type node struct {
	name   string
	slot   *slot
	cancel context.CancelFunc
	ended  chan error
}

func newWorld(ctx context.Context, seed uint64, dir string) (*world, error) {
	w := &world{
		ctx: ctx, seed: seed, dir: dir, rng: rand.New(rand.NewPCG(seed, 1)), hooks: rand.New(rand.NewPCG(seed, 3)), slots: map[string]*slot{},
		owner: map[discovery.Role]string{}, logs: &lines{}, reached: map[string]int{},
	}
	w.plan = newPlan(rand.New(rand.NewPCG(seed, 4)))
	w.log = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	w.fabric = newFabric(rand.New(rand.NewPCG(seed, 2)), w.plan.lag)
	w.book = newBook(w)
	var err error
	w.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic),
		kfake.ListenFn(func(string, string) (net.Listener, error) { return w.fabric.listenOn("kafka", broker) }))
	if err != nil {
		return nil, err
	}
	if w.lake, err = catalog.Open(ctx, catalog.Config{Dir: dir, Logger: w.log}); err != nil {
		return nil, err
	}
	w.sea = newSea(w, w.lake.Handler())
	w.client, err = kgo.NewClient(kgo.SeedBrokers(broker), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.TransactionalID("producer"), kgo.Dialer(w.dialKafka("producer")))
	if err != nil {
		return nil, err
	}
	w.admin = kadm.NewClient(w.client)
	w.conns = rpc.NewPool(rpc.Options{
		Service: "reader", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus, Network: w.network(&node{name: "reader"}),
	})
	for _, role := range roles {
		w.owner[role] = "a"
		for _, side := range sides {
			s := &slot{name: string(role) + "-" + side, role: role, side: side, fs: file.NewMem()}
			w.slots[s.name] = s
		}
	}
	w.chaos = true
	return w, nil
}

// pipelineText is the configuration of a revision: what is invalid and what has no value is treated otherwise.
func (w *world) pipelineText(rev int) string {
	invalid, tombstones := "quarantine", "skip"
	if rev%2 == 1 {
		tombstones = "row"
	}
	if w.plan.skips && rev%3 == 1 {
		invalid = "skip"
	}
	columns := "id long, v string"
	if rev >= 2 {
		columns += ", extra string"
	}
	return fmt.Sprintf(`deployment: test
limits: { hot.bytes: 8MiB, ingest.bytes: 8MiB, committer.bytes: 8MiB, record.max: 64KiB, batch.bytes: %s }
defaults: { commit: { interval: %s }, on_invalid: %s, tombstones: %s }
pipelines:
  - { name: orders, topics: [orders], table: shop.orders, format: json, columns: %q }
`, w.plan.batch, w.plan.interval, invalid, tombstones, columns)
}

func (w *world) settings(s *slot) (*config.Config, error) {
	c, _, err := config.Parse("chaos", []byte(w.pipelineText(w.rev)), nil, []config.Override{
		{Path: "node.data_dir", Value: filepath.Join(w.dir, s.name)},
		{Path: "services." + string(s.role) + ".listen", Value: s.address()},
		{Path: "kafka.bootstrap.servers", Value: broker},
		{Path: "kafka.session.timeout", Value: "6s"},
		{Path: "kafka.client.id", Value: fmt.Sprintf("%s.%d", s.name, s.gen)},
		{Path: "catalog.uri", Value: "http://catalog:1"},
		{Path: "catalog.warehouse", Value: "file://" + filepath.Join(w.dir, "warehouse")},
	})
	return c, err
}

func (s *slot) address() string { return s.name + ":1" }

func (w *world) dialKafka(name string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, host string) (net.Conn, error) { return w.fabric.dial(ctx, name, host) }
}

// network is what a node sees of the world.
func (w *world) network(n *node) rpc.Network {
	return rpc.Network{
		Listen: func(_ context.Context, address string) (net.Listener, error) {
			return w.fabric.listenOn(n.name, address)
		},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return w.fabric.dial(ctx, n.name, address)
		},
		Call: w.call(n),
		HTTP: &way{w.sea, n},
	}
}

// call lets a node die before or after a unary call, and sends some calls again, late.
func (w *world) call(n *node) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		name := method[strings.LastIndexByte(method, '/')+1:]
		if err := w.step(n, "before "+name); err != nil {
			return err
		}
		if w.again(name) {
			w.late.Go(func() { w.repeat(n, method, req, reply, cc, invoke) })
		}
		err := invoke(ctx, method, req, reply, cc, opts...)
		if dead := w.step(n, "after "+name); dead != nil {
			return dead
		}
		return err
	}
}

// again draws whether a call to a table log is sent once more, late.
func (w *world) again(name string) bool {
	switch name {
	case "OpenTable", "PublishSchema", "GrantEpoch", "ReportCommit":
	default:
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chaos && w.hooks.Float64() < w.plan.again
}

// repeat sends a call again when others have been made since.
func (w *world) repeat(n *node, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker) {
	w.mu.Lock()
	d := time.Duration(w.hooks.Int64N(int64(longestRepeat)))
	w.mu.Unlock()
	time.Sleep(d) //nolint:forbidigo // virtual time
	if !w.inChaos() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 10*time.Second)
	defer cancel()
	answer := reflect.New(reflect.TypeOf(reply).Elem()).Interface()
	err := invoke(ctx, method, req, answer, cc)
	w.say("%s of %s again, %v late: %v", method, n.name, d, err)
}

// step is a named point between two steps of a node, at which it may be killed.
func (w *world) step(n *node, point string) error {
	if n.slot == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.chaos || w.plan.killAt == 0 || n.slot.node != n || w.hooks.Float64() >= w.plan.killAt {
		return nil
	}
	w.killLocked(n.slot, false, "at "+point)
	return errCut
}

// Owner implements discovery.Resolver: the address of who should act, which is sometimes out of date.
func (w *world) Owner(_ context.Context, _ string, role discovery.Role) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	side := w.owner[role]
	if w.chaos && w.hooks.Float64() < w.plan.stale {
		side = sides[w.hooks.IntN(len(sides))]
	}
	return string(role) + "-" + side + ":1", nil
}

// Instances implements discovery.Resolver.
func (w *world) Instances(ctx context.Context, role discovery.Role) ([]string, error) {
	a, err := w.Owner(ctx, "", role)
	return []string{a}, err
}

// start starts the service of a slot. The drain is as short as can be, since nothing ends orderly here.
func (w *world) start(s *slot) error {
	s.gen++
	c, err := w.settings(s)
	if err != nil {
		return err
	}
	n := &node{name: fmt.Sprintf("%s.%d", s.name, s.gen), slot: s, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.ctx))
	n.cancel = cancel
	run, err := w.build(ctx, n, c)
	if err != nil {
		cancel()
		w.fabric.set(n.name, func(st *nodeState) { st.dead = true })
		if ofDisk(err) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note("%s does not start: %v", n.name, err)
			s.diskDown, s.fs = true, s.fs.Crash(true, nil)
			return nil
		}
		return fmt.Errorf("starting %s: %w", n.name, err)
	}
	w.mu.Lock()
	s.node, s.shadowed, s.diskDown = n, false, false
	if s.role == discovery.Committer {
		for _, other := range w.slots {
			if other.role == s.role && other != s {
				other.shadowed, s.shadowed = true, s.shadowed || other.node != nil
			}
		}
	}
	w.note("start %s", n.name)
	w.mu.Unlock()
	go func() {
		err := run(ctx)
		w.mu.Lock()
		if s.node == n { // it ended by itself, as after an error of its disk
			w.note("%s ended by itself: %v", n.name, err)
			w.killLocked(s, false, "because it ended")
			s.diskDown = ofDisk(err)
		}
		w.mu.Unlock()
		n.ended <- err
	}()
	return nil
}

func (w *world) build(ctx context.Context, n *node, c *config.Config) (func(context.Context) error, error) {
	const drain = 5 * time.Millisecond
	log, network := w.log.With("node", n.name), w.network(n)
	metrics := obs.NewMetrics(nil)
	switch n.slot.role {
	case discovery.Buffer:
		fs := n.slot.fs
		fs.Before(w.disk(n, fs))
		v, err := buffer.New(ctx, buffer.Config{Settings: c, Instance: n.name, Drain: drain},
			buffer.Deps{Log: log, Metrics: metrics, Resolver: w, Network: network, FS: fs})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	case discovery.Readstate:
		v, err := readstate.New(ctx, readstate.Config{Settings: c, Instance: n.name, Drain: drain},
			readstate.Deps{Log: log, Metrics: metrics, Resolver: w, Network: network})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	case discovery.Committer:
		v, err := committer.New(ctx, committer.Config{Settings: c, Instance: n.name, Drain: drain, Poll: 5 * time.Second, Expire: w.plan.expire, Keep: w.plan.keep},
			committer.Deps{Log: log, Metrics: metrics, Resolver: w, Network: network})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	default:
		v, err := ingest.New(ctx, ingest.Config{Settings: c, Instance: n.name, Drain: drain, Refresh: time.Second},
			ingest.Deps{Log: log, Metrics: metrics, Resolver: w, Network: network, DialKafka: w.dialKafka(n.name)})
		if err != nil {
			return nil, err
		}
		return v.Run, nil
	}
}

// killLocked ends an instance as kill -9 does, as far as anybody else can see; w.mu is held. torn also loses what the
// disk had not been told to keep, in part.
func (w *world) killLocked(s *slot, torn bool, why string) {
	n := s.node
	if n == nil {
		return
	}
	s.node = nil
	w.note("kill %s %s", n.name, why)
	w.fabric.set(n.name, func(st *nodeState) { st.dead = true })
	n.cancel()
	w.dying = append(w.dying, n)
	if s.role != discovery.Buffer {
		return
	}
	keep := func(_ string, synced, written []byte) []byte {
		if torn && len(written) > len(synced) {
			return written[:len(synced)+w.hooks.IntN(len(written)-len(synced)+1)]
		}
		return synced
	}
	s.fs = s.fs.Crash(true, keep)
}

// kill ends an instance from the driver.
func (w *world) kill(s *slot, torn bool, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killLocked(s, torn, why)
}

// reap waits for what has been killed, so that its memory is given back.
func (w *world) reap() error {
	w.mu.Lock()
	list := w.dying
	w.dying = nil
	w.mu.Unlock()
	for _, n := range list {
		select {
		case <-n.ended:
		case <-time.After(10 * time.Minute):
			return fmt.Errorf("%s does not end after it was killed", n.name)
		}
	}
	return nil
}

// running returns the slots that run, or do not, by role; "" is any.
func (w *world) running(role discovery.Role, want bool) []*slot {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*slot
	for _, s := range w.slots {
		if (role == "" || s.role == role) && (s.node != nil) == want {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *slot) int { return strings.Compare(a.name, b.name) })
	return out
}

// note adds an event to the trace; w.mu is held.
func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%s %s", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

// violate keeps the first violation.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := fmt.Errorf(format, args...)
	w.note("VIOLATION %v", err)
	if w.broken == nil {
		w.broken = err
	}
}

func (w *world) violation() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

func (w *world) inChaos() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chaos
}

// close ends everything.
func (w *world) close() error {
	w.mu.Lock()
	w.chaos = false
	w.mu.Unlock()
	for _, s := range w.running("", true) {
		w.fabric.set(s.node.name, func(st *nodeState) { st.frozen = false })
		w.kill(s, false, "at the end")
	}
	err := w.reap()
	w.sea.drain(false)
	w.late.Wait()
	_ = w.conns.Close()
	w.client.Close()
	w.kafka.Close()
	return errors.Join(err, w.lake.Close(), os.RemoveAll(w.dir))
}

// transport of somebody who is no part of the suite and meets no faults.
func (w *world) plainHTTP() http.RoundTripper { return &way{w.sea, &node{name: "somebody"}} }

// refusal reports whether an error is an answer: typed, and no sign of a fault of ours.
func refusal(err error) bool {
	r := fault.ReasonOf(err)
	return r != fault.Internal && r != fault.Unspecified && r != fault.Corrupt || errors.Is(err, context.DeadlineExceeded)
}

// lines keeps the end of a log.
type lines struct {
	mu  sync.Mutex
	buf []string
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, string(p))
	if len(l.buf) > 2*keptLines {
		l.buf = slices.Delete(l.buf, 0, keptLines)
	}
	return len(p), nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.buf, "")
}
