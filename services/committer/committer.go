// Package committer is the service that owns the lake: it creates tables and
// evolves their schemas, follows the table logs, writes data files as rows
// arrive, and commits them with the positions they stand for. Nobody else writes
// the tables.
package committer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/lake"
	"github.com/icestream/icestream/services/committer/internal/server"
)

// Deps are what a process gives its services. All but Resolver may be nil.
type Deps struct {
	Log      *slog.Logger
	Metrics  *obs.Metrics
	Health   *obs.Health
	Resolver discovery.Resolver
	Network  rpc.Network // in place of the machine's
}

// Service is a running committer. Its methods are safe for concurrent use.
type Service struct {
	cfg    Config
	d      Deps
	lake   *lake.Lake
	hub    *server.Hub
	server *rpc.Server
	conns  *rpc.Pool
	self   *obs.Component
}

// Defs returns the metrics of the service.
func Defs() []obs.Def { return server.Defs() }

// New checks the configuration and opens the listen address. Peers are not
// contacted before Run, and need not be there.
func New(ctx context.Context, cfg Config, d Deps) (*Service, error) {
	if err := cfg.normal(); err != nil {
		return nil, err
	}
	if d.Resolver == nil {
		return nil, errors.New("making the committer service: no resolver was given")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Health == nil {
		d.Health = obs.NewHealth(d.Metrics)
	}
	d.Log = d.Log.With("service", "committer")
	s := &Service{cfg: cfg, d: d}
	catalog := lakeConfig(cfg.Settings.Catalog)
	catalog.HTTP = d.Network.HTTP
	var err error
	if s.lake, err = lake.Open(ctx, catalog, d.Log); err != nil {
		return nil, err
	}
	options := rpc.Options{
		Service: "committer", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus,
		MaxMessage: cfg.Settings.Limits.MaxMessage(), Metrics: d.Metrics, Log: d.Log, Network: d.Network,
	}
	if s.server, err = rpc.Listen(ctx, cfg.Settings.Services.Committer.Listen, options); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; set services.committer.listen to a free address", err), s.lake.Close())
	}
	s.conns = rpc.NewPool(options)
	o := cfg.hubOptions()
	o.Lake, o.Resolve, o.Dial, o.Health, o.Metrics, o.Log = s.lake, d.Resolver, s.conns, d.Health, d.Metrics, d.Log
	s.hub = server.New(o)
	s.hub.Register(s.server.Registrar())
	s.self = d.Health.Component("committer/service")
	s.self.NotReady("starting")
	return s, nil
}

// Addr is the address of the gRPC server, with the port that was chosen where it
// was 0.
func (s *Service) Addr() string { return s.server.Address() }

// Run works until ctx ends, and then drains: show not ready, take no more calls,
// commit what is held, stop. The drain is bounded by Config.Drain; what is not
// committed by then is hot in the buffer and comes again.
func (s *Service) Run(ctx context.Context) error {
	g := run.NewGroup(run.Options{Log: s.d.Log, Drain: s.cfg.Drain + 5*time.Second})
	g.Add("tables", s.hub.Run)
	g.Add("grpc server", s.server.Run)
	g.Add("grpc health", func(ctx context.Context) error {
		return s.server.FollowHealth(ctx, s.d.Health, "committer")
	})
	g.OnStop("not ready", func(context.Context) error {
		s.self.NotReady("shutting down")
		return nil
	})
	g.OnStop("take no more calls", func(ctx context.Context) error {
		calls, cancel := context.WithTimeout(ctx, s.cfg.Drain/6)
		defer cancel()
		return s.server.Drain(calls)
	})
	g.OnStop("commit what is held", s.hub.Drain)
	s.self.Ready()
	err := g.Run(ctx)
	return errors.Join(err, s.conns.Close(), s.lake.Close())
}
