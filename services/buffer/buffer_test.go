package buffer_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer"
)

const (
	committer = bufferv1.FollowerRole_FOLLOWER_ROLE_COMMITTER
	replica   = bufferv1.FollowerRole_FOLLOWER_ROLE_READSTATE
	orders    = "shop.orders"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNoAppendOrReadBeforeTheCommitterHasOpenedTheTable(t *testing.T) {
	b := start(t, file.NewMem())
	_, err := b.hello(orders)
	require.ErrorIs(t, err, fault.Of(fault.NotReady))
	require.ErrorContains(t, err, "committer")
	_, err = b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
	require.Error(t, err)

	f := b.follow(committer, nil, 0)
	out := b.openTable(orders, state(1, 0, ident.Vector{p0: 0, p1: 0}, ident.LSNState{}))
	wanted := f.next().Msg.GetEpochWanted()
	require.Equal(t, out.GetEpochWanted().GetNonce(), wanted.GetNonce())
	_, err = b.hello(orders)
	require.ErrorIs(t, err, fault.Of(fault.NotReady))
	for !wanted.GetAppendsWaiting() {
		wanted = f.next().Msg.GetEpochWanted()
	}
	require.NoError(t, b.grant(orders, wanted.GetNonce(), state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)))
	begin, hot := f.image()
	require.Empty(t, hot)
	require.Equal(t, int64(1), begin.GetImageBegin().GetCommit().GetLogEpoch())
	require.ErrorIs(t, b.grant(orders, wanted.GetNonce()+1, state(3, 2, nil, firstLSN)), fault.Of(fault.Conflict))
	b.sender(orders).accept(entry(t, p0, 0, 5, 10))
}

func TestAppendedRowsReachFollowersAndReadersAndTheCommittedVectorComesBack(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	f := b.follow(replica, nil, 0)
	begin, _ := f.image()
	s := b.sender(orders)
	require.Positive(t, s.welcome.GetCredit())
	s.accept(entry(t, p0, 0, 5, 10))
	s.accept(entry(t, p1, 0, 3, 10))
	got := f.next()
	require.Equal(t, event.Seq(1), got.Seq)
	require.Equal(t, ident.LSN(100), got.Entry.LSN)
	require.Equal(t, ident.LSN(105), f.next().Entry.LSN)

	read, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
	require.NoError(t, err)
	require.Equal(t, int64(8), read.GetHot().GetRows())

	require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_DUPLICATE, s.put(entry(t, p0, 1, 4, 10)).GetOutcome())
	r := s.put(entry(t, p0, 7, 9, 10))
	require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER, r.GetOutcome())
	require.Equal(t, int64(5), r.GetAppendedNext())

	require.NoError(t, b.report(state(3, 1, ident.Vector{p0: 5, p1: 2}, firstLSN)))
	c := s.until(func(m *bufferv1.AppendResponse) bool { return m.GetCommitted() != nil }).GetCommitted()
	ps, err := wire.PositionsFromProto(c.GetPositions())
	require.NoError(t, err)
	require.Equal(t, ident.Vector{p0: 5, p1: 2}, ps.Vector())
	require.Equal(t, int64(3), f.next().Msg.GetCommit().GetSequenceNumber())

	// A follower that comes back with what it knows gets only what it lacks.
	again := b.follow(replica, begin.GetImageBegin().GetBoot(), 1)
	require.Equal(t, event.Seq(2), again.next().Seq)
	require.Equal(t, uint64(3), again.next().Msg.GetSeq())
	// Another boot, or an event that is not there: an image, without the released rows.
	for _, boot := range [][]byte{make([]byte, 16), begin.GetImageBegin().GetBoot()} {
		fresh := b.follow(replica, boot, 99)
		_, hot := fresh.image()
		require.Len(t, hot, 1)
		require.Equal(t, p1, hot[0].Partition)
	}
	v, ok := b.metrics.Value("icestream_buffer_hot_rows", orders)
	require.True(t, ok)
	require.InDelta(t, 3, v, 0)
}

