// Command bufferd is the buffer service: it owns table logs and hot rows.
package main

import (
	"context"
	"os"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/buffer"
)

func main() { os.Exit(int(boot.Main("bufferd", boot.Headroom, build))) }

func build(ctx context.Context, p *boot.Process) error {
	resolver, err := discovery.FromConfig(p.Config.Discovery)
	if err != nil {
		return run.WithCode(run.BadConfig, err)
	}
	s, err := buffer.New(ctx, buffer.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		buffer.Deps{Log: p.Log, Metrics: p.Metrics, Health: p.Health, Resolver: resolver})
	if err != nil {
		return err
	}
	p.Group.Add("buffer", s.Run)
	return nil
}
