// Package testkit holds what the tests of several packages need. It is never
// part of a binary.
package testkit

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports are taken from below the range from which systems take the ports of
// outgoing connections: one of those would be free now and taken by anybody's
// client a moment later.
const (
	firstPort = 20_200
	lastPort  = 32_000
)

// cursor walks the range from a random place on, so that test processes side by
// side rarely meet and one never gives a port twice.
var cursor = func() *atomic.Uint32 {
	c := &atomic.Uint32{}
	c.Store(rand.Uint32N(lastPort - firstPort))
	return c
}()

// FreePort returns a port on 127.0.0.1 on which nobody listens and which no
// outgoing connection takes.
func FreePort(t testing.TB) int {
	t.Helper()
	for range lastPort - firstPort {
		port := firstPort + int(cursor.Add(1)%(lastPort-firstPort))
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatalf("looking for a free port: %v", err)
		}
		return port
	}
	t.Fatalf("no port between %d and %d is free", firstPort, lastPort)
	return 0
}
