package commit

import "github.com/icestream/icestream/internal/ident"

// Attempt is the pure machine of one commit attempt: what to do next after each
// thing that happens to it. It holds the rules that make a commit exact
// (design section 3):
//
//   - there are three outcomes: landed, rejected, ambiguous, and only a look at
//     the reloaded table decides between them, never an error;
//   - ambiguity is sticky: no later answer turns it into a rejection;
//   - while the head still is the attempt's base, the same staged snapshot is
//     sent again, so it lands once at most;
//   - absence is proven only when the head has left the base without it. Where
//     an ambiguous attempt is refused again and again at a head that stands, the
//     base is left on purpose, by an empty snapshot.
//
// Events go in through Next; the effect that comes out is to be carried out, and
// its result is the next event. The zero value is not usable.
type Attempt struct {
	base      int64 // snapshot id of the head that the staged change asserts
	schema    int32 // table schema id that it was staged against
	epoch     ident.WriterEpoch
	ambiguous bool // some request of ours may still arrive at the catalog
	accepted  bool // the catalog said so to the last request
	refusals  int  // requests that were refused for certain
	refused   bool // the last one was
	denied    bool // it was, by something other than a conflict
	over      bool
}

// Base is what an attempt stands on: the head it was staged against.
type Base struct {
	SnapshotID int64
	SchemaID   int32
	// Epoch is the writer epoch of the committer that makes the attempt. A head
	// with a higher one ends its writing.
	Epoch ident.WriterEpoch
}

// NewAttempt starts the machine of a change that was staged on base. Its first
// effect is Send.
func NewAttempt(base Base) *Attempt {
	return &Attempt{base: base.SnapshotID, schema: base.SchemaID, epoch: base.Epoch}
}

// Ambiguous reports whether a request of the attempt may still be on its way.
func (a *Attempt) Ambiguous() bool { return a.ambiguous }

// Effect is what is to be done next.
type Effect uint8

// The effects of an attempt.
const (
	// Send sends the staged change, the same one each time. After the first time
	// wait a back-off before it.
	Send Effect = iota + 1
	// Look reloads the table and looks for the commit id in its ancestors. After
	// a failed look wait a back-off before the next.
	Look
	// Landed: the commit is in the table.
	Landed
	// Rejected: the head left the base without the commit. It will never land;
	// plan again from the head. Its files may be used again or deleted.
	Rejected
	// Restage: every request was refused for certain while the head still is the
	// base; stage the same files anew on the loaded head. No file is free.
	Restage
	// Fenced: a committer with a higher writer epoch owns the table. Stop
	// writing. The commit will never land.
	Fenced
	// Displace lands an empty snapshot on the base, so that the head leaves it;
	// then look. Wait a back-off before it.
	Displace
	// Denied: the catalog does not want the change, the head still is the base,
	// and no request is on its way. No file is free before the head leaves it.
	Denied
)

// String returns the effect in lower case.
func (e Effect) String() string {
	switch e {
	case Send:
		return "send"
	case Look:
		return "look"
	case Landed:
		return "landed"
	case Rejected:
		return "rejected"
	case Restage:
		return "restage"
	case Fenced:
		return "fenced"
	case Displace:
		return "displace"
	case Denied:
		return "denied"
	default:
		return "none"
	}
}

// Event is something that happened to an attempt.
type Event interface{ event() }

// Sent is the answer to a Send.
type Sent struct{ Answer Answer }

// Answer is what the catalog said to a request, as far as it can be trusted.
type Answer uint8

// The answers.
const (
	// Accepted: the catalog says that the commit landed.
	Accepted Answer = iota + 1
	// Refused: a typed conflict. This request has not landed and will not.
	Refused
	// Unknown: anything else, a timeout or a broken connection above all. The
	// request may have landed, or may land later.
	Unknown
	// Forbidden: a definite no that is no conflict: the request is bad, or our
	// rights do not suffice. Some catalogs answer a conflict so too.
	Forbidden
)

// Looked is the result of a Look at the table.
type Looked struct {
	// Failed: the table could not be loaded; the other fields mean nothing.
	Failed bool
	// Found: the commit id is in the ancestors of the head.
	Found bool
	// SnapshotID and SchemaID of the head.
	SnapshotID int64
	SchemaID   int32
	// Epoch is the writer epoch in the head's state.
	Epoch ident.WriterEpoch
}

func (Sent) event()   {}
func (Looked) event() {}

// maxRefusals is how often the same snapshot is offered to a catalog that
// refuses it although the head has not moved, before it is staged anew: what the
// catalog dislikes may be part of the request, such as metadata that changed
// without a snapshot.
const maxRefusals = 3

// Next takes an event in and returns what is to be done. After Landed, Rejected,
// Restage, Fenced or Denied the attempt is over and must not be fed again.
func (a *Attempt) Next(ev Event) Effect {
	if a.over {
		return 0
	}
	switch ev := ev.(type) {
	case Sent:
		a.accepted = ev.Answer == Accepted
		a.refused, a.denied = ev.Answer == Refused || ev.Answer == Forbidden, ev.Answer == Forbidden
		switch ev.Answer {
		case Refused, Forbidden:
			a.refusals++
		case Unknown:
			a.ambiguous = true
		case Accepted: // the look decides
		}
		return Look
	case Looked:
		e := a.looked(ev)
		a.over = e == Landed || e == Rejected || e == Restage || e == Fenced || e == Denied
		return e
	default:
		return 0
	}
}

func (a *Attempt) looked(l Looked) Effect {
	// An answer that the table does not bear out is worth no more than none: the
	// catalog lost the commit, or shows it later.
	a.ambiguous = a.ambiguous || a.accepted && !l.Failed && !l.Found
	switch {
	case l.Failed:
		return Look
	case l.Found:
		return Landed
	case l.SnapshotID != a.base && l.Epoch > a.epoch:
		return Fenced
	case l.SnapshotID != a.base:
		return Rejected
	case a.ambiguous && a.refused && (l.SchemaID != a.schema || a.refusals >= maxRefusals):
		// The catalog will never take this request as it is, and an older one that
		// is on its way cannot land any more once the head has left the base.
		return Displace
	case a.ambiguous:
		// Not there yet, and the head has not moved: that proves nothing.
		return Send
	case l.SchemaID != a.schema:
		return Restage
	case a.denied:
		return Denied
	case a.refusals >= maxRefusals:
		return Restage
	default:
		return Send
	}
}
