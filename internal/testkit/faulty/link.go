package faulty

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Link is a TCP proxy. A fault holds for open connections and for new ones. It is
// safe for concurrent use.
type Link struct {
	target   string
	listener net.Listener

	mu      sync.Mutex
	open    map[*pipe]bool
	cut     bool
	frozen  chan struct{} // closed when bytes may pass; nil: they may
	latency time.Duration
	rate    int // bytes per second in each direction, 0: no limit
}

type pipe struct{ near, far net.Conn }

func (p *pipe) close() {
	_ = p.near.Close()
	_ = p.far.Close()
}

// NewLink listens at address ("127.0.0.1:0" takes a free port) and passes on to
// target; it ends with the test.
func NewLink(t testing.TB, address, target string) *Link {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("starting a link to %s: %v", target, err)
	}
	l := &Link{target: target, listener: listener, open: map[*pipe]bool{}}
	var running sync.WaitGroup
	running.Go(func() { l.accept(&running) })
	t.Cleanup(func() {
		_ = listener.Close()
		l.Heal()
		l.drop()
		running.Wait()
	})
	return l
}

// Address is where clients connect to.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Cut ends all connections and refuses new ones until Heal.
func (l *Link) Cut() {
	l.mu.Lock()
	l.cut = true
	l.mu.Unlock()
	l.drop()
}

// Freeze lets no byte pass and tells nobody, as a network that loses packets, until
// Heal.
func (l *Link) Freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen == nil {
		l.frozen = make(chan struct{})
	}
}

// Slow delays each piece by latency and passes at most rate bytes a second.
func (l *Link) Slow(latency time.Duration, rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency, l.rate = latency, rate
}

// Heal ends all faults.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.latency, l.rate = false, 0, 0
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

func (l *Link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.open {
		p.close()
	}
}

func (l *Link) accept(running *sync.WaitGroup) {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		running.Go(func() { l.serve(near) })
	}
}

func (l *Link) serve(near net.Conn) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		_ = near.Close()
		return
	}
	far, err := net.DialTimeout("tcp", l.target, 5*time.Second) //nolint:noctx // bounded, and closed with the link
	if err != nil {
		_ = near.Close()
		return
	}
	p := &pipe{near, far}
	l.mu.Lock()
	l.open[p] = true
	if l.cut { // since it was looked at
		p.close()
	}
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pass(p, near, far) })
	both.Go(func() { l.pass(p, far, near) })
	both.Wait()
	l.mu.Lock()
	delete(l.open, p)
	l.mu.Unlock()
}

// pass copies one direction; its end ends the connection.
func (l *Link) pass(p *pipe, from io.Reader, to io.Writer) {
	defer p.close()
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			l.hold(n)
			if _, werr := to.Write(piece[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold waits as the faults of now ask for, for a piece of n bytes.
func (l *Link) hold(n int) {
	l.mu.Lock()
	frozen, wait := l.frozen, l.latency
	if l.rate > 0 {
		wait += time.Duration(n) * time.Second / time.Duration(l.rate)
	}
	l.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	if wait > 0 {
		<-time.After(wait)
	}
}
