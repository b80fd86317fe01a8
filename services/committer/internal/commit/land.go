package commit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Beside the kinds of the lake there is one for metrics alone: a commit that
// fixes the starts of partitions.
const kindStart = lake.KindProgress

// errFenced ends the writing of a table: a committer with a higher epoch owns it.
var errFenced = errors.New("another committer has taken the table over")

// plan derives a change from the head that it is going to stand on. It is called
// again for each new head, so that nothing is ever carried over from an older
// one. Its errors end the attempt.
type plan func(head lake.Head) (lake.Change, error)

// land brings one change into the table and returns the head that holds it. It
// tries without end: it returns an error only when the plan does, when the table
// must not be written any more (fenced, stopped), when ctx ends, or, for the kinds
// that the others do not wait for, when the catalog denies the change.
//
// takeover is set for the writer fence alone, which no higher epoch stops.
func (t *Table) land(ctx context.Context, kind string, takeover bool, p plan) (lake.Head, error) {
	pause := t.o.Backoff.Start()
	var old []*lake.Staged // staged anew since
	defer func() { t.discardLost(ctx, old) }()
	for {
		change, err := p(t.head)
		if err != nil {
			return t.head, err
		}
		change.Kind = kind
		done := t.took(StepStage)
		staged, err := t.lake.Stage(ctx, change)
		done()
		if err != nil {
			if err := t.retry(ctx, pause, kind, fmt.Errorf("staging the %s commit: %w", kind, err)); err != nil {
				return t.head, err
			}
			if err := t.reload(ctx); err != nil && stops(err) {
				return t.head, err
			}
			continue
		}
		effect, err := t.attempt(ctx, kind, takeover, staged, pause)
		if err != nil {
			return t.head, err
		}
		switch effect {
		case Landed:
			t.status.fine(atCommit)
			t.status.change(func(s *Status) { s.Confirmed = time.Now() })
			if change.Expire != nil {
				t.expired = staged
			}
			t.settleDenied(ctx)
			return t.head, nil
		case Denied:
			t.status.fine(atCommit)
			if t.denied = append(t.denied, denial{kind: kind, staged: staged}); len(t.denied) > maxDenied {
				t.denied = t.denied[1:]
			}
			return t.head, t.denies
		case Fenced:
			return t.head, t.fencedBy()
		case Restage:
			old = append(old, staged)
			if err := t.retry(ctx, pause, kind, errors.New("the catalog refuses the commit although the head has not moved; staging it anew")); err != nil {
				return t.head, err
			}
		default:
			t.lake.Discard(ctx, staged)
			t.log.Info("commit rejected: planning again from the head", "kind", kind, "snapshot", t.head.SnapshotID)
		}
	}
}

// attempt drives the machine of one staged change to its outcome.
func (t *Table) attempt(ctx context.Context, kind string, takeover bool, staged *lake.Staged, pause *backoff.Backoff) (Effect, error) {
	epoch := t.epoch
	if takeover {
		epoch = math.MaxInt64
	}
	a := NewAttempt(Base{SnapshotID: t.head.SnapshotID, SchemaID: t.head.SchemaID, Epoch: epoch})
	started := time.Now()
	effect, away := Send, false
	var anchors []*lake.Staged
	defer func() { t.discardLost(ctx, anchors) }()
	for sends := 0; ; {
		switch effect {
		case Send:
			if sends++; sends > 1 {
				if err := t.retry(ctx, pause, kind, errUnsettled); err != nil {
					return 0, err
				}
			}
			effect = a.Next(t.send(ctx, kind, staged))
			if wait := hintOf(t.answer); wait > 0 { // the look is a request too
				if err := backoff.Sleep(ctx, wait); err != nil {
					return 0, fmt.Errorf("committing (%s) to table %s: %w; last error: %w", kind, t.o.Name, err, t.answer)
				}
			}
		case Look:
			l, err := t.look(ctx, staged)
			if err != nil {
				return 0, err
			}
			if l.Failed {
				away = true
				if err := t.retry(ctx, pause, kind, t.lastError); err != nil {
					return 0, err
				}
			} else if away { // the catalog is back: how long it was away does not slow down what follows
				away = false
				pause.Reset()
			}
			effect = a.Next(l)
		case Displace:
			if err := t.retry(ctx, pause, kind, errDisplaced); err != nil {
				return 0, err
			}
			if anchor := t.displace(ctx); anchor != nil {
				anchors = append(anchors, anchor)
			}
			effect = Look
		default:
			outcome := effect.String()
			if a.Ambiguous() {
				outcome = "ambiguous, " + outcome
			}
			t.observe.Attempted(kind, outcome, time.Since(started))
			return effect, nil
		}
	}
}

