//go:build synctests

package chaos

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// fabric is a network in memory. Every connection belongs to two nodes, and what is between them can be slow, frozen or
// cut. Bytes of one direction stay in order, as TCP has it; two connections, or the two directions of one, do not wait
// for each other.
type fabric struct {
	mu     sync.Mutex
	rng    *rand.Rand
	listen map[string]*listener
	links  map[*link]bool
	nodes  map[string]*nodeState
	delay  time.Duration // longest delay of a piece of data
}

// nodeState is what a node's network does.
type nodeState struct {
	dead   bool // no connection, ever again
	frozen bool // what is sent waits, to and from the node
	cut    bool // no connection for now
}

func newFabric(rng *rand.Rand, delay time.Duration) *fabric {
	return &fabric{rng: rng, listen: map[string]*listener{}, links: map[*link]bool{}, nodes: map[string]*nodeState{}, delay: delay}
}

func (f *fabric) node(name string) *nodeState {
	if f.nodes[name] == nil {
		f.nodes[name] = &nodeState{}
	}
	return f.nodes[name]
}

// set changes the state of a node and lets every connection of it see that.
func (f *fabric) set(name string, change func(*nodeState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.node(name)
	change(n)
	n.frozen = n.frozen && !n.dead
	for l := range f.links {
		if l.ends[0] == name || l.ends[1] == name {
			if n.dead || n.cut {
				l.reset()
			}
			l.wake()
		}
	}
	for address, l := range f.listen {
		if l.node == name && n.dead {
			delete(f.listen, address)
			l.shut()
		}
	}
}

// reset cuts the connections of a node once.
func (f *fabric) reset(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.links {
		if l.ends[0] == name || l.ends[1] == name {
			l.reset()
		}
	}
}

func (f *fabric) slow(longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = longest
}

// away reports whether a node has no network.
func (f *fabric) away(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.node(name)
	return n.dead || n.cut
}

func (f *fabric) isFrozen(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node(name).frozen
}

func (f *fabric) lag() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.rng.Int64N(int64(f.delay) + 1))
}

// listenOn opens an address for a node; which nobody else has.
func (f *fabric) listenOn(node, address string) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listen[address] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l := &listener{f: f, node: node, address: address, queue: make(chan net.Conn, 64), done: make(chan struct{})}
	f.listen[address] = l
	return l, nil
}