func TestAMalformedBatchIsRefusedAtTheDoorAndItsNeighboursPass(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	s := b.sender(orders)
	for name, harm := range map[string]func(*event.Append){
		"cut":         func(a *event.Append) { a.RowBatch = a.RowBatch[:len(a.RowBatch)/2] },
		"garbage":     func(a *event.Append) { a.RowBatch = []byte(strings.Repeat("x", 100)) },
		"other range": func(a *event.Append) { a.Range = ident.Range{First: 0, Next: 3}; a.Rows = 3 },
		"shifted":     func(a *event.Append) { a.RowBatch = entry(t, p0, 1, 6, 10).RowBatch },
	} {
		a := entry(t, p0, 0, 5, 10)
		harm(a)
		r := s.put(a)
		require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_INVALID, r.GetOutcome(), name)
		require.NotEmpty(t, r.GetText())
	}
	a := entry(t, p0, 0, 5, 10)
	a.Fingerprint = "later"
	require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_SCHEMA, s.put(a).GetOutcome())
	_, sch := rowSchema(t)
	sch.Fingerprint, sch.TableSchemaID = "later", 2
	_, err := b.log.PublishSchema(b.ctx(), &bufferv1.PublishSchemaRequest{Table: orders, TableUuid: tableID[:], WriterEpoch: 1, Schema: wire.SchemaToProto(&sch)})
	require.NoError(t, err)
	s.until(func(m *bufferv1.AppendResponse) bool { return m.GetSchema().GetFingerprint() == "later" })
	s.accept(a)
}

// G5: a restart with its journal keeps the LSN of every row it has shown.
func TestARestartWithItsJournalKeepsLSNs(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	s := b.sender(orders)
	s.accept(entry(t, p0, 0, 5, 10))
	s.accept(entry(t, p1, 0, 4, 10))
	s.accept(entry(t, p0, 5, 9, 10))
	read, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
	require.NoError(t, err)

	b = b.crash()
	require.False(t, b.health.Report("buffer").Ready, "a table that the journal remembers waits for its committer")
	require.True(t, b.openTable(orders, state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)).GetServing())
	s = b.sender(orders)
	require.Len(t, s.welcome.GetOutstanding(), 3)
	_, err = b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders, At: &readstatev1.At{Position: &readstatev1.At_Token{Token: read.GetToken()}}})
	require.ErrorIs(t, err, fault.Of(fault.NotYet), "its rows are not back yet")
	f := b.follow(replica, nil, 0)
	f.image()
	s.accept(entry(t, p1, 0, 4, 10))
	require.Equal(t, ident.LSN(105), f.next().Entry.LSN)
	s.accept(entry(t, p0, 0, 5, 10))
	require.Equal(t, ident.LSN(100), f.next().Entry.LSN)
	s.accept(entry(t, p0, 5, 9, 10))
	require.Equal(t, ident.LSN(109), f.next().Entry.LSN)
	s.accept(entry(t, p0, 9, 10, 10))
	require.Equal(t, ident.LSN(113), f.next().Entry.LSN)
	again, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders, At: &readstatev1.At{Position: &readstatev1.At_Token{Token: read.GetToken()}}})
	require.NoError(t, err)
	require.Equal(t, read.GetHot().GetRows(), again.GetHot().GetRows())
	require.True(t, b.health.Report("buffer").Ready)
}

// A partition whose rows do not come back after a restart holds nobody else: the others are read, appended to and
// committed, and only what needs its rows waits (G3, G5; design section 2).
func TestAPartitionThatDoesNotComeBackHoldsNoOther(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	s := b.sender(orders)
	s.accept(entry(t, p0, 0, 5, 10))
	s.accept(entry(t, p1, 0, 4, 10))
	token := func() *readstatev1.At {
		read, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders})
		require.NoError(t, err)
		return &readstatev1.At{Position: &readstatev1.At_Token{Token: read.GetToken()}}
	}
	both := token()

	b = b.crash()
	require.True(t, b.openTable(orders, state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)).GetServing())
	s = b.sender(orders)
	s.accept(entry(t, p1, 0, 4, 10))
	s.accept(entry(t, p1, 4, 9, 10))
	read := func(at *readstatev1.At) (int64, error) {
		r, err := b.read.BeginRead(b.ctx(), &readstatev1.BeginReadRequest{Table: orders, At: at})
		return r.GetHot().GetRows(), err
	}
	rows, err := read(nil)
	require.NoError(t, err)
	require.EqualValues(t, 9, rows)
	one := token()
	rows, err = read(one)
	require.NoError(t, err)
	require.EqualValues(t, 9, rows)
	_, err = read(both)
	require.ErrorIs(t, err, fault.Of(fault.NotYet))
	require.NoError(t, b.report(state(3, 1, ident.Vector{p0: 0, p1: 9}, ident.LSNState{Start: 100, Next: 114, Reserved: firstLSN.Reserved})))
	s.accept(entry(t, p1, 9, 12, 10))
	rows, err = read(nil)
	require.NoError(t, err)
	require.EqualValues(t, 3, rows)

	s.accept(entry(t, p0, 0, 5, 10))
	rows, err = read(nil)
	require.NoError(t, err)
	require.EqualValues(t, 8, rows)
}

