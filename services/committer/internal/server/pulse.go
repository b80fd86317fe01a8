package server

import (
	"context"
	"sync"
	"time"
)

// feelFor bounds one question to a catalog that may be away.
const feelFor = 2 * time.Second

// pulse notices that the catalog answers again. After an outage each table waits
// for a time of its own, up to the longest back-off, while rows gather; one
// question a second for all of them, and only while some table fails, tells them
// earlier. It is safe for concurrent use.
type pulse struct {
	mu   sync.Mutex
	away bool
	back chan struct{} // closed and replaced when the catalog is back
}

func newPulse() *pulse { return &pulse{back: make(chan struct{})} }

// revived returns a channel that is closed when the catalog is next seen to
// answer after it did not.
func (p *pulse) revived() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.back
}

// feel asks the catalog once. An answer means something only after silence: a
// table may fail while its catalog is fine.
func (p *pulse) feel(ctx context.Context, ask func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, feelFor)
	defer cancel()
	err := ask(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away && err == nil {
		close(p.back)
		p.back = make(chan struct{})
	}
	p.away = err != nil
}
