// Command readstated is the readstate service: hot rows and the lake as one
// consistent table, for readers.
package main

import (
	"context"
	"os"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/readstate"
)

func main() { os.Exit(int(boot.Main("readstated", boot.Headroom, build))) }

func build(ctx context.Context, p *boot.Process) error {
	resolver, err := discovery.FromConfig(p.Config.Discovery)
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	s, err := readstate.New(ctx, readstate.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		readstate.Deps{Log: p.Log, Metrics: p.Metrics, Health: p.Health, Resolver: resolver})
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	p.Group.Add("readstate", s.Run)
	return nil
}