var errDisplaced = errors.New("the catalog refuses the commit now, and whether an earlier request still lands is not known; an empty snapshot settles it")

// displace offers an empty snapshot on the head. Whether it landed does not
// matter: the look that follows decides by the head alone.
func (t *Table) displace(ctx context.Context) *lake.Staged {
	id := NewID()
	staged, err := t.lake.Stage(ctx, lake.Change{CommitID: id, Kind: lake.KindAnchor, State: anchored(t.head.State, id, t.applied)})
	if err != nil {
		t.log.Warn("staging an empty snapshot", "error", err)
		return nil
	}
	t.send(ctx, lake.KindAnchor, staged)
	return staged
}

// discardLost removes the manifests of snapshots that are proven not to have landed.
// Their data files may stand in another snapshot.
func (t *Table) discardLost(ctx context.Context, list []*lake.Staged) {
	for _, a := range list {
		t.lake.Discard(ctx, a)
	}
}

// denial is a change that the catalog did not want. Its files are free when the
// head has left its base.
type denial struct {
	kind   string
	staged *lake.Staged
}

// maxDenied bounds what is remembered of denied changes: who is denied asks again.
// What is forgotten is settled by the next take-over; some metadata stays.
const maxDenied = 100

// settleDenied removes the files of denied changes after a commit has landed.
func (t *Table) settleDenied(ctx context.Context) {
	list := t.denied
	t.denied = nil
	for _, d := range list {
		if !t.lake.Discard(ctx, d.staged) {
			continue // the next take-over settles what it left
		}
		if d.kind != lake.KindReplay {
			continue // it has no data files
		}
		if err := t.undo(ctx, func(in lake.Intent) bool { return in.Attempt == d.staged.CommitID }); err != nil {
			t.log.Warn("files of a change that the catalog denied stay until the next start", "commit", d.staged.CommitID, "error", err)
		}
	}
}

var errUnsettled = errors.New("the commit is not in the table and the head has not moved; sending the same snapshot again")

// send offers the staged change once and says how far the answer can be trusted.
func (t *Table) send(ctx context.Context, kind string, staged *lake.Staged) Sent {
	done := t.took(StepSend)
	err := t.lake.Send(ctx, staged)
	done()
	t.answer = err
	switch {
	case err == nil:
		return Sent{Accepted}
	case fault.ReasonOf(err) == fault.Conflict:
		t.log.Info("the catalog refused a commit", "kind", kind, "error", err)
		return Sent{Refused}
	case deniable(kind) && (fault.ReasonOf(err) == fault.InvalidArgument || fault.ReasonOf(err) == fault.Unauthorized):
		t.denies = fmt.Errorf("sending the %s commit: %w", kind, err)
		t.log.Warn("the catalog denies a commit", "kind", kind, "error", err)
		t.status.failed(atCommit, t.denies)
		return Sent{Forbidden}
	default:
		t.log.Warn("the outcome of a commit is unknown", "kind", kind, "error", err)
		t.status.failed(atCommit, fmt.Errorf("sending the %s commit: %w", kind, err))
		return Sent{Unknown}
	}
}

// deniable reports whether a change of that kind may be given up: somebody asked
// for it and hears of it, and everything else of the table goes on without it.
func deniable(kind string) bool {
	return kind == lake.KindSchema || kind == lake.KindReplay || kind == lake.KindReset
}

