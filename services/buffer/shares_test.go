package buffer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
)

const waits = bufferv1.AppendOutcome_APPEND_OUTCOME_WAIT

// small is a budget of 1 MiB.
var small = []string{"limits.hot.bytes", "1MiB", "limits.batch.bytes", "64KiB", "limits.record.max", "128KiB"}

// fill appends entries of 50 KiB until one is not accepted, and returns its
// answer and where the partition stands.
func (s *sender) fill(p ident.Partition, next int64) (*bufferv1.AppendResult, int64) {
	s.t.Helper()
	for range 40 {
		r := s.put(entry(s.t, p, next, next+1, 50<<10))
		if r.GetOutcome() != bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED {
			require.Equal(s.t, next, r.GetAppendedNext())
			require.EqualValues(s.t, 1, r.GetAppendedLeaderEpoch(), "of another one the sender would learn that the log was replaced (K13)")
			return r, next
		}
		next++
	}
	require.Fail(s.t, "everything was accepted")
	return nil, 0
}

// G7, G8: a partition that the committer holds does not fill the budget: it waits,
// and the others go on.
func TestAPartitionThatCommitsPassByWaitsAlone(t *testing.T) {
	b := start(t, file.NewMem(), small...)
	b.serve(orders)
	s := b.sender(orders)
	lsn := firstLSN
	s.accept(entry(t, p0, 0, 1, 10)) // 100: cannot be made rows
	var next int64
	for seq := int64(3); seq < 6; seq++ {
		s.accept(entry(t, p1, next, next+1, 10))
		next++
		lsn.Next = firstLSN.Next + 1 + ident.LSN(next)
		require.NoError(t, b.report(state(seq, 1, ident.Vector{p0: 0, p1: next}, lsn)))
	}
	r, held := s.fill(p0, 1)
	require.Equal(t, waits, r.GetOutcome())
	require.Contains(t, r.GetText(), "pass this partition by")
	require.LessOrEqual(t, held, int64(8), "about a quarter of the budget")
	for range 100 { // far more than the budget
		s.accept(entry(t, p1, next, next+1, 50<<10))
		next++
		lsn.Next = firstLSN.Next + ident.LSN(held+next)
		require.NoError(t, b.report(state(5+next, 1, ident.Vector{p0: 0, p1: next}, lsn)))
	}
	require.Equal(t, waits, s.put(entry(t, p0, held, held+1, 10)).GetOutcome())
	require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_DUPLICATE, s.put(entry(t, p0, 0, 1, 10)).GetOutcome())

	require.NoError(t, b.report(state(1000, 1, ident.Vector{p0: 1, p1: next}, lsn)))
	s.accept(entry(t, p0, held, held+1, 10)) // it moves again
}

// startTwo is a small buffer with a sender of each of two tables.
func startTwo(t *testing.T) (b *bed, s, other *sender) {
	t.Helper()
	b = start(t, file.NewMem(), small...)
	b.serve(orders)
	b.serve("shop.clicks")
	return b, b.sender(orders), b.sender("shop.clicks")
}

// G7: what one partition or one table holds leaves room for the others, whether
// commits show that it is held or not.
func TestOnePartitionLeavesRoomForOthers(t *testing.T) {
	b, s, other := startTwo(t)
	s.accept(entry(t, p1, 0, 1, 10))
	r, held := s.fill(p0, 0)
	require.Equal(t, waits, r.GetOutcome())
	require.Contains(t, r.GetText(), "this partition holds")
	require.InDelta(t, 16, held, 1)
	s.accept(entry(t, p1, 1, 2, 10))
	other.accept(entry(t, p0, 0, 1, 10))
	require.Equal(t, waits, s.put(entry(t, p0, held, held+1, 10)).GetOutcome(), "the partition is put off")
	s.send(entry(t, p1, 2, 3, 10)) // the table is full: this one waits in line
	for o := range int64(3) {
		other.accept(entry(t, p0, o+1, o+2, 10))
	}
	read, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
	require.NoError(t, err)
	require.Equal(t, held+2, read.GetHot().GetRows(), "it is not taken in yet")
	lsn := firstLSN
	lsn.Next += ident.LSN(held + 2)
	require.NoError(t, b.report(state(3, 1, ident.Vector{p0: held, p1: 2}, lsn)))
	require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, s.result().GetOutcome())
	s.accept(entry(t, p0, held, held+1, 10))
}

// G7: who sends within the credit of a table is never put off for the sake of other
// tables, however much waits: its entries would cross the wire for nothing.
func TestCreditLeavesRoomForOtherTables(t *testing.T) {
	b, s, other := startTwo(t)
	other.accept(entry(t, p0, 0, 1, 10))
	credit, taken, next := s.welcome.GetCredit(), int64(0), int64(0)
	for {
		e := entry(t, p0, next, next+1, 20<<10)
		if credit < e.Bytes() {
			break
		}
		s.send(e)
		credit, taken, next = credit-e.Bytes(), taken+e.Bytes(), next+1
		s.until(func(m *bufferv1.AppendResponse) bool {
			credit += m.GetCredit().GetBytes()
			if r := m.GetResult(); r != nil {
				require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, r.GetOutcome(), r.GetText())
			}
			return m.GetResult() != nil
		})
	}
	require.Less(t, taken, int64(1<<20)*3/4+20<<10+1<<10, "one entry more at the most: it was under way")
	require.Greater(t, taken, int64(1<<20)/2, "most of it is this table's")
	lsn := firstLSN
	lsn.Next += ident.LSN(next)
	require.NoError(t, b.report(state(3, 1, ident.Vector{p0: next, p1: 0}, lsn)))
	s.until(func(m *bufferv1.AppendResponse) bool { return m.GetCredit().GetBytes() > 0 })
}

// A restarted buffer gets back all that its journal remembers, however much that is.
func TestRowsThatTheJournalRemembersAreNeverPutOff(t *testing.T) {
	b := start(t, file.NewMem(), append(small[2:], "limits.hot.bytes", "2MiB")...)
	b.serve(orders)
	s := b.sender(orders)
	s.accept(entry(t, p1, 0, 1, 10))
	_, held := s.fill(p0, 0)
	b = b.crash(small...)
	require.True(t, b.openTable(orders, state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)).GetServing())
	s = b.sender(orders)
	s.accept(entry(t, p1, 0, 1, 10))
	require.Greater(t, held, int64(19))
	for o := range int64(19) { // more would be more than the budget itself
		s.accept(entry(t, p0, o, o+1, 50<<10))
	}
}
