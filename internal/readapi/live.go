package readapi

import (
	"maps"
	"sync"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

// Live is a Source that is fed with the image and the events of a table log. It
// locks a readview.View and wakes who waits for changes. Safe for concurrent use.
type Live struct {
	mu       sync.Mutex
	view     *readview.View
	waiting  string // why reads are not served; empty while they are
	progress map[ident.Partition]Progress
	changed  chan struct{}
}

// NewLive returns a source that is not ready, for the reason given.
func NewLive(waiting string) *Live {
	return &Live{view: readview.New(), waiting: waiting, progress: map[ident.Partition]Progress{}, changed: make(chan struct{})}
}

// Load starts over from an image; from here on reads are served.
func (l *Live) Load(img event.Image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Load(img)
	l.waiting = ""
	l.wake()
}

// Apply takes in the next event.
func (l *Live) Apply(ev event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Apply(ev)
	l.wake()
}

// SetProgress takes in what ingest said at time heard.
func (l *Live) SetProgress(list []event.Progress, heard time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range list {
		l.progress[p.Partition] = Progress{Progress: p, Heard: heard}
	}
}

func (l *Live) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Position implements Source.
func (l *Live) Position() (readview.Position, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != "" {
		return readview.Position{}, fault.New(fault.NotReady, "%s", l.waiting)
	}
	return l.view.Position(), nil
}

// Resolve implements Source.
func (l *Live) Resolve(tok readview.Token) (readview.Resolved, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting != "" {
		return readview.Resolved{}, fault.New(fault.NotReady, "%s", l.waiting)
	}
	return l.view.Resolve(tok)
}

// Schema returns the schema with this fingerprint, if the log knows it.
func (l *Live) Schema(fingerprint string) (event.Schema, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view.Schema(fingerprint)
}

// SchemaByID implements Source. Of several with one id, which differ only in
// what feeds their columns, it returns the newest.
func (l *Live) SchemaByID(id int32) (event.Schema, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found event.Schema
	ok := false
	for _, s := range l.view.Schemas() {
		if s.TableSchemaID == id {
			found, ok = s, true
		}
	}
	return found, ok
}

// Status implements Source.
func (l *Live) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Status{
		Table: l.view.Commit().Table, Rows: l.view.Rows(), Bytes: l.view.Bytes(),
		State: StateServing, Progress: maps.Clone(l.progress),
	}
	if l.waiting != "" {
		st.State = l.waiting
	}
	return st
}

// Changed implements Source.
func (l *Live) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Where returns the place in the log: boot and number of the last event.
func (l *Live) Where() (ident.UUID, event.Seq) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view.Boot(), l.view.Seq()
}
