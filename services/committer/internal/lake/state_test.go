package lake

import (
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

func sampleState(partitions int32) State {
	p := &Pipeline{
		Owner: "prod/abc", Positions: ident.Positions{}, First: map[ident.Partition]int64{}, Totals: map[ident.Partition]Totals{},
		Watermark: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC),
		Pending: []PendingQuarantine{{
			CommitID: ident.UUID{9}, Sequence: 4, Files: []QuarantineFile{{Path: "s3://b/q.parquet", Rows: 2, Bytes: 99}},
		}},
		Delta: Totals{Rows: int64(partitions)},
	}
	for n := range partitions {
		p.Positions[part(n)] = ident.Position{Start: 5, Next: 16, LeaderEpoch: -1}
		p.First[part(n)] = 15
		p.Totals[part(n)] = Totals{Rows: 8, Quarantined: 1, Skipped: map[event.SkipReason]int64{event.SkipLost: 2}}
		p.Lose(Lost{Partition: part(n), Range: ident.Range{First: 6, Next: 8}, Why: LossGone})
	}
	return State{
		Format: Format, WriterEpoch: 3, LogEpoch: 2, LSN: ident.LSNState{Start: 1, Next: 2, Reserved: 3}, CommitID: ident.UUID{7},
		Pipelines: map[string]*Pipeline{"p": p},
	}
}

func TestTheStateSurvivesItsKeys(t *testing.T) {
	for _, partitions := range []int32{1, 3, 1000} {
		s := sampleState(partitions)
		require.NoError(t, s.check())
		keys, err := encodeState(s)
		require.NoError(t, err)
		got, ok, err := decodeState(keys)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, s, got)
		if partitions == 1000 {
			v := keys["icestream.p.offsets"]
			require.True(t, strings.HasPrefix(v, packed))
			require.Less(t, len(v), 16<<10)
		}
		text, err := encodeMark(mark{Snapshot: 1, Sequence: 2, Keys: keys})
		require.NoError(t, err)
		m, again, err := decodeMark(text)
		require.NoError(t, err)
		require.Equal(t, s, again)
		require.Equal(t, int64(2), m.Sequence)
	}
}

// Under pressure the outbox is put off, so every snapshot of a busy table names what many commits left for it. A table with
// small budgets makes commits by the hundred, and each of them costs by the bytes of all snapshots that are kept.
func TestAFullOutboxTakesLittleRoomInASnapshot(t *testing.T) {
	s := sampleState(1)
	p := s.Pipelines["p"]
	p.Pending = nil
	for n := range byte(32) {
		sum := sha256.Sum256([]byte{n})
		id := ident.UUID(sum[:16])
		p.Pending = append(p.Pending, PendingQuarantine{CommitID: id, Sequence: int64(n), Files: []QuarantineFile{{
			Path: "s3://lake/warehouse/shop.db/orders__quarantine/data/" + id.String() + "-w000003-00001.parquet", Rows: 13 + int64(n%7), Bytes: 4000 + 37*int64(n),
		}}})
		keys, err := encodeState(s)
		require.NoError(t, err)
		got, _, err := decodeState(keys)
		require.NoError(t, err)
		require.Equal(t, s, got)
		v := keys["icestream.p.quarantine"]
		require.LessOrEqual(t, len(v), 450+50*len(p.Pending), "of %d entries", len(p.Pending))
		if len(p.Pending) <= 2 {
			require.True(t, strings.HasPrefix(v, "["), "few entries can be read by people")
		}
	}
}

