package table

import (
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/readview"
)

// turn is what a step makes of the log's state once it is durable.
type turn uint8

const (
	turnNone turn = iota
	turnOpen
	turnGrant
)

// Step is a change of the log under way. Records (without rows) must be durable
// before Done is called; a step without records only keeps its place in line.
type Step struct {
	Records []event.Event
	events  []event.Event
	turn    turn
	image   event.Image
	life    uint64
}

// Done says that the step's records, and those of every step before it, are
// durable. It returns the numbered events to show to followers. A step that was
// made before the log began to need a new epoch is void: its error says so.
func (m *Machine) Done(s *Step) ([]event.Event, error) {
	if s.life != m.life {
		return nil, fault.New(fault.NotReady, "table %s: a new log epoch is needed (%s)", m.name, m.request.Reason)
	}
	switch s.turn {
	case turnNone:
	case turnOpen:
		m.pending, m.state = false, Serving
		s.image.Boot, s.image.Seq = m.boot, m.seq
		m.view.Load(s.image)
		m.view.RaiseLSN(m.next)
	case turnGrant:
		m.pending, m.state = false, Serving
		m.ended = s.image.Ended
		if !m.view.Ready() {
			// Followers of this boot have seen nothing yet: they start with this image.
			s.image.Boot, s.image.Seq = m.boot, m.seq
			m.view.Load(s.image)
		}
	}
	for i := range s.events {
		m.seq++
		s.events[i].Seq = m.seq
		m.view.Apply(s.events[i])
	}
	return s.events, nil
}

// Open takes in the state of the table as its committer read it. A nil step with
// a nil error means that a fence commit is wanted first (see Request).
func (m *Machine) Open(c event.Commit, schemas []event.Schema, ended []event.EndedEpoch) (*Step, error) {
	if m.pending {
		return nil, fault.New(fault.Unavailable, "table %s is being opened: try again", m.name)
	}
	switch m.state {
	case Serving:
		return m.reopen(c, schemas)
	case Wait:
		return m.resume(c, schemas, ended)
	case Need:
		if m.head.Table == c.Table && c.WriterEpoch < m.head.WriterEpoch {
			return nil, m.fenced(c.Table, c.WriterEpoch)
		}
		m.prepare(c, schemas, ended)
		return nil, nil
	default:
		m.prepare(c, schemas, ended)
		why := m.request.Reason
		if why == "" {
			why = "the journal of this buffer does not know the table"
		}
		m.need(why)
		return nil, nil
	}
}

// prepare remembers what is needed when the fence commit lands.
func (m *Machine) prepare(c event.Commit, schemas []event.Schema, ended []event.EndedEpoch) {
	m.head = c
	m.learn(schemas)
	m.ended = merged(ended, m.ended)
}

// reopen is Open of a log that serves: a report plus schemas, idempotent.
func (m *Machine) reopen(c event.Commit, schemas []event.Schema) (*Step, error) {
	s, err := m.Report(c)
	if err != nil {
		if m.state == Need { // the report showed that the epoch has ended
			m.learn(schemas)
			return nil, nil
		}
		return nil, err
	}
	for _, sch := range m.learn(schemas) {
		s.add(event.Event{Schema: &sch})
	}
	return s, nil
}

func (s *Step) add(ev event.Event) {
	s.Records = append(s.Records, ev)
	s.events = append(s.events, ev)
}

// resume is Open of a log that the journal remembers: it serves again if the
// journal is of this table and epoch and the table is not ahead of it.
func (m *Machine) resume(c event.Commit, schemas []event.Schema, ended []event.EndedEpoch) (*Step, error) {
	rec := m.recovered
	old := rec.Image.Commit
	if c.Table == old.Table && c.WriterEpoch < old.WriterEpoch {
		return nil, m.fenced(c.Table, c.WriterEpoch)
	}
	if c.Table == old.Table && readview.Newer(old, c) {
		return nil, fault.New(fault.Conflict, "table %s: the log knows sequence number %d, the call says %d: read the table again", m.name, old.SequenceNumber, c.SequenceNumber)
	}
	if why := m.invalid(c); why != "" {
		m.prepare(c, schemas, ended)
		m.recovered = nil
		m.need(why)
		return nil, nil
	}
	s := &Step{turn: turnOpen, life: m.life}
	if readview.Newer(c, old) || len(c.Positions) > len(old.Positions) {
		s.Records = append(s.Records, event.Event{Commit: &c})
	}
	for _, sch := range m.learn(schemas) {
		s.Records = append(s.Records, event.Event{Schema: &sch})
	}
	m.ended = merged(ended, m.ended)
	m.begin(c, rec.NextLSN, rec.Image.Hot)
	m.pending, m.recovered = true, nil
	s.image = event.Image{Commit: c, Schemas: m.Schemas(), Ended: m.ended}
	return s, nil
}

