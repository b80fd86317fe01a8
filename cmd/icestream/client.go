package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/icestream/icestream/cmd/icestream/internal/dev"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
)

// target says which installation a command talks to.
type target struct {
	config string
	dir    string
	addr   string
	set    []string

	loaded *config.Config // kept, so that warnings come once
}

// flags adds the ways to name an installation.
func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.config, "config", "c", os.Getenv(config.EnvFile), "configuration file (default from "+config.EnvFile+")")
	cmd.Flags().StringVar(&t.dir, "dir", "", "folder of a run of icestream dev")
	cmd.Flags().StringVar(&t.addr, "addr", "", "address of the service (host:port, or unix:///folder/name.sock), instead of the configuration's")
	cmd.Flags().StringArrayVar(&t.set, "set", nil, "override a setting, as path=value")
}

// path is the configuration file.
func (t *target) path() string {
	if t.dir != "" {
		return filepath.Join(t.dir, dev.ConfigFile)
	}
	return t.config
}

// load reads the configuration that the flags name. Every complaint about it
// ends the command with the exit code for configuration.
func (t *target) load(cmd *cobra.Command) (*config.Config, error) {
	if t.loaded != nil {
		return t.loaded, nil
	}
	if t.dir != "" && cmd.Flags().Changed("config") {
		return nil, fault.New(fault.InvalidArgument, "--config %s and --dir %s are two installations: name one of them", t.config, t.dir)
	}
	path := t.path()
	if t.dir != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, fault.New(fault.NotFound, "%s is no folder of `icestream dev`: %w", t.dir, err)
		}
	}
	overrides := make([]config.Override, 0, len(t.set))
	for _, s := range t.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fault.New(fault.InvalidArgument, "--set %q: want path=value", s)
		}
		overrides = append(overrides, config.Override{Path: key, Value: value})
	}
	c, warnings, err := config.Load(path, os.Environ(), overrides)
	for _, w := range warnings {
		cmd.PrintErrln("warning:", w)
	}
	if err != nil {
		return c, run.WithCode(run.BadConfig, err)
	}
	t.loaded = c
	return c, nil
}

// file loads the configuration for a command that is nothing without one.
func (t *target) file(cmd *cobra.Command) (*config.Config, error) {
	if t.config == "" && t.dir == "" {
		return nil, run.WithCode(run.BadConfig, fault.New(fault.InvalidArgument,
			"no configuration is named: give one with -c FILE or %s, or a folder of `icestream dev` with --dir", config.EnvFile))
	}
	return t.load(cmd)
}

// dial connects to the service whose address pick takes from the configuration.
func (t *target) dial(cmd *cobra.Command, pick func(config.Discovery) string) (*grpc.ClientConn, error) {
	addr := t.addr
	if addr == "" {
		c, err := t.load(cmd)
		if err != nil {
			return nil, err
		}
		addr = pick(c.Discovery)
	}
	if err := t.reach(cmd.Context(), addr); err != nil {
		return nil, err
	}
	return boot.Dial(addr, config.Default().Limits.MaxMessage())
}

// ask makes one call of at most the given time to the service that pick names:
// method of the client that client makes. Errors of the call are ours again.
func ask[Client, Request, Answer any](cmd *cobra.Command, t *target, pick func(config.Discovery) string, within time.Duration,
	client func(grpc.ClientConnInterface) Client, method func(Client, context.Context, Request, ...grpc.CallOption) (Answer, error), req Request,
) (answer Answer, err error) {
	conn, err := t.dial(cmd, pick)
	if err != nil {
		return answer, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(cmd.Context(), within)
	defer cancel()
	if answer, err = method(client(conn), ctx, req); err != nil {
		return answer, wire.FromStatus(err)
	}
	return answer, nil
}

// reach says what to do when nothing listens at an address.
func (t *target) reach(ctx context.Context, addr string) error {
	within, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := rpc.Reach(within, addr)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Unavailable, "the socket %s may not be used: run this as the user of the service, or as root: %w", addr, err)
	case t.dir != "" && t.addr == "":
		return fault.New(fault.Unavailable, "nothing is running in %s: `%s` goes on with it; "+
			"read, audit (not --against kafka), offsets show, quarantine list and show, schema show and history work without", t.dir, dev.GoOn(t.dir))
	default:
		return fault.New(fault.Unavailable, "nothing answers at %s: is the service running, and is this its address "+
			"(discovery in the configuration, or --addr)? %w", addr, err)
	}
}

// dialTimeout bounds the attempt to reach a service.
const dialTimeout = 5 * time.Second

func readstateOf(d config.Discovery) string { return d.Readstate }
func committerOf(d config.Discovery) string { return d.Committer }
func ingestOf(d config.Discovery) string    { return d.Ingest }
