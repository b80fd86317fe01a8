package readapi

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/readview"
)

// unknownSequence stands for a snapshot whose sequence number is not known: it
// pins as if it were the first, which keeps too much rather than too little.
const unknownSequence = 1

// lease keeps the parts of one read alive until its end. The entries in it stay
// readable after the log released them, because the lease holds them.
type lease struct {
	id      string
	read    *read
	tickets [][]readview.Piece
	end     time.Time
	timer   *time.Timer
}

// leases are all leases of a server. Entries that several leases hold count
// once against the byte budget.
type leases struct {
	budget int64
	meter  Meter

	mu     sync.Mutex
	byID   map[string]*lease
	held   map[*event.Append]int
	bytes  int64
	closed bool
}

func newLeases(budget int64, meter Meter) *leases {
	return &leases{budget: budget, meter: meter, byID: map[string]*lease{}, held: map[*event.Append]int{}}
}

// add begins a lease of length d on r.
func (l *leases) add(r *read, d time.Duration) (*lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed()
	}
	var more int64
	for _, p := range r.pieces {
		if l.held[p.Append] == 0 {
			more += p.Append.Bytes()
		}
	}
	if more > 0 && l.bytes > 0 && l.bytes+more > l.budget {
		return nil, fault.New(fault.OverLimit, "leases keep %d bytes of hot rows and this read needs %d more, above the budget of %d: end reads that are done, or try again",
			l.bytes, more, l.budget)
	}
	for _, p := range r.pieces {
		if l.held[p.Append]++; l.held[p.Append] == 1 {
			l.bytes += p.Append.Bytes()
		}
	}
	le := &lease{id: rand.Text(), read: r, tickets: ticketsOf(r.pieces), end: time.Now().Add(d)}
	le.timer = time.AfterFunc(d, func() { l.expire(le) })
	l.byID[le.id] = le
	l.meter.Leases(len(l.byID), l.bytes)
	return le, nil
}

// expire ends a lease whose time has come, unless it was renewed meanwhile.
func (l *leases) expire(le *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[le.id] == le && !time.Now().Before(le.end) {
		l.drop(le)
	}
}

// drop forgets a lease; l.mu is held.
func (l *leases) drop(le *lease) {
	le.timer.Stop()
	delete(l.byID, le.id)
	for _, p := range le.read.pieces {
		if l.held[p.Append]--; l.held[p.Append] == 0 {
			delete(l.held, p.Append)
			l.bytes -= p.Append.Bytes()
		}
	}
	l.meter.Leases(len(l.byID), l.bytes)
}

// end gives a lease back; one that has ended already is none.
func (l *leases) end(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if le, ok := l.byID[id]; ok {
		l.drop(le)
	}
}

// renew sets the end of a lease to d from now.
func (l *leases) renew(id string, d time.Duration) (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	le, ok := l.byID[id]
	if !ok {
		return time.Time{}, expired()
	}
	le.end = time.Now().Add(d)
	le.timer.Reset(d)
	return le.end, nil
}

// ticket returns what a ticket stands for.
func (l *leases) ticket(ticket string) (*read, []readview.Piece, error) {
	id, index, ok := strings.Cut(ticket, ".")
	n, err := strconv.Atoi(index)
	if !ok || err != nil || n < 0 {
		return nil, nil, fault.New(fault.InvalidArgument, "not a ticket of a read: %q", ticket)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	le, ok := l.byID[id]
	if !ok {
		return nil, nil, expired()
	}
	if n >= len(le.tickets) {
		return nil, nil, fault.New(fault.InvalidArgument, "the read has %d tickets, %q is none of them", len(le.tickets), ticket)
	}
	return le.read, le.tickets[n], nil
}

func expired() error {
	return fault.New(fault.LeaseExpired, "the read has ended: begin it again, with its token to get the same rows")
}

// oldest returns the snapshot with the lowest sequence number that a lease on
// table keeps.
func (l *leases) oldest(table string) (snapshot, sequence int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, le := range l.byID {
		r := le.read
		if r.table != table || r.cold.SnapshotID == 0 {
			continue
		}
		if seq := max(r.sequence, unknownSequence); sequence == 0 || seq < sequence {
			snapshot, sequence = r.cold.SnapshotID, seq
		}
	}
	return snapshot, sequence
}

func (l *leases) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, le := range l.byID {
		l.drop(le)
	}
}

// ticketBytes is about how much one ticket brings, so that a reader may fetch
// several at once.
const ticketBytes = 8 << 20

// ticketsOf groups pieces, in order.
func ticketsOf(pieces []readview.Piece) [][]readview.Piece {
	var out [][]readview.Piece
	var size int64
	for i, first := 0, 0; i < len(pieces); i++ {
		size += pieces[i].Append.Bytes()
		if size >= ticketBytes || i == len(pieces)-1 {
			out = append(out, pieces[first:i+1])
			first, size = i+1, 0
		}
	}
	return out
}

// names returns the tickets as readers get them.
func (le *lease) names() []string {
	out := make([]string, len(le.tickets))
	for i := range out {
		out[i] = le.id + "." + strconv.Itoa(i)
	}
	return out
}
