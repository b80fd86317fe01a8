package lake

import (
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
	s.Pipelines["a.b"] = other
	keys, err := encodeState(s)
	require.NoError(t, err)
	got, _, err := decodeState(keys)
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func TestBrokenStateIsRefused(t *testing.T) {
	for key, value := range map[string]string{
		keyFormat: "x", keyLSN: "1,2", keyWriterEpoch: "", keyCommitID: "zz",
		"icestream.p.offsets":    `{"orders":{"id":"00000000-0000-0000-0000-000000000000","partitions":{"0":[5,4,3,0]}}}`,
		"icestream.p.rows":       packed + "!!",
		"icestream.p.quarantine": "[",
	} {
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
}