func TestALostJournalWantsAnEpochAndClosesNothingElse(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	b.sender(orders).accept(entry(t, p0, 0, 5, 10))
	_ = b.stop()
	b = start(t, file.NewMem())
	out := b.openTable(orders, state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN))
	require.False(t, out.GetServing())
	require.Contains(t, out.GetEpochWanted().GetReason(), "journal")
	second := ident.LSNState{Start: firstLSN.Reserved, Next: firstLSN.Reserved, Reserved: firstLSN.Reserved + ident.Reservation}
	require.NoError(t, b.grant(orders, out.GetEpochWanted().GetNonce(), state(3, 2, ident.Vector{p0: 0, p1: 0}, second)))
	f := b.follow(replica, nil, 0)
	f.image()
	b.sender(orders).accept(entry(t, p0, 0, 5, 10))
	require.Equal(t, firstLSN.Reserved, f.next().Entry.LSN, "above every LSN of the lost log")
}

func TestARereadThatDiffersEndsTheEpochAndClosesStreams(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	b.sender(orders).accept(entry(t, p0, 0, 5, 10))
	b = b.crash()
	require.True(t, b.openTable(orders, state(2, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)).GetServing())
	f := b.follow(committer, nil, 0)
	f.image()
	s, other := b.sender(orders), b.sender(orders)
	s.send(entry(t, p0, 0, 5, 11)) // another size: another digest
	for _, x := range []*sender{s, other} {
		x.until(func(m *bufferv1.AppendResponse) bool { return m.GetClosed() != nil })
	}
	wanted := f.next().Msg.GetEpochWanted()
	require.Contains(t, wanted.GetReason(), "digest")
	second := ident.LSNState{Start: firstLSN.Reserved, Next: firstLSN.Reserved, Reserved: firstLSN.Reserved + ident.Reservation}
	require.NoError(t, b.grant(orders, wanted.GetNonce(), state(3, 2, ident.Vector{p0: 0, p1: 0}, second)))
	require.Equal(t, int64(2), f.next().Msg.GetEpoch().GetLogEpoch(), "a follower of this boot gets the epoch as an event")
	s = b.sender(orders)
	require.Empty(t, s.welcome.GetOutstanding())
	s.accept(entry(t, p0, 0, 5, 11))
}

// G7: hot rows and appends under way stay inside the budget while nothing is
// committed; commits make room and everything goes on.
func TestCreditKeepsHotRowsInsideTheBudget(t *testing.T) {
	const budget = 1 << 20
	b := start(t, file.NewMem(), "limits.hot.bytes", "1MiB", "limits.batch.bytes", "64KiB", "limits.record.max", "128KiB")
	b.serve(orders)
	s := b.sender(orders)
	f := b.follow(replica, nil, 0)
	f.image()
	const rows, size = 10, 9000
	credit, next, acked := s.welcome.GetCredit(), int64(0), int64(0)
	require.LessOrEqual(t, credit, int64(budget/4))
	take := func(m *bufferv1.AppendResponse) {
		credit += m.GetCredit().GetBytes()
		if r := m.GetResult(); r != nil {
			require.Equal(t, bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, r.GetOutcome(), r.GetText())
			acked = r.GetAppendedNext()
		}
	}
	recv := make(chan *bufferv1.AppendResponse, 100)
	go func() {
		defer close(recv)
		for {
			m, err := s.stream.Recv()
			if err != nil {
				return
			}
			recv <- m
		}
	}()
	// A polite sender: within its credit, or one message when nothing is
	// outstanding. It goes on until it may not send and hears nothing for a while.
	push := func() {
		for {
			a := entry(t, p0, next, next+rows, size)
			if credit >= a.Bytes() || acked == next {
				credit -= a.Bytes()
				next += rows
				s.send(a)
				continue
			}
			select {
			case m := <-recv:
				take(m)
			case <-time.After(200 * time.Millisecond):
				return
			}
		}
	}
	hot := 0.0
	for range 50 {
		push()
		if hot, _ = b.metrics.Value("icestream_buffer_hot_bytes", orders); hot > budget/2 {
			break
		}
	}
	require.Greater(t, hot, float64(budget/2))
	push()
	hot, _ = b.metrics.Value("icestream_buffer_hot_bytes", orders)
	require.LessOrEqual(t, hot, float64(budget))
	stuck := acked
	push()
	require.Equal(t, stuck, acked, "nothing moves while the budget is used up")
	for seq := int64(3); seq < 8; seq++ {
		require.NoError(t, b.report(state(seq, 1, ident.Vector{p0: acked, p1: 0}, firstLSN)))
		for tries := 0; acked == stuck && tries < 50; tries++ {
			push()
		}
		require.Greater(t, acked, stuck, "a commit makes room")
		stuck = acked
	}
	s.cancel()
	for range recv { //nolint:revive // drain until the receiver has ended
	}
}

