package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
	"github.com/icestream/icestream/services/ingest/internal/pipeline"
	"github.com/icestream/icestream/services/ingest/internal/server"
)

// messageSlack is what a message needs beside its batches.
const messageSlack = 256 << 10

// Deps are what a process gives its services. All but Resolver may be nil.
type Deps struct {
	Log      *slog.Logger
	Metrics  *obs.Metrics
	Health   *obs.Health
	Resolver discovery.Resolver
	Network  rpc.Network // in place of the machine's
	// DialKafka replaces the network to Kafka, in tests.
	DialKafka func(ctx context.Context, network, host string) (net.Conn, error)
}

// Service is a running ingest. Its methods are safe for concurrent use.
type Service struct {
	cfg       Config
	d         Deps
	server    *rpc.Server
	conns     *connections
	pipelines []*pipeline.Pipeline
	self      *obs.Component
}

// Defs returns the metrics of the service.
func Defs() []obs.Def { return pipeline.Defs() }

// New checks the configuration and opens the listen address. Peers are not contacted before Run, and need not be
// there.
func New(ctx context.Context, cfg Config, d Deps) (*Service, error) {
	if err := cfg.normal(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Health == nil {
		d.Health = obs.NewHealth(d.Metrics)
	}
	d.Log = d.Log.With("service", "ingest")
	s := &Service{cfg: cfg, d: d, conns: newConnections(d, cfg)}
	schemas, err := cfg.newRegistry()
	if err != nil {
		return nil, err
	}
	for i := range cfg.Settings.Pipelines {
		pc, err := s.pipelineConfig(i, schemas)
		if err == nil {
			pc.Codec, err = codec(&cfg.Settings.Pipelines[i], schemas)
		}
		if err == nil {
			pc.Key, err = keyCodec(&cfg.Settings.Pipelines[i], schemas)
		}
		if err != nil {
			return nil, err
		}
		p, err := pipeline.New(pc)
		if err != nil {
			return nil, err
		}
		s.pipelines = append(s.pipelines, p)
	}
	s.server, err = rpc.Listen(ctx, cfg.Settings.Services.Ingest.Listen, s.conns.options)
	if err != nil {
		return nil, fmt.Errorf("%w; set services.ingest.listen to a free address", err)
	}
	s.self = d.Health.Component("ingest/service")
	s.self.NotReady("starting")
	admin := &server.Admin{
		Instance: cfg.Instance, Version: cfg.Version, Started: time.Now(), Health: d.Health, Pipelines: map[string]*pipeline.Pipeline{},
	}
	for _, p := range s.pipelines {
		admin.Pipelines[p.Name()] = p
	}
	adminv1.RegisterAdminServiceServer(s.server.Registrar(), admin)
	ingestv1.RegisterDecodeServiceServer(s.server.Registrar(), &server.Decode{Pipelines: admin.Pipelines})
	return s, nil
}

// pipelineConfig shares the budget of ingest.bytes: half of a pipeline's share is for what was fetched, a quarter for
// entries that are being filled or wait for the log's credit, and a quarter for those on their way to it.
func (s *Service) pipelineConfig(i int, schemas *registry.Client) (pipeline.Config, error) {
	set := s.cfg.Settings
	p := &set.Pipelines[i]
	decoder := decoderOf(p, schemas)
	log := s.d.Log.With("pipeline", p.Name)
	share := int64(set.Limits.IngestBytes) / int64(len(set.Pipelines))
	src, err := s.cfg.sourceConfig(p, share/2, log)
	if err != nil {
		return pipeline.Config{}, err
	}
	src.Dial, src.Seats = s.d.DialKafka, filepath.Join(set.Node.DataDir, "ingest")
	component := s.d.Health.Component("ingest/pipeline/" + p.Name)
	component.NotReady("starting")
	message := int64(set.Limits.MaxMessage()) - messageSlack
	return pipeline.Config{
		Pipeline: *p, Deployment: set.Deployment, Instance: s.cfg.Instance, Revision: set.Revision(p, decoder),
		Source: src, BatchBytes: min(int64(set.Limits.BatchBytes), message/2), RecordMax: int64(set.Limits.RecordMax),
		RevisionOf: func(policy string) uint64 {
			switched := *p
			switched.OnInvalid = policy
			return set.Revision(&switched, decoder)
		},
		MessageMax: message, Entries: share / 4, Window: share / 4,
		Committer: func(ctx context.Context, table string) (grpc.ClientConnInterface, error) {
			conn, _, err := s.conns.owner(ctx, table, discovery.Committer)
			return conn, err
		},
		Buffer: func(ctx context.Context, table, addr string) (conn grpc.ClientConnInterface, at string, err error) {
			if addr == "" {
				return s.conns.owner(ctx, table, discovery.Buffer)
			}
			conn, err = s.conns.pool.Conn(addr)
			return conn, addr, err
		},
		Moved: func(ctx context.Context, table, at string) string {
			return discovery.Moved(ctx, s.d.Resolver, table, discovery.Buffer, at)
		},
		Health: func(ready bool, reason string) {
			if ready {
				component.Ready()
				return
			}
			component.NotReady("%s", reason)
		},
		Metrics: s.d.Metrics, Log: log,
	}, nil
}

// Addr is the address of the gRPC server, with the port that was chosen where it was 0.
func (s *Service) Addr() string { return s.server.Address() }

// Run works until ctx ends, and then drains: stop fetching, send what is open, wait for the log's answers, commit
// offsets, leave the groups, close. The drain is bounded by Config.Drain; what is not answered by then is read again
// by the next owner.
func (s *Service) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	failed := make(chan error, len(s.pipelines)+2)
	start := func(name string, fn func(context.Context) error) {
		wg.Go(func() {
			if err := fn(work); err != nil && work.Err() == nil {
				failed <- fmt.Errorf("running %s: %w", name, err)
			}
		})
	}
	start("the gRPC server of ingest", s.server.Run)
	start("the health of ingest", func(ctx context.Context) error {
		return s.server.FollowHealth(ctx, s.d.Health, "ingest", adminv1.AdminService_ServiceDesc.ServiceName)
	})
	for _, p := range s.pipelines {
		start("pipeline "+p.Name(), p.Run)
	}
	s.self.Ready()
	s.d.Log.Info("ingest runs", "address", s.Addr(), "pipelines", len(s.pipelines))
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.self.NotReady("draining")
	err = errors.Join(err, s.drain(context.WithoutCancel(ctx)))
	stop()
	wg.Wait()
	return errors.Join(err, s.conns.pool.Close())
}

