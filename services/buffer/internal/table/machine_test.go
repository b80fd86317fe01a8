package table

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

var (
	tableID = ident.UUID{1}
	bootID  = ident.UUID{2}
	p0      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 0}
	p1      = ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 1}
	schemaA = event.Schema{Fingerprint: "a", TableSchemaID: 1}
)

func nonces() func() uint64 {
	n := uint64(100)
	return func() uint64 { n++; return n }
}

func state(seq int64, epoch ident.LogEpoch, v ident.Vector, lsn ident.LSNState) event.Commit {
	ps := ident.Positions{}
	for p, next := range v {
		ps[p] = ident.Position{Next: next, LeaderEpoch: -1}
	}
	return event.Commit{Table: tableID, SnapshotID: seq, SequenceNumber: seq, LogEpoch: epoch, WriterEpoch: 1, Positions: ps, LSN: lsn}
}

func rows(p ident.Partition, first, next int64) *event.Append {
	return &event.Append{Header: event.Header{
		Partition: p, Range: ident.Range{First: first, Next: next}, Rows: next - first, Fingerprint: "a", Revision: 1,
		Digest: ident.Digest{byte(first), byte(next)},
	}, RowBatch: []byte("rows")}
}

// done completes a step at once, as if its records were durable.
func done(t *testing.T, m *Machine, s *Step) []event.Event {
	t.Helper()
	require.NotNil(t, s)
	evs, err := m.Done(s)
	require.NoError(t, err)
	return evs
}

// serving returns a log that got its first epoch: LSNs 100..200, both partitions at 0.
func serving(t *testing.T) *Machine {
	t.Helper()
	m := New("shop.orders", bootID, nonces(), nil, "")
	s, err := m.Open(state(1, 0, ident.Vector{p0: 0, p1: 0}, ident.LSNState{}), []event.Schema{schemaA}, nil)
	require.NoError(t, err)
	require.Nil(t, s)
	req, ok := m.Request()
	require.True(t, ok)
	s, err = m.Grant(req.Nonce, state(2, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200}))
	require.NoError(t, err)
	require.Equal(t, Need, m.State(), "a grant serves only once it is durable")
	_, ok = m.Request()
	require.False(t, ok)
	require.Empty(t, done(t, m, s), "followers begin with the image")
	require.Equal(t, Serving, m.State())
	return m
}

func accept(t *testing.T, m *Machine, a *event.Append) []event.Event {
	t.Helper()
	v := m.Append(a)
	require.Equal(t, Accepted, v.Outcome, v.Text)
	return done(t, m, v.Step)
}

func TestATableNeverSeenIsServedOnlyAfterAFenceCommit(t *testing.T) {
	m := New("shop.orders", bootID, nonces(), nil, "")
	require.Equal(t, NotServing, m.Append(rows(p0, 0, 1)).Outcome)
	_, ok := m.Request()
	require.False(t, ok, "nothing is wanted before the table is known")
	_, err := m.Report(state(1, 0, nil, ident.LSNState{}))
	require.ErrorIs(t, err, fault.Of(fault.NotReady))
	m = serving(t)
	require.Equal(t, []event.Schema{schemaA}, m.View().Schemas())
	require.Equal(t, ident.LogEpoch(1), m.View().Epoch())
}

func TestAppendDecisions(t *testing.T) {
	for _, c := range []struct {
		name string
		a    *event.Append
		want Outcome
		next int64
	}{
		{"continues", rows(p0, 10, 12), Accepted, 12},
		{"duplicate", rows(p0, 3, 10), Duplicate, 10},
		{"duplicate of a part", rows(p0, 4, 6), Duplicate, 10},
		{"overlap", rows(p0, 8, 14), OutOfOrder, 10},
		{"gap", rows(p0, 11, 14), OutOfOrder, 10},
		{"unknown partition", rows(ident.Partition{Pipeline: "x"}, 0, 1), UnknownPartition, 0},
		{"unknown schema", func() *event.Append { a := rows(p0, 10, 12); a.Fingerprint = "b"; return a }(), UnknownSchema, 10},
		{"no rows need no schema", func() *event.Append {
			a := rows(p0, 10, 12)
			a.Rows, a.Fingerprint = 0, ""
			a.Skips = []event.Skip{{Range: a.Range, Reason: event.SkipFiltered}}
			return a
		}(), Accepted, 12},
		{"reservation used up", rows(p0, 10, 101), Waiting, 10},
		{"reservation used exactly", rows(p0, 10, 100), Accepted, 100},
		{"lost run takes no LSN", lost(p0, 10, 1<<50), Accepted, 1 << 50},
		{"empty", rows(p0, 10, 10), Invalid, 10},
		{"counts do not add up", func() *event.Append { a := rows(p0, 10, 12); a.Rows = 1; return a }(), Invalid, 10},
		{"skip outside", func() *event.Append {
			a := rows(p0, 10, 12)
			a.Rows, a.Skips = 1, []event.Skip{{Range: ident.Range{First: 12, Next: 13}, Reason: event.SkipLost}}
			return a
		}(), Invalid, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := serving(t)
			accept(t, m, rows(p0, 0, 10))
			before := m.NextLSN()
			v := m.Append(c.a)
			require.Equal(t, c.want, v.Outcome, v.Text)
			require.Equal(t, c.next, v.Next)
			require.Equal(t, c.want == Accepted, v.Step != nil)
			if c.want != Accepted {
				require.Equal(t, before, m.NextLSN(), "a refused append takes no LSN")
				return
			}
			require.Equal(t, before, c.a.LSN)
			require.Nil(t, v.Step.Records[0].Append.RowBatch, "the journal gets no rows")
		})
	}
}

