package committer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// scriptedBuffer is a table log of one table as the committer sees it. It wants
// an epoch fence at first, gives LSNs, and forgets nothing unless told to.
type scriptedBuffer struct {
	bufferv1.UnimplementedTableLogServiceServer
	t *testing.T

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change
	boot      ident.UUID
	opened    bool
	serving   bool
	nonce     uint64
	commit    event.Commit
	schemas   []event.Schema
	parsed    map[string]*schema.Schema
	events    []event.Event
	lsn       ident.LSN
	next      ident.Vector
	reports   []event.Commit
	followers int
}

func newScriptedBuffer(t *testing.T) (*scriptedBuffer, string) {
	b := &scriptedBuffer{
		t: t, changed: make(chan struct{}), boot: ident.UUID{1}, nonce: 1,
		parsed: map[string]*schema.Schema{}, next: ident.Vector{},
	}
	s, err := rpc.Listen(t.Context(), "127.0.0.1:0", rpc.Options{Service: "buffer", Codec: wire.Codec{}, ToStatus: wire.ToStatus})
	require.NoError(t, err)
	bufferv1.RegisterTableLogServiceServer(s.Registrar(), b)
	readstatev1.RegisterReadStateServiceServer(s.Registrar(), shown{b: b})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return b, s.Address()
}

// shown answers what readers see: everything that was appended.
type shown struct {
	readstatev1.UnimplementedReadStateServiceServer
	b *scriptedBuffer
}

func (s shown) DescribeTable(context.Context, *readstatev1.DescribeTableRequest) (*readstatev1.DescribeTableResponse, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	out := &readstatev1.DescribeTableResponse{Summary: &readstatev1.TableSummary{TableUuid: wire.UUIDToProto(s.b.commit.Table)}}
	for p, next := range s.b.next {
		out.Partitions = append(out.Partitions, &readstatev1.PartitionStatus{Partition: wire.PartitionToProto(p), Visible: next})
	}
	return out, nil
}

// change changes the state under the lock and wakes everybody who waits.
func (b *scriptedBuffer) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until the condition holds.
func (b *scriptedBuffer) await(what string, cond func() bool) {
	b.t.Helper()
	for {
		b.mu.Lock()
		ok, changed := cond(), b.changed
		b.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-b.t.Context().Done():
			require.FailNow(b.t, "the test ended while waiting", what)
		}
	}
}

// lose makes the buffer what it is after its disk was lost.
func (b *scriptedBuffer) lose() {
	b.change(func() {
		b.boot[0]++
		b.opened, b.serving, b.events = false, false, nil
		b.nonce++
	})
}

func (b *scriptedBuffer) OpenTable(_ context.Context, req *bufferv1.OpenTableRequest) (*bufferv1.OpenTableResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	schemas, err := wire.SchemasFromProto(req.GetSchemas())
	if err != nil {
		return nil, err
	}
	resp := &bufferv1.OpenTableResponse{}
	b.change(func() {
		b.opened = true
		b.take(c)
		for _, s := range schemas {
			b.learn(s)
		}
		resp.Serving = b.serving
		if !b.serving {
			resp.EpochWanted = &bufferv1.EpochWanted{Nonce: b.nonce, Reason: "no journal"}
		}
	})
	return resp, nil
}

// take moves the committed state on.
func (b *scriptedBuffer) take(c event.Commit) {
	if c.SequenceNumber < b.commit.SequenceNumber {
		return
	}
	b.commit = c
	for p, pos := range c.Positions {
		b.next.Raise(p, pos.Next)
	}
}

func (b *scriptedBuffer) learn(s event.Schema) {
	if b.parsed[s.Fingerprint] != nil {
		return
	}
	var parsed schema.Schema
	require.NoError(b.t, parsed.UnmarshalJSON(s.Columns))
	b.parsed[s.Fingerprint] = &parsed
	b.schemas = append(b.schemas, s)
}

func (b *scriptedBuffer) emit(ev event.Event) {
	ev.Seq = event.Seq(len(b.events) + 1)
	b.events = append(b.events, ev)
}

func (b *scriptedBuffer) GrantEpoch(_ context.Context, req *bufferv1.GrantEpochRequest) (*bufferv1.GrantEpochResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	wanted := b.nonce
	b.mu.Unlock()
	if req.GetNonce() != wanted {
		return nil, fault.New(fault.InvalidArgument, "nonce %d is not wanted", req.GetNonce())
	}
	b.change(func() {
		b.take(c)
		b.next, b.lsn, b.serving = c.Positions.Vector(), c.LSN.Start, true
		b.emit(event.Event{Epoch: &event.Epoch{Commit: c}})
	})
	return &bufferv1.GrantEpochResponse{}, nil
}

func (b *scriptedBuffer) PublishSchema(_ context.Context, req *bufferv1.PublishSchemaRequest) (*bufferv1.PublishSchemaResponse, error) {
	s, err := wire.SchemaFromProto(req.GetSchema())
	if err != nil {
		return nil, err
	}
	b.change(func() {
		b.learn(s)
		b.emit(event.Event{Schema: &s})
	})
	return &bufferv1.PublishSchemaResponse{}, nil
}

