package commit

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// commits lands n batches of 10 offsets of partition 0.
func (r *rig) commits(n int) {
	for range n {
		r.log.grow(part(0), 10)
		r.table.Wake()
		_, err := r.table.CommitNow(r.t.Context())
		require.NoError(r.t, err)
	}
}

// rolledBack is a table with three commits of which others took the last two, and
// a committer that stopped.
func rolledBack(t *testing.T) *rig {
	r := newRig(t)
	r.start()
	r.pass(time.Second)
	r.open(0)
	r.commits(3)
	r.lake.rollBack(2)
	r.pass(15 * time.Second)
	require.Equal(t, "stopped", r.table.Status().State)
	return r
}

// G1, G9: a reset that ends in the middle, since the quarantine table cannot be
// cleaned or the committer dies after that, leaves the table stopped: nobody reads
// again what stands in quarantine, and the operator asks again.
func TestAResetThatEndsInTheMiddleLeavesTheTableStopped(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := rolledBack(t)
			r.lake.view(func() {
				r.lake.void = func() error {
					if dies {
						r.client.crash()
						return nil
					}
					return errLost
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := r.table.Reset(ctx, Order{Base: BaseTable})
			require.Error(t, err)
			r.lake.view(func() { r.lake.void = nil })
			if dies {
				r.kill()
				r.start()
			}
			r.pass(time.Minute)
			require.Equal(t, "stopped", r.table.Status().State)
			require.Error(t, r.head().RolledBack)
			_, err = r.table.Reset(t.Context(), Order{Base: BaseTable})
			require.NoError(t, err)
			r.pass(2 * time.Minute)
			require.Equal(t, "running", r.table.Status().State)
			require.NoError(t, r.stop())
			r.check()
		})
	}
}

// G1, G5, G9: the operator reads again what was lost. No LSN is given twice, and
// nothing that the roll-back took stays in quarantine.
func TestAfterAResetARolledBackTableIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rolledBack(t)
		was := r.head().Copy.State
		plan, err := r.table.Reset(t.Context(), Order{Base: BaseTable, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, []lake.ResetPartition{{Pipeline: "p", Topic: "t", TopicID: ident.UUID{9}, Table: 10, Copy: 30, Next: 10}}, plan.Partitions)
		require.Zero(t, plan.Snapshot)
		require.Equal(t, "stopped", r.table.Status().State, "a dry run changes nothing")

		done, err := r.table.Reset(t.Context(), Order{Base: BaseTable, Reason: "ticket 7"})
		require.NoError(t, err)
		require.Equal(t, plan.Partitions, done.Partitions)
		require.NotZero(t, done.Snapshot)
		r.pass(2 * time.Minute)
		require.Equal(t, "running", r.table.Status().State)
		h := r.head()
		require.Greater(t, h.State.WriterEpoch, was.WriterEpoch)
		require.Greater(t, h.State.LogEpoch, was.LogEpoch)
		require.GreaterOrEqual(t, h.State.LSN.Start, was.LSN.Reserved, "no LSN that was given is given again")
		var record *lake.Reset
		for _, s := range r.lake.chain() {
			if s.kind == lake.KindReset {
				record = s.change.Reset
			}
		}
		require.Equal(t, "ticket 7", record.Reason)
		require.Equal(t, plan.Partitions, record.Partitions)

		_, err = r.table.Reset(t.Context(), Order{Base: BaseTable})
		require.ErrorIs(t, err, fault.Of(fault.Conflict), "asked again there is nothing to decide")
		require.NoError(t, r.stop())
		r.check()
	})
}

func TestWhatARollBackTookCanBeGivenUpAndCountsAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rolledBack(t)
		done, err := r.table.Reset(t.Context(), Order{Base: BaseCopy})
		require.NoError(t, err)
		require.Equal(t, int64(20), done.Partitions[0].Lost)
		require.Equal(t, int64(30), done.Partitions[0].Next)
		p := r.head().State.Pipelines["p"]
		require.Equal(t, int64(30), p.Positions[part(0)].Next)
		require.Equal(t, int64(20), p.Totals[part(0)].Skipped[event.SkipLost])
		require.Equal(t, int64(30), p.Totals[part(0)].Len())
		require.Equal(t, []lake.Lost{{Partition: part(0), Range: ident.Range{First: 10, Next: 30}, Why: lake.LossGivenUp}}, p.Lost)
		require.NoError(t, r.stop())
	})
}

