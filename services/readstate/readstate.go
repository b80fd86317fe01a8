package readstate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/readstate/internal/cold"
	"github.com/icestream/icestream/services/readstate/internal/replica"
	"github.com/icestream/icestream/services/readstate/internal/server"
)

// Deps are what a process gives its services. All but Resolver may be nil.
type Deps struct {
	Log      *slog.Logger
	Metrics  *obs.Metrics
	Health   *obs.Health
	Resolver discovery.Resolver
	Network  rpc.Network // in place of the machine's
}

// Service is a readstate. Its methods are safe for concurrent use.
type Service struct {
	cfg     Config
	d       Deps
	rpc     *rpc.Server
	api     *readapi.Server
	replica *replica.Replica
	conns   *rpc.Pool
}

// Defs returns the metrics of the service.
func Defs() []obs.Def { return append(replica.Defs(), server.Defs()...) }

// New checks the configuration and opens the listen address. Peers are not
// contacted before Run, and need not be there.
func New(ctx context.Context, cfg Config, d Deps) (*Service, error) {
	if err := cfg.normal(); err != nil {
		return nil, err
	}
	if d.Resolver == nil {
		return nil, errors.New("making the readstate service: no resolver was given")
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Health == nil {
		d.Health = obs.NewHealth(d.Metrics)
	}
	d.Log = d.Log.With("service", server.Service)
	o := rpc.Options{
		Service: server.Service, Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus,
		MaxMessage: cfg.Settings.Limits.MaxMessage(), Metrics: d.Metrics, Log: d.Log, Network: d.Network,
	}
	s := &Service{cfg: cfg, d: d, conns: rpc.NewPool(o)}
	s.replica = replica.New(replica.Config{
		Instance: cfg.Instance, Resolver: d.Resolver, Dial: s.dial, Pins: func(table string) (int64, int64) { return s.api.Pins(table) },
		Poll: cfg.Poll, PinEvery: cfg.PinEvery, Health: d.Health, Metrics: d.Metrics, Log: d.Log,
	})
	s.api = readapi.New(readapi.Options{
		Tables: s.replica, Cold: cold.New(cfg.cold(), d.Log), MaxLease: cfg.Settings.Reads.MaxLease,
		LeaseBytes: int64(cfg.Settings.Limits.HotBytes), Meter: server.Meter{Metrics: d.Metrics}, Log: d.Log,
	})
	var err error
	if s.rpc, err = rpc.Listen(ctx, cfg.Settings.Services.Readstate.Listen, o); err != nil {
		return nil, fmt.Errorf("%w; set services.readstate.listen to a free address", err)
	}
	readstatev1.RegisterReadStateServiceServer(s.rpc.Registrar(), s.api)
	adminv1.RegisterAdminServiceServer(s.rpc.Registrar(), &server.Admin{
		Instance: cfg.Instance, Version: cfg.Version, Started: time.Now(), Health: d.Health, Facts: s.replica.Facts,
	})
	return s, nil
}

// Addr is the address of the gRPC server, with the port that was chosen where it
// was 0.
func (s *Service) Addr() string { return s.rpc.Address() }

// Run works until ctx ends, and then drains: end tails and leases, answer the
// calls in progress, stop following. Readers go on elsewhere with their tokens.
func (s *Service) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	failed := make(chan error, 3)
	start := func(name string, fn func(context.Context) error) {
		wg.Go(func() {
			if err := fn(work); err != nil && work.Err() == nil {
				failed <- fmt.Errorf("running %s: %w", name, err)
			}
		})
	}
	start("the gRPC server of readstate", s.rpc.Run)
	start("the health of readstate", func(ctx context.Context) error {
		return s.rpc.FollowHealth(ctx, s.d.Health, server.Service, readstatev1.ReadStateService_ServiceDesc.ServiceName,
			adminv1.AdminService_ServiceDesc.ServiceName)
	})
	start("the replica", s.replica.Run)
	s.d.Log.Info("readstate runs", "address", s.Addr())
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.api.Close()
	err = errors.Join(err, s.drain(context.WithoutCancel(ctx)))
	stop()
	wg.Wait()
	return errors.Join(err, s.conns.Close())
}

func (s *Service) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Drain)
	defer cancel()
	return s.rpc.Drain(ctx)
}

// dial implements what the replica needs of the pool.
func (s *Service) dial(address string) (grpc.ClientConnInterface, error) {
	return s.conns.Conn(address)
}
