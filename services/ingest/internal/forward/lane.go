package forward

import (
	"context"
	"fmt"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

// Lane is one topic partition on one life of the stream. Its methods are for one goroutine, except Done and Err.
type Lane struct {
	// Start is the offset at which to go on.
	Start int64
	// LeaderEpoch is that of the record before Start, -1 where the log does not know it.
	LeaderEpoch int32
	// Bounds are ranges, ascending and from Start on, that the log remembers without their rows: entries must be cut
	// exactly there.
	Bounds []ident.Range

	p       ident.Partition
	s       *Stream
	life    *life
	done    chan struct{}
	err     error // guarded by Stream.mu
	ended   bool  // guarded by Stream.mu
	pending int   // entries without an answer, guarded by Stream.mu
	acked   int64 // guarded by Stream.mu
}

// Join waits until the stream is up and returns a lane for p. A partition that the welcome does not name starts at
// fallback, the position that the committer gave. An earlier lane of p is ended.
func (s *Stream) Join(ctx context.Context, p ident.Partition, fallback int64) (*Lane, error) {
	for {
		s.mu.Lock()
		if s.life == nil {
			changed := s.changed
			s.mu.Unlock()
			if err := await(ctx, changed); err != nil {
				return nil, fmt.Errorf("joining the append stream of table %s: %w", s.o.Table, err)
			}
			continue
		}
		defer s.mu.Unlock()
		if old := s.lanes[p]; old != nil {
			old.end(ErrLeft)
		}
		l := &Lane{p: p, s: s, life: s.life, done: make(chan struct{}), Start: fallback, LeaderEpoch: -1}
		if next, ok := s.next[p]; ok {
			l.Start = next
		}
		if e, ok := s.epochs[p]; ok {
			l.LeaderEpoch = e
		}
		l.acked = l.Start
		for _, r := range s.bounds[p] {
			if r.Next > l.Start {
				l.Bounds = append(l.Bounds, r)
			}
		}
		s.lanes[p] = l
		return l, nil
	}
}

func await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
		return nil
	}
}

// end marks the lane; Stream.mu is held.
func (l *Lane) end(err error) {
	if l.ended {
		return
	}
	l.ended, l.err = true, err
	close(l.done)
	if l.s.lanes[l.p] == l {
		delete(l.s.lanes, l.p)
	}
}

// Done is closed when the lane has ended.
func (l *Lane) Done() <-chan struct{} { return l.done }

// Err is why the lane has ended, nil before.
func (l *Lane) Err() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.err
}

// Leave ends the lane. Entries in flight are still answered and released.
func (l *Lane) Leave() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.end(ErrLeft)
}

// Acked is the offset below which the log has acknowledged everything sent on this lane.
func (l *Lane) Acked() int64 {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.acked
}

// Idle reports whether everything sent on this lane has been answered.
func (l *Lane) Idle() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.pending == 0
}

// Outgoing is an entry to be sent. Release is called exactly once, when the bytes are no longer needed; stored says
// whether the log holds the entry now.
type Outgoing struct {
	Entry            *event.Append
	RowSlices        [][]byte
	QuarantineSlices [][]byte
	Size             int64
	Release          func(stored bool)
}

// AwaitSchema waits until the log knows the schema, for at most patience; it reports whether it does.
func (l *Lane) AwaitSchema(ctx context.Context, fingerprint string, patience time.Duration) (bool, error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	for {
		l.s.mu.Lock()
		known, ended, err, changed := l.s.known[fingerprint], l.ended, l.err, l.s.changed
		l.s.mu.Unlock()
		switch {
		case ended:
			return false, err
		case known:
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-t.C:
			return false, nil
		case <-changed:
		}
	}
}

// Reconnect ends the stream that the lane is on, with a cause: it does not lead where it should. All lanes on it end.
func (l *Lane) Reconnect(cause error) { l.life.cancel(cause) }

// Send sends the entry once credit and budget allow it. An error means that it was not sent or will not be answered;
// the lane has ended then, or ctx has.
func (l *Lane) Send(ctx context.Context, o Outgoing) error {
	if err := l.admit(ctx, o.Size); err != nil {
		o.Release(false)
		return err
	}
	if err := l.life.send.Take(ctx); err != nil { // whoever has the turn may wait for a log that does not read
		l.s.mu.Lock()
		l.unsent(o)
		return err
	}
	defer l.life.send.Give()
	l.s.mu.Lock()
	if l.ended || l.s.life != l.life {
		err := l.err
		l.unsent(o)
		return err
	}
	l.life.fifo = append(l.life.fifo, flight{lane: l, next: o.Entry.Range.Next, size: o.Size, release: o.Release})
	l.pending++
	l.s.mu.Unlock()
	err := l.life.stream.SendMsg(&wire.AppendFrame{Entry: o.Entry, RowSlices: o.RowSlices, QuarantineSlices: o.QuarantineSlices})
	if err != nil { // the receiver learns the reason and ends the life, which releases the entry
		err = fmt.Errorf("sending %s of %s: %w", o.Entry.Range, l.p, err)
		l.life.cancel(err)
	}
	return err
}

// unsent gives back what admit took for an entry that is not sent after all. Stream.mu is held, and given up.
func (l *Lane) unsent(o Outgoing) {
	l.s.flight -= o.Size
	l.s.o.Budget.give(o.Size)
	l.life.credit += o.Size
	l.s.wake()
	l.s.mu.Unlock()
	o.Release(false)
}

// admit takes size from credit and budget. A single message always passes when nothing is in flight.
func (l *Lane) admit(ctx context.Context, size int64) error {
	for {
		l.s.mu.Lock()
		if l.ended {
			err := l.err
			l.s.mu.Unlock()
			return err
		}
		alone := l.s.flight == 0
		var budget <-chan struct{} // nil while only credit is missing
		if alone || l.life.credit >= size {
			var ok bool
			if ok, budget = l.s.o.Budget.take(size, alone); ok {
				l.s.flight += size
				l.life.credit -= size
				l.s.mu.Unlock()
				return nil
			}
		}
		changed := l.s.changed
		l.s.mu.Unlock()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-budget:
		}
	}
}

// Flush waits until everything sent has been answered, or the lane has ended with its cause.
func (l *Lane) Flush(ctx context.Context) error {
	for {
		l.s.mu.Lock()
		pending, ended, err, changed := l.pending, l.ended, l.err, l.s.changed
		l.s.mu.Unlock()
		switch {
		case ended:
			return err
		case pending == 0:
			return nil
		}
		if err := await(ctx, changed); err != nil {
			return err
		}
	}
}