func TestASlowFollowerIsCutOffAndNobodyElseWaits(t *testing.T) {
	b := start(t, file.NewMem(), "limits.hot.bytes", "64MiB")
	b.serve(orders)
	slow := b.follow(replica, nil, 0)
	slow.image() // and then it reads nothing more
	s := b.sender(orders)
	for i := range int64(70) {
		s.accept(entry(t, p0, i*10, i*10+10, 60_000))
		if i%10 == 9 {
			require.NoError(t, b.report(state(3+i, 1, ident.Vector{p0: i*10 + 10, p1: 0}, firstLSN)))
		}
	}
	for {
		m := &wire.FollowFrame{}
		if err := slow.stream.RecvMsg(m); err != nil {
			require.ErrorIs(t, err, fault.Of(fault.OverLimit))
			return
		}
	}
}

func TestAFollowerThatLeavesInTheMiddleOfAnImageDisturbsNobody(t *testing.T) {
	b := start(t, file.NewMem(), "limits.hot.bytes", "64MiB")
	b.serve(orders)
	s := b.sender(orders)
	for i := range int64(30) {
		s.accept(entry(t, p0, i*10, i*10+10, 60_000))
	}
	half := b.follow(replica, nil, 0)
	require.NotNil(t, half.next().Msg.GetImageBegin())
	half.next()
	half.cancel()
	s.accept(entry(t, p0, 300, 301, 10))
	_, hot := b.follow(replica, nil, 0).image()
	require.Len(t, hot, 31)
}

func TestTwoTablesShareTheJournalAndKeepApart(t *testing.T) {
	fs := file.NewMem()
	b := start(t, fs)
	b.serve(orders)
	b.serve("shop.clicks")
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	a, c := b.sender(orders), b.sender("shop.clicks")
	fs.Before(func(op file.Op, _ string) error {
		if op == file.OpSync {
			entered <- struct{}{}
			<-release
		}
		return nil
	})
	a.send(entry(t, p0, 0, 5, 10))
	<-entered
	a.send(entry(t, p0, 5, 6, 10))
	c.send(entry(t, p0, 0, 7, 10))
	b.untilValue("icestream_buffer_appends_total", 1, "shop.clicks", "accepted")
	b.untilValue("icestream_buffer_appends_total", 2, orders, "accepted")
	before, _ := b.metrics.Value("icestream_buffer_journal_sync_seconds")
	close(release)
	require.Equal(t, int64(5), a.result().GetAppendedNext())
	require.Equal(t, int64(6), a.result().GetAppendedNext())
	require.Equal(t, int64(7), c.result().GetAppendedNext())
	after, _ := b.metrics.Value("icestream_buffer_journal_sync_seconds")
	require.InDelta(t, before+2, after, 0, "what waited while the first group was synced took one fdatasync together")
}

// untilValue waits until a metric has reached a value.
func (b *bed) untilValue(name string, want float64, labels ...string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		v, ok := b.metrics.Value(name, labels...)
		return ok && v >= want
	}, 5*time.Second, time.Millisecond)
}

