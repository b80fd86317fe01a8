package commit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// base is a state at writer epoch 3 and log epoch 2 with two partitions of "p",
// at 10 and 20, and one of another pipeline.
func base() lake.State {
	other := ident.Partition{Pipeline: "q", Topic: "u"}
	return lake.State{
		Format: lake.Format, WriterEpoch: 3, LogEpoch: 2, LSN: ident.LSNState{Start: 100, Next: 130, Reserved: 130 + ident.Reservation},
		CommitID: ident.UUID{1},
		Pipelines: map[string]*lake.Pipeline{
			"p": {
				Owner:     "me",
				Positions: ident.Positions{part(0): {Next: 10, LeaderEpoch: 4}, part(1): {Next: 20, LeaderEpoch: -1}},
				First:     map[ident.Partition]int64{part(0): 5},
				Totals:    map[ident.Partition]lake.Totals{part(0): {Rows: 10}, part(1): {Rows: 20}},
				Delta:     lake.Totals{Rows: 5},
				Pending:   []lake.PendingQuarantine{{CommitID: ident.UUID{8}}, {CommitID: ident.UUID{9}}},
				Watermark: time.Unix(50, 0),
			},
			"q": {Owner: "me", Positions: ident.Positions{other: {Start: 1, Next: 1}}, Delta: lake.Totals{}},
		},
	}
}

func batchAt(epoch ident.LogEpoch, first int64) *Batch {
	const next = 17
	a := &Advance{Range: ident.Range{First: first, Next: first}, LeaderEpoch: 6, NewestTime: time.Unix(60, 0)}
	a.Add(ident.Range{First: first, Next: next}, next-first-2, 1,
		[]event.Skip{{Range: ident.Range{First: first - 5, Next: first + 1}, Reason: event.SkipControl}})
	return &Batch{ID: ident.UUID{2}, Epoch: epoch, NextLSN: 200, Parts: map[ident.Partition]*Advance{part(0): a}}
}

// G1: which offsets Kafka did not have any more is kept with the table, however the
// log was cut into pieces, and nothing else that was skipped.
func TestWhatKafkaDidNotHaveAnyMoreIsRememberedByItsOffsets(t *testing.T) {
	lost := func(first, next int64) event.Skip {
		return event.Skip{Range: ident.Range{First: first, Next: next}, Reason: event.SkipLost}
	}
	a := &Advance{Range: ident.Range{First: 10, Next: 10}, LeaderEpoch: -1}
	a.Add(ident.Range{First: 10, Next: 14}, 0, 0, []event.Skip{lost(4, 18)})
	a.Add(ident.Range{First: 14, Next: 18}, 0, 0, []event.Skip{lost(4, 18)})
	a.Add(ident.Range{First: 18, Next: 24}, 3, 0, []event.Skip{{Range: ident.Range{First: 18, Next: 19}, Reason: event.SkipAbsent}, lost(20, 22), lost(30, 40)})
	was := base()
	was.Pipelines["p"].Lose(lake.Lost{Partition: part(1), Range: ident.Range{First: 2, Next: 10}, Why: lake.LossGivenUp})
	s, err := advanced(was, &Batch{ID: ident.UUID{2}, Epoch: 2, Parts: map[ident.Partition]*Advance{part(0): a}}, nil, nil)
	require.NoError(t, err)
	require.Equal(t, []lake.Lost{
		{Partition: part(1), Range: ident.Range{First: 2, Next: 10}, Why: lake.LossGivenUp},
		{Partition: part(0), Range: ident.Range{First: 10, Next: 18}, Why: lake.LossGone},
		{Partition: part(0), Range: ident.Range{First: 20, Next: 22}, Why: lake.LossGone},
	}, s.Pipelines["p"].Lost)
	require.Equal(t, int64(10), s.Pipelines["p"].Totals[part(0)].Skipped[event.SkipLost])
	require.Len(t, was.Pipelines["p"].Lost, 1, "the base is not touched")
}

// G1: that Kafka replaced records which were read moves nothing and counts nothing, and is
// recorded once, as far as the table holds them.
func TestWhatKafkaReplacedIsRememberedAndMovesNothing(t *testing.T) {
	was := base()
	pos := was.Pipelines["p"].Positions[part(0)]
	s, changed, err := replaced(was, ident.UUID{2}, nil, part(0), ident.Range{First: pos.Next - 3, Next: pos.Next + 5})
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []lake.Lost{{Partition: part(0), Range: ident.Range{First: pos.Next - 3, Next: pos.Next}, Why: lake.LossReplaced}}, s.Pipelines["p"].Lost)
	require.Equal(t, was.Positions(), s.Positions())
	require.Equal(t, was.Pipelines["p"].Totals, s.Pipelines["p"].Totals)
	require.Empty(t, was.Pipelines["p"].Lost, "the base is not touched")

	for name, r := range map[string]ident.Range{
		"known":       {First: pos.Next - 2, Next: pos.Next},
		"beyond":      {First: pos.Next, Next: pos.Next + 5},
		"below start": {First: pos.Start - 5, Next: pos.Start},
	} {
		_, changed, err = replaced(s, ident.UUID{3}, nil, part(0), r)
		require.NoError(t, err, name)
		require.False(t, changed, name)
	}
	_, _, err = replaced(was, ident.UUID{2}, nil, part(99), ident.Range{First: 0, Next: 1})
	require.Equal(t, fault.UnknownPartition, fault.ReasonOf(err))
	other := part(0)
	other.Pipeline = "other"
	_, _, err = replaced(was, ident.UUID{2}, nil, other, ident.Range{First: 0, Next: 1})
	require.Equal(t, fault.UnknownPartition, fault.ReasonOf(err))
}

