package source

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// machine is the network of a process that can be killed.
type machine struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (m *machine) dial(ctx context.Context, network, host string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		_ = c.Close()
		return nil, errors.New("this process is dead")
	}
	m.conns = append(m.conns, c)
	return c, nil
}

func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, c := range m.conns {
		_ = c.Close()
	}
}

// G11: after a kill -9 partitions go to the successor at once, not when the session of the dead member times out.
func TestASuccessorOnTheSameFolderDoesNotWaitForTheDeadMembersSession(t *testing.T) {
	cl := cluster(t, kfake.SeedTopics(2, "t"))
	dir := t.TempDir()
	cfg := config(cl, "t")
	cfg.SessionTimeout, cfg.Seats = time.Minute, dir
	var box machine
	cfg.Dial = box.dial
	first := &member{t: t, assigned: make(chan *Cursor, 100), revoked: make(chan *Cursor, 100)}
	var err error
	first.c, err = New(cfg, first)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = first.c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		_ = first.c.Close(ctx)
		<-done
	})
	first.cursor()
	first.cursor()
	first.eventually("the member id is written down", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "g.0"))
		return err == nil && len(text) > 10
	})
	box.kill()
	require.NoError(t, first.c.seat.lock.Close(), "as the end of a process does")

	cfg.Dial = nil
	began := time.Now()
	second := join(t, cfg)
	for range 2 {
		select {
		case <-second.assigned:
		case <-time.After(20 * time.Second):
			require.Fail(t, "the group waits for the dead member")
		}
	}
	require.Less(t, time.Since(began), 20*time.Second)
}

func TestAFrozenProcessKeepsItsSeat(t *testing.T) {
	dir := t.TempDir()
	a, err := takeSeat(dir, "shop/orders é")
	require.NoError(t, err)
	require.NoError(t, a.note("id-1"))
	b, err := takeSeat(dir, "shop/orders é")
	require.NoError(t, err)
	require.Empty(t, b.dead)
	require.NotEqual(t, a.path, b.path)
	a.leave(false)
	c, err := takeSeat(dir, "shop/orders é")
	require.NoError(t, err)
	require.Equal(t, "id-1", c.dead)
	c.leave(true)
	d, err := takeSeat(dir, "shop/orders é")
	require.NoError(t, err)
	require.Empty(t, d.dead, "it left in order")
	d.leave(true)
	b.leave(true)
	var none *seat
	require.NoError(t, none.note("x"))
	none.leave(true)
}