func TestATopicThatWasMadeAgainKeepsBothLives(t *testing.T) {
	s := sampleState(1)
	again := part(0)
	again.TopicID = ident.UUID{2}
	p := s.Pipelines["p"]
	p.Positions[again] = ident.Position{Next: 1, LeaderEpoch: 4}
	p.First[again] = 0
	p.Totals[again] = Totals{Rows: 1}
	keys, err := encodeState(s)
	require.NoError(t, err)
	got, _, err := decodeState(keys)
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func TestKeysOfPipelinesWithDotsAreToldApart(t *testing.T) {
	s := sampleState(1)
	other := s.Pipelines["p"].Clone()
	positions := ident.Positions{}
	totals := map[ident.Partition]Totals{}
	first := map[ident.Partition]int64{}
	for k, v := range other.Positions {
		k.Pipeline = "a.b"
		positions[k], totals[k], first[k] = v, other.Totals[part(k.Number)], 15
	}
	other.Positions, other.Totals, other.First = positions, totals, first
	for i := range other.Lost {
		other.Lost[i].Partition.Pipeline = "a.b"
	}
	s.Pipelines["a.b"] = other
	keys, err := encodeState(s)
	require.NoError(t, err)
	got, _, err := decodeState(keys)
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func TestBrokenStateIsRefused(t *testing.T) {
	for _, broken := range [][2]string{
		{"icestream.p.lost", `[{"topic":"orders","partition":0,"first":7,"next":7,"why":"gone"}]`},
		{"icestream.p.lost", `[{"topic":"orders","partition":1,"first":6,"next":8,"why":"gone"}]`}, // there is no partition 1
		{"icestream.p.lost", `[{"topic":"other","partition":0,"first":6,"next":8,"why":"gone"}]`},
		{keyFormat, "x"},
		{keyLSN, "1,2"},
		{keyWriterEpoch, ""},
		{keyCommitID, "zz"},
		{"icestream.p.offsets", `{"orders":{"id":"00000000-0000-0000-0000-000000000000","partitions":{"0":[5,4,3,0]}}}`},
		{"icestream.p.rows", packed + "!!"},
		{"icestream.p.quarantine", "["},
	} {
		key, value := broken[0], broken[1]
		keys, err := encodeState(sampleState(1))
		require.NoError(t, err)
		keys[key] = value
		_, ok, err := decodeState(keys)
		require.True(t, ok, key)
		require.Error(t, err, key)
	}
	keys, err := encodeState(sampleState(1))
	require.NoError(t, err)
	keys["icestream.p.rows"] = `{"commit":{"rows":1,"skipped":{"vanished":1}}}`
	_, _, err = decodeState(keys)
	require.ErrorIs(t, err, fault.Of(fault.Unsupported))
}

func TestCarryKeepsEverythingButTheCommit(t *testing.T) {
	s := sampleState(2)
	c := s.Carry()
	require.Empty(t, c.Pipelines["p"].First)
	require.Zero(t, c.Pipelines["p"].Delta.Len())
	require.Equal(t, s.Vector(), c.Vector())
	require.Equal(t, s.Pending(), c.Pending())
	c.Pipelines["p"].Positions[part(0)] = ident.Position{}
	require.NotEqual(t, s.Vector(), c.Vector(), "a copy, not a view")
	c.Pipelines["p"].Lost[0].Next++
	require.NotEqual(t, s.Pipelines["p"].Lost, c.Pipelines["p"].Lost, "a copy, not a view")
}

// G9: a roll-back is told of every partition, with both positions, and of a thousand
// not in a thousand words.
func TestPartitionsThatStandLowerAreNamedWithBothPositions(t *testing.T) {
	at := func(next ...int64) State {
		p := &Pipeline{Positions: ident.Positions{}}
		for n, o := range next {
			if o >= 0 {
				p.Positions[part(int32(n))] = ident.Position{Next: o}
			}
		}
		return State{Pipelines: map[string]*Pipeline{"p": p}}
	}
	require.Empty(t, at(5, 7).behind(at(5, 6)))
	require.Equal(t, "p/orders[0] 5, was 9; p/orders[2] nothing, was 3", at(5, 7).behind(at(9, 7, 3)))
	many := make([]int64, mostNamed+2)
	for i := range many {
		many[i] = 4
	}
	text := at().behind(at(many...))
	require.Equal(t, mostNamed, strings.Count(text, "was 4"), text)
	require.Contains(t, text, "; and 2 more")
}

// Losses without end do not make the state grow without end, and those of a partition
// that goes on losing are one.
func TestLostRangesAreRememberedInBounds(t *testing.T) {
	p := &Pipeline{Positions: ident.Positions{part(0): {}, part(1): {}}}
	for i := range int64(100) {
		p.Lose(Lost{Partition: part(0), Range: ident.Range{First: i * 10, Next: i*10 + 10}, Why: LossGone})
	}
	require.Equal(t, []Lost{{Partition: part(0), Range: ident.Range{Next: 1000}, Why: LossGone}}, p.Lost)
	for i := range int64(100) {
		p.Lose(Lost{Partition: part(1), Range: ident.Range{First: i * 10, Next: i*10 + 5}, Why: LossGone})
	}
	require.Len(t, p.Lost, 64)
	require.Equal(t, int64(990), p.Lost[63].First, "the newest stay")
	p.Lose(Lost{Partition: part(1), Range: ident.Range{First: 7, Next: 7}})
	require.Len(t, p.Lost, 64, "nothing is no loss")

	grown := p.Lost[0]
	p.Lose(Lost{Partition: part(1), Range: ident.Range{First: grown.Next, Next: grown.Next + 1}, Why: LossGone})
	p.Lose(Lost{Partition: part(1), Range: ident.Range{First: 2000, Next: 2001}, Why: LossGone})
	require.Contains(t, p.Lost, Lost{Partition: part(1), Range: ident.Range{First: grown.First, Next: grown.Next + 1}, Why: LossGone},
		"one that grew is not the oldest any more")
}

// What was found replaced twice, from another offset on, is one range; and what is
// lost for other reasons is not part of it.
func TestRangesThatMeetAreRememberedAsOne(t *testing.T) {
	p := &Pipeline{Positions: ident.Positions{part(0): {}}}
	at := func(first, next int64, why Loss) Lost {
		return Lost{Partition: part(0), Range: ident.Range{First: first, Next: next}, Why: why}
	}
	p.Lose(at(0, 5, LossGone))
	p.Lose(at(10, 15, LossReplaced))
	p.Lose(at(20, 30, LossReplaced))
	require.True(t, p.Remembers(at(21, 30, LossReplaced)))
	require.False(t, p.Remembers(at(14, 21, LossReplaced)))
	require.False(t, p.Remembers(at(21, 30, LossGone)))
	p.Lose(at(12, 22, LossReplaced))
	p.Lose(at(4, 8, LossReplaced))
	require.Equal(t, []Lost{at(0, 5, LossGone), at(10, 30, LossReplaced), at(4, 8, LossReplaced)}, p.Lost)
}