func TestAdvancedMovesOnlyWhatTheBatchHolds(t *testing.T) {
	was := base()
	s, err := advanced(was, batchAt(2, 10), map[ident.UUID]bool{{8}: true}, map[string]lake.PendingQuarantine{"p": {CommitID: ident.UUID{2}}})
	require.NoError(t, err)
	p := s.Pipelines["p"]
	require.Equal(t, ident.Position{Next: 17, LeaderEpoch: 6}, p.Positions[part(0)])
	require.Equal(t, ident.Position{Next: 20, LeaderEpoch: -1}, p.Positions[part(1)])
	require.Equal(t, map[ident.Partition]int64{part(0): 10}, p.First)
	require.Equal(t, lake.Totals{Rows: 15, Quarantined: 1, Skipped: map[event.SkipReason]int64{event.SkipControl: 1}}, p.Totals[part(0)])
	require.Equal(t, int64(7), p.Delta.Len())
	require.Equal(t, []lake.PendingQuarantine{{CommitID: ident.UUID{9}}, {CommitID: ident.UUID{2}}}, p.Pending)
	require.Equal(t, ident.LSNState{Start: 100, Next: 200, Reserved: 200 + ident.Reservation}, s.LSN)
	require.Equal(t, ident.WriterEpoch(3), s.WriterEpoch)
	require.Equal(t, was.Pipelines["q"].Positions, s.Pipelines["q"].Positions, "other pipelines are copied")
	require.Equal(t, base(), was, "the base is not touched")
}

// A range that ends with offsets without a record forgets the leader epoch before it: Kafka would say that it ended below
// the position, as if the log had been replaced (K13).
func TestAGapAtTheEndOfARangeForgetsTheLeaderEpoch(t *testing.T) {
	b := batchAt(2, 10)
	b.Parts[part(0)].LeaderEpoch = -1
	s, err := advanced(base(), b, nil, nil)
	require.NoError(t, err)
	require.Equal(t, ident.Position{Next: 17, LeaderEpoch: -1}, s.Pipelines["p"].Positions[part(0)])
}

// com_check and row_epoch of the model: the ranges are checked against the very
// snapshot that is asserted.
func TestAdvancedRefusesWhatDoesNotContinueTheTable(t *testing.T) {
	for name, b := range map[string]*Batch{"below": batchAt(2, 9), "above": batchAt(2, 11)} {
		_, err := advanced(base(), b, nil, nil)
		require.ErrorIs(t, err, errRange, name)
	}
	unknown := batchAt(2, 10)
	unknown.Parts[part(7)] = unknown.Parts[part(0)]
	_, err := advanced(base(), unknown, nil, nil)
	require.ErrorIs(t, err, errRange)
	_, err = advanced(base(), batchAt(1, 10), nil, nil)
	require.ErrorIs(t, err, errEpoch)
	short := batchAt(2, 10)
	short.Parts[part(0)].Count.Rows--
	_, err = advanced(base(), short, nil, nil)
	require.ErrorContains(t, err, "6 offsets are accounted for, 7 are in the range")
}

// G5: an epoch begins at the old reservation, wherever the LSNs stood.
func TestANewEpochBeginsAtTheOldReservation(t *testing.T) {
	s := newEpoch(base(), ident.UUID{3}, nil)
	start := 130 + ident.Reservation
	require.Equal(t, ident.LSNState{Start: start, Next: start, Reserved: start + ident.Reservation}, s.LSN)
	require.Equal(t, ident.LogEpoch(3), s.LogEpoch)
	require.Equal(t, base().Positions(), s.Positions())
}

func TestStartsAreFixedOnce(t *testing.T) {
	s, changed := started(base(), ident.UUID{3}, nil, "me", "p", ident.Vector{part(0): 99, part(2): 7})
	require.True(t, changed)
	require.Equal(t, int64(10), s.Pipelines["p"].Positions[part(0)].Next)
	require.Equal(t, ident.Position{Start: 7, Next: 7, LeaderEpoch: -1}, s.Pipelines["p"].Positions[part(2)])
	_, changed = started(s, ident.UUID{4}, nil, "me", "p", ident.Vector{part(2): 3})
	require.False(t, changed)
	s, changed = started(lake.State{}, ident.UUID{5}, nil, "me", "new", nil)
	require.True(t, changed, "a pipeline without partitions is noted with its owner")
	require.Equal(t, "me", s.Pipelines["new"].Owner)
}

func TestTheWatermarkWaitsForPartitionsThatLagAndNoOthers(t *testing.T) {
	newest := func(n int32, second int64, caughtUp bool) *Batch {
		return &Batch{Parts: map[ident.Partition]*Advance{
			part(0): {NewestTime: time.Unix(100, 0), CaughtUp: true},
			part(n): {NewestTime: time.Unix(second, 0), CaughtUp: caughtUp},
		}}
	}
	old := time.Unix(50, 0)
	require.Equal(t, time.Unix(100, 0), watermark("p", old, newest(1, 70, true)), "C14: idle partitions hold nobody")
	require.Equal(t, time.Unix(70, 0), watermark("p", old, newest(1, 70, false)))
	require.Equal(t, old, watermark("p", old, newest(1, 20, false)), "never back")
	require.Equal(t, old, watermark("q", old, newest(1, 70, true)))
}