func lost(p ident.Partition, first, next int64) *event.Append {
	a := rows(p, first, next)
	a.Rows, a.Skips = 0, []event.Skip{{Range: a.Range, Reason: event.SkipLost}}
	return a
}

func TestNothingIsShownBeforeItIsDurable(t *testing.T) {
	m := serving(t)
	v := m.Append(rows(p0, 0, 5))
	require.Equal(t, int64(0), m.View().Visible()[p0])
	require.Equal(t, int64(5), m.AppendedNext(p0))
	evs := done(t, m, v.Step)
	require.Len(t, evs, 1)
	require.Equal(t, event.Seq(1), evs[0].Seq)
	require.Equal(t, int64(5), m.View().Visible()[p0])
}

func TestReportsAreMonotoneAndFenced(t *testing.T) {
	m := serving(t)
	accept(t, m, rows(p0, 0, 10))
	lsn := ident.LSNState{Start: 100, Next: 110, Reserved: 500}
	s, err := m.Report(state(5, 1, ident.Vector{p0: 4, p1: 0}, lsn))
	require.NoError(t, err)
	require.Len(t, done(t, m, s), 1)
	require.Equal(t, Accepted, m.Append(rows(p0, 10, 300)).Outcome, "the reservation has moved")

	for name, c := range map[string]event.Commit{
		"older":        state(4, 1, ident.Vector{p0: 2, p1: 0}, lsn),
		"same again":   state(5, 1, ident.Vector{p0: 4, p1: 0}, lsn),
		"older, empty": state(3, 1, nil, lsn),
	} {
		s, err := m.Report(c)
		require.NoError(t, err, name)
		require.Empty(t, s.Records, name)
		require.Empty(t, done(t, m, s), name)
	}
	foreign := state(6, 1, ident.Vector{p0: 4, p1: 0}, lsn)
	s, err = m.Report(foreign)
	require.NoError(t, err)
	require.Len(t, done(t, m, s), 1, "a snapshot of others is shown too")

	zombie := state(9, 1, ident.Vector{p0: 4, p1: 0}, lsn)
	zombie.WriterEpoch = 0
	_, err = m.Report(zombie)
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
	_, err = m.PublishSchema(tableID, 0, event.Schema{Fingerprint: "z"})
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
	other := state(9, 1, ident.Vector{p0: 4, p1: 0}, lsn)
	other.Table = ident.UUID{77}
	_, err = m.Report(other)
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
	_, err = m.Report(state(9, 1, ident.Vector{p0: 1, p1: 0}, lsn))
	require.ErrorIs(t, err, fault.Of(fault.Conflict), "a report that goes back is a roll-back by others")
	require.Equal(t, Serving, m.State())
}

func TestAReportThatTheLogCannotExplainEndsTheEpoch(t *testing.T) {
	for name, c := range map[string]event.Commit{
		"other epoch":          state(9, 2, ident.Vector{p0: 0, p1: 0}, ident.LSNState{}),
		"beyond what was sent": state(9, 1, ident.Vector{p0: 11, p1: 0}, ident.LSNState{}),
		"LSNs that were not given": state(9, 1, ident.Vector{p0: 10, p1: 0, {Pipeline: "orders", Topic: "later"}: 5},
			ident.LSNState{Start: 100, Next: 114, Reserved: 200}),
	} {
		t.Run(name, func(t *testing.T) {
			m := serving(t)
			accept(t, m, rows(p0, 0, 10))
			under := m.Append(rows(p1, 0, 3))
			_, err := m.Report(c)
			require.ErrorIs(t, err, fault.Of(fault.NotReady))
			require.Equal(t, Need, m.State())
			_, err = m.Done(under.Step)
			require.ErrorIs(t, err, fault.Of(fault.NotReady), "an append under way is void, not shown")
			require.Equal(t, NotServing, m.Append(rows(p0, 10, 11)).Outcome)
			require.True(t, m.Refused())
			req, ok := m.Request()
			require.True(t, ok && req.Waiting)
		})
	}
}

