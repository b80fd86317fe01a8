// Package boot is what every main shares: reading the configuration, logs,
// metrics and health, clients with the right codec, the life cycle, and one
// place that turns an error into an exit code.
package boot

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"google.golang.org/grpc"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

// Process is what the services in one process share. Close it last.
type Process struct {
	Config   *config.Config
	Instance string // for people: host and pid
	Log      *slog.Logger
	Metrics  *obs.Metrics
	Health   *obs.Health
	Group    *run.Group

	metricsServer *obs.Server
}

// Open prepares a process: logger on logs, metrics, health, and the HTTP server
// for them where node.metrics says so.
func Open(ctx context.Context, c *config.Config, logs io.Writer) (*Process, error) {
	log, err := obs.NewLogger(logs, c.Node.LogFormat, c.Node.LogLevel)
	if err != nil {
		return nil, run.WithCode(run.BadConfig, err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	p := &Process{
		Config: c, Instance: fmt.Sprintf("%s/%d", host, os.Getpid()), Log: log,
		Metrics: obs.NewMetrics(nil).WithProcess(Version()), Group: run.NewGroup(run.Options{Log: log}),
	}
	p.Health = obs.NewHealth(p.Metrics)
	if c.Node.Metrics != "" {
		if p.metricsServer, err = obs.Listen(ctx, c.Node.Metrics, p.Metrics, p.Health, log); err != nil {
			return nil, run.WithCode(run.BadConfig, err)
		}
		p.Group.Add("metrics server", p.metricsServer.Run)
	}
	return p, nil
}

// MetricsAddress is where /metrics and /readyz are served; empty when nowhere.
func (p *Process) MetricsAddress() string {
	if p.metricsServer == nil {
		return ""
	}
	return p.metricsServer.Address()
}

// Dial returns a client with the codec, limits and typed errors of Icestream.
// It does not connect yet.
func Dial(address string, maxMessage int) (*grpc.ClientConn, error) {
	return rpc.Dial(address, rpc.Options{
		Service: "cli", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus, MaxMessage: maxMessage,
	})
}

// Main is the main function of a service binary: flags, configuration, life
// cycle. build makes the service and adds its actors and drain phases to
// p.Group. The process gathers so many bytes of garbage between two collections.
// Main returns the exit code.
func Main(name string, headroom uint64, build func(ctx context.Context, p *Process) error) run.Code {
	ctx, stop := run.Signals(context.Background())
	defer stop()
	Tune(headroom)
	err := serve(ctx, name, os.Args[1:], build)
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", name, fault.Describe(err))
	}
	return run.CodeOf(err)
}

func serve(ctx context.Context, name string, args []string, build func(context.Context, *Process) error) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	path := flags.String("config", os.Getenv(config.EnvFile), "configuration file (default from "+config.EnvFile+")")
	version := flags.Bool("version", false, "print the version and end")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil // the flags are printed already
	}
	if err != nil {
		return run.WithCode(run.CannotTell, err)
	}
	if *version {
		_, err := fmt.Fprintln(os.Stdout, name, Version())
		return err
	}
	c, warnings, err := config.Load(*path, os.Environ(), nil)
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	p, err := Open(ctx, c, os.Stderr)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		p.Log.Warn("configuration", "warning", fmt.Sprint(w))
	}
	p.FollowLoad()
	p.Log.Info("starting", "service", name, "version", Version(), "config", *path)
	if err := build(ctx, p); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return p.Group.Run(ctx)
}