// look reloads the table and looks for the commit. Only an error that ends the
// writing of the table is returned; a catalog or a storage that is away is a failed
// look.
//
// A commit that is found counts even if the table must not be written any more, and
// though others have expired its snapshot since. Where not even older metadata tells,
// the head's state does: it is that of the newest snapshot of ours, which would be
// this one or one of a higher epoch.
func (t *Table) look(ctx context.Context, staged *lake.Staged) (Looked, error) {
	done := t.took(StepLook)
	defer done()
	err := t.reload(ctx)
	switch {
	case err == nil || errors.Is(err, errFenced):
		fate, err := t.lake.Fate(ctx, staged)
		if err != nil {
			t.lastError = fmt.Errorf("looking for a commit in the history of table %s: %w", t.o.Name, err)
			t.status.failed(atCatalog, t.lastError)
			return Looked{Failed: true}, nil
		}
		return Looked{
			Found: fate == lake.Landed, SnapshotID: t.head.SnapshotID, SchemaID: t.head.SchemaID, Epoch: t.head.State.WriterEpoch,
		}, nil
	case stops(err):
		return Looked{}, err
	default:
		return Looked{Failed: true}, nil
	}
}

// reload loads the head and checks that the table is still ours to write.
// A halted error and errFenced say that it is not; any other error is one of the
// catalog and may heal.
func (t *Table) reload(ctx context.Context) error {
	head, err := t.lake.Reload(ctx)
	if err != nil {
		switch fault.ReasonOf(err) {
		case fault.UnknownTable:
			return halt("%w; it was dropped or renamed by somebody: "+
				"nothing more is written and nothing is acknowledged; put it back, or remove the pipeline", err)
		case fault.Fenced, fault.Unsupported, fault.Corrupt:
			return halt("%w", err)
		default: // the catalog is away or confused: it may heal
		}
		t.lastError = fmt.Errorf("loading table %s: %w", t.o.Name, err)
		t.status.failed(atCatalog, t.lastError)
		return t.lastError
	}
	t.status.fine(atCatalog)
	t.lastPoll = time.Now()
	if err := t.judge(head); err != nil {
		return err
	}
	if head.SnapshotID != t.head.SnapshotID {
		t.unreported = true
		if head.Foreign() {
			t.foreign(head)
		} else {
			t.foreignSince = time.Time{}
		}
	}
	t.head = head
	if t.epoch > 0 && head.State.WriterEpoch > t.epoch {
		return t.fencedBy()
	}
	return nil
}

// judge refuses a head that must not be written: G9. Another table under the
// same name is noticed by the lake.
func (t *Table) judge(head lake.Head) error {
	switch {
	case head.RolledBack != nil:
		return halt("%w", head.RolledBack)
	case head.StateLost != nil:
		return halt("%w", head.StateLost)
	default:
		return nil
	}
}

// stops reports whether err ends the writing of the table until somebody acts.
func stops(err error) bool {
	var h halted
	return errors.Is(err, errFenced) || errors.As(err, &h)
}

// halted marks an error of the table itself, as opposed to a call that is
// refused with the same reason.
type halted struct{ error }

func (h halted) Unwrap() error { return h.error }

func halt(format string, args ...any) error { return halted{fault.New(fault.Stopped, format, args...)} }

func (t *Table) fencedBy() error {
	return fmt.Errorf("writing table %s with writer epoch %d: %w (writer epoch %d); restart this one to take it back",
		t.o.Name, t.epoch, errFenced, t.head.State.WriterEpoch)
}

// retry notes an error and waits for the next try. It returns the cause when ctx
// ends.
func (t *Table) retry(ctx context.Context, pause *backoff.Backoff, kind string, err error) error {
	t.status.failed(atCommit, err)
	t.log.Warn("commit not settled", "kind", kind, "tries", pause.Count()+1, "error", err)
	if werr := t.wait(ctx, pause, err); werr != nil {
		return fmt.Errorf("committing (%s) to table %s: %w; last error: %w", kind, t.o.Name, werr, err)
	}
	return nil
}

// hintOf is how long the catalog asked us to stay away, 0 for no hint.
func hintOf(err error) time.Duration {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.RetryAfter
	}
	return 0
}

// herd is the time over which the tables of a process go on when the catalog is
// back.
const herd = 200 * time.Millisecond

// wait waits as long as pause says, or until the catalog is back: after an outage
// of minutes the wait is long, and rows have gathered. A catalog that asked for a
// longer wait gets that, whatever else it answers meanwhile.
func (t *Table) wait(ctx context.Context, pause *backoff.Backoff, why error) error {
	wait := pause.Next()
	if hint := hintOf(why); hint > wait {
		return backoff.Sleep(ctx, hint)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	case <-t.o.revived():
		pause.Reset()
		return backoff.Sleep(ctx, rand.N(herd))
	}
}