func TestAGrantIsGoodOnceAndNeverForALaterRequest(t *testing.T) {
	m := serving(t)
	first := m.granted
	s, err := m.Grant(first, state(2, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 100, Reserved: 200}))
	require.NoError(t, err, "the answer was lost: acknowledged again")
	require.Empty(t, s.Records)
	m.need("test")
	_, err = m.Grant(first, state(8, 2, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 200, Reserved: 300}))
	require.ErrorIs(t, err, fault.Of(fault.Conflict))
	req, _ := m.Request()
	_, err = m.Grant(req.Nonce, state(8, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 200, Reserved: 300}))
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument), "the epoch must grow")
	s, err = m.Grant(req.Nonce, state(8, 2, ident.Vector{p0: 3, p1: 0}, ident.LSNState{Start: 200, Next: 200, Reserved: 300}))
	require.NoError(t, err)
	evs := done(t, m, s)
	require.NotNil(t, evs[0].Epoch)
	require.Equal(t, ident.Vector{p0: 3, p1: 0}, m.Appended())
	require.Equal(t, ident.LSN(200), m.NextLSN())
	require.Equal(t, []event.EndedEpoch{{Epoch: 0, Base: ident.Vector{p0: 0, p1: 0}}, {Epoch: 1, Base: ident.Vector{p0: 3, p1: 0}}}, m.View().Ended())
}

// G11: the answer to a grant is lost on its way to the buffer, so the committer opens the table again, which stands at
// its fence by then or further, and grants again what the same request was answered with.
func TestAGrantIsTakenWhenTheTableWasOpenedAtItsFenceOrLater(t *testing.T) {
	lsn := ident.LSNState{Start: 100, Next: 100, Reserved: 200}
	at := ident.Vector{p0: 3, p1: 0}
	fence := state(2, 1, at, lsn)
	for _, now := range []event.Commit{fence, state(3, 1, at, lsn)} { // nobody, or another engine committed since
		m := New("shop.orders", bootID, nonces(), nil, "")
		_, err := m.Open(state(1, 0, at, ident.LSNState{}), []event.Schema{schemaA}, nil)
		require.NoError(t, err)
		req, _ := m.Request()
		s, err := m.Open(now, []event.Schema{schemaA}, []event.EndedEpoch{{Epoch: 0, Base: at}})
		require.NoError(t, err)
		require.Nil(t, s)
		again, ok := m.Request()
		require.True(t, ok)
		require.Equal(t, req.Nonce, again.Nonce)
		s, err = m.Grant(req.Nonce, fence)
		require.NoError(t, err)
		done(t, m, s)
		require.Equal(t, Serving, m.State())
		require.Equal(t, now, m.Head())
		require.Equal(t, ident.LSN(100), m.NextLSN())
		require.Equal(t, []event.EndedEpoch{{Epoch: 0, Base: at}}, m.View().Ended())
	}
}

// G5: the table went on to an epoch that another log was granted.
func TestAGrantOfAnEpochThatTheTableHasPassedIsRefused(t *testing.T) {
	m := New("shop.orders", bootID, nonces(), nil, "")
	for seq, epoch := range []ident.LogEpoch{0, 2} {
		_, err := m.Open(state(int64(1+seq), epoch, ident.Vector{p0: 0}, ident.LSNState{}), nil, nil)
		require.NoError(t, err)
	}
	req, _ := m.Request()
	_, err := m.Grant(req.Nonce, state(2, 1, ident.Vector{p0: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200}))
	require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
}

// restarted is a log whose journal remembers [0,10) and [10,20) of p0 at LSN 100
// and 110, with the table at 0.
func restarted() *Machine {
	img := event.Image{Commit: state(2, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200}), Schemas: []event.Schema{schemaA}}
	for i, a := range []*event.Append{rows(p0, 0, 10), rows(p0, 10, 20)} {
		a.LSN, a.RowBatch = ident.LSN(100+10*i), nil
		img.Hot = append(img.Hot, a)
	}
	return New("shop.orders", bootID, nonces(), &Recovered{Image: img, NextLSN: 125}, "")
}

