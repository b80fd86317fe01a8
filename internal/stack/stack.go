// Package stack runs the four services in one process, with the constructors
// their binaries use. They still meet only on the wire.
package stack

import (
	"context"
	"fmt"

	"github.com/icestream/icestream/internal/boot"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/services/buffer"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
	"github.com/icestream/icestream/services/readstate"
)

// Services is how many services a Stack runs.
const Services = 4

// Stack is all services of one process.
type Stack struct {
	addresses map[string]string
}

// New makes the four services and adds them to p.Group, which runs them. They
// find each other at the addresses they listen on, so ports may be 0. The group
// ends actors in reverse order: first ingest stops taking in, then the committer
// commits what is held, and the buffer goes last.
func New(ctx context.Context, p *boot.Process) (*Stack, error) {
	at := discovery.Static{}
	s := &Stack{addresses: map[string]string{}}
	add := func(role discovery.Role, addr string, serve func(context.Context) error) {
		at[role] = addr
		s.addresses[string(role)] = addr
		p.Group.Add(string(role), serve)
	}
	log, metrics, health := p.Log, p.Metrics, p.Health

	b, err := buffer.New(ctx, buffer.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		buffer.Deps{Log: log, Metrics: metrics, Health: health, Resolver: at})
	if err != nil {
		return nil, failed(discovery.Buffer, err)
	}
	add(discovery.Buffer, b.Addr(), b.Run)
	r, err := readstate.New(ctx, readstate.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		readstate.Deps{Log: log, Metrics: metrics, Health: health, Resolver: at})
	if err != nil {
		return nil, failed(discovery.Readstate, err)
	}
	add(discovery.Readstate, r.Addr(), r.Run)
	c, err := committer.New(ctx, committer.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		committer.Deps{Log: log, Metrics: metrics, Health: health, Resolver: at})
	if err != nil {
		return nil, failed(discovery.Committer, err)
	}
	add(discovery.Committer, c.Addr(), c.Run)
	i, err := ingest.New(ctx, ingest.Config{Settings: p.Config, Instance: p.Instance, Version: boot.Version()},
		ingest.Deps{Log: log, Metrics: metrics, Health: health, Resolver: at})
	if err != nil {
		return nil, failed(discovery.Ingest, err)
	}
	add(discovery.Ingest, i.Addr(), i.Run)
	return s, nil
}

func failed(role discovery.Role, err error) error {
	return run.WithCode(run.BadConfig, fmt.Errorf("starting %s: %w", role, err))
}

// Addresses of the gRPC servers by service name.
func (s *Stack) Addresses() map[string]string { return s.addresses }
