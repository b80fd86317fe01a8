package table

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

// sim drives one machine with a journal that loses what was not synced, a table,
// and an ingest that reads from where it is told; it is a naive restatement of
// what the buffer does in the model. Others meddle: senders that have lost their
// partition, reports and grants that arrive late, a rival that got the next epoch,
// an old copy of the disk.
type sim struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	m       *Machine
	nonce   func() uint64
	waiting []*Step
	durable []event.Event // records that survive a crash
	table   event.Commit
	granted event.Commit // the last fence, and the request that it answers
	asked   uint64
	shown   map[ident.LogEpoch]map[ident.LSN]sight // every row a follower ever saw
	names   map[ident.LogEpoch]map[row]ident.LSN
	rev     uint64
	served  int
	refills int

	limit     map[ident.LogEpoch]ident.LSN // of epochs that have ended: the reservation they had
	committed ident.Vector                 // as followers were told
	states    []event.Commit               // every state the table ever had
	grants    []grant                      // every grant that was ever sent
	copied    []event.Event                // an older state of the disk
	returned  int                          // how often it came back
}

// sight is a row as it was made by a revision of the pipeline.
type sight struct {
	row
	rev uint64
}

type grant struct {
	nonce  uint64
	commit event.Commit
}

type row struct {
	p      ident.Partition
	offset int64
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, r: rand.New(rand.NewPCG(seed, 3)), seed: seed, nonce: nonces(), rev: 1,
		shown: map[ident.LogEpoch]map[ident.LSN]sight{}, names: map[ident.LogEpoch]map[row]ident.LSN{},
		limit: map[ident.LogEpoch]ident.LSN{},
	}
	s.move(0, ident.Vector{p0: 0, p1: 0}, ident.LSNState{})
	s.boot()
	return s
}

// boot starts a machine from the durable records, folded as the journal folds them.
func (s *sim) boot() {
	s.waiting = nil
	v := fold(s.durable)
	var rec *Recovered
	if v.Ready() {
		rec = &Recovered{Image: v.Image(), NextLSN: v.NextLSN()}
	}
	s.m = New("t", bootID, s.nonce, rec, "")
}

func fold(records []event.Event) *readview.View {
	v := readview.New()
	for _, ev := range records {
		v.Apply(ev)
	}
	return v
}

// move lands a snapshot.
func (s *sim) move(epoch ident.LogEpoch, vec ident.Vector, lsn ident.LSNState) {
	if epoch != s.table.LogEpoch {
		s.limit[s.table.LogEpoch] = s.table.LSN.Reserved
	}
	s.table = state(s.table.SequenceNumber+1, epoch, vec, lsn)
	s.states = append(s.states, s.table)
}

func (s *sim) push(step *Step) { s.waiting = append(s.waiting, step) }

// sync makes the first n waiting steps durable.
func (s *sim) sync(n int) {
	for ; n > 0 && len(s.waiting) > 0; n-- {
		step := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.durable = append(s.durable, step.Records...)
		evs, err := s.m.Done(step)
		if err != nil {
			continue
		}
		for _, ev := range evs {
			if ev.Append != nil {
				s.see(ev.Append)
			}
		}
		told := s.m.View().Commit().Positions.Vector()
		require.True(s.t, told.Covers(s.committed), "seed %d: G4 followers were told %v, now %v", s.seed, s.committed, told)
		s.committed = told
	}
}