func TestARestartedLogKeepsTheLSNsOfWhatIsSentAgain(t *testing.T) {
	m := restarted()
	require.Equal(t, Wait, m.State())
	s, err := m.Open(state(3, 1, ident.Vector{p0: 4, p1: 0}, ident.LSNState{Start: 100, Next: 104, Reserved: 200}), nil, nil)
	require.NoError(t, err)
	done(t, m, s)
	require.Equal(t, int64(0), m.AppendedNext(p0), "an entry the table cuts through is sent again whole")
	require.Len(t, m.Outstanding(), 2)
	first := rows(p0, 0, 10)
	first.Fingerprint = "a"
	evs := accept(t, m, first)
	require.Equal(t, ident.LSN(100), evs[0].Append.LSN)
	require.Equal(t, int64(10), m.View().Visible()[p0])
	evs = accept(t, m, rows(p1, 0, 5))
	require.Equal(t, ident.LSN(125), evs[0].Append.LSN, "the LSNs of what is outstanding are not given again")
	evs = accept(t, m, rows(p0, 10, 20))
	require.Equal(t, ident.LSN(110), evs[0].Append.LSN)
	require.Empty(t, m.Outstanding())
	accept(t, m, rows(p0, 20, 21))
}

func TestACommitOfRowsThatAreStillOutstandingReleasesThem(t *testing.T) {
	m := restarted()
	s, err := m.Open(state(2, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200}), nil, nil)
	require.NoError(t, err)
	done(t, m, s)
	s, err = m.Report(state(3, 1, ident.Vector{p0: 12, p1: 0}, ident.LSNState{Start: 100, Next: 112, Reserved: 200}))
	require.NoError(t, err)
	done(t, m, s)
	require.Equal(t, int64(10), m.AppendedNext(p0))
	require.Len(t, m.Outstanding(), 1)
	s, err = m.Report(state(4, 1, ident.Vector{p0: 20, p1: 0}, ident.LSNState{Start: 100, Next: 112, Reserved: 200}))
	require.NoError(t, err)
	done(t, m, s)
	require.Empty(t, m.Outstanding())
	require.Equal(t, int64(20), m.AppendedNext(p0))
}

func TestAReReadThatDiffersEndsTheEpoch(t *testing.T) {
	for name, change := range map[string]func(*event.Append){
		"range":       func(a *event.Append) { a.Range.Next = 9; a.Rows = 9 },
		"longer":      func(a *event.Append) { a.Range.Next = 20; a.Rows = 20 },
		"digest":      func(a *event.Append) { a.Digest[3] = 1 },
		"revision":    func(a *event.Append) { a.Revision = 2 },
		"quarantined": func(a *event.Append) { a.Rows, a.Quarantined = 9, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			m := restarted()
			s, err := m.Open(state(2, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Start: 100, Reserved: 200}), nil, nil)
			require.NoError(t, err)
			done(t, m, s)
			a := rows(p0, 0, 10)
			change(a)
			require.Equal(t, NotServing, m.Append(a).Outcome)
			req, ok := m.Request()
			require.True(t, ok)
			require.Contains(t, req.Reason, "read again differently")
		})
	}
}

func TestAJournalThatIsNotTheTablesIsNotUsed(t *testing.T) {
	for name, c := range map[string]event.Commit{
		"other uuid": func() event.Commit {
			c := state(3, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{})
			c.Table = ident.UUID{4}
			return c
		}(),
		"newer epoch":         state(3, 2, ident.Vector{p0: 0, p1: 0}, ident.LSNState{}),
		"table ahead":         state(3, 1, ident.Vector{p0: 21, p1: 0}, ident.LSNState{}),
		"table ahead idle":    state(3, 1, ident.Vector{p0: 0, p1: 1}, ident.LSNState{}),
		"table rolled back":   state(3, 1, ident.Vector{p0: 0}, ident.LSNState{}),
		"LSNs it never gave":  state(3, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{Next: 9999}),
		"lost partition name": state(3, 1, ident.Vector{p1: 0}, ident.LSNState{}),
	} {
		t.Run(name, func(t *testing.T) {
			m := restarted()
			s, err := m.Open(c, nil, nil)
			require.NoError(t, err)
			require.Nil(t, s)
			require.Equal(t, Need, m.State())
		})
	}
	stale := state(1, 1, ident.Vector{p0: 0, p1: 0}, ident.LSNState{})
	_, err := restarted().Open(stale, nil, nil)
	require.ErrorIs(t, err, fault.Of(fault.Conflict))
	stale.WriterEpoch = 0
	_, err = restarted().Open(stale, nil, nil)
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
}

