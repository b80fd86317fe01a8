package table

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
)

// sim drives one machine with a journal that loses what was not synced, a table,
// and an ingest that reads from where it is told; it is a naive restatement of
// what the buffer does in the model.
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
	shown   map[ident.LogEpoch]map[ident.LSN]row // every row a follower ever saw
	names   map[ident.LogEpoch]map[row]ident.LSN
	rev     uint64
	served  int
	refills int
}

type row struct {
	p      ident.Partition
	offset int64
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, r: rand.New(rand.NewPCG(seed, 3)), seed: seed, nonce: nonces(), rev: 1,
		shown: map[ident.LogEpoch]map[ident.LSN]row{}, names: map[ident.LogEpoch]map[row]ident.LSN{},
	}
	s.table = state(1, 0, ident.Vector{p0: 0, p1: 0}, ident.LSNState{})
	s.boot()
	return s
}

// boot starts a machine from the durable records, folded as the journal folds them.
func (s *sim) boot() {
	s.waiting = nil
	v := readview.New()
	for _, ev := range s.durable {
		v.Apply(ev)
	}
	var rec *Recovered
	if v.Ready() {
		rec = &Recovered{Image: v.Image(), NextLSN: v.NextLSN()}
	}
	s.m = New("t", bootID, s.nonce, rec, "")
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
	}
}

// see checks G5: an LSN names one row for ever, a row has one LSN in its epoch.
func (s *sim) see(a *event.Append) {
	epoch := s.m.View().Epoch()
	if s.shown[epoch] == nil {
		s.shown[epoch], s.names[epoch] = map[ident.LSN]row{}, map[row]ident.LSN{}
	}
	for o := a.Range.First; o < a.Range.Next; o++ {
		lsn, r := a.LSN+ident.LSN(o-a.Range.First), row{a.Partition, o}
		for e, rows := range s.shown {
			was, ok := rows[lsn]
			if ok && (e != epoch || was != r) {
				s.t.Fatalf("seed %d: G5 LSN %d names %v and %v", s.seed, lsn, was, r)
			}
		}
		was, ok := s.names[epoch][r]
		if ok && was != lsn {
			s.t.Fatalf("seed %d: G5 row %v had LSN %d, now %d", s.seed, r, was, lsn)
		}
		s.shown[epoch][lsn], s.names[epoch][r] = r, lsn
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
	case x < 50:
		a := s.read(parts[s.r.IntN(2)])
		if v := s.m.Append(a); v.Outcome == Accepted {
			s.push(v.Step)
		}
	case x < 70:
		s.sync(1 + s.r.IntN(4))
	case x < 82:
		s.commit()
	case x < 92:
		s.committer()
	case x < 95:
		s.sync(s.r.IntN(3)) // part of the last group survives
		s.boot()
	case x < 96:
		s.durable = nil // the disk is lost
		s.boot()
	case x < 98:
		s.rev++
	default:
		_, _ = s.m.Report(state(s.table.SequenceNumber-1, s.table.LogEpoch, s.table.Positions.Vector(), s.table.LSN))
	}
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
	s.table = state(s.table.SequenceNumber+1, s.table.LogEpoch, vec, lsn)
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
		s.table = state(s.table.SequenceNumber+1, s.table.LogEpoch+1, s.table.Positions.Vector(), ident.LSNState{Start: start, Next: start, Reserved: start + 30})
		s.granted, s.asked = s.table, req.Nonce
	}
	if s.r.IntN(5) == 0 { // the grant is lost: the request stands, the epoch in the table has moved
		if s.r.IntN(2) == 0 { // others commit meanwhile
			s.table = state(s.table.SequenceNumber+1, s.table.LogEpoch, s.table.Positions.Vector(), s.table.LSN)
		}
		return
	}
	step, err := s.m.Grant(req.Nonce, s.granted)
	require.NoError(s.t, err, "seed %d", s.seed)
	s.push(step)
}

// G4, G5: crashes that keep any prefix of the journal, lost disks, lost reports
// and grants, changed pipelines: no LSN ever names two rows, and when the faults
// stop the log serves again.
func TestRandomCrashesNeverGiveAnLSNTwice(t *testing.T) {
	served, refills := 0, 0
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
	}
	require.Greater(t, served, 5000)
	require.Greater(t, refills, 250, "the test must reach re-fills")
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
