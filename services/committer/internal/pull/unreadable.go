package pull

import (
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// The buffer has checked every entry, so one that cannot be made rows here is a
// fault of memory, of a version, or of Icestream. It must not hold the others for
// ever (docs/design/quarantine.md).
const (
	unreadableTries = 3           // before its partition stands still alone
	unreadableRetry = time.Minute // until it is tried once more
)

// trouble is a partition with an entry that cannot be made rows.
type trouble struct {
	first int64 // offset at which the entry begins
	tries int
	held  bool // its entries are left out
}

// blame counts the tries of an entry, where the error is its own. After a few its
// partition is held, red; what the partition has is hot and comes again.
func (p *Puller) blame(e *event.Append, err error, owner Owner) {
	if r := fault.ReasonOf(err); r != fault.Corrupt && r != fault.UnknownSchema {
		return
	}
	p.mu.Lock()
	t := p.troubles[e.Partition]
	if t == nil || t.first != e.Range.First {
		t = &trouble{first: e.Range.First}
		p.troubles[e.Partition] = t
	}
	t.tries++
	t.held = t.tries >= unreadableTries
	held := t.held
	p.mu.Unlock()
	if !held {
		return
	}
	p.log.Error("partition stands still: an entry of its log cannot be made rows", "partition", e.Partition.String(), "range", e.Range.String(), "error", err)
	owner.Unreadable(fault.New(fault.ReasonOf(err),
		"%v stands still at %v (schema %s): its entry cannot be made rows: %w; nothing is lost: the rows are in the buffer and in Kafka; restart the buffer, "+
			"so that ingest decodes them again, and report this; the other partitions go on, and this one is tried every minute",
		e.Partition, e.Range, e.Fingerprint, err))
	time.AfterFunc(unreadableRetry, func() { p.retry(e.Partition, t) })
}

// retry lets a held partition try once more: an image brings its entries.
func (p *Puller) retry(part ident.Partition, t *trouble) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.troubles[part] == t && t.held {
		t.held, t.tries = false, unreadableTries-1
		p.restartLocked()
	}
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
