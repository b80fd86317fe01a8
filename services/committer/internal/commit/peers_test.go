package commit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/cut"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// fakeBuffer notes what it is told. It wants an epoch fence until it got one.
type fakeBuffer struct {
	mu        sync.Mutex
	commits   []event.Commit
	opened    []event.Commit
	schemas   []event.Schema
	grants    map[uint64]event.Commit
	want      *Wanted
	fail      error
	lastWords []string
	last      event.Commit // of what it was told of the table
	// refuseGrants makes every grant one that nobody waits for.
	refuseGrants bool
	// refuses is the epoch that it does not take, whoever it is granted to.
	refuses ident.LogEpoch
	visible ident.Vector
}

func (b *fakeBuffer) say(word string) { b.lastWords = append(b.lastWords, word) }

func (b *fakeBuffer) OpenTable(_ context.Context, c event.Commit, _ []event.Schema, _ []event.EndedEpoch) (*Wanted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return nil, b.fail
	}
	b.say("open")
	b.last = c
	b.opened = append(b.opened, c)
	return b.want, nil
}

func (b *fakeBuffer) PublishSchema(_ context.Context, _ ident.UUID, _ ident.WriterEpoch, s event.Schema) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.say("schema")
	b.schemas = append(b.schemas, s)
	return nil
}

func (b *fakeBuffer) Visible(context.Context) (ident.Vector, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.visible, b.fail
}

func (b *fakeBuffer) GrantEpoch(_ context.Context, nonce uint64, c event.Commit) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	if b.refuseGrants {
		return fault.New(fault.Conflict, "nobody waits for epoch grant %d", nonce)
	}
	if b.refuses == c.LogEpoch && c.LogEpoch != 0 {
		return fault.New(fault.InvalidArgument, "epoch %d is granted, but the log was at it already", c.LogEpoch)
	}
	b.say("grant")
	b.last = c
	if b.grants == nil {
		b.grants = map[uint64]event.Commit{}
	}
	b.grants[nonce] = c
	if b.want != nil && b.want.Nonce == nonce {
		b.want = nil
	}
	return nil
}

func (b *fakeBuffer) ReportCommit(_ context.Context, c event.Commit) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.say("report")
	b.last = c
	b.commits = append(b.commits, c)
	return nil
}

// told is the state that it knows the table in.
func (b *fakeBuffer) told() event.Commit {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

func (b *fakeBuffer) reports() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.commits)
}

func (b *fakeBuffer) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// fakeSource is a table log and what a committer holds of it: per partition the
// offsets [held, end), in the log epoch that the table last said. Every offset
// o of partition n that is divisible by 7 is poison; the others are rows.
type fakeSource struct {
	lake *fakeLake
	mu   sync.Mutex
	log  *fakeLog
	held ident.Vector
	last event.Commit
	hold bool
	came time.Time
	on   bool
	hot  int64          // counts as hot bytes while anything is held
	upTo []ident.Vector // of the seals
}

// fakeLog outlives committers.
type fakeLog struct {
	mu   sync.Mutex
	end  ident.Vector
	file int
	rows map[string][]fakeRow // of each file
}

type fakeRow struct {
	part   ident.Partition
	offset int64
	lsn    ident.LSN
	epoch  ident.LogEpoch
}

// lsnOf gives each offset of the log one LSN within an epoch.
func lsnOf(at event.Commit, part ident.Partition, offset int64) ident.LSN {
	return at.LSN.Start + ident.LSN(offset)*16 + ident.LSN(part.Number)
}

func poison(offset int64) bool { return offset%7 == 0 }

func (l *fakeLog) grow(part ident.Partition, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end[part] += n
}

func (s *fakeSource) Rebase(at event.Commit, force bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on && !force && s.last.LogEpoch == at.LogEpoch {
		return
	}
	s.on, s.last, s.held = true, at, at.Positions.Vector()
	if s.held == nil {
		s.held = ident.Vector{}
	}
}

func (s *fakeSource) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *fakeSource) HoldPoison(hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
}

func (s *fakeSource) Load() cut.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	var l cut.Load
	for part, end := range s.log.end {
		if next, ok := s.held[part]; ok && end > next && s.last.LogEpoch > 0 {
			l.Rows += end - next
		}
	}
	if l.Rows == 0 {
		s.came = time.Time{}
		return l
	}
	if s.came.IsZero() {
		s.came = time.Now()
	}
	l.Since, l.SinceRows, l.Hot, l.Own, l.Ready = s.came, s.came, s.hot, s.hot, s.hot
	return l
}

func (s *fakeSource) Seal(_ context.Context, upTo ident.Vector) (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upTo = append(s.upTo, upTo)
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	b := &Batch{ID: NewID(), Epoch: s.last.LogEpoch, Parts: map[ident.Partition]*Advance{}}
	s.log.file++
	path := fmt.Sprintf("file-%d", s.log.file)
	var bad int64
	for part, end := range s.log.end {
		next, ok := s.held[part]
		if !ok || end <= next || s.last.LogEpoch == 0 {
			continue
		}
		a := &Advance{Range: ident.Range{First: next, Next: next}, LeaderEpoch: -1}
		for o := next; o < end; o++ {
			lsn := lsnOf(s.last, part, o)
			if poison(o) {
				bad++
				a.Add(ident.Range{First: o, Next: o + 1}, 0, 1, nil)
			} else {
				s.log.rows[path] = append(s.log.rows[path], fakeRow{part, o, lsn, s.last.LogEpoch})
				a.Add(ident.Range{First: o, Next: o + 1}, 1, 0, nil)
			}
			b.NextLSN = max(b.NextLSN, lsn+1)
		}
		s.held[part] = end
		b.Parts[part] = a
	}
	if len(b.Parts) == 0 {
		return nil, nil //nolint:nilnil // the contract of Seal
	}
	if len(s.log.rows[path]) > 0 {
		b.Files = []lake.File{{Path: path, Rows: int64(len(s.log.rows[path]))}}
		s.lake.view(func() {
			s.lake.intents[b.ID] = true
			s.lake.written[b.ID] = append(s.lake.written[b.ID], path)
		})
	}
	if bad > 0 {
		b.Quarantine = []Poison{{Pipeline: "p", Records: emptyRecords(bad)}}
	}
	s.came = time.Time{}
	return b, nil
}

type nothing struct{}

func (nothing) Attempted(string, string, time.Duration) {}
func (nothing) Stepped(Step, time.Duration)             {}
func (nothing) Landed(*Batch, int64)                    {}
