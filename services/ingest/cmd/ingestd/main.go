// Command ingestd is the ingest service: Kafka records into table logs.
package main

import (
	"context"
	"os"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/ingest"
)

func main() { os.Exit(int(boot.Main("ingestd", boot.Headroom, build))) }

func build(ctx context.Context, p *boot.Process) error {
	resolver, err := discovery.FromConfig(p.Config.Discovery)
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	s, err := ingest.New(ctx, ingest.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		ingest.Deps{Log: p.Log, Metrics: p.Metrics, Health: p.Health, Resolver: resolver})
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	p.Group.Add("ingest", s.Run)
	return nil
}
