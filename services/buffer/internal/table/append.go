package table

import (
	"fmt"
	"strconv"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Outcome is what became of an append. The numbers are those of the wire.
type Outcome int32

// Outcomes of an append.
const (
	Accepted         Outcome = 1
	Duplicate        Outcome = 2
	OutOfOrder       Outcome = 3
	UnknownSchema    Outcome = 4
	UnknownPartition Outcome = 5
	Invalid          Outcome = 6
	Waiting          Outcome = 7
	NotServing       Outcome = 100 // not on the wire: the stream is closed instead
)

var outcomeNames = map[Outcome]string{
	Accepted: "accepted", Duplicate: "duplicate", OutOfOrder: "out_of_order", UnknownSchema: "unknown_schema",
	UnknownPartition: "unknown_partition", Invalid: "invalid", Waiting: "wait", NotServing: "not_serving",
}

// String returns the word used in metrics.
func (o Outcome) String() string { return outcomeNames[o] }

// Verdict answers one append. Step is set exactly when the outcome is Accepted:
// the answer may be given once Done was called for it without an error.
type Verdict struct {
	Outcome     Outcome
	Next        int64 // appended_next after this append
	LeaderEpoch int32 // of the record before Next, -1 unknown
	Text        string
	Step        *Step
}

// Refuse answers an append of p that is not accepted: it says where the partition stands, so that its sender goes on there.
func (m *Machine) Refuse(p ident.Partition, o Outcome, text string) Verdict {
	return Verdict{Outcome: o, Next: m.AppendedNext(p), LeaderEpoch: m.LeaderEpoch(p), Text: text}
}

// longest is the greatest offset range that may take LSNs in one entry; a longer
// one can only be a lost run, which must be an entry of its own.
const longest = int64(1) << 36

// Append decides about a batch of offsets. It keeps a; on acceptance it sets
// a.LSN. Rows are not looked at: the host has validated them.
func (m *Machine) Append(a *event.Append) Verdict {
	if m.state != Serving || m.pending {
		return Verdict{Outcome: NotServing, Text: m.notServing().Error()}
	}
	at, known := m.appended[a.Partition]
	refuse := func(o Outcome, format string, args ...any) Verdict {
		return m.Refuse(a.Partition, o, fmt.Sprintf(format, args...))
	}
	if why := malformed(&a.Header); why != "" {
		return refuse(Invalid, "%s %s: %s", a.Partition, a.Range, why)
	}
	switch {
	case !known:
		return refuse(UnknownPartition, "partition %s is not known to the log: open the table again", a.Partition)
	case a.Range.Next <= at:
		return refuse(Duplicate, "")
	case a.Range.First != at:
		return refuse(OutOfOrder, "partition %s continues at %d, not at %d", a.Partition, at, a.Range.First)
	}
	if _, ok := m.known[a.Fingerprint]; !ok && a.Rows > 0 {
		return refuse(UnknownSchema, "schema %q has not been published yet", a.Fingerprint)
	}
	if list := m.outstanding[a.Partition]; len(list) > 0 {
		return m.refill(a, list)
	}
	_, end := (&event.Append{Header: a.Header, LSN: m.next}).LSNRange()
	if end > m.reserved {
		return refuse(Waiting, "the LSN reservation %d is used up: the next commit extends it", m.reserved)
	}
	a.LSN, m.next = m.next, end
	m.appended[a.Partition], m.epochs[a.Partition] = a.Range.Next, a.LeaderEpoch
	s := &Step{life: m.life, events: []event.Event{{Append: a}}}
	s.Records = []event.Event{{Append: &event.Append{Header: a.Header, LSN: a.LSN}}}
	return Verdict{Outcome: Accepted, Next: a.Range.Next, LeaderEpoch: a.LeaderEpoch, Step: s}
}

// Fresh reports whether a continues its partition, and with rows that the journal
// does not remember: only then may the host put it off.
func (m *Machine) Fresh(a *event.Append) bool {
	at, known := m.appended[a.Partition]
	return m.state == Serving && !m.pending && known && a.Range.First == at && len(m.outstanding[a.Partition]) == 0
}

// refill takes the rows of an entry that the journal remembers. They must be
// what they were, or LSNs that readers have seen would name other rows.
func (m *Machine) refill(a *event.Append, list []*event.Append) Verdict {
	was := list[0]
	if !sameEntry(&was.Header, &a.Header) {
		why := fmt.Sprintf("%s was read again differently: %s", a.Partition, difference(&was.Header, &a.Header))
		m.need(why)
		return Verdict{Outcome: NotServing, Next: m.appended[a.Partition], Text: fault.New(fault.NotReady, "table %s: %s", m.name, why).Error()}
	}
	a.LSN = was.LSN
	m.appended[a.Partition], m.epochs[a.Partition] = a.Range.Next, a.LeaderEpoch
	if len(list) == 1 {
		delete(m.outstanding, a.Partition)
	} else {
		m.outstanding[a.Partition] = list[1:]
	}
	return Verdict{Outcome: Accepted, Next: a.Range.Next, LeaderEpoch: a.LeaderEpoch, Step: &Step{life: m.life, events: []event.Event{{Append: a}}}}
}

// sameEntry compares what fixes the meaning of an entry. A newer schema
// fingerprint alone is no difference.
func sameEntry(was, now *event.Header) bool {
	return was.Range == now.Range && was.Rows == now.Rows && was.Quarantined == now.Quarantined &&
		was.Digest == now.Digest && was.Revision == now.Revision
}

func difference(was, now *event.Header) string {
	switch {
	case was.Range != now.Range:
		return fmt.Sprintf("the range was %s, now it is %s", was.Range, now.Range)
	case was.Revision != now.Revision:
		return fmt.Sprintf("%s was made by pipeline revision %x, now by %x", was.Range, was.Revision, now.Revision)
	case was.Rows != now.Rows || was.Quarantined != now.Quarantined:
		return fmt.Sprintf("%s held %d rows and %d quarantined, now %d and %d", was.Range, was.Rows, was.Quarantined, now.Rows, now.Quarantined)
	default:
		return fmt.Sprintf("the digest of %s is another one", was.Range)
	}
}

// malformed says what is wrong with a header, "" when nothing is: every offset
// of the range must be accounted for exactly once.
func malformed(h *event.Header) string {
	if h.Range.First < 0 || h.Range.Empty() {
		return "the range is empty or negative"
	}
	if h.Rows < 0 || h.Quarantined < 0 {
		return "a count is negative"
	}
	var skipped int64
	at := h.Range.First
	for _, s := range h.Skips {
		if s.Empty() || s.First < at || s.Next > h.Range.Next || s.Reason == event.SkipUnspecified {
			return "a skipped run " + s.String() + " lies outside the range, out of order or has no reason"
		}
		at = s.Next
		skipped += s.Len()
	}
	if left := h.Range.Len() - skipped; h.Rows > left || h.Quarantined != left-h.Rows {
		return "rows, quarantined and skipped offsets do not add up to the range"
	}
	if h.Range.Len() > longest && !h.Lost() {
		return "the range is too long: a lost run must be an entry of its own"
	}
	return ""
}

// PublishSchema makes a schema known; again is acknowledged without effect.
func (m *Machine) PublishSchema(uuid ident.UUID, writer ident.WriterEpoch, sch event.Schema) (*Step, error) {
	if m.state != Serving || m.pending {
		return nil, m.notServing()
	}
	if err := m.fenced(uuid, writer); err != nil {
		return nil, err
	}
	s := &Step{life: m.life}
	for _, n := range m.learn([]event.Schema{sch}) {
		s.add(event.Event{Schema: &n})
	}
	return s, nil
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