func TestAResetOfATableInOrderMovesPartitionsForwardOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0, 1)
		r.commits(2)
		forward := func(n int32, offset int64) Order {
			return Order{Forward: []Forward{{Number: n, Offset: offset}}, Log: []Extent{{Partition: part(n), Range: ident.Range{Next: 25}}}}
		}
		for _, c := range []struct {
			order Order
			want  string
		}{
			{Order{}, "it is in order"},
			{Order{Base: BaseTable}, "there is nothing to decide"},
			{forward(0, 20), "stands at 20 and cannot go to 20"},
			{forward(0, 5), "cannot go to 5"},
			{forward(7, 5), "it has no partition"},
			{forward(-1, 25), "it has no partition"},
			{forward(0, math.MinInt64), "cannot go to -9223372036854775808"},
			{forward(0, math.MaxInt64), "do not exist yet"},
			{Order{Forward: []Forward{{Offset: 22}, {Topic: "t", Offset: 24}}, Log: forward(0, 0).Log}, "is to go to 24, and to another offset too"},
			{Order{Forward: []Forward{{Offset: 24}, {Offset: 22}}, Log: forward(0, 0).Log}, "name each partition once"},
			{forward(0, 26), "Kafka's log is [0,25) and the table stands at 20: offsets 25 to 25 do not exist yet"},
			{Order{Forward: []Forward{{Offset: 25}}}, "it is not known whether Kafka has that offset"},
		} {
			_, err := r.table.Reset(t.Context(), c.order)
			require.ErrorContains(t, err, c.want)
		}
		before := r.head().State
		done, err := r.table.Reset(t.Context(), forward(0, 25))
		require.NoError(t, err)
		require.Equal(t, int64(5), done.Partitions[0].Lost)
		h := r.head()
		require.Equal(t, before.WriterEpoch, h.State.WriterEpoch, "it is still ours")
		require.Equal(t, before.LogEpoch+1, h.State.LogEpoch)
		require.Equal(t, int64(25), h.State.Positions()[part(0)].Next)
		require.Equal(t, "running", r.table.Status().State)
		r.pass(time.Minute)
		require.Equal(t, "running", r.table.Status().State, "%s", r.table.Status().Reason)
		require.NoError(t, r.stop())
	})
}

// A committer that was fenced decides nothing.
func TestAFencedCommitterRefusesAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		zombie := r.table
		stop := r.cancel
		done := r.done
		r.start()
		r.pass(time.Minute)
		_, err := zombie.Reset(t.Context(), Order{Base: BaseTable})
		require.ErrorContains(t, err, "another committer")
		stop()
		<-done //nolint:errcheck // a fenced one may fail its last commit
		require.NoError(t, r.stop())
	})
}

