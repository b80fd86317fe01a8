package pull

import (
	"errors"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
)

// The buffer has checked every entry, so one that cannot be made rows here is a
// fault of memory, of a version, or of Icestream. It must not hold the others for
// ever (docs/design/quarantine.md).
const (
	unreadableTries = 3                // before its partition is called held, red
	unreadableAgain = time.Second      // between these tries
	unreadableRetry = time.Minute      // until it is tried once more
	aloneTime       = 10 * time.Minute // entries are encoded one by one after some broke files
)

// unmade is the error of an entry that could not be made rows; the open batch is
// as it was before.
type unmade struct{ error }

func (u unmade) Unwrap() error { return u.error }

// trouble is a partition with an entry that cannot be made rows.
type trouble struct {
	first int64 // offset at which the entry begins
	tries int
	held  bool // its entries are left out
}

// holds reports whether there is a trouble that leaves entries out.
func (t *trouble) holds() bool { return t != nil && t.held }

// blame counts the tries of an entry, where the error is its own. Its partition is
// left out until the next try, after a few tries for longer, and red; what the
// partition has is hot and comes again. idle: the open batch holds nothing.
func (p *Puller) blame(e entry, err error, owner Owner, idle bool) {
	if r := fault.ReasonOf(err); r != fault.Corrupt && r != fault.UnknownSchema {
		return
	}
	part := e.append.Partition
	_, whole := errors.AsType[unmade](err)
	p.mu.Lock()
	t := p.troubles[part]
	if t == nil || t.first != e.append.Range.First {
		t = &trouble{first: e.append.Range.First}
		p.troubles[part] = t
	}
	t.tries++
	red := t.tries >= unreadableTries
	held := red || whole
	t.held = held
	if whole {
		p.leaveOutLocked(e, idle)
	}
	p.mu.Unlock()
	after := unreadableAgain
	if red {
		after = unreadableRetry
		p.log.Error("partition stands still: an entry of its log cannot be made rows", "partition", part.String(), "range", e.append.Range.String(), "error", err)
		owner.Unreadable(fault.New(fault.ReasonOf(err),
			"%v stands still at %v (schema %s): its entry cannot be made rows: %w; nothing is lost: the rows are in the buffer and in Kafka; restart the buffer, "+
				"so that ingest decodes them again, and report this; the other partitions go on, and this one is tried every minute",
			part, e.append.Range, e.append.Fingerprint, err))
	} else {
		p.log.Warn("an entry of the log cannot be made rows: it is read again", "partition", part.String(), "range", e.append.Range.String(), "error", err)
	}
	if held {
		time.AfterFunc(after, func() { p.retry(part, t) })
	}
}

// leaveOutLocked makes void what is queued of a partition from an entry on. What
// the others hold stays, files and age: were it dropped with every try, their
// interval would never be over.
func (p *Puller) leaveOutLocked(e entry, idle bool) {
	if e.gen != p.gen {
		return
	}
	part, kept := e.append.Partition, []entry(nil)
	p.forgetLocked(e)
	for _, q := range p.queue {
		if q.append.Partition != part {
			kept = append(kept, q)
			continue
		}
		p.forgetLocked(q)
		p.give(q.append.Bytes())
	}
	p.queue = kept
	p.tracker.next[part] = e.within.First
	if idle && len(kept) == 0 {
		p.load = cut.Load{}
		clear(p.moved)
	}
}

// forgetLocked takes an entry out of what is held.
func (p *Puller) forgetLocked(e entry) {
	n := e.append.Bytes()
	p.hot -= n
	p.o.Hot.Add(-n)
	p.load.Rows -= e.append.Rows + e.append.Quarantined
}

// retry lets a held partition try once more: an image brings its entries, and
// repeats to the others what they have.
func (p *Puller) retry(part ident.Partition, t *trouble) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.troubles[part] == t && t.held {
		t.held = false
		p.restartLocked()
	}
}

// suspect reports whether an entry could not be made rows before.
func (p *Puller) suspect(e *event.Append) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.troubles[e.Partition]
	return t != nil && t.first == e.Range.First
}

// readable ends the trouble of a partition whose entry was taken in.
func (p *Puller) readable(e *event.Append, owner Owner) {
	p.mu.Lock()
	t := p.troubles[e.Partition]
	ended := t != nil && e.Range.First >= t.first
	if ended {
		delete(p.troubles, e.Partition)
	}
	none := len(p.troubles) == 0
	p.mu.Unlock()
	if ended && none {
		owner.Unreadable(nil)
	}
}
