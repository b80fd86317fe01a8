// Package table is the pure state machine of one table log (design section 2):
// it decides what becomes of every append, gives LSNs, knows whether the log may
// serve, and says which records must be durable before which events are shown.
// It knows no clock, disk, network or goroutine; model.py is its oracle.
//
// Every input that changes the log returns a Step. The host makes the step's
// records durable and then calls Done, with all steps of the machine in the
// order they were made: nothing is shown to any follower before that.
package table

import (
	"slices"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

// State says what the log can do.
type State uint8

// States of a table log.
const (
	Closed  State = iota // nothing is known: waits for OpenTable
	Wait                 // the journal remembers the log: waits for OpenTable
	Need                 // waits for a fence commit
	Serving              // takes appends and serves reads
)

var stateNames = [...]string{"closed", "waiting for the committer to open it", "waiting for a fence commit", "serving"}

// String returns the state in words.
func (s State) String() string { return stateNames[s] }

// Request asks for a fence commit. Its nonce is good once.
type Request struct {
	Nonce   uint64
	Reason  string
	Waiting bool // appends were refused since
}

// Recovered is what the journal remembers of a table.
type Recovered struct {
	Image   event.Image // Hot holds the outstanding entries, without rows
	NextLSN ident.LSN
}

// Machine is one table log. It is not safe for concurrent use.
type Machine struct {
	name  string
	boot  ident.UUID
	nonce func() uint64

	state   State
	request Request
	granted uint64 // nonce of the last grant, to know its repetition
	life    uint64 // counts the beginnings of serving and of needing: older steps are void
	pending bool   // an open or a grant is not durable yet

	view        *readview.View // what followers may see
	head        event.Commit   // newest state accepted, perhaps not durable yet
	over        ident.LogEpoch // epoch of the head when a new one began to be wanted
	reserved    ident.LSN
	next        ident.LSN
	appended    ident.Vector
	epochs      map[ident.Partition]int32           // leader epoch of the record before appended, -1 unknown
	outstanding map[ident.Partition][]*event.Append // journaled, rows not yet sent again
	known       map[string]event.Schema             // by fingerprint
	order       []string                            // fingerprints as they were published
	ended       []event.EndedEpoch
	recovered   *Recovered
	seq         event.Seq
}

// New returns the machine of table name. Nonces must never repeat, not even
// across restarts: take them at random. rec is nil when the journal remembers
// nothing, and why then says so for people ("" for a table never seen).
func New(name string, boot ident.UUID, nonce func() uint64, rec *Recovered, why string) *Machine {
	m := &Machine{name: name, boot: boot, nonce: nonce, view: readview.New(), known: map[string]event.Schema{}, recovered: rec}
	m.request.Reason = why
	if rec != nil {
		m.state, m.head, m.ended = Wait, rec.Image.Commit, rec.Image.Ended
		m.learn(rec.Image.Schemas)
	}
	return m
}

// Name is the identifier of the table.
func (m *Machine) Name() string { return m.name }

// State is what the log can do now.
func (m *Machine) State() State { return m.state }

// View is what readers and followers may see. The caller must not change it.
func (m *Machine) View() *readview.View { return m.view }

// Request returns the fence commit that is wanted; ok is false when none is.
func (m *Machine) Request() (req Request, ok bool) {
	return m.request, m.state == Need && !m.pending
}

// Refused notes that an append had to be turned away, which moves the table to
// the front of the committer's fences. It reports whether that was news.
func (m *Machine) Refused() bool {
	news := !m.request.Waiting
	m.request.Waiting = true
	return news
}

// Head is the newest table state the log has accepted.
func (m *Machine) Head() event.Commit { return m.head }

// Appended returns the next expected offsets and the known partitions.
func (m *Machine) Appended() ident.Vector { return m.appended.Clone() }

// AppendedNext is the next expected offset of one partition, 0 when unknown.
func (m *Machine) AppendedNext(p ident.Partition) int64 { return m.appended[p] }

// LeaderEpoch is the leader epoch of the record before the next expected offset
// of p, by which a reader of Kafka finds out whether the log was replaced below
// it; -1 when unknown.
func (m *Machine) LeaderEpoch(p ident.Partition) int32 {
	if e, ok := m.epochs[p]; ok {
		return e
	}
	return -1
}

// Outstanding returns the entries whose rows must be sent again, cut at exactly
// these bounds, by partition, then offset.
func (m *Machine) Outstanding() []*event.Append {
	var out []*event.Append
	for _, p := range m.appended.Partitions() {
		out = append(out, m.outstanding[p]...)
	}
	return out
}

// Schemas returns the schemas accepted so far, in the order they were published.
func (m *Machine) Schemas() []event.Schema {
	out := make([]event.Schema, 0, len(m.order))
	for _, f := range m.order {
		out = append(out, m.known[f])
	}
	return out
}

// NextLSN is the LSN the next accepted append gets.
func (m *Machine) NextLSN() ident.LSN { return m.next }

func (m *Machine) learn(list []event.Schema) (news []event.Schema) {
	for _, s := range list {
		if _, ok := m.known[s.Fingerprint]; ok {
			continue
		}
		m.known[s.Fingerprint] = s
		m.order = append(m.order, s.Fingerprint)
		news = append(news, s)
	}
	return news
}

// need makes the log wait for a fence commit on top of the head. Steps under way become void.
func (m *Machine) need(why string) {
	m.life++
	m.state, m.pending, m.over = Need, false, m.head.LogEpoch
	m.request = Request{Nonce: m.nonce(), Reason: why, Waiting: m.request.Waiting}
}

// begin makes the log serve from state c on. outstanding entries that c covers
// are forgotten.
func (m *Machine) begin(c event.Commit, next ident.LSN, outstanding []*event.Append) {
	m.head, m.reserved = c, c.LSN.Reserved
	m.next = max(next, c.LSN.Next, c.LSN.Start)
	m.appended, m.epochs = ident.Vector{}, map[ident.Partition]int32{}
	m.outstanding = map[ident.Partition][]*event.Append{}
	for _, a := range outstanding {
		m.outstanding[a.Partition] = append(m.outstanding[a.Partition], a)
	}
	for p, pos := range c.Positions {
		m.raise(p, pos)
	}
}

// raise tells that the table holds everything of p below its committed position.
// An entry that straddles that offset is still re-filled whole, so that its digest
// can be compared: the partition stands at its first offset then.
func (m *Machine) raise(p ident.Partition, pos ident.Position) {
	list, committed := m.outstanding[p], pos.Next
	n := 0
	for n < len(list) && list[n].Range.Next <= committed {
		n++
	}
	list = list[n:]
	at := committed
	if len(list) > 0 && list[0].Range.First < committed {
		at = list[0].Range.First
	}
	if len(list) == 0 {
		delete(m.outstanding, p)
	} else {
		m.outstanding[p] = list
	}
	if have, known := m.appended[p]; known && have >= at {
		return
	}
	m.appended[p], m.epochs[p] = at, -1
	if at == pos.Next && pos.Next > pos.Start {
		m.epochs[p] = pos.LeaderEpoch
	}
}

// end is the offset up to which the log knows p: appended or outstanding.
func (m *Machine) end(p ident.Partition) (int64, bool) {
	at, ok := m.appended[p]
	if list := m.outstanding[p]; len(list) > 0 {
		return list[len(list)-1].Range.Next, true
	}
	return at, ok
}

// ahead returns a partition of c that the log knows and that c holds beyond what
// the log ever accepted.
func ahead(c event.Commit, end func(ident.Partition) (int64, bool)) (ident.Partition, int64, bool) {
	for _, p := range c.Positions.Vector().Partitions() {
		if at, ok := end(p); ok && c.Positions[p].Next > at {
			return p, at, true
		}
	}
	return ident.Partition{}, 0, false
}

// fenced refuses callers that act for another table or an older writer.
func (m *Machine) fenced(uuid ident.UUID, writer ident.WriterEpoch) error {
	switch {
	case uuid != m.head.Table:
		return fault.New(fault.Fenced, "table %s: the log holds uuid %s, the call is for %s; was the table dropped and created again?", m.name, m.head.Table, uuid)
	case writer < m.head.WriterEpoch:
		return fault.New(fault.Fenced, "table %s: writer epoch %d has been replaced by %d: stop", m.name, writer, m.head.WriterEpoch)
	default:
		return nil
	}
}

// notServing is the error of calls that need a serving log.
func (m *Machine) notServing() error {
	return fault.New(fault.NotReady, "table %s is %s: its committer has to act first", m.name, m.state)
}

// merged joins two lists of ended epochs; told wins, because the table is the record.
func merged(told, known []event.EndedEpoch) []event.EndedEpoch {
	out := slices.Clone(told)
	for _, e := range known {
		if !slices.ContainsFunc(told, func(t event.EndedEpoch) bool { return t.Epoch == e.Epoch }) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b event.EndedEpoch) int { return int(a.Epoch - b.Epoch) })
	return out
}
