package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/forward"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

const (
	// linger is how long an open entry may wait for more records while earlier entries are unanswered. With none
	// unanswered it does not wait at all, so a trickle of records is hot at once and a stream of them is batched.
	linger = 5 * time.Millisecond
	// lingerBehind is how long it may wait where the partition is known to have more: a fetch ends at a size, and what it has
	// beyond a full entry would else go by itself. A backlog came as half as many entries again, each of which costs all services.
	lingerBehind = 50 * time.Millisecond
	// maxRows is the number of records after which an entry is cut.
	maxRows = 8192
	// schemaPatience is how long an entry waits at most for the log to learn its schema before the committer is asked again.
	schemaPatience = 5 * time.Second
)

// session brings records of one partition into the log from one offset on, on one lane.
type session struct {
	w    *worker
	t    *table
	lane *forward.Lane
	part ident.Partition
	b    *batch.Builder

	waits  time.Time // since when the open entry waits for more records; zero: it does not
	policy *policy   // in force when the session began
	pins   string    // the schemas that were looked up

	bounds []ident.Range // to be cut at exactly, ascending

	// The plan of the records before: nearly always the next one's as well.
	last      *plan
	frame     frame.Last // of the record at hand, here so that no record allocates one
	keyFrame  frame.Frame
	lastValue met
	lastKey   met
	settled   bool  // last is the plan of frame, and no key has a say in it
	null      *plan // for tombstones before the first plan
	bound     *plan // the plan whose columns the open entry has
}

func (s *session) run(ctx context.Context) error {
	c := &s.w.p.c
	s.bounds = s.lane.Bounds
	s.policy = s.w.p.policy.Load()
	s.b = batch.New(batch.Options{Partition: s.part, Revision: s.policy.with(s.pins), MaxBytes: s.w.p.entryBytes(), MaxRows: maxRows, MaxMessage: c.MessageMax}, s.lane.Start)
	defer func() { s.b.Drop(s.b.First()) }()
	epoch := s.lane.LeaderEpoch
	if err := s.checkLoss(ctx, epoch); err != nil {
		return err
	}
	if s.b.Next() != s.lane.Start || s.w.diverged(s.lane.Start) && s.continues() {
		epoch = -1 // what is gone is known already
	}
	if err := s.w.cursor.Seek(ctx, s.part.TopicID, s.b.Next(), epoch); err != nil {
		return err
	}
	s.w.took(s.b.Next(), 0)
	s.w.set(event.PartitionRunning, "")
	err := s.pump(ctx)
	if err != nil && !errors.Is(err, errDrained) {
		err = s.explain(err)
	}
	return err
}

// pump takes fetches until something fails.
func (s *session) pump(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if s.policy != s.w.p.policy.Load() {
			return s.end(ctx, errPolicy)
		}
		f, err := s.w.cursor.Take()
		switch {
		case err != nil:
			return err
		case f != nil:
			err := s.take(ctx, f)
			f.Release()
			if err != nil {
				return err
			}
			continue
		}
		wait := s.w.p.consumer.Refresh()
		if s.mayCut() {
			if more := s.patience(time.Now()); more > 0 {
				wait = more
			} else if err := s.send(ctx); err != nil {
				return err
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.w.drain:
			return s.end(ctx, errDrained)
		case <-s.w.cursor.Ready():
		case <-timer.C:
			if s.mayCut() {
				err = s.send(ctx)
			} else {
				err = s.passVacant(ctx)
			}
			if err != nil {
				return err
			}
		}
	}
}

// patience is how long the open entry waits for more records; 0 or less: it goes now.
func (s *session) patience(now time.Time) time.Duration {
	if s.waits.IsZero() {
		s.waits = now
	}
	return patience(s.b.Next() < s.w.cursor.Limits().StableEnd, s.lane.Idle(), now.Sub(s.waits))
}

// patience is how long an open entry waits that has waited: behind says that the log is known to have more, idle that no
// earlier entry is unanswered.
func patience(behind, idle bool, waited time.Duration) time.Duration {
	switch {
	case behind:
		return lingerBehind - waited
	case !idle:
		return linger
	default:
		return 0
	}
}

// end sends what is open, waits for the answers, and returns why.
func (s *session) end(ctx context.Context, why error) error {
	if s.mayCut() {
		if err := s.send(ctx); err != nil {
			return err
		}
	}
	if err := s.lane.Flush(ctx); err != nil {
		return err
	}
	return why
}

// mayCut reports whether the open entry may end after its last record: it holds something, and it is not a range that
// the log remembers and that must come back whole.
func (s *session) mayCut() bool {
	if s.b.Empty() {
		return false
	}
	_, inside := s.edge()
	return !inside
}

