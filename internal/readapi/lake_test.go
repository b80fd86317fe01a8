package readapi_test

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readapi"
	"github.com/icestream/icestream/internal/schema"
)

// lake is a Cold port over entries in memory.
type lake struct {
	mu        sync.Mutex
	snapshots []snapshot
	windows   int
}

type snapshot struct {
	id, seq int64
	time    time.Time
	added   []piece
}

type piece struct {
	a      *event.Append
	within ident.Range
	schema *schema.Schema
}

func (l *lake) add(s snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snapshots = append(l.snapshots, s)
}

func (l *lake) expire(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.snapshots {
		if l.snapshots[i].id == id {
			l.snapshots[i].id = -id
		}
	}
}

func (l *lake) find(id int64) (int, error) {
	for i, s := range l.snapshots {
		if s.id == id {
			return i, nil
		}
	}
	return 0, fault.New(fault.SnapshotGone, "snapshot %d is gone", id)
}

func (l *lake) Snapshot(_ context.Context, _, _ string, id int64) (readapi.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, err := l.find(id)
	if err != nil {
		return readapi.Snapshot{}, err
	}
	return readapi.Snapshot{ID: id, Sequence: l.snapshots[i].seq, SchemaID: 1}, nil
}

func (l *lake) SnapshotAt(_ context.Context, _, _ string, at time.Time) (readapi.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slices.Backward(l.snapshots) {
		if !s.time.After(at) {
			return readapi.Snapshot{ID: s.id, Sequence: s.seq, SchemaID: 1}, nil
		}
	}
	return readapi.Snapshot{}, fault.New(fault.SnapshotGone, "nothing that old")
}

func (l *lake) pieces(s readapi.ColdScan) ([]piece, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to, err := l.find(s.Snapshot)
	if err != nil {
		return nil, err
	}
	from := -1
	if s.Since != 0 {
		if from, err = l.find(s.Since); err != nil {
			return nil, err
		}
	}
	var out []piece
	for _, snap := range l.snapshots[from+1 : to+1] {
		for _, p := range snap.added {
			if s.Below != nil {
				next, ok := s.Below[p.a.Partition]
				p.within.First = max(p.within.First, s.From[p.a.Partition])
				if p.within.Next = min(p.within.Next, next); !ok || p.within.Empty() {
					continue
				}
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func (l *lake) Scan(_ context.Context, s readapi.ColdScan) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		pieces, err := l.pieces(s)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, p := range pieces {
			if !yield(p.rows(s.Target)) {
				return
			}
		}
	}
}

func (p piece) rows(target *schema.Schema) (arrow.RecordBatch, error) {
	rec, err := arrowx.Materialise(p.schema, p.a, p.within)
	if err != nil {
		return nil, err
	}
	defer rec.Release()
	return arrowx.Conform(rec, p.schema, target)
}

func (l *lake) Window(_ context.Context, s readapi.ColdScan) ([]readapi.ColdRows, error) {
	pieces, err := l.pieces(s)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.windows++
	l.mu.Unlock()
	byPart := map[ident.Partition][]arrow.RecordBatch{}
	for _, p := range pieces {
		rec, err := p.rows(s.Target)
		if err != nil {
			return nil, err
		}
		byPart[p.a.Partition] = append(byPart[p.a.Partition], rec)
	}
	var out []readapi.ColdRows
	for p, recs := range byPart {
		rec, err := arrowx.Concat(s.Target.Arrow(), recs)
		if err != nil {
			return nil, err
		}
		out = append(out, readapi.ColdRows{Partition: p, Rows: rec})
	}
	return out, nil
}
