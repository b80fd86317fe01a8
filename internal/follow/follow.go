// Package follow is the client side of a table log: it keeps one Follow stream
// to a buffer open for as long as its context lives, and hands the state image
// and the events of one table to a Handler, in order, each once.
//
// What it guarantees to the Handler (design section 2, "Followers"):
//
//   - nothing is delivered before a state image is whole;
//   - events come in the order of the log, without a gap and without a repeat;
//   - after an outage the stream resumes behind the last event that the Handler
//     took in, if the buffer still is the same boot and remembers it; in every
//     other case a new image comes, which replaces all that was known.
//
// A peer that falls silent is noticed within Options.Silence, although its
// connection may look alive.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
)

// DefaultSilence is how long a stream may bring nothing at all before its peer
// counts as dead. The buffer sends a heartbeat every 5 s.
const DefaultSilence = 15 * time.Second

// Options of a follower. Conn, Table and Role are required.
type Options struct {
	// Conn leads to the buffer that owns the table.
	Conn grpc.ClientConnInterface
	// Table is the identifier, "namespace.name".
	Table string
	// Role says what the follower is.
	Role bufferv1.FollowerRole
	// Name of this instance, for people.
	Name string
	// Log receives state changes; nil discards them.
	Log *slog.Logger
	// Backoff spaces out reconnects; the zero value means backoff.Default.
	Backoff backoff.Policy
	// Silence overrides DefaultSilence.
	Silence time.Duration
}

// Handler takes in what a follower hears. All methods are called from the
// goroutine of Run, one at a time; a method that blocks stops the stream, which
// is how a follower applies back-pressure (the buffer cuts off who is too slow).
type Handler interface {
	// Image replaces everything known of the table. An error ends the stream;
	// the next one begins with an image.
	Image(img event.Image) error
	// Event is the next event after the image or the last event. An error ends
	// the stream; the next one begins with an image.
	Event(ev event.Event) error
	// Notice is news that is no part of the log. It may come before an image.
	Notice(n Notice)
}

// Notice is news beside the log: exactly one of its fields is set.
type Notice struct {
	EpochWanted *EpochWanted     // the log needs a fence commit
	Progress    []event.Progress // what ingest knows of its partitions
	Pins        *Pins            // the oldest snapshot that readers need
	Up          bool             // the stream is open: the buffer has answered
	Down        error            // the stream broke; Run is going to open another
}

// EpochWanted asks the committer for a fence commit.
type EpochWanted struct {
	Nonce          uint64 // the grant must carry it
	Reason         string
	AppendsWaiting bool
}

// Pins names the oldest snapshot that readers need; zero means none.
type Pins struct {
	SnapshotID     int64
	SequenceNumber int64
}

// errSilent ends a stream whose peer sent nothing for too long.
var errSilent = errors.New("no message within the heartbeat limit")

// Run follows the table until ctx ends and returns the cause of that end. Every
// other failure is told to the Handler as Notice.Down and answered by a new
// stream after a back-off, without end (G11).
func Run(ctx context.Context, o Options, h Handler) error {
	if o.Conn == nil || o.Table == "" || o.Role == bufferv1.FollowerRole_FOLLOWER_ROLE_UNSPECIFIED {
		return fault.New(fault.InvalidArgument, "following table %q: connection, table and role are required", o.Table)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Silence <= 0 {
		o.Silence = DefaultSilence
	}
	f := &follower{Options: o, h: h}
	pause := o.Backoff.Start()
	for {
		healthy, err := f.stream(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		h.Notice(Notice{Down: err})
		if healthy {
			pause.Reset()
		}
		o.Log.Warn("follow stream ended", "table", o.Table, "error", err, "resume", f.whole)
		if err := pause.Wait(ctx, retryAfter(err)); err != nil {
			return err
		}
	}
}

// retryAfter is the pause that the buffer asked for, or zero.
func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// follower is the state that outlives one stream.
type follower struct {
	Options
	h     Handler
	whole bool       // the handler holds an image: boot and seq say where it stands
	boot  ident.UUID // of the buffer that numbered seq
	seq   event.Seq  // last event that the handler took in
}

// request asks for what the handler lacks: all, or the events after seq.
func (f *follower) request() *bufferv1.FollowRequest {
	req := &bufferv1.FollowRequest{Table: f.Table, Role: f.Role, Follower: f.Name}
	if f.whole {
		req.Boot, req.Seq = f.boot[:], uint64(f.seq)
	}
	return req
}

// stream opens one stream and takes in what comes until it ends, always with an
// error. healthy says that it brought the handler forward.
func (f *follower) stream(parent context.Context) (healthy bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	watch := newWatchdog(f.Silence, func() { cancel(errSilent) })
	defer watch.stop()

	explain := func(err error) error {
		if errors.Is(context.Cause(ctx), errSilent) {
			return fault.New(fault.Unavailable, "following table %s: the buffer sent nothing for %s: treating it as dead",
				f.Table, f.Silence)
		}
		return fmt.Errorf("following table %s: %w", f.Table, wire.FromStatus(err))
	}
	watch.expect()
	s, err := bufferv1.NewTableLogServiceClient(f.Conn).Follow(ctx, f.request(), grpc.ForceCodecV2(wire.Codec{}))
	if err != nil {
		return false, explain(err)
	}
	in := inbox{follower: f}
	for {
		var frame wire.FollowFrame
		watch.expect()
		if err := s.RecvMsg(&frame); err != nil {
			return in.moved, explain(err)
		}
		watch.rest()
		if err := in.take(&frame); err != nil {
			f.whole = false // whatever it was, an image puts it right
			return false, fmt.Errorf("following table %s: %w", f.Table, err)
		}
	}
}

// watchdog calls bark when an expected message does not come in time. It rests
// while the handler works: a slow handler is not a silent peer.
type watchdog struct {
	limit time.Duration
	timer *time.Timer
}

func newWatchdog(limit time.Duration, bark func()) *watchdog {
	w := &watchdog{limit: limit, timer: time.AfterFunc(limit, bark)}
	w.timer.Stop()
	return w
}

func (w *watchdog) expect() { w.timer.Reset(w.limit) }
func (w *watchdog) rest()   { w.timer.Stop() }
func (w *watchdog) stop()   { w.timer.Stop() }