// invalid says why the journal cannot be used for table state c, "" when it can.
func (m *Machine) invalid(c event.Commit) string {
	old := m.recovered.Image.Commit
	v := readview.New()
	v.Load(m.recovered.Image)
	p, at, isAhead := ahead(c, v.VisibleAt)
	switch {
	case c.Table != old.Table:
		return "the journal belongs to another table uuid: the table was created anew"
	case c.LogEpoch != old.LogEpoch:
		return "the journal is of another log epoch than the table"
	case !c.Positions.Vector().Covers(old.Positions.Vector()):
		return "the table stands below what the journal has seen committed: it was rolled back"
	case isAhead:
		return "the table is ahead of the journal in " + p.String() + " (journal ends at " + itoa(at) + "): the journal lost its end"
	case c.LSN.Next > m.recovered.NextLSN: // also of partitions that the journal does not know
		return "the table holds LSNs the journal never gave: the journal lost its end"
	default:
		return ""
	}
}

// Grant takes in the fence snapshot that answers request nonce. It is good once;
// the repetition of a grant that was taken is acknowledged. The head may be of the
// granted epoch already: a committer whose grant was lost opens the table, which
// stands at its fence by then, before it grants again.
func (m *Machine) Grant(nonce uint64, c event.Commit) (*Step, error) {
	if m.state == Serving && nonce == m.granted && nonce != 0 && c.LogEpoch == m.head.LogEpoch && c.Table == m.head.Table {
		return &Step{life: m.life}, nil
	}
	switch {
	case m.state != Need || m.pending || nonce != m.request.Nonce:
		return nil, fault.New(fault.Conflict, "table %s: nobody waits for epoch grant %d: look at the epoch that is wanted now", m.name, nonce)
	case c.Table != m.head.Table || c.WriterEpoch < m.head.WriterEpoch:
		return nil, m.fenced(c.Table, c.WriterEpoch)
	case c.LogEpoch <= m.over, c.LogEpoch < m.head.LogEpoch:
		return nil, fault.New(fault.InvalidArgument, "table %s: epoch %d is granted, but the log was at %d already", m.name, c.LogEpoch, max(m.over, m.head.LogEpoch))
	}
	ended := m.ended
	if c.LogEpoch == m.over+1 { // a jump tells nothing about where the epoch before ended
		ended = merged(ended, []event.EndedEpoch{{Epoch: m.over, Base: c.Positions.Vector()}})
	}
	if c.LogEpoch == m.head.LogEpoch && !readview.Newer(c, m.head) {
		c = m.head // of the same epoch and since the fence: others may have committed
	}
	s := &Step{turn: turnGrant, life: m.life}
	s.add(event.Event{Epoch: &event.Epoch{Commit: c}})
	for _, sch := range m.Schemas() {
		s.Records = append(s.Records, event.Event{Schema: &sch})
		if _, shown := m.view.Schema(sch.Fingerprint); m.view.Ready() && !shown {
			s.events = append(s.events, event.Event{Schema: &sch})
		}
	}
	if !m.view.Ready() {
		s.events = nil
	}
	s.image = event.Image{Commit: c, Schemas: m.Schemas(), Ended: ended}
	m.begin(c, 0, nil)
	m.pending, m.granted, m.request.Waiting = true, nonce, false
	return s, nil
}

// Report takes in the state of a snapshot, of ours or of others. Older reports
// are acknowledged without effect.
func (m *Machine) Report(c event.Commit) (*Step, error) {
	if m.state != Serving || m.pending {
		return nil, m.notServing()
	}
	if err := m.fenced(c.Table, c.WriterEpoch); err != nil {
		return nil, err
	}
	s := &Step{life: m.life}
	same := !readview.Newer(m.head, c) && !readview.Newer(c, m.head)
	more := same && len(c.Positions) > len(m.head.Positions)
	if readview.Newer(m.head, c) || same && !more {
		return s, nil
	}
	if c.LogEpoch < m.head.LogEpoch {
		return nil, fault.New(fault.Conflict, "table %s: the report is of log epoch %d, the log is at %d: read the table again", m.name, c.LogEpoch, m.head.LogEpoch)
	}
	if c.LogEpoch > m.head.LogEpoch {
		m.head = c
		m.need("the table has moved to a log epoch that was not granted to this buffer")
		return nil, m.notServing()
	}
	if !c.Positions.Vector().Covers(m.head.Positions.Vector()) {
		return nil, fault.New(fault.Conflict, "table %s: the report stands below what is committed: was the table rolled back? then fence it first", m.name)
	}
	if p, at, is := ahead(c, m.end); is {
		m.head = c
		m.need("the table holds rows of " + p.String() + " beyond " + itoa(at) + " that this log never accepted")
		return nil, m.notServing()
	}
	if c.LSN.Next > m.next { // rows of a partition that this log was not told of
		m.head = c
		m.need("the table holds LSNs that this log never gave")
		return nil, m.notServing()
	}
	m.head = c
	m.reserved = max(m.reserved, c.LSN.Reserved)
	for p, pos := range c.Positions {
		m.raise(p, pos)
	}
	s.add(event.Event{Commit: &c})
	return s, nil
}
