package pipeline

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// revokePatience bounds how long a rebalance waits for answers of the log. What is not answered then is read again by
// the next owner, from where the log stands.
const revokePatience = 5 * time.Second

// commitTimeout bounds one commit of positions to the group.
const commitTimeout = 15 * time.Second

// handler is how the source talks to the pipeline.
type handler struct{ p *Pipeline }

// Assigned implements source.Handler.
func (h handler) Assigned(list []*source.Cursor) {
	p := h.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending {
		return
	}
	for _, k := range list {
		w := newWorker(p, k)
		ctx, cancel := context.WithCancel(p.ctx)
		w.cancel = cancel
		p.workers[k.TopicPartition] = w
		if p.paused {
			k.Hold(true)
		}
		p.group.Go(func() { w.run(ctx) })
		p.c.Log.Info("partition assigned", "partition", k.String())
	}
	p.changed()
	p.commitSoon() // the group may lag behind the table
}

// Revoked implements source.Handler.
func (h handler) Revoked(ctx context.Context, list []*source.Cursor, lost bool) {
	p := h.p
	p.mu.Lock()
	var workers []*worker
	for _, k := range list {
		if w := p.workers[k.TopicPartition]; w != nil {
			workers = append(workers, w)
		}
	}
	p.mu.Unlock()
	patience := revokePatience
	if lost {
		patience = 0 // another member may read them already; the log tells the two apart
	}
	fctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.finish(fctx, workers); err != nil && !lost {
		p.c.Log.Warn("partitions were taken away before the log had answered", "error", err)
	}
	if !lost {
		if err := p.commitNow(ctx); err != nil {
			p.c.Log.Warn("committing before a rebalance", "error", err)
		}
	}
	p.mu.Lock()
	for _, w := range workers {
		if p.workers[w.cursor.TopicPartition] == w {
			delete(p.workers, w.cursor.TopicPartition)
		}
		w.m.forget()
		p.c.Log.Info("partition given up", "partition", w.cursor.String(), "lost", lost)
	}
	for _, k := range list {
		delete(p.sent, k.TopicPartition)
	}
	p.mu.Unlock()
}

// Trouble implements source.Handler.
func (h handler) Trouble(err error) {
	h.p.mu.Lock()
	old := h.p.trouble
	h.p.trouble = err
	h.p.mu.Unlock()
	if (old == nil) != (err == nil) || (old != nil && old.Error() != err.Error()) {
		if err != nil {
			h.p.c.Log.Warn("trouble with the Kafka cluster or group", "error", err)
		}
		h.p.changed()
	}
}

// Topics implements source.Handler.
func (h handler) Topics(topics map[string]source.Topic) {
	p := h.p
	list := make([]string, 0, len(topics))
	for name := range topics {
		list = append(list, name)
	}
	names, err := p.c.Pipeline.TopicTables(list)
	p.mu.Lock()
	defer p.mu.Unlock()
	first := len(p.topics) == 0 && len(topics) > 0
	p.topics, p.names = topics, names
	clear(p.refused)
	for _, name := range list {
		if _, ok := names[name]; !ok {
			p.refused[name] = err
		}
	}
	if first { // workers may wait for this
		for _, w := range p.workers {
			w.retryNow()
		}
	}
}

// commitLoop commits committed positions to the group whenever they have moved, and again until it worked.
func (p *Pipeline) commitLoop(ctx context.Context) {
	wait := backoff.Policy{Initial: 200 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.3}.Start()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.dirty:
		}
		for {
			err := p.commitNow(ctx)
			if err == nil {
				wait.Reset()
				break
			}
			if ctx.Err() != nil {
				return
			}
			if wait.Count() == 0 || wait.Count()%10 == 0 {
				p.c.Log.Warn("committing offsets to the Kafka group; the table is the record, so nothing is lost", "error", err)
			}
			if wait.Wait(ctx, 0) != nil {
				return
			}
		}
	}
}

// commitNow commits what the tables hold, never more (G2), for the partitions that this member owns: the next offset
// with the leader epoch of the record before it.
func (p *Pipeline) commitNow(ctx context.Context) error {
	if err := p.commits.Take(ctx); err != nil {
		return err
	}
	defer p.commits.Give()
	at := map[source.TopicPartition]source.Position{}
	p.mu.Lock()
	owners := maps.Clone(p.workers)
	for tp, w := range p.workers {
		w.mu.Lock()
		part := w.part
		w.mu.Unlock()
		t := p.tables[p.names[tp.Topic]]
		if t == nil || part.Topic == "" {
			continue
		}
		pos, ok := t.position(part)
		if last, done := p.sent[tp]; !ok || (done && last == pos.Next) {
			continue
		}
		at[tp] = source.Position{Next: pos.Next, LeaderEpoch: pos.LeaderEpoch}
	}
	p.mu.Unlock()
	if len(at) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	err := p.consumer.Commit(ctx, at)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			p.c.Metrics.Counter(commits(), p.Name(), "failed").Inc()
		}
		return err
	}
	p.c.Metrics.Counter(commits(), p.Name(), "ok").Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	for tp, o := range at {
		if p.workers[tp] == owners[tp] { // else it was taken away meanwhile, and whoever gets it commits anew
			p.sent[tp] = o.Next
		}
	}
	return nil
}
