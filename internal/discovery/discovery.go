// Package discovery tells where services are: who owns a table, and which instances of a service there are.
//
// The port is small so that the ways of finding out (static addresses now, a registry with leases elsewhere) can be
// exchanged. What it says is a hint for connecting: who may act is decided by the epochs in the table.
package discovery

import (
	"context"
	"time"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
)

// Role is a service that can be looked for.
type Role = config.Role

// The roles.
const (
	Ingest    = config.Ingest
	Buffer    = config.Buffer
	Committer = config.Committer
	Readstate = config.Readstate
)

// Resolver finds services. Implementations are safe for concurrent use.
type Resolver interface {
	// Owner returns the address (host:port, or a socket) of the instance in the given role that acts for the table, a
	// full name such as "shop.orders". It fails with fault.Unavailable while nobody does.
	Owner(ctx context.Context, table string, role Role) (string, error)
	// Instances returns the addresses of all instances in a role, for calls that any can answer. It fails with
	// fault.Unavailable when there is none.
	Instances(ctx context.Context, role Role) ([]string, error)
}

// look is how often Moved asks, and looks how often in a row the answer must be another one: a single answer may be out
// of date.
const (
	look  = 5 * time.Second
	looks = 2
)

// Moved waits until somebody else than address owns the table, and returns who; it returns "" when ctx ends. Whoever
// keeps a stream to an owner ends it then: an owner that lost its role may live on and never end the stream itself, and
// nothing that reaches it would count any more (G11).
func Moved(ctx context.Context, r Resolver, table string, role Role, address string) string {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for other := 0; ; {
		select {
		case <-ctx.Done():
			return ""
		case <-tick.C:
		}
		now, err := r.Owner(ctx, table, role)
		if err != nil || now == address {
			other = 0
			continue
		}
		if other++; other == looks {
			return now
		}
	}
}

// Static is a resolver over fixed addresses, one instance of each role, which owns every table.
type Static map[Role]string

// FromConfig returns the resolver that the configuration asks for.
func FromConfig(d config.Discovery) (Resolver, error) {
	switch d.Type {
	case "static":
		return Static{Ingest: d.Ingest, Buffer: d.Buffer, Committer: d.Committer, Readstate: d.Readstate}, nil
	default:
		return nil, fault.New(fault.Unsupported, "discovery.type %q is not in this build: use static", d.Type)
	}
}

// Owner implements Resolver.
func (s Static) Owner(ctx context.Context, _ string, role Role) (string, error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if address := s[role]; address != "" {
		return address, nil
	}
	return "", fault.New(fault.Unavailable, "no address is known for the service %s: set discovery.%s", role, role)
}

// Instances implements Resolver.
func (s Static) Instances(ctx context.Context, role Role) ([]string, error) {
	address, err := s.Owner(ctx, "", role)
	if err != nil {
		return nil, err
	}
	return []string{address}, nil
}
