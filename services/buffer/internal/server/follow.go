package server

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// follower is one follower stream. Its fields are guarded by the log's mutex,
// except cut.
type follower struct {
	l    *tableLog
	role bufferv1.FollowerRole
	name string
	boot []byte // what the follower knows already
	seq  event.Seq

	at       *node // last event handed to the sender; nil before image or resume
	catching bool  // has not reached the newest event since its image
	request  table.Request
	progress map[ident.Partition]event.Progress // to be passed on
	pins     [2]int64                           // last ones passed on
	pinned   bool

	cutOnce sync.Once
	cut     chan struct{} // closed when the follower is too slow
}

// What is collected at once is bounded, so that other notices get in between, and that
// the lag says what is not taken: bytes that are being sent are not in it.
const (
	maxBurst   = 32
	burstBytes = 4 << 20
)

// Follow serves one follower: an image or the events since the one it knows,
// then events as they become durable.
func (s *Service) Follow(req *bufferv1.FollowRequest, stream grpc.ServerStreamingServer[bufferv1.FollowResponse]) error {
	if req.GetRole() == bufferv1.FollowerRole_FOLLOWER_ROLE_UNSPECIFIED {
		return fault.New(fault.InvalidArgument, "a follower must say its role")
	}
	l, err := s.h.log(req.GetTable())
	if err != nil {
		return err
	}
	f := &follower{
		l: l, role: req.GetRole(), name: req.GetFollower(), boot: req.GetBoot(), seq: event.Seq(req.GetSeq()),
		progress: map[ident.Partition]event.Progress{}, cut: make(chan struct{}),
	}
	// A table may have nothing to say yet: the header tells that the stream is open.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	f.join()
	defer f.leave()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	sent := make(chan error, 1)
	go func() { sent <- f.run(ctx, stream) }()
	select {
	case err := <-sent:
		return err
	case <-f.cut:
		// Returning ends the stream, which also frees a sender that is stuck in it.
		return fault.New(fault.OverLimit, "follower %s of table %s is too slow and was cut off: follow anew", f.name, l.name)
	case <-s.h.opt.Draining:
		return fault.New(fault.Unavailable, "the buffer is shutting down")
	}
}

func (f *follower) join() {
	l := f.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers[f] = struct{}{}
	for p, pr := range l.progress {
		f.progress[p] = pr.Progress
	}
	l.h.opt.Log.Info("follower connected", "table", l.name, "follower", f.name, "role", f.role.String())
}

func (f *follower) leave() {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	delete(f.l.followers, f)
	f.at = nil
	f.l.h.opt.Log.Info("follower left", "table", f.l.name, "follower", f.name)
}

// run sends until the stream ends.
func (f *follower) run(ctx context.Context, stream grpc.ServerStream) error {
	beat := time.NewTicker(f.l.h.opt.Heartbeat)
	defer beat.Stop()
	due := false
	for {
		f.l.mu.Lock()
		frames := f.collect(due)
		changed := f.l.changed
		f.l.mu.Unlock()
		due = false
		for i := range frames {
			if err := stream.SendMsg(&frames[i]); err != nil {
				return err
			}
		}
		if len(frames) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-beat.C:
			due = true
		}
	}
}

// collect returns the next messages; due adds what is sent every few seconds.
func (f *follower) collect(due bool) []wire.FollowFrame {
	var out []wire.FollowFrame
	l := f.l
	if due { // there may be more tables than when the last event came
		l.feed.trim(l.h.feedKeep())
	}
	if req, ok := l.m.Request(); ok && req != f.request {
		f.request = req
		out = append(out, notice(&bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_EpochWanted{EpochWanted: &bufferv1.EpochWanted{
			Nonce: req.Nonce, Reason: req.Reason, AppendsWaiting: req.Waiting,
		}}}))
	}
	if f.at == nil && l.m.State() == table.Serving {
		out = append(out, f.attach()...)
	}
	if f.at != nil {
		for from := f.at; len(out) < maxBurst && f.at.total-from.total < burstBytes; {
			if f.at.next == nil {
				f.catching = false
				break
			}
			f.at = f.at.next
			out = append(out, frameOf(f.at.ev))
		}
	}
	if len(f.progress) > 0 {
		list := slices.Collect(maps.Values(f.progress))
		clear(f.progress)
		out = append(out, notice(&bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Progress{Progress: wire.ProgressReportToProto(list)}}))
	}
	out = append(out, f.pinNotice(due)...)
	if due && len(out) == 0 {
		out = append(out, notice(&bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Heartbeat{Heartbeat: &bufferv1.Heartbeat{}}}))
	}
	return out
}