// edge is the next offset at which an entry must end, 0 when there is none; inside says that the open entry lies in a
// range which must come back whole.
func (s *session) edge() (at int64, inside bool) {
	for len(s.bounds) > 0 && s.bounds[0].Next <= s.b.First() {
		s.bounds = s.bounds[1:]
	}
	if len(s.bounds) == 0 {
		return 0, false
	}
	if r := s.bounds[0]; r.First > s.b.First() {
		return r.First, false
	}
	return s.bounds[0].Next, true
}

func (s *session) take(ctx context.Context, f *source.Fetch) error {
	for r := range f.Records() {
		if err := s.accept(ctx, r); err != nil {
			return err
		}
	}
	if n := f.Len(); n > 0 {
		s.w.took(s.b.Next(), f.LastTime())
		s.w.m.read(n, f.Bytes)
	}
	return nil
}

// accept takes one record, and cuts the open entry where it must end before or behind it.
func (s *session) accept(ctx context.Context, r *batch.Record) error {
	if r.Offset < s.b.Next() {
		return nil // a broker may return a whole batch around the offset that was asked for
	}
	if len(s.bounds) > 0 { // after a restart
		return s.acceptBounded(ctx, r)
	}
	if err := s.record(ctx, r); err != nil {
		return err
	}
	if s.b.Full() {
		return s.send(ctx)
	}
	return nil
}

func (s *session) acceptBounded(ctx context.Context, r *batch.Record) error {
	for {
		at, _ := s.edge()
		if at == 0 || r.Offset < at {
			break
		}
		s.b.CloseTo(at)
		if err := s.send(ctx); err != nil {
			return err
		}
	}
	if err := s.record(ctx, r); err != nil {
		return err
	}
	if at, inside := s.edge(); (at > 0 && s.b.Next() == at) || (!inside && s.b.Full()) {
		return s.send(ctx)
	}
	return nil
}

// record decides what becomes of one record.
func (s *session) record(ctx context.Context, r *batch.Record) error {
	switch {
	case r.Control:
		return s.b.Skip(r, event.SkipControl)
	case r.Size() > s.w.p.c.RecordMax:
		return s.invalid(ctx, r, batch.ReasonOversized, fmt.Sprintf("the record has %d bytes, record.max is %d", r.Size(), s.w.p.c.RecordMax), -1)
	case r.Value == nil:
		return s.tombstone(ctx, r)
	}
	f, same, err := s.splitValue(r)
	if err != nil {
		return s.fault(ctx, r, err, -1)
	}
	schemaID := int32(-1)
	if f.Form == frame.PrefixID || f.Form == frame.HeaderID {
		schemaID = f.ID
	}
	if same && s.settled {
		return s.row(ctx, r, f, s.last, schemaID)
	}
	s.settled = false
	with, err := s.split(r, f)
	if err != nil {
		return s.fault(ctx, r, err, -1)
	}
	pl, err := s.plan(ctx, with)
	if err != nil {
		return s.fault(ctx, r, err, schemaID)
	}
	s.settled = s.w.p.c.Key == nil
	return s.row(ctx, r, f, pl, schemaID)
}

// row decodes into the open entry, which is cut before when it has another schema or no room.
func (s *session) row(ctx context.Context, r *batch.Record, f *frame.Frame, pl *plan, schemaID int32) error {
	if err := s.bind(ctx, pl); err != nil {
		return err
	}
	if err := s.b.Row(r, f.Payload, schemaID); err != nil {
		if !errors.Is(err, cell.ErrBatchFull) {
			return s.fault(ctx, r, err, schemaID)
		}
		if err := s.send(ctx); err != nil {
			return err
		}
		if err := s.bind(ctx, pl); err != nil {
			return err
		}
		if err := s.b.Row(r, f.Payload, schemaID); err != nil {
			return s.fault(ctx, r, err, schemaID)
		}
	}
	s.w.flood.good(r.Offset)
	return nil
}

// bind makes the open entry ready for rows of the plan.
func (s *session) bind(ctx context.Context, pl *plan) error {
	if s.bound == pl && s.b.Bound() != nil {
		return nil
	}
	if s.b.Bound() != nil {
		if s.bound.id.noValue && s.bound.id.sameKey(pl.id) { // rows without values fit every schema
			moved, err := s.b.Rebind(pl.target, pl.rows(), pl.put)
			if err != nil || moved {
				s.bound = pl
				return err
			}
		}
		if err := s.send(ctx); err != nil {
			return err
		}
	}
	s.bound = pl
	return s.b.Bind(pl.target, pl.rows(), pl.put)
}

func (s *session) tombstone(ctx context.Context, r *batch.Record) error {
	if s.w.p.c.Pipeline.Tombstones != "row" {
		return s.b.Skip(r, event.SkipTombstone)
	}
	pl, err := s.nullPlan(ctx, r)
	if err != nil {
		return s.fault(ctx, r, err, -1)
	}
	if err := s.bind(ctx, pl); err != nil {
		return err
	}
	if err = s.b.NullRow(r); errors.Is(err, cell.ErrBatchFull) {
		if err := s.send(ctx); err != nil {
			return err
		}
		if err := s.bind(ctx, pl); err != nil {
			return err
		}
		err = s.b.NullRow(r)
	}
	if err != nil {
		return s.fault(ctx, r, err, -1)
	}
	return nil
}