// see checks G3 and G5: an LSN names one row for ever, made once; a row has one
// LSN in its epoch.
func (s *sim) see(a *event.Append) {
	epoch := s.m.View().Epoch()
	if s.shown[epoch] == nil {
		s.shown[epoch], s.names[epoch] = map[ident.LSN]sight{}, map[row]ident.LSN{}
	}
	for o := a.Range.First; o < a.Range.Next; o++ {
		lsn, r := a.LSN+ident.LSN(o-a.Range.First), row{a.Partition, o}
		for e, rows := range s.shown {
			was, ok := rows[lsn]
			if now := (sight{r, a.Revision}); ok && (e != epoch || was != now) {
				s.t.Fatalf("seed %d: G5 LSN %d names %v and %v", s.seed, lsn, was, now)
			}
		}
		was, ok := s.names[epoch][r]
		if ok && was != lsn {
			s.t.Fatalf("seed %d: G5 row %v had LSN %d, now %d", s.seed, r, was, lsn)
		}
		s.shown[epoch][lsn], s.names[epoch][r] = sight{r, a.Revision}, lsn
		if end, over := s.limit[epoch]; over && lsn >= end {
			s.t.Fatalf("seed %d: G5 LSN %d of epoch %d, which had ended at %d", s.seed, lsn, epoch, end)
		}
		if lsn >= s.table.LSN.Reserved {
			s.t.Fatalf("seed %d: G5 LSN %d is beyond the reservation %d", s.seed, lsn, s.table.LSN.Reserved)
		}
	}
	s.served++
}

// read makes the next entry of a partition as ingest would.
func (s *sim) read(p ident.Partition) *event.Append {
	at := s.m.AppendedNext(p)
	next := at + 1 + s.r.Int64N(6)
	for _, o := range s.m.Outstanding() {
		if o.Partition == p {
			next = o.Range.Next
			s.refills++
			break
		}
	}
	a := rows(p, at, next)
	a.Revision = s.rev
	return a
}

func (s *sim) step() {
	parts := []ident.Partition{p0, p1}
	switch x := s.r.IntN(100); {
	case x < 46:
		s.send(s.read(parts[s.r.IntN(2)]))
	case x < 65:
		s.sync(1 + s.r.IntN(4))
	case x < 77:
		s.commit()
	case x < 86:
		s.committer()
	case x < 89:
		s.sync(s.r.IntN(3)) // part of the last group survives
		s.boot()
	case x < 90:
		s.durable = nil // the disk is lost
		s.boot()
	case x < 92:
		s.rev++
	case x < 94:
		s.zombie(parts[s.r.IntN(2)])
	case x < 96: // a report of long ago
		if step, err := s.m.Report(s.states[s.r.IntN(len(s.states))]); err == nil {
			s.push(step)
		}
	case x < 97:
		s.lateGrant()
	case x < 98:
		s.rival()
	default:
		s.oldDisk()
	}
}

func (s *sim) send(a *event.Append) {
	if v := s.m.Append(a); v.Outcome == Accepted {
		s.push(v.Step)
	}
}

// zombie sends what a process would that has lost its partition: it repeats what
// is there, or goes on where another will have been.
func (s *sim) zombie(p ident.Partition) {
	at := s.m.AppendedNext(p)
	first := max(0, at-3) + s.r.Int64N(6)
	if first == at {
		first++
	}
	a := rows(p, first, first+1+s.r.Int64N(5))
	a.Revision = s.rev
	s.send(a)
}

// lateGrant delivers one of the grants again.
func (s *sim) lateGrant() {
	if len(s.grants) == 0 {
		return
	}
	g := s.grants[len(s.grants)-1-s.r.IntN(min(3, len(s.grants)))]
	if step, err := s.m.Grant(g.nonce, g.commit); err == nil {
		s.push(step)
	}
}

// rival gives another buffer the next epoch, whose reservation begins where this
// one ends; this buffer hears of it now, or later.
func (s *sim) rival() {
	start := s.table.LSN.Reserved
	s.move(s.table.LogEpoch+1, s.table.Positions.Vector(), ident.LSNState{Start: start, Next: start, Reserved: start + 30})
	if s.r.IntN(2) == 0 {
		if step, err := s.m.Report(s.table); err == nil {
			s.push(step)
		}
	}
}

// oldDisk copies the journal, or starts from the copy if the table shows that it
// is an old one: another copy cannot be told from the disk that was there last
// (docs/journal-format.md).
func (s *sim) oldDisk() {
	if s.copied == nil || s.r.IntN(2) == 0 {
		s.copied = slices.Clone(s.durable)
		return
	}
	was := fold(s.copied)
	if !was.Ready() {
		return
	}
	if _, _, passed := ahead(s.table, was.VisibleAt); !passed && was.Epoch() == s.table.LogEpoch {
		return
	}
	s.durable = slices.Clone(s.copied)
	s.returned++
	s.boot()
}

