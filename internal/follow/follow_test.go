package follow_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

var (
	boot = ident.UUID{1, 2, 3}
	part = ident.Partition{Pipeline: "p", Topic: "t"}
)

// script is a buffer whose every Follow stream is served by the next step.
type script struct {
	bufferv1.UnimplementedTableLogServiceServer
	steps []func(req *bufferv1.FollowRequest, out *sender) error
	mu    sync.Mutex
	reqs  []*bufferv1.FollowRequest
}

type sender struct {
	grpc.ServerStreamingServer[bufferv1.FollowResponse]
}

func (s *script) Follow(req *bufferv1.FollowRequest, out grpc.ServerStreamingServer[bufferv1.FollowResponse]) error {
	s.mu.Lock()
	n := len(s.reqs)
	s.reqs = append(s.reqs, req)
	s.mu.Unlock()
	if n >= len(s.steps) {
		<-out.Context().Done()
		return nil
	}
	return wire.ToStatus(s.steps[n](req, &sender{out}))
}

func (s *script) requests() []*bufferv1.FollowRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*bufferv1.FollowRequest(nil), s.reqs...)
}

func (o *sender) msg(seq event.Seq, m *bufferv1.FollowResponse) {
	m.Seq = uint64(seq)
	_ = o.SendMsg(&wire.FollowFrame{Seq: seq, Msg: m})
}

func (o *sender) entry(seq event.Seq, first, next int64) {
	_ = o.SendMsg(&wire.FollowFrame{Seq: seq, Entry: &event.Append{
		Header: event.Header{Partition: part, Range: ident.Range{First: first, Next: next}, Fingerprint: "f", Rows: next - first},
		LSN:    ident.LSN(first), RowBatch: []byte("rows"),
	}})
}

func (o *sender) imageBegin(seq event.Seq, hot int64) {
	c := commit(1)
	o.msg(seq, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageBegin{ImageBegin: &bufferv1.ImageBegin{
		Boot: boot[:], Commit: wire.CommitToProto(&c), Hot: hot,
		Schemas: wire.SchemasToProto([]event.Schema{{Fingerprint: "f", Columns: []byte("{}")}}),
	}}})
}

func (o *sender) imageEnd() {
	o.msg(0, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_ImageEnd{ImageEnd: &bufferv1.ImageEnd{}}})
}

func commit(snapshot int64) event.Commit {
	return event.Commit{Table: ident.UUID{9}, SnapshotID: snapshot, SequenceNumber: snapshot, Positions: ident.Positions{part: {Next: 0}}}
}

// recorder writes down what it hears. hear is signalled after each entry.
type recorder struct {
	mu sync.Mutex
	heard
	refuse  event.Seq // Event fails once at this number
	notices chan struct{}
}

type heard struct {
	images []event.Image
	events []event.Seq
	downs  []error
	wanted []uint64
}

// sofar is what was heard until now; the follower goes on meanwhile.
func (r *recorder) sofar() heard {
	r.mu.Lock()
	defer r.mu.Unlock()
	return heard{slices.Clone(r.images), slices.Clone(r.events), slices.Clone(r.downs), slices.Clone(r.wanted)}
}

func newRecorder() *recorder { return &recorder{notices: make(chan struct{}, 1000)} }

func (r *recorder) note() { r.notices <- struct{}{} }

func (r *recorder) Image(img event.Image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.note()
	r.images = append(r.images, img)
	return nil
}

func (r *recorder) Event(ev event.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.note()
	if ev.Seq == r.refuse {
		r.refuse = 0
		return errors.New("cannot take it")
	}
	r.events = append(r.events, ev.Seq)
	return nil
}

func (r *recorder) Notice(n follow.Notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Down != nil {
		r.downs = append(r.downs, n.Down)
	}
	if n.EpochWanted != nil {
		r.wanted = append(r.wanted, n.EpochWanted.Nonce)
	}
	r.note()
}

func (r *recorder) waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.notices:
		case <-deadline:
			require.FailNow(t, "the follower did not get there", "%+v", r.sofar())
		}
	}
}

func serve(t *testing.T, s *script) *grpc.ClientConn {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}))
	bufferv1.RegisterTableLogServiceServer(srv, s)
	go func() { _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
	})
	return conn
}

func run(t *testing.T, s *script, r *recorder) {
	t.Helper()
	conn := serve(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- follow.Run(ctx, follow.Options{
			Conn: conn, Table: "db.t", Role: bufferv1.FollowerRole_FOLLOWER_ROLE_READSTATE, Name: "test",
			Backoff: backoff.Policy{Initial: time.Millisecond, Max: time.Millisecond},
		}, r)
	}()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

func image(hot int64, seq event.Seq) func(*bufferv1.FollowRequest, *sender) error {
	return func(_ *bufferv1.FollowRequest, o *sender) error {
		o.imageBegin(seq, hot)
		for i := range hot {
			o.entry(0, i*10, i*10+10)
		}
		o.imageEnd()
		return nil
	}
}

// Design section 2: nobody serves before the image is whole.
func TestImageCutInTheMiddleIsNotDelivered(t *testing.T) {
	r := newRecorder()
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(_ *bufferv1.FollowRequest, o *sender) error {
			o.imageBegin(5, 3)
			o.entry(0, 0, 10)
			return fault.New(fault.Unavailable, "cut")
		},
		image(3, 7),
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.images) == 1 })
	require.Len(t, r.sofar().images[0].Hot, 3)
	require.Equal(t, event.Seq(7), r.sofar().images[0].Seq)
	require.Equal(t, boot, r.sofar().images[0].Boot)
	require.Equal(t, int64(1), r.sofar().images[0].Commit.SnapshotID)
	require.Empty(t, s.requests()[1].GetBoot(), "nothing whole was held, so an image is asked for")
}

