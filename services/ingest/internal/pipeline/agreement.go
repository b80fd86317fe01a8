package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
)

// met is the frame that was planned for last: nearly always the next one's as well.
type met struct {
	frame frame.Frame
	index string
	none  bool
}

func (m *met) is(f *frame.Frame) bool {
	if f == nil || m.none {
		return f == nil && m.none
	}
	return f.ID == m.frame.ID && f.Form == m.frame.Form && string(f.Index) == m.index && f.GUID == m.frame.GUID
}

func meet(f *frame.Frame) met {
	if f == nil {
		return met{none: true}
	}
	return met{frame: frame.Frame{ID: f.ID, Form: f.Form, GUID: f.GUID}, index: string(f.Index)}
}

// plan finds the plan of a record, waiting as long as registry or committer are away.
func (s *session) plan(ctx context.Context, r refs) (*plan, error) {
	if s.last != nil && s.lastValue.is(r.value) && s.lastKey.is(r.key) {
		return s.last, nil
	}
	wait := backoff.Policy{Initial: 100 * time.Millisecond, Max: 5 * time.Second, Factor: 2, Jitter: 0.3}.Start()
	for {
		pl, err := s.t.planFor(ctx, r)
		if err == nil {
			s.w.set(event.PartitionRunning, "")
			s.last, s.lastValue, s.lastKey = pl, meet(r.value), meet(r.key)
			return pl, nil
		}
		if isRecords(err) {
			if err = s.blame(ctx, err); isRecords(err) {
				s.w.set(event.PartitionRunning, "")
				return nil, err
			}
		}
		// What is open need not wait with it, and must not change what is said about the wait.
		if s.mayCut() {
			if err := s.send(ctx); err != nil {
				return nil, err
			}
		}
		var stop *stopError
		var after time.Duration
		if fe, ok := errors.AsType[*fault.Error](err); ok {
			after = fe.RetryAfter
		}
		if errors.As(err, &stop) || errors.Is(err, fault.Of(fault.Unauthorized)) {
			s.w.set(event.PartitionStopped, err.Error())
			after = stoppedRetry
		} else {
			s.w.set(event.PartitionWaiting, err.Error())
		}
		if wait.Count() == 0 {
			s.w.p.c.Log.Warn("decoding waits", "partition", s.part.String(), "error", err)
		}
		if err := s.sleep(ctx, max(wait.Next(), after)); err != nil {
			return nil, err
		}
	}
}

// sleep waits, but not beyond an operator's wish to try again or the end of the worker.
func (s *session) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.w.drain:
		return errDrained
	case <-s.w.wake:
	case <-t.C:
	}
	return nil
}

// maxReminders is how often the committer may say that it has published a schema which the log does not show, before the
// stream begins anew: it may lead to another log than the committer's.
const maxReminders = 3

// awaitSchema waits until the log has learned the schema from the committer, and reminds the committer of it: a log
// that came back without its journal and a committer that was restarted both have forgotten it, and rows wait. Whatever
// shows that the schema will not be published any more ends the session, which makes the rows anew (G11):
//
//   - the committer has another target for the source now, or for rows without one: those get that;
//   - the source is refused now, or its records were sent to quarantine: the next session says so, or does so;
//   - the committer publishes it, and the stream does not bring it: the stream begins anew, at whoever owns the table.
func (s *session) awaitSchema(ctx context.Context, fingerprint string, pl *plan) error {
	patience := backoff.Policy{Initial: 200 * time.Millisecond, Max: schemaPatience, Factor: 2, Jitter: 0.3}.Start()
	waits := "the log does not know schema " + fingerprint + " yet: waiting for the committer to publish it"
	for reminded := 0; ; {
		known, err := s.lane.AwaitSchema(ctx, fingerprint, patience.Next())
		if err != nil || known {
			if known {
				s.w.set(event.PartitionRunning, "")
			}
			return err
		}
		if reminded == maxReminders {
			s.lane.Reconnect(fault.New(fault.UnknownSchema,
				"the committer of table %s has published schema %s and this stream has not brought it: asking for the buffer anew", s.t.name, fingerprint))
			continue // the end of the lane is the next answer
		}
		s.w.set(event.PartitionWaiting, waits)
		now, err := s.t.target(ctx, pl)
		switch {
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case isFinal(err):
			s.t.forget(pl)
			// As text: it is about the schema, not about the record at hand.
			return fault.New(fault.UnknownSchema, "the log does not know schema %s any more and the committer does not publish it again: %s", fingerprint, err)
		case err != nil:
			waits = "the log does not know schema " + fingerprint + ", and the committer cannot be asked to publish it: " + err.Error()
			s.w.set(event.PartitionWaiting, waits)
			s.w.p.c.Log.Warn("asking for a schema again", "table", s.t.name, "error", err)
		case now != fingerprint:
			s.t.forget(pl)
			return fault.New(fault.UnknownSchema, "table %s has schema %s now, not %s: making its rows anew", s.t.name, now, fingerprint)
		default:
			reminded++
		}
	}
}

// isFinal reports whether asking again changes an answer only when somebody decides.
func isFinal(err error) bool {
	var stop *stopError
	return errors.As(err, &stop) || isRecords(err)
}