// nullPlan is a plan for a record without a value: that of its neighbours, unless its key needs another one.
func (s *session) nullPlan(ctx context.Context, r *batch.Record) (*plan, error) {
	with, err := s.split(r, nil)
	if err != nil {
		return nil, err
	}
	key := with.planKey()
	for _, pl := range []*plan{s.bound, s.last} {
		if pl != nil && pl.id.sameKey(key) {
			return pl, nil
		}
	}
	if s.w.p.c.Key != nil {
		return s.plan(ctx, with)
	}
	if s.null == nil {
		s.null, err = s.t.nullPlan()
	}
	return s.null, err
}

// splitValue takes the reference off the value; same says that it is that of the value before.
func (s *session) splitValue(r *batch.Record) (f *frame.Frame, same bool, err error) {
	h := header(r, frame.HeaderName)
	if h == nil && s.frame.Same(r.Value) {
		return &s.frame.Frame, true, nil
	}
	one, err := s.w.p.c.Codec.Split(r.Value, h)
	if err != nil {
		return nil, false, err
	}
	s.frame.Keep(one, r.Value)
	return &s.frame.Frame, false, nil
}

// split takes the reference off the key; value is that of the value, nil if there is none.
func (s *session) split(r *batch.Record, value *frame.Frame) (refs, error) {
	if s.w.p.c.Key == nil {
		return refs{value: value}, nil
	}
	key, ok, err := s.w.p.splitKey(r)
	if err != nil || !ok {
		return refs{value: value}, err
	}
	s.keyFrame = key
	return refs{value: value, key: &s.keyFrame}, nil
}

// fault sorts an error: one of the record's goes by policy, any other ends the session.
func (s *session) fault(ctx context.Context, r *batch.Record, err error, schemaID int32) error {
	reason, text, ok := reasonOf(err)
	if !ok {
		return err
	}
	return s.invalid(ctx, r, reason, text, schemaID)
}

// invalid does with a record that cannot be a row what the policy says, unless
// there are too many of them.
func (s *session) invalid(ctx context.Context, r *batch.Record, reason, text string, schemaID int32) error {
	s.w.m.invalid(reason)
	if reason == ReasonSchemaRefused { // an operator decided about them already: neither guard nor policy asks again
		return s.b.Quarantine(r, reason, text, schemaID)
	}
	if s.w.allow.Swap(false) && s.w.flood.tripped != "" { // nobody allowed a flood that was still to come
		s.w.flood.allow()
	}
	if why := s.w.flood.hit(r.Offset, reason); why != "" && s.policy.name != policyStop {
		return s.stop(ctx, &recordsError{flood: true, text: fmt.Sprintf(
			"%s at offset %d: %s. The last: %s: %s. Correct the cause, or let them go on with `icestream quarantine allow %s`",
			s.part, r.Offset, why, reason, text, s.w.p.Name())})
	}
	switch s.policy.name {
	case policySkip:
		skip := event.SkipInvalid
		if reason == batch.ReasonOversized {
			skip = event.SkipOversized
		}
		return s.b.Skip(r, skip)
	case policyStop:
		return s.stop(ctx, &recordsError{text: fmt.Sprintf(
			"offset %d of %s cannot be a row (%s: %s) and the policy is stop: correct the cause, or switch with `icestream policy set %s quarantine` (or skip)",
			r.Offset, s.part, reason, text, s.w.p.Name())})
	default:
		return s.b.Quarantine(r, reason, text, schemaID)
	}
}

// stop ends the session because of the next record; its neighbours before it are
// not harmed.
func (s *session) stop(ctx context.Context, why *recordsError) error {
	if s.mayCut() {
		if err := s.send(ctx); err != nil {
			return err
		}
		if err := s.lane.Flush(ctx); err != nil {
			return err
		}
	}
	return &stopError{why}
}

// send cuts the open entry and sends it when the log knows its schema and has credit.
func (s *session) send(ctx context.Context) error {
	if s.b.Empty() {
		return nil
	}
	pl := s.bound
	s.bound, s.waits = nil, time.Time{}
	e, err := s.b.Cut()
	if err != nil {
		return fault.New(fault.Internal, "%w", err)
	}
	if e.Rows > 0 {
		if err := s.awaitSchema(ctx, e.Fingerprint, pl); err != nil {
			e.Release(true)
			return err
		}
	}
	return s.lane.Send(ctx, s.w.outgoing(e))
}

func header(r *batch.Record, name string) []byte {
	for _, h := range slices.Backward(r.Headers) { // the last one counts: whoever passed the record on put his behind
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}