func TestBasesOfAReset(t *testing.T) {
	state := func(next int64) lake.State {
		return lake.State{Format: 1, LogEpoch: 2, WriterEpoch: 3, Pipelines: map[string]*lake.Pipeline{"p": {
			Positions: ident.Positions{part(0): {Next: next}}, Totals: map[ident.Partition]lake.Totals{part(0): {Rows: next}},
		}}}
	}
	lost := fault.New(fault.Stopped, "no state")
	kept := lake.Head{StateLost: lost, Copy: &lake.Copy{State: state(9), Snapshot: 4}, High: lake.High{WriterEpoch: 5, LogEpoch: 6, Reserved: 70}}
	s, record, err := reset("db.t", kept, ident.UUID{8}, Order{Base: BaseCopy}, 0, nil)
	require.NoError(t, err)
	require.Equal(t, int64(9), s.Positions()[part(0)].Next)
	require.Equal(t, ident.WriterEpoch(6), s.WriterEpoch)
	require.Equal(t, ident.LogEpoch(7), s.LogEpoch)
	require.Equal(t, ident.LSN(70), s.LSN.Start)
	require.Equal(t, int64(4), record.Over)
	require.Equal(t, []lake.ResetPartition{{Pipeline: "p", Topic: "t", TopicID: ident.UUID{9}, Table: -1, Copy: 9, Next: 9}}, record.Partitions)

	// Rolled back to before the pipeline was opened, which began at offset 4: there it
	// begins again, wherever the configuration would let it start now.
	begun := state(9)
	begun.Pipelines["p"].Owner = "d/k"
	begun.Pipelines["p"].Positions[part(0)] = ident.Position{Start: 4, Next: 9}
	begun.Pipelines["p"].Totals[part(0)] = lake.Totals{Rows: 5}
	before := kept
	before.State = lake.State{Format: 1, LogEpoch: 1, WriterEpoch: 1, Pipelines: map[string]*lake.Pipeline{}}
	before.RolledBack, before.StateLost, before.Copy = lost, nil, &lake.Copy{State: begun, Snapshot: 4}
	for _, to := range []struct {
		order      Order
		next, lost int64
	}{{Order{Base: BaseTable}, 4, 0}, {Order{Base: BaseCopy}, 9, 5}, {Order{Base: BaseTable, Forward: []Forward{{Offset: 6}}, Unchecked: true}, 6, 2}} {
		s, record, err = reset("db.t", before, ident.UUID{8}, to.order, 0, nil)
		require.NoError(t, err)
		require.Equal(t, "d/k", s.Pipelines["p"].Owner)
		require.Equal(t, int64(4), s.Positions()[part(0)].Start)
		require.Equal(t, to.next-4, s.Pipelines["p"].Totals[part(0)].Len())
		require.Equal(t, []lake.ResetPartition{{Pipeline: "p", Topic: "t", TopicID: ident.UUID{9}, Table: -1, Copy: 9, Next: to.next, Lost: to.lost}}, record.Partitions)
	}
	require.Empty(t, before.State.Pipelines, "what was given is not changed")

	for name, c := range map[string]struct {
		head  lake.Head
		order Order
		want  string
	}{
		"lost, to table":     {kept, Order{Base: BaseTable}, "its history knows no position any more"},
		"lost, no copy":      {lake.Head{StateLost: lost}, Order{Base: BaseCopy}, "no state"},
		"rolled back, no to": {lake.Head{State: state(5), RolledBack: lost, Copy: kept.Copy}, Order{}, "say --to table"},
		"nothing committed":  {lake.Head{}, Order{Forward: []Forward{{Offset: 4}}}, "nothing was committed to it yet"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := reset("db.t", c.head, ident.UUID{8}, c.order, 0, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// G1: positions never go back, so a partition is not moved to where its log has not
// been, nor by a look at another log; what is gone from it is said.
func TestAResetIsJudgedByWhatKafkaHolds(t *testing.T) {
	held := func(first, next int64) Extent {
		return Extent{Cluster: "k", Partition: ident.Partition{Topic: "t", TopicID: ident.UUID{9}, Number: 0}, Range: ident.Range{First: first, Next: next}}
	}
	otherCluster, otherLife, noIDs := held(0, 100), held(0, 100), held(0, 100)
	otherCluster.Cluster, otherLife.Partition.TopicID, noIDs.Partition.TopicID = "l", ident.UUID{8}, ident.UUID{}
	elsewhere := held(0, 100)
	elsewhere.Partition.Number = 1
	head := lake.Head{State: lake.State{Format: 1, LogEpoch: 2, WriterEpoch: 3, Pipelines: map[string]*lake.Pipeline{"p": {
		Owner: "d/k", Positions: ident.Positions{part(0): {Next: 20}}, Totals: map[ident.Partition]lake.Totals{part(0): {Rows: 20}},
	}}}}
	for name, c := range map[string]struct {
		log            []Extent
		offset         int64
		refuse, remark string
	}{
		"to its end":            {[]Extent{held(0, 100)}, 100, "", ""},
		"beyond its end":        {[]Extent{held(0, 100)}, 101, "offsets 100 to 100 do not exist yet", "ends at 100: the records that get offsets 100 to 100 will not be read"},
		"of an empty log":       {[]Extent{held(0, 0)}, 90, "Kafka's log is [0,0) and the table stands at 20: offsets 20 to 89 do not exist yet", "the records that get offsets 0 to 89"},
		"below its start":       {[]Extent{held(60, 100)}, 50, "", "begins at 60: offsets 50 to 59 are gone from it"},
		"to its start":          {[]Extent{held(60, 100)}, 60, "", ""},
		"of another cluster":    {[]Extent{otherCluster}, 90, "fed by the Kafka cluster k, the one that was asked is l", "fed by the Kafka cluster k"},
		"of another life":       {[]Extent{otherLife}, 90, "the topic was created again", "the topic was created again"},
		"without topic ids":     {[]Extent{noIDs}, 90, "", ""},
		"of another partition":  {[]Extent{elsewhere}, 90, "it is not known whether Kafka has that offset", ""},
		"that nobody looked at": {nil, 90, "it is not known whether Kafka has that offset", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := Order{Forward: []Forward{{Offset: c.offset}}, Log: c.log}
			_, _, err := reset("db.t", head, ident.UUID{8}, o, 3, nil)
			if c.refuse == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
				require.ErrorContains(t, err, c.refuse)
			}
			o.Unchecked = true
			s, record, err := reset("db.t", head, ident.UUID{8}, o, 3, nil)
			require.NoError(t, err)
			remarks := o.resetting(s, record).Remarks
			require.Len(t, remarks, 1)
			require.Contains(t, remarks[0], c.remark)
			require.Equal(t, c.remark == "", remarks[0] == "", remarks[0])
		})
	}
}