func (b *scriptedBuffer) ReportCommit(_ context.Context, req *bufferv1.ReportCommitRequest) (*bufferv1.ReportCommitResponse, error) {
	c, err := wire.CommitFromProto(req.GetCommit())
	if err != nil {
		return nil, err
	}
	b.change(func() {
		b.take(c)
		b.reports = append(b.reports, c)
		b.emit(event.Event{Commit: &c})
	})
	return &bufferv1.ReportCommitResponse{}, nil
}

// Follow sends an image of what is hot and then every event.
func (b *scriptedBuffer) Follow(_ *bufferv1.FollowRequest, s grpc.ServerStreamingServer[bufferv1.FollowResponse]) error {
	send := func(seq event.Seq, m *bufferv1.FollowResponse) error {
		m.Seq = uint64(seq)
		return s.SendMsg(&wire.FollowFrame{Seq: seq, Msg: m})
	}
	b.mu.Lock()
	boot, serving, commit, schemas, seq := b.boot, b.serving, b.commit, b.schemas, event.Seq(len(b.events))
	var hot []*event.Append
	for _, ev := range b.events {
		if a := ev.Append; a != nil && a.Range.Next > commit.Positions[a.Partition].Next {
			hot = append(hot, a)
		}
	}
	nonce := b.nonce
	b.followers++
	b.mu.Unlock()
	if !serving {
		if err := send(0, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_EpochWanted{EpochWanted: &bufferv1.EpochWanted{Nonce: nonce}}}); err != nil {
			return err
		}
		return fault.New(fault.NotReady, "the table is not open")
	}
	begin := &bufferv1.ImageBegin{Boot: boot[:], Commit: wire.CommitToProto(&commit), Schemas: wire.SchemasToProto(schemas), Hot: int64(len(hot))}
	if err := send(seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageBegin{ImageBegin: begin}}); err != nil {
		return err
	}
	for _, a := range hot {
		if err := s.SendMsg(&wire.FollowFrame{Entry: a}); err != nil {
			return err
		}
	}
	if err := send(seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageEnd{ImageEnd: &bufferv1.ImageEnd{}}}); err != nil {
		return err
	}
	for {
		b.mu.Lock()
		if b.boot != boot {
			b.mu.Unlock()
			return fault.New(fault.Unavailable, "the buffer was lost")
		}
		fresh, changed := b.events[seq:], b.changed
		b.mu.Unlock()
		for _, ev := range fresh {
			if err := sendEvent(s, send, ev); err != nil {
				return err
			}
			seq = ev.Seq
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

func sendEvent(s grpc.ServerStream, send func(event.Seq, *bufferv1.FollowResponse) error, ev event.Event) error {
	switch {
	case ev.Append != nil:
		return s.SendMsg(&wire.FollowFrame{Seq: ev.Seq, Entry: ev.Append})
	case ev.Commit != nil:
		return send(ev.Seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Commit{Commit: wire.CommitToProto(ev.Commit)}})
	case ev.Schema != nil:
		return send(ev.Seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Schema{Schema: wire.SchemaToProto(ev.Schema)}})
	default:
		return send(ev.Seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Epoch{Epoch: wire.CommitToProto(&ev.Epoch.Commit)}})
	}
}

// append appends n offsets to a partition under a schema: every fifth is poison,
// every seventh a tombstone, the others are rows with id = offset.
func (b *scriptedBuffer) append(fingerprint string, part ident.Partition, n int64) {
	b.change(func() {
		target := b.parsed[fingerprint]
		require.NotNil(b.t, target, "schema %s", fingerprint)
		first := b.next[part]
		e := &event.Append{LSN: b.lsn, Header: event.Header{
			Partition: part, Range: ident.Range{First: first, Next: first + n}, LeaderEpoch: 3, Fingerprint: fingerprint,
			MaxTime: 1767225600000 + first + n,
		}}
		var rows, bad []string
		for o := first; o < first+n; o++ {
			switch {
			case o%5 == 0:
				bad = append(bad, fmt.Sprintf(`{"offset":%d,"timestamp":"2026-01-01T00:00:00Z","key":null,"value":"YmFk","headers":[],"schema_id":7,"reason":"malformed","error":"cut short"}`, o))
			case o%7 == 0:
				e.Skips = append(e.Skips, event.Skip{Range: ident.Range{First: o, Next: o + 1}, Reason: event.SkipTombstone})
			default:
				rows = append(rows, fmt.Sprintf(`{"id":%d,"offset":%d,"timestamp":"2026-01-01T00:00:00Z","key":null,"headers":[],"schema_id":7}`, o, o))
			}
		}
		e.Rows, e.Quarantined = int64(len(rows)), int64(len(bad))
		e.RowBatch = b.batch(arrowx.RowSchema(target), rows)
		e.Quarantine = b.batch(arrowx.QuarantineSchema(), bad)
		b.next[part] = first + n
		b.lsn += ident.LSN(n)
		b.emit(event.Event{Append: e})
	})
}

func (b *scriptedBuffer) batch(s *arrow.Schema, rows []string) []byte {
	if len(rows) == 0 {
		return nil
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader("["+strings.Join(rows, ",")+"]"))
	require.NoError(b.t, err)
	defer rec.Release()
	bytes, err := arrowx.EncodeBytes(rec)
	require.NoError(b.t, err)
	return bytes
}
