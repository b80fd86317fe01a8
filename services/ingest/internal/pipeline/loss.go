package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// continues reports whether what Kafka lost is accepted.
func (s *session) continues() bool { return s.w.p.c.Pipeline.OnDataLoss == "continue" }

// checkLoss compares the position with what Kafka holds. What is gone is recorded or stops the partition, by policy.
// epoch is the leader epoch of the record before the position, -1 where it is not known.
func (s *session) checkLoss(ctx context.Context, epoch int32) error {
	if err := s.recordReplaced(ctx); err != nil {
		return err
	}
	l, err := s.w.cursor.Measure(ctx)
	if err != nil {
		return err
	}
	at := s.b.Next()
	switch {
	case at < l.LogStart:
		if !s.continues() {
			return &stopError{fmt.Errorf("%w: %s holds nothing below offset %d, and offsets %d to %d were not read: they are lost; set on_data_loss: continue to record the loss and go on",
				source.ErrOutOfRange, s.part, l.LogStart, at, l.LogStart-1)}
		}
		s.w.p.c.Log.Error("offsets are lost", "partition", s.part.String(), "from", at, "to", l.LogStart-1)
		s.b.Lost(l.LogStart)
		return s.send(ctx)
	case at > l.StableEnd:
		s.replaced(at, l.StableEnd, false)
		if s.continues() {
			if err := s.recordReplaced(ctx); err != nil {
				return err
			}
			return fault.New(fault.Unavailable, "%s ends at offset %d but offset %d is next: the log was truncated; records that take the offsets in between are not read", s.part, l.StableEnd, at)
		}
		return &stopError{fmt.Errorf("%w: %s ends at offset %d, but everything below %d was read already; set on_data_loss: continue to go on when the log has grown beyond it",
			source.ErrTruncated, s.part, l.StableEnd, at)}
	case epoch < 0 && s.w.replacedBelow(at) && !s.continues():
		// The log has grown beyond the position since, and no leader epoch would tell that other records stand below it.
		return &stopError{fmt.Errorf("%w: %s ended below offset %d, up to which everything was read already, and has grown beyond it: other records took those offsets; set on_data_loss: continue to go on without them",
			source.ErrTruncated, s.part, at)}
	default:
		return nil
	}
}

// replaced notes, counts and logs that the cluster's log from the offset from on, below the position at, is not the one
// that was read.
func (s *session) replaced(at, from int64, exact bool) {
	if !s.w.noteReplaced(from, at, exact) {
		return
	}
	s.w.m.lost()
	s.w.p.c.Log.Error("the Kafka log was truncated below what was read: records that took those offsets since are not read",
		"partition", s.part.String(), "from", from, "read_to", at)
}

// recordReplaced has the table remember what was found replaced, where the policy accepts that; nothing is read before.
// What the log has forgotten since, with its journal, is read again as it is now and was not replaced. What a process
// could not tell before its end, the next one finds as this one did, unless no leader epoch is known and the log has grown
// beyond the position meanwhile. Of a topic that was created again, the table knows that it was.
func (s *session) recordReplaced(ctx context.Context) error {
	s.w.mu.Lock()
	part, r, recorded := s.w.replacedOf, s.w.replaced, s.w.recorded
	s.w.mu.Unlock()
	r.Next = min(r.Next, s.lane.Start)
	if part == s.part && !recorded && !r.Empty() && s.continues() {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer s.w.watchDrain(ctx, cancel)()
		if err := s.t.recordReplaced(ctx, part, r); err != nil {
			return orCause(ctx, err)
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.recorded = true
	return nil
}

// explain turns what the cursor reports into a stop, where the policy says so.
func (s *session) explain(err error) error {
	switch reason := source.Classify(err); {
	case errors.Is(reason, source.ErrTruncated):
		at, to := s.lane.Acked(), source.DivergedAt(err)
		if to >= at {
			return err // nothing that the log holds: what was read beyond is thrown away with the session
		}
		s.replaced(at, to, true)
		if s.continues() {
			return err
		}
		return &stopError{fmt.Errorf("%w: %s has other records from offset %d on than those that were read up to %d; set on_data_loss: continue to go on at offset %d: %w",
			source.ErrTruncated, s.part, to, at, at, err)}
	case errors.Is(reason, source.ErrRecreated):
		if e, ok := errors.AsType[*source.RecreatedError](err); ok && e.Now == s.part.TopicID {
			// The session is one of the new topic, and the table knows of no other: nothing was read of the one before.
			s.w.p.consumer.Readopt(s.part.Topic)
			return err
		}
		s.w.m.lost()
		if s.continues() {
			s.w.p.c.Log.Error("topic was created again; reading the new one from its beginning", "partition", s.part.String(), "error", err)
			s.w.p.consumer.Readopt(s.part.Topic)
			return err
		}
		return &stopError{fmt.Errorf("%w; set on_data_loss: continue to read the new topic from its beginning", err)}
	default:
		return err // out of range: the next session finds out what is gone
	}
}

// passVacant accounts for offsets at the end of the log whose records were compacted away, when nothing has come for a
// while: no record would ever say so, the partition would seem to lag for ever, and retention would seem to take them.
func (s *session) passVacant(ctx context.Context) error {
	if s.b.Next() >= s.w.cursor.Limits().StableEnd || s.w.cursor.Held() {
		return nil
	}
	end, err := s.w.cursor.VacantTo(ctx, s.b.Next())
	if err != nil || end <= s.b.Next() {
		return nil //nolint:nilerr // what is wrong with the partition, its fetches say better
	}
	for at, _ := s.edge(); at > 0 && at <= end; at, _ = s.edge() {
		s.b.CloseTo(at)
		if err := s.send(ctx); err != nil {
			return err
		}
	}
	if _, inside := s.edge(); inside || end <= s.b.Next() {
		return nil
	}
	s.b.CloseTo(end)
	s.w.took(end, 0)
	return s.send(ctx)
}
