package wire_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

func entry() *event.Append {
	return &event.Append{
		Header: event.Header{
			Partition: ident.Partition{Pipeline: "orders", Topic: "t", TopicID: ident.UUID{1, 2}, Number: 3},
			Range:     ident.Range{First: 100, Next: 106}, LeaderEpoch: -1, Revision: 9, Fingerprint: "f1", Rows: 3, Quarantined: 1,
			Skips: []event.Skip{
				{Range: ident.Range{First: 101, Next: 102}, Reason: event.SkipTombstone},
				{Range: ident.Range{First: 104, Next: 105}, Reason: event.SkipControl},
			},
			Digest: ident.Digest{7}, MinTime: 5, MaxTime: 6,
		},
		LSN: 1 << 41, RowBatch: []byte("rows rows"), Quarantine: []byte("bad"),
	}
}

// A client in another language sees ordinary protobuf.
func TestAnAppendFrameIsAnOrdinaryAppendRequest(t *testing.T) {
	e := entry()
	frame := &wire.AppendFrame{Entry: e, RowSlices: [][]byte{[]byte("rows "), nil, []byte("rows")}}
	sent, err := wire.Codec{}.Marshal(frame)
	require.NoError(t, err)
	var msg bufferv1.AppendRequest
	require.NoError(t, proto.Unmarshal(sent.Materialize(), &msg))
	require.Equal(t, []byte("rows rows"), msg.GetEntry().GetRows())
	require.Equal(t, []byte("bad"), msg.GetEntry().GetQuarantine())
	require.EqualValues(t, 1<<41, msg.GetEntry().GetLsn())

	plain, err := proto.Marshal(&msg)
	require.NoError(t, err)
	for _, b := range []mem.BufferSlice{sent, {mem.SliceBuffer(plain)}} {
		var got wire.AppendFrame
		require.NoError(t, wire.Codec{}.Unmarshal(b, &got))
		require.Equal(t, e, got.Entry)
		require.Nil(t, got.Msg)
	}
}

func TestAFollowFrameKeepsItsNumberAndEntry(t *testing.T) {
	e := entry()
	e.RowBatch, e.Rows, e.Quarantined = nil, 0, 4
	sent, err := wire.Codec{}.Marshal(&wire.FollowFrame{Seq: 77, Entry: e})
	require.NoError(t, err)
	var msg bufferv1.FollowResponse
	require.NoError(t, proto.Unmarshal(sent.Materialize(), &msg))
	require.EqualValues(t, 77, msg.GetSeq())
	var got wire.FollowFrame
	require.NoError(t, wire.Codec{}.Unmarshal(sent, &got))
	require.Equal(t, event.Seq(77), got.Seq)
	require.Equal(t, e, got.Entry)

	other := &bufferv1.FollowResponse{Seq: 78, Message: &bufferv1.FollowResponse_Commit{Commit: &typesv1.Commit{SnapshotId: 5}}}
	sent, err = wire.Codec{}.Marshal(&wire.FollowFrame{Msg: other})
	require.NoError(t, err)
	require.NoError(t, wire.Codec{}.Unmarshal(sent, &got))
	require.Nil(t, got.Entry)
	require.Equal(t, event.Seq(78), got.Seq)
	require.EqualValues(t, 5, got.Msg.GetCommit().GetSnapshotId())
}

// G1: a header whose counts leave an offset out, or count one twice, is refused.
func TestAHeaderThatDoesNotAccountForEveryOffsetIsRefused(t *testing.T) {
	for name, change := range map[string]func(*typesv1.AppendHeader){
		"one row too few":      func(h *typesv1.AppendHeader) { h.Rows-- },
		"one row too many":     func(h *typesv1.AppendHeader) { h.Rows++ },
		"negative count":       func(h *typesv1.AppendHeader) { h.Rows, h.Quarantined = 5, -1 },
		"skip above the range": func(h *typesv1.AppendHeader) { h.Skips[1].Range = &typesv1.OffsetRange{First: 106, Next: 107} },
		"skips overlap":        func(h *typesv1.AppendHeader) { h.Skips[1].Range = &typesv1.OffsetRange{First: 101, Next: 102} },
		"range backwards":      func(h *typesv1.AppendHeader) { h.Range.Next = 99 },
		"short digest":         func(h *typesv1.AppendHeader) { h.Digest = h.Digest[:15] },
		"bad topic id":         func(h *typesv1.AppendHeader) { h.Partition.TopicId = []byte{1} },
		"no partition":         func(h *typesv1.AppendHeader) { h.Partition = nil },
	} {
		t.Run(name, func(t *testing.T) {
			e := entry()
			h := wire.HeaderToProto(&e.Header)
			_, err := wire.HeaderFromProto(h)
			require.NoError(t, err)
			change(h)
			_, err = wire.HeaderFromProto(h)
			require.Equal(t, fault.InvalidArgument, fault.ReasonOf(err))
		})
	}
}

func TestACommitSurvivesTheWire(t *testing.T) {
	c := event.Commit{
		Table: ident.UUID{9}, SnapshotID: 4, SequenceNumber: 3, CommitTime: time.UnixMicro(1_700_000_000_123_456).UTC(), MetadataLocation: "file:///x",
		Positions: ident.Positions{{Pipeline: "p", Topic: "t", Number: 1}: {Start: 1, Next: 5, LeaderEpoch: -1}},
		LogEpoch:  2, WriterEpoch: 8, LSN: ident.LSNState{Start: 1, Next: 2, Reserved: 3},
	}
	got, err := wire.CommitFromProto(wire.CommitToProto(&c))
	require.NoError(t, err)
	require.Equal(t, c, got)
}

func TestAReasonSurvivesTheWire(t *testing.T) {
	for _, r := range fault.Reasons() {
		if r == fault.Unspecified {
			continue
		}
		in := fault.New(r, "table %q: nope", "shop.orders").With("address", "a:1").After(3 * time.Second)
		err := wire.FromStatus(wire.ToStatus(fmt.Errorf("outer: %w", in)))
		var out *fault.Error
		require.ErrorAs(t, err, &out)
		require.Equal(t, r, out.Reason)
		require.Equal(t, in.Message, out.Message)
		require.Equal(t, in.Meta, out.Meta)
		require.Equal(t, in.RetryAfter, out.RetryAfter)
	}
	require.ErrorIs(t, wire.FromStatus(wire.ToStatus(context.Canceled)), context.Canceled)
	require.Equal(t, fault.Internal, fault.ReasonOf(wire.FromStatus(wire.ToStatus(errors.New("boom")))))
	require.NoError(t, wire.ToStatus(nil))
}

func TestACallToAnotherServiceSaysWhatIsWrong(t *testing.T) {
	err := wire.FromStatus(status.Error(codes.Unimplemented, "unknown service x"))
	require.ErrorIs(t, err, fault.Of(fault.WrongDoor))
	require.ErrorContains(t, err, "another service listens at this address")
	require.ErrorContains(t, err, "unknown service x")
}