// commit lands a snapshot of what the committer has seen and reports it, or not.
func (s *sim) commit() {
	if s.m.State() != Serving || s.m.View().Epoch() != s.table.LogEpoch {
		return
	}
	vec := s.table.Positions.Vector()
	for p, next := range s.m.View().Visible() {
		if next > vec[p] {
			vec[p] += s.r.Int64N(next - vec[p] + 1)
		}
	}
	lsn := s.table.LSN
	lsn.Next = max(lsn.Next, s.m.View().NextLSN())
	lsn.Reserved = max(lsn.Reserved, lsn.Next+30)
	s.move(s.table.LogEpoch, vec, lsn)
	if s.r.IntN(4) > 0 {
		if step, err := s.m.Report(s.table); err == nil {
			s.push(step)
		}
	}
}

// committer opens the table and fences when an epoch is wanted.
func (s *sim) committer() {
	if step, err := s.m.Open(s.table, []event.Schema{schemaA}, nil); err == nil && step != nil {
		s.push(step)
	}
	req, ok := s.m.Request()
	if !ok {
		return
	}
	if req.Nonce != s.asked || s.granted.LogEpoch != s.table.LogEpoch { // else the same request gets the same fence
		start := s.table.LSN.Reserved
		s.move(s.table.LogEpoch+1, s.table.Positions.Vector(), ident.LSNState{Start: start, Next: start, Reserved: start + 30})
		s.granted, s.asked = s.table, req.Nonce
		s.grants = append(s.grants, grant{req.Nonce, s.table})
	}
	if s.r.IntN(5) == 0 { // the grant is lost: the request stands, the epoch in the table has moved
		if s.r.IntN(2) == 0 { // others commit meanwhile
			s.move(s.table.LogEpoch, s.table.Positions.Vector(), s.table.LSN)
		}
		return
	}
	step, err := s.m.Grant(req.Nonce, s.granted)
	require.NoError(s.t, err, "seed %d", s.seed)
	s.push(step)
}

// G3, G4, G5: crashes that keep any prefix of the journal, lost and old disks,
// reports and grants that are lost or late, changed pipelines, rivals: no LSN ever
// names two rows, and when the faults stop the log serves again.
func TestRandomCrashesNeverGiveAnLSNTwice(t *testing.T) {
	served, refills, returned := 0, 0, 0
	for seed := range uint64(200) {
		s := newSim(t, seed)
		for range 400 {
			s.step()
		}
		for range 3 {
			s.committerUntilServing()
		}
		require.Equal(t, Serving, s.m.State(), "seed %d", seed)
		s.settle()
		served += s.served
		refills += s.refills
		returned += s.returned
	}
	require.Greater(t, served, 5000)
	require.Greater(t, refills, 250, "the test must reach re-fills")
	require.Greater(t, returned, 100, "the test must reach old disks")
}

func (s *sim) committerUntilServing() {
	s.sync(99)
	for range 20 {
		if s.m.State() == Serving {
			return
		}
		s.committer()
		s.sync(99)
	}
}

// settle shows that work goes on when the faults have stopped.
func (s *sim) settle() {
	for range 50 {
		v := s.m.Append(s.read(p0))
		switch v.Outcome {
		case Accepted:
			s.push(v.Step)
			s.sync(99)
			if len(s.m.Outstanding()) == 0 {
				return
			}
		case Waiting:
			s.commit()
			step, err := s.m.Report(s.table)
			require.NoError(s.t, err)
			s.push(step)
			s.sync(99)
		default:
			s.committerUntilServing()
		}
		for _, o := range s.m.Outstanding() {
			if o.Partition == p1 {
				if v := s.m.Append(s.read(p1)); v.Outcome == Accepted {
					s.push(v.Step)
				}
				break
			}
		}
	}
	s.t.Fatalf("seed %d: nothing is accepted any more", s.seed)
}