func TestImageWithFewerEntriesThanAnnouncedIsRefused(t *testing.T) {
	r := newRecorder()
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(_ *bufferv1.FollowRequest, o *sender) error {
			o.imageBegin(5, 2)
			o.entry(0, 0, 10)
			o.imageEnd()
			<-o.Context().Done()
			return nil
		},
		image(2, 5),
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.images) == 1 })
	require.ErrorIs(t, r.sofar().downs[0], fault.Of(fault.Corrupt))
}

func TestReconnectResumesBehindTheLastEvent(t *testing.T) {
	r := newRecorder()
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(req *bufferv1.FollowRequest, o *sender) error {
			_ = image(0, 4)(req, o)
			o.entry(5, 0, 10)
			c := commit(2)
			o.msg(6, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Commit{Commit: wire.CommitToProto(&c)}})
			return fault.New(fault.Unavailable, "cut")
		},
		func(_ *bufferv1.FollowRequest, o *sender) error {
			o.entry(6, 10, 20) // a repeat, to be left out
			o.entry(7, 10, 20)
			<-o.Context().Done()
			return nil
		},
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.events) == 3 })
	require.Equal(t, []event.Seq{5, 6, 7}, r.sofar().events)
	require.Len(t, r.sofar().images, 1)
	again := s.requests()[1]
	require.Equal(t, boot[:], again.GetBoot())
	require.Equal(t, uint64(6), again.GetSeq())
}

func TestGapIsAnsweredByANewImage(t *testing.T) {
	r := newRecorder()
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(req *bufferv1.FollowRequest, o *sender) error {
			_ = image(0, 4)(req, o)
			o.entry(6, 0, 10)
			<-o.Context().Done()
			return nil
		},
		image(1, 6),
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.images) == 2 })
	require.Empty(t, r.sofar().events)
	require.Empty(t, s.requests()[1].GetBoot())
}

func TestEventThatTheHandlerRefusesIsFollowedByAnImage(t *testing.T) {
	r := newRecorder()
	r.refuse = 5
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(req *bufferv1.FollowRequest, o *sender) error {
			_ = image(0, 4)(req, o)
			o.entry(5, 0, 10)
			<-o.Context().Done()
			return nil
		},
		image(1, 5),
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.images) == 2 })
	require.Empty(t, s.requests()[1].GetBoot())
}

func TestEpochWantedIsHeardBeforeAnyImageAndEpochIsAnEvent(t *testing.T) {
	r := newRecorder()
	s := &script{steps: []func(*bufferv1.FollowRequest, *sender) error{
		func(req *bufferv1.FollowRequest, o *sender) error {
			o.msg(0, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_EpochWanted{EpochWanted: &bufferv1.EpochWanted{Nonce: 77}}})
			_ = image(1, 4)(req, o)
			c := commit(3)
			o.msg(5, &bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Epoch{Epoch: wire.CommitToProto(&c)}})
			<-o.Context().Done()
			return nil
		},
	}}
	run(t, s, r)
	r.waitFor(t, func() bool { return len(r.events) == 1 })
	require.Equal(t, []uint64{77}, r.sofar().wanted)
	require.Equal(t, []event.Seq{5}, r.sofar().events)
}

// Design section 7: a half-dead peer is noticed. In virtual time, over an
// in-memory connection that never says anything.
func TestSilentPeerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		begun := time.Now()
		go func() {
			done <- follow.Run(ctx, follow.Options{
				Conn: silent{}, Table: "db.t", Role: bufferv1.FollowerRole_FOLLOWER_ROLE_COMMITTER,
			}, r)
		}()
		r.waitFor(t, func() bool { return len(r.downs) > 0 })
		require.Equal(t, follow.DefaultSilence, time.Since(begun))
		require.ErrorIs(t, r.sofar().downs[0], fault.Of(fault.Unavailable))
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// silent is a connection whose streams open and then say nothing.
type silent struct{ grpc.ClientConnInterface }

func (silent) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return silentStream{ctx: ctx}, nil
}

type silentStream struct {
	grpc.ClientStream
	ctx context.Context //nolint:containedctx // a stream is bound to its context
}

func (s silentStream) SendMsg(any) error { return nil }
func (s silentStream) CloseSend() error  { return nil }
func (s silentStream) RecvMsg(any) error {
	<-s.ctx.Done()
	return context.Cause(s.ctx)
}