// dial connects a node to an address.
func (f *fabric) dial(ctx context.Context, node, address string) (net.Conn, error) {
	select {
	case <-time.After(f.lag()):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for f.isFrozen(node) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.listen[address]
	if l == nil || f.node(node).dead || f.node(node).cut || f.node(l.node).dead || f.node(l.node).cut {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	k := &link{f: f, ends: [2]string{node, l.node}}
	k.pipes[0], k.pipes[1] = newPipe(k), newPipe(k)
	client := &conn{link: k, in: k.pipes[1], out: k.pipes[0], local: addr(node), remote: addr(address)}
	server := &conn{link: k, in: k.pipes[0], out: k.pipes[1], local: addr(address), remote: addr(node)}
	select {
	case l.queue <- server:
	default:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	f.links[k] = true
	return client, nil
}

type listener struct {
	f       *fabric
	node    string
	address string
	queue   chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func (l *listener) shut() { l.once.Do(func() { close(l.done) }) }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.f.mu.Lock()
	if l.f.listen[l.address] == l {
		delete(l.f.listen, l.address)
	}
	l.f.mu.Unlock()
	l.shut()
	for {
		select {
		case c := <-l.queue:
			_ = c.Close()
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return addr(l.address) }

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// link is one connection: pipe 0 goes from the node that dialed, pipe 1 comes back.
type link struct {
	f      *fabric
	ends   [2]string
	pipes  [2]*pipe
	torn   bool // under f.mu
	closed int  // ends that are; under f.mu
}

// reset breaks the connection; f.mu is held.
func (l *link) reset() {
	if l.torn {
		return
	}
	l.torn = true
	delete(l.f.links, l)
	for _, p := range l.pipes {
		p.fail(syscall.ECONNRESET)
	}
}

// wake lets readers look again; f.mu is held.
func (l *link) wake() {
	for _, p := range l.pipes {
		p.mu.Lock()
		p.signal()
		p.mu.Unlock()
	}
}

// frozen reports whether bytes wait on their way.
func (l *link) frozen() bool {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.f.node(l.ends[0]).frozen || l.f.node(l.ends[1]).frozen
}

// pipe is one direction.
type pipe struct {
	link    *link
	mu      sync.Mutex
	queue   []piece
	closed  bool  // by the writer: the reader gets what is there, and then EOF
	err     error // both sides
	changed chan struct{}
}

type piece struct {
	data []byte
	at   time.Time
}

func newPipe(l *link) *pipe { return &pipe{link: l, changed: make(chan struct{})} }

// signal wakes everybody who waits; p.mu is held.
func (p *pipe) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		p.signal()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	lag := p.link.f.lag()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return 0, io.ErrClosedPipe
	case errors.Is(p.err, net.ErrClosed):
		// The other end is closed, which this one learns by reading, when the end of the stream has arrived. An error
		// before that would let gRPC try the connection again and again until its reader fails, and no time passes.
		return len(b), nil
	case p.err != nil:
		return 0, p.err
	}
	at := time.Now().Add(lag)
	if n := len(p.queue); n > 0 && p.queue[n-1].at.After(at) {
		at = p.queue[n-1].at
	}
	p.queue = append(p.queue, piece{append([]byte(nil), b...), at})
	p.signal()
	return len(b), nil
}

// read waits until bytes have arrived or the deadline has passed.
func (p *pipe) read(b []byte, d *deadline) (int, error) {
	for {
		p.mu.Lock()
		changed := p.changed // before anything is looked at, so that no change is missed
		p.mu.Unlock()
		until, moved := d.get()
		n, wait, err := p.take(b, until, p.link.frozen())
		if n > 0 || err != nil {
			return n, err
		}
		var ring <-chan time.Time
		if wait >= 0 {
			t := time.NewTimer(wait)
			defer t.Stop()
			ring = t.C
		}
		select {
		case <-changed:
		case <-moved:
		case <-ring:
		}
	}
}

// take returns bytes that have arrived, or how long to wait at most for the next event; -1 is without end.
func (p *pipe) take(b []byte, until time.Time, frozen bool) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wait = -1
	switch {
	case p.err != nil:
		return 0, 0, p.err
	case !until.IsZero() && !now.Before(until):
		return 0, 0, os.ErrDeadlineExceeded
	case frozen:
	case len(p.queue) > 0 && !p.queue[0].at.After(now):
		n = copy(b, p.queue[0].data)
		if p.queue[0].data = p.queue[0].data[n:]; len(p.queue[0].data) == 0 {
			p.queue = p.queue[1:]
		}
		return n, 0, nil
	case len(p.queue) > 0:
		wait = p.queue[0].at.Sub(now)
	case p.closed:
		return 0, 0, io.EOF
	}
	if left := until.Sub(now); !until.IsZero() && (wait < 0 || left < wait) {
		wait = left
	}
	return 0, wait, nil
}

// deadline of the reads of one end.
type deadline struct {
	mu    sync.Mutex
	at    time.Time
	moved chan struct{}
}

func (d *deadline) get() (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.moved == nil {
		d.moved = make(chan struct{})
	}
	return d.at, d.moved
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if d.moved != nil {
		close(d.moved)
	}
	d.moved = make(chan struct{})
}

// conn is one end of a link.
type conn struct {
	link          *link
	in, out       *pipe
	local, remote net.Addr
	reads         deadline
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.in.read(b, &c.reads) }

// Write implements net.Conn. It never waits: the windows of the protocols above bound what is under way.
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.out.mu.Lock()
	again := c.out.closed
	c.out.closed = true
	c.out.signal()
	c.out.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	c.in.fail(net.ErrClosed)
	f := c.link.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.link.closed++; c.link.closed == len(c.link.ends) {
		delete(f.links, c.link)
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr               { return c.local }
func (c *conn) RemoteAddr() net.Addr              { return c.remote }
func (c *conn) SetDeadline(t time.Time) error     { return c.SetReadDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error { c.reads.set(t); return nil }
func (c *conn) SetWriteDeadline(time.Time) error  { return nil }

var errCut = errors.New("the network of this node is gone")
