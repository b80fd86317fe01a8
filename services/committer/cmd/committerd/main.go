// Command committerd is the committer service: table logs into Iceberg tables.
package main

import (
	"context"
	"os"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/committer"
)

func main() { os.Exit(int(boot.Main("committerd", build))) }

func build(ctx context.Context, p *boot.Process) error {
	resolver, err := discovery.FromConfig(p.Config.Discovery)
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	s, err := committer.New(ctx, committer.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		committer.Deps{Log: p.Log, Metrics: p.Metrics, Health: p.Health, Resolver: resolver})
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	p.Group.Add("committer", s.Run)
	return nil
}
