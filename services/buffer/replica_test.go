package buffer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

// copyOf is a replica: the follower every service uses, feeding the view every
// service uses.
type copyOf struct {
	mu     sync.Mutex
	view   *readview.View
	images int
	stall  chan struct{} // while not nil, events wait
}

func (c *copyOf) Image(img event.Image) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Load(img)
	c.images++
	return nil
}

func (c *copyOf) Event(ev event.Event) error {
	c.mu.Lock()
	stall := c.stall
	c.mu.Unlock()
	if stall != nil {
		<-stall
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view.Apply(ev)
	return nil
}

func (c *copyOf) Notice(follow.Notice) {}

// converges waits until the copy shows just this.
func (c *copyOf) converges(t *testing.T, want ident.Vector) {
	t.Helper()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.view.Visible().Equal(want)
	}, 20*time.Second, 5*time.Millisecond)
}

// stalledCopy follows the orders, and takes no event until its stall is closed.
func (b *bed) stalledCopy() (r *copyOf, stop func()) {
	r = &copyOf{view: readview.New(), stall: make(chan struct{})}
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- follow.Run(ctx, follow.Options{Conn: b.conn, Table: orders, Role: replica, Name: "r"}, r)
	}()
	return r, func() {
		cancel()
		require.ErrorIs(b.t, <-ended, context.Canceled)
	}
}

// Rows that are hot are in memory whoever follows: a follower that has not taken them is
// left alone, because an image would bring them again.
func TestAFollowerIsNotCutOffForRowsThatAreHot(t *testing.T) {
	b := start(t, file.NewMem(), "limits.hot.bytes", "48MiB")
	b.serve(orders)
	r, stop := b.stalledCopy()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.images == 1
	}, 20*time.Second, time.Millisecond)
	s := b.sender(orders)
	for i := range int64(60) { // 30 MiB, of which a quarter of the budget are 12
		s.accept(entry(t, p0, i*10, i*10+10, 50_000))
	}
	close(r.stall)
	r.converges(t, ident.Vector{p0: 600, p1: 0})
	stop()
	require.Equal(t, 1, r.images)
}

// Hot rows of a partition that commits pass by were taken long ago: they excuse no follower that does not take what comes.
func TestRowsThatCommitsPassByExcuseNoLag(t *testing.T) {
	b := start(t, file.NewMem(), "limits.hot.bytes", "96MiB")
	b.serve(orders)
	r, stop := b.stalledCopy()
	close(r.stall)
	s := b.sender(orders)
	lsn := firstLSN
	for i := range int64(44) { // 22 MiB, which is less than the quarter that such partitions may hold
		s.accept(entry(t, p0, i*10, i*10+10, 50_000))
	}
	s.accept(entry(t, p1, 0, 1, 10))
	lsn.Next += 441
	require.NoError(t, b.report(state(3, 1, ident.Vector{p0: 0, p1: 1}, lsn)))
	r.converges(t, ident.Vector{p0: 440, p1: 1})
	again := make(chan struct{})
	r.mu.Lock()
	r.stall = again
	r.mu.Unlock()
	next := int64(1)
	for i := range int64(80) { // 40 MiB that are committed at once
		s.accept(entry(t, p1, next, next+10, 50_000))
		next += 10
		lsn.Next += 10
		require.NoError(t, b.report(state(4+i, 1, ident.Vector{p0: 0, p1: next}, lsn)))
	}
	close(again)
	r.converges(t, ident.Vector{p0: 440, p1: next})
	stop()
	require.Greater(t, r.images, 1, "it must have been cut off")
}

// G3, G4: a replica that was cut off in between has the buffer's position, and
// the buffer's tokens mean the same rows there.
func TestAReplicaConvergesWithTheBufferEvenAfterItWasCutOff(t *testing.T) {
	b := start(t, file.NewMem(), "limits.hot.bytes", "48MiB")
	b.serve(orders)
	r, stop := b.stalledCopy()
	s := b.sender(orders)
	for i := range int64(60) {
		s.accept(entry(t, p0, i*10, i*10+10, 50_000))
		s.accept(entry(t, p1, i, i+1, 10))
		if i%8 == 7 {
			require.NoError(t, b.report(state(3+i, 1, ident.Vector{p0: i*10 + 3, p1: i}, firstLSN)))
		}
	}
	close(r.stall)
	want := ident.Vector{p0: 600, p1: 60}
	r.converges(t, want)
	read, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
	require.NoError(t, err)
	stop()
	require.Greater(t, r.images, 1, "it must have been cut off")
	tok, err := readview.ParseToken(read.GetToken())
	require.NoError(t, err)
	got, err := r.view.Resolve(tok)
	require.NoError(t, err)
	rows := int64(0)
	for _, p := range got.Hot {
		rows += p.Within.Len()
	}
	require.Equal(t, read.GetHot().GetRows(), rows)
	require.Equal(t, tok.String(), r.view.Position().Token().String())
}