// attach finds where the follower goes on: behind the event it knows, or with an
// image.
func (f *follower) attach() []wire.FollowFrame {
	l := f.l
	view := l.m.View()
	boot := view.Boot()
	if len(f.boot) > 0 && string(f.boot) == string(boot[:]) {
		if f.at = l.feed.after(f.seq); f.at != nil {
			return nil
		}
	}
	f.at, f.catching = l.feed.last, true
	img := view.Image()
	begin := &bufferv1.ImageBegin{
		Boot: boot[:], Commit: wire.CommitToProto(&img.Commit), Schemas: wire.SchemasToProto(img.Schemas),
		Ended: wire.EndedEpochsToProto(img.Ended), Hot: int64(len(img.Hot)),
	}
	out := make([]wire.FollowFrame, 0, len(img.Hot)+2)
	out = append(out, notice(&bufferv1.FollowResponse{Seq: uint64(img.Seq), Message: &bufferv1.FollowResponse_ImageBegin{ImageBegin: begin}}))
	for _, a := range img.Hot {
		out = append(out, wire.FollowFrame{Entry: a})
	}
	end := &bufferv1.FollowResponse_ImageEnd{ImageEnd: &bufferv1.ImageEnd{}}
	return append(out, notice(&bufferv1.FollowResponse{Seq: uint64(img.Seq), Message: end}))
}

// pinNotice tells a committer which snapshot readers need: on change, and again
// with every beat.
func (f *follower) pinNotice(due bool) []wire.FollowFrame {
	if f.role != bufferv1.FollowerRole_FOLLOWER_ROLE_COMMITTER {
		return nil
	}
	id, seq := f.l.oldestPin(time.Now())
	if now := [2]int64{id, seq}; due || !f.pinned && id != 0 || f.pinned && now != f.pins {
		f.pins, f.pinned = now, true
		return []wire.FollowFrame{notice(&bufferv1.FollowResponse{Message: &bufferv1.FollowResponse_Pins{Pins: &bufferv1.Pins{
			OldestSnapshotId: id, OldestSequenceNumber: seq,
		}}})}
	}
	return nil
}

func notice(m *bufferv1.FollowResponse) wire.FollowFrame { return wire.FollowFrame{Msg: m} }

func frameOf(ev event.Event) wire.FollowFrame {
	m := &bufferv1.FollowResponse{Seq: uint64(ev.Seq)}
	switch {
	case ev.Append != nil:
		return wire.FollowFrame{Seq: ev.Seq, Entry: ev.Append}
	case ev.Commit != nil:
		m.Message = &bufferv1.FollowResponse_Commit{Commit: wire.CommitToProto(ev.Commit)}
	case ev.Schema != nil:
		m.Message = &bufferv1.FollowResponse_Schema{Schema: wire.SchemaToProto(ev.Schema)}
	default:
		m.Message = &bufferv1.FollowResponse_Epoch{Epoch: wire.CommitToProto(&ev.Epoch.Commit)}
	}
	return notice(m)
}

// lag is how many bytes wait for the follower; the log's mutex is held.
func (f *follower) lag(feed *feed) int64 {
	if f.at == nil {
		return 0
	}
	return feed.lag(f.at)
}

// checkLag cuts a follower off for whom too much is kept: of what it has not taken,
// the newest bytes are hot, and in memory whoever follows. An image would bring these
// again, to a follower that is behind as it is. While it catches up after one it may
// lag by the whole budget: a tighter bound would send it image after image.
func (f *follower) checkLag(feed *feed, hot int64) {
	lag := f.lag(feed)
	if f.catching && lag <= f.l.h.opt.HotBytes || lag-hot <= f.l.h.opt.MaxLag {
		return
	}
	f.cutOnce.Do(func() { close(f.cut) })
}
