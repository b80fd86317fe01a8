package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/icestream/icestream/cmd/icestream/internal/dev"
	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
)

// target says which installation a command talks to.
type target struct {
	config string
	dir    string
	addr   string
	set    []string
}

// flags adds the ways to name an installation.
func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&t.config, "config", "c", os.Getenv(config.EnvFile), "configuration file (default from "+config.EnvFile+")")
	cmd.Flags().StringVar(&t.dir, "dir", "", "folder of an `icestream dev` run")
	cmd.Flags().StringVar(&t.addr, "addr", "", "address of the service, instead of the configuration's")
	cmd.Flags().StringArrayVar(&t.set, "set", nil, "override a setting, as path=value")
}

// load reads the configuration that the flags name. Every complaint about it
// ends the command with the exit code for configuration.
func (t *target) load(cmd *cobra.Command) (*config.Config, error) {
	path := t.config
	if t.dir != "" {
		path = filepath.Join(t.dir, dev.ConfigFile)
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
	return c, run.WithCode(run.BadConfig, err)
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
	return boot.Dial(addr, config.Default().Limits.MaxMessage())
}

func readstateOf(d config.Discovery) string { return d.Readstate }
func committerOf(d config.Discovery) string { return d.Committer }
func ingestOf(d config.Discovery) string    { return d.Ingest }