// G5: the copy of a journal is from before the partitions were added to the table, so it knows none that the table could
// be ahead of. The table has rows in this epoch all the same, and LSNs behind them may have been shown.
func TestAJournalFromBeforeThePartitionsOfTheTableIsNotUsed(t *testing.T) {
	img := event.Image{Commit: state(2, 1, ident.Vector{}, ident.LSNState{Start: 100, Next: 100, Reserved: 200})}
	m := New("shop.orders", bootID, nonces(), &Recovered{Image: img, NextLSN: 100}, "")
	s, err := m.Open(state(4, 1, ident.Vector{p0: 5}, ident.LSNState{Start: 100, Next: 105, Reserved: 200}), nil, nil)
	require.NoError(t, err)
	require.Nil(t, s)
	require.Equal(t, Need, m.State())
	// A partition that is only added is no reason.
	m = New("shop.orders", bootID, nonces(), &Recovered{Image: img, NextLSN: 100}, "")
	s, err = m.Open(state(4, 1, ident.Vector{p0: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200}), nil, nil)
	require.NoError(t, err)
	done(t, m, s)
	require.Equal(t, Serving, m.State())
}

// Whoever reads a partition on learns by the leader epoch before its position whether Kafka's log was replaced below it.
func TestTheLeaderEpochBeforeThePositionIsKnown(t *testing.T) { // K13
	m := serving(t)
	require.EqualValues(t, -1, m.LeaderEpoch(p0), "nothing was read yet")
	a := rows(p0, 0, 10)
	a.LeaderEpoch = 4
	accept(t, m, a)
	require.EqualValues(t, 4, m.LeaderEpoch(p0))
	b := rows(p0, 5, 12)
	b.LeaderEpoch = 9
	v := m.Append(b)
	require.Equal(t, OutOfOrder, v.Outcome)
	require.EqualValues(t, 4, v.LeaderEpoch, "what a refused entry says about the log counts for nothing")
	gap := rows(p0, 10, 11)
	gap.LeaderEpoch = -1 // it ends with offsets that have no record
	accept(t, m, gap)
	require.EqualValues(t, -1, m.LeaderEpoch(p0))

	at := func(next int64, epoch int32) event.Commit { // committed by another ingest's rows
		c := state(3, 1, ident.Vector{p0: next, p1: 0}, ident.LSNState{Start: 100, Next: 100, Reserved: 200})
		c.Positions[p0] = ident.Position{Next: next, LeaderEpoch: epoch}
		return c
	}
	s, err := m.Report(at(10, 3))
	require.NoError(t, err)
	done(t, m, s)
	require.EqualValues(t, -1, m.LeaderEpoch(p0), "the log stands beyond what is committed")

	rec := &Recovered{Image: m.View().Image(), NextLSN: m.NextLSN()}
	m = New("shop.orders", bootID, nonces(), rec, "")
	_, err = m.Open(at(11, 7), nil, nil)
	require.NoError(t, err)
	require.EqualValues(t, 7, m.LeaderEpoch(p0), "after a restart that of the table")
	m = New("shop.orders", bootID, nonces(), rec, "")
	_, err = m.Open(at(10, 7), nil, nil)
	require.NoError(t, err)
	require.EqualValues(t, 7, m.LeaderEpoch(p0))
}

func TestOpenOfAServingTableIsIdempotentAndAddsPartitionsAndSchemas(t *testing.T) {
	m := serving(t)
	p2 := ident.Partition{Pipeline: "orders", Topic: "orders", TopicID: ident.UUID{9}, Number: 2}
	c := state(3, 1, ident.Vector{p0: 0, p1: 0, p2: 7}, ident.LSNState{Start: 100, Next: 100, Reserved: 200})
	s, err := m.Open(c, []event.Schema{schemaA, {Fingerprint: "b", TableSchemaID: 2}}, nil)
	require.NoError(t, err)
	require.Len(t, done(t, m, s), 2)
	accept(t, m, rows(p2, 7, 8))
	s, err = m.Open(c, []event.Schema{schemaA}, nil)
	require.NoError(t, err)
	require.Empty(t, done(t, m, s))
	require.Equal(t, ident.Vector{p0: 0, p1: 0, p2: 8}, m.View().Visible())
}
