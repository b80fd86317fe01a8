// Package cut decides when a committer closes its files for a commit. It is
// pure: it knows no clock and no files, takes what is held and the time, and
// answers with a reason or with the time at which to ask again.
package cut

import "time"

// Reason says in one word why a cut is made; it is a metric label and a log
// attribute. The empty Reason means no cut.
type Reason string

// The reasons for a cut, in the order in which they are looked at.
const (
	None     Reason = ""
	Asked    Reason = "asked"    // an operator called CommitNow
	Stopping Reason = "stopping" // the last commit before the process ends
	Schema   Reason = "schema"   // rows wait that need newer columns than the open files have
	Pressure Reason = "pressure" // hot bytes of all tables come near their budget
	Bytes    Reason = "bytes"    // the encoded bytes reached the target
	Rows     Reason = "rows"     // the row bound is reached
	Interval Reason = "interval" // the oldest row waited for the interval
	Progress Reason = "progress" // offsets without rows waited long enough
	Epoch    Reason = "epoch"    // a log epoch is about to end: its rows are kept
)

// PressurePart is the part of the hot budget, in percent, above which every
// table that holds something commits without waiting for its interval. The other
// half is what arrives while the commits are on their way: with much more in the
// first half the senders would stand still meanwhile, with much less each commit
// would move little. Credit in the hands of idle senders must leave room for it.
const PressurePart = 50

// MaxEmpty is how long progress without rows may wait where nothing is known of
// the retention of its topics.
const MaxEmpty = 24 * time.Hour

// Policy says when to cut.
type Policy struct {
	// Interval is how long the oldest held row may wait.
	Interval time.Duration
	// Bytes of encoded files; 0 means no bound.
	Bytes int64
	// Rows held; 0 means no bound.
	Rows int64
	// Budget of hot bytes of all tables together; 0 means no bound.
	Budget int64
	// EmptyAfter is how long progress without rows may wait; 0 means MaxEmpty.
	// A quarter of the topic's retention bounds it in any case.
	EmptyAfter time.Duration
}

// Load is what is held for one table and not yet part of a commit.
type Load struct {
	// Since is when the oldest held entry arrived; zero when nothing is held.
	Since time.Time
	// SinceRows is when the oldest held entry with rows or poison arrived; zero
	// when there is none.
	SinceRows time.Time
	// Rows and quarantined records held.
	Rows int64
	// Encoded bytes in all files of the table that are not committed.
	Encoded int64
	// Hot is what all tables of the process hold uncommitted, in the bytes of the
	// hot budget.
	Hot int64
	// Own is the part of Hot that this table holds, and Ready the part of Own that
	// is in files already: what a cut would take.
	Own, Ready int64
	// Retention is the smallest known retention of the partitions that moved; 0
	// when it is not known.
	Retention time.Duration
	// NewSchema says that rows wait which do not fit into the open files.
	NewSchema bool
	// Asked says that CommitNow waits.
	Asked bool
	// Stopping says that the process is about to end.
	Stopping bool
}

// Empty reports whether nothing is held.
func (l Load) Empty() bool { return l.Since.IsZero() }

// Decide returns why a cut is due at now, or None and when to ask again at the
// latest: the zero time when only a new entry can change the answer.
//
// Partitions that stand still play no part in it: a cut takes what is there and
// waits for nobody.
func (p Policy) Decide(now time.Time, l Load) (Reason, time.Time) {
	if l.Empty() {
		return None, time.Time{}
	}
	switch {
	case l.Asked:
		return Asked, time.Time{}
	case l.Stopping:
		return Stopping, time.Time{}
	case l.NewSchema:
		return Schema, time.Time{}
	case p.pressed(now, l):
		return Pressure, time.Time{}
	case p.Bytes > 0 && l.Encoded >= p.Bytes:
		return Bytes, time.Time{}
	case p.Rows > 0 && l.Rows >= p.Rows:
		return Rows, time.Time{}
	}
	empty := l.Since.Add(p.emptyAfter(l.Retention))
	if !now.Before(empty) {
		return Progress, time.Time{}
	}
	if l.SinceRows.IsZero() {
		return None, empty
	}
	due := l.SinceRows.Add(p.Interval)
	if !now.Before(due) {
		return Interval, time.Time{}
	}
	if empty.Before(due) {
		due = empty
	}
	return None, due
}

// pressed reports whether the hot bytes of all tables call for a commit of this
// one: not of one that holds next to nothing, nor of one most of whose rows still
// wait to be encoded. Either would make many tiny commits, and these slow down
// the encoding that they do not wait for. What waits is encoded meanwhile, so
// the pressure is answered however full the budget is.
func (p Policy) pressed(now time.Time, l Load) bool {
	if p.Budget <= 0 || l.Hot*100 < p.Budget*PressurePart || l.Ready*2 < l.Own {
		return false
	}
	return l.Own*20 >= l.Hot || now.Sub(l.Since) >= p.Interval/10
}

// emptyAfter bounds the wait of progress without rows: were it longer than the
// retention, a restart would find its position expired from Kafka (design
// section 3).
func (p Policy) emptyAfter(retention time.Duration) time.Duration {
	wait := p.EmptyAfter
	if wait <= 0 || wait > MaxEmpty {
		wait = MaxEmpty
	}
	if retention > 0 && retention/4 < wait {
		wait = retention / 4
	}
	return wait
}