func TestProgressAndPinsReachTheCommitter(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	f := b.follow(committer, nil, 0)
	s := b.sender(orders)
	require.NoError(t, s.stream.SendMsg(&wire.AppendFrame{Msg: &bufferv1.AppendRequest{Message: &bufferv1.AppendRequest_Progress{
		Progress: wire.ProgressReportToProto([]event.Progress{{Partition: p0, StableEnd: 500, Fetch: 3, State: event.PartitionRunning}}),
	}}}))
	for _, pin := range []struct {
		name     string
		id, seq  int64
		wantedID int64
	}{{"r1", 50, 5, 50}, {"r2", 40, 4, 40}, {"r2", 0, 0, 50}, {"r1", 0, 0, 0}} {
		_, err := b.log.ReportPins(b.ctx(), &bufferv1.ReportPinsRequest{Table: orders, Follower: pin.name, Pins: &bufferv1.Pins{OldestSnapshotId: pin.id, OldestSequenceNumber: pin.seq}})
		require.NoError(t, err)
		for {
			m := &wire.FollowFrame{}
			require.NoError(t, f.stream.RecvMsg(m))
			if p := m.Msg.GetPins(); p != nil && p.GetOldestSnapshotId() == pin.wantedID {
				break
			}
			if pr := m.Msg.GetProgress(); pr != nil {
				require.Equal(t, int64(500), pr.GetPartitions()[0].GetStableEnd())
			}
		}
	}
	d, err := b.read.DescribeTable(b.ctx(), &readstatev1.DescribeTableRequest{Table: orders})
	require.NoError(t, err)
	require.Equal(t, int64(500), d.GetPartitions()[0].GetLag())
	status, err := adminv1.NewAdminServiceClient(b.conn).GetStatus(b.ctx(), &adminv1.GetStatusRequest{})
	require.NoError(t, err)
	require.True(t, status.GetReady())
	require.Contains(t, status.GetFacts()["table."+orders], "serving")
}

func TestAZombieCommitterIsFenced(t *testing.T) {
	b := start(t, file.NewMem())
	b.serve(orders)
	c := state(9, 1, ident.Vector{p0: 0, p1: 0}, firstLSN)
	c.WriterEpoch = 0
	require.ErrorIs(t, b.report(c), fault.Of(fault.Fenced))
	c.WriterEpoch, c.Table = 5, ident.UUID{66}
	require.ErrorIs(t, b.report(c), fault.Of(fault.Fenced))
}

func TestAFullDiskShowsAndPassesAndAFailedSyncEndsTheService(t *testing.T) {
	fs := file.NewMem()
	b := start(t, fs)
	b.serve(orders)
	s := b.sender(orders)
	full := make(chan struct{})
	fs.Before(func(op file.Op, _ string) error {
		select {
		case <-full:
			return nil
		default:
		}
		if op == file.OpWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	s.send(entry(t, p0, 0, 5, 10))
	require.Eventually(t, func() bool {
		r := b.health.Report("buffer")
		return !r.Ready && strings.Contains(r.Components[0].Reason, "DISK_FULL")
	}, 5*time.Second, time.Millisecond)
	close(full)
	require.Equal(t, int64(5), s.result().GetAppendedNext())
	require.Eventually(t, func() bool { return b.health.Report("buffer").Ready }, 5*time.Second, time.Millisecond)

	broken := errors.New("medium error")
	fs.Before(func(op file.Op, _ string) error {
		if op == file.OpSync {
			return broken
		}
		return nil
	})
	s.send(entry(t, p0, 5, 6, 10))
	require.Eventually(t, func() bool {
		return strings.Contains(b.health.Report("buffer").Components[0].Reason, "medium error")
	}, 5*time.Second, time.Millisecond)
	require.ErrorIs(t, b.stop(), broken)
}

func TestTheSecondBufferOnADataDirectoryIsRefused(t *testing.T) {
	fs := file.NewMem()
	b := start(t, fs)
	_, err := buffer.New(t.Context(), buffer.Config{Settings: settings(t)}, buffer.Deps{Network: onto(listen(t)), FS: fs})
	require.ErrorContains(t, err, "another process")
	b.serve(orders) // the first one does not mind
	_, err = buffer.New(t.Context(), buffer.Config{}, buffer.Deps{})
	require.Equal(t, run.BadConfig, run.CodeOf(err))
}

func TestMetricsAreDeclaredByTheRules(t *testing.T) {
	require.NoError(t, obs.Check([]obs.Group{{Title: "buffer", Defs: buffer.Defs()}}))
}