func (s *Service) drain(ctx context.Context) error {
	calls, cancelCalls := context.WithTimeout(ctx, s.cfg.Drain)
	defer cancelCalls()
	// A log that takes nothing, as in an outage of the catalog, must not use up the time of the calls as well.
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Drain-s.cfg.Drain/6)
	defer cancel()
	errs := make([]error, len(s.pipelines))
	var wg sync.WaitGroup
	for i, p := range s.pipelines {
		wg.Go(func() { errs[i] = p.Drain(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			s.d.Log.Warn("draining", "error", err)
		}
	}
	return s.server.Drain(calls)
}

// connections finds the owners of tables and connects to them.
type connections struct {
	resolver discovery.Resolver
	options  rpc.Options
	pool     *rpc.Pool
}

func newConnections(d Deps, cfg Config) *connections {
	o := rpc.Options{
		Service: "ingest", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus,
		MaxMessage: cfg.Settings.Limits.MaxMessage(), Metrics: d.Metrics, Log: d.Log, Network: d.Network,
	}
	return &connections{resolver: d.Resolver, options: o, pool: rpc.NewPool(o)}
}

// owner returns a connection to the owner of a table, and its address.
func (c *connections) owner(ctx context.Context, table string, role discovery.Role) (conn grpc.ClientConnInterface, at string, err error) {
	if at, err = c.resolver.Owner(ctx, table, role); err != nil {
		return nil, "", err
	}
	conn, err = c.pool.Conn(at)
	return conn, at, err
}
