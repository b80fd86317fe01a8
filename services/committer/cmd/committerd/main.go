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

// headroom is what the writing of Parquet gathers in garbage while its pages are warm. With
// boot.Headroom collections, and the memory that they drive out of the processor's cache,
// cost an eighth of the process; more than this buys little.
const headroom = 56 << 20

func main() { os.Exit(int(boot.Main("committerd", headroom, build))) }

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
