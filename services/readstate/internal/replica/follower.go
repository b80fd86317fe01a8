package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/follow"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/readapi"
)

// follower keeps the copy of one table. start and stop belong to the replica,
// under its lock; the methods of follow.Handler to the goroutine of the stream.
type follower struct {
	name  string
	cfg   *Config
	live  *readapi.Live
	ready *obs.Component
	seen  time.Time // when a buffer listed it last

	address string
	conn    grpc.ClientConnInterface
	cancel  context.CancelFunc
	done    chan struct{}

	appends, rows, bytes, images *obs.Counter
	connected                    *obs.Gauge
	gone                         []func() // take back gauges

	mu   sync.Mutex
	down string // why the stream is down; empty while it is up
}

var _ follow.Handler = (*follower)(nil)

func newFollower(name string, cfg *Config) *follower {
	m := cfg.Metrics
	f := &follower{
		name: name, cfg: cfg, ready: cfg.Health.Component("readstate/table/" + name),
		live:    readapi.NewLive(fmt.Sprintf("waiting for the state image of table %s from its buffer", name)),
		appends: m.Counter(appendsDef(), name), rows: m.Counter(rowsDef(), name), bytes: m.Counter(bytesDef(), name),
		images: m.Counter(imagesDef(), name), connected: m.Gauge(connectedDef(), name),
	}
	f.ready.NotReady("waiting for the state image from the buffer")
	f.gone = []func(){
		m.GaugeFunc(hotRowsDef(), func() float64 { return float64(f.live.Status().Rows) }, name),
		m.GaugeFunc(hotBytesDef(), func() float64 { return float64(f.live.Status().Bytes) }, name),
		m.GaugeFunc(lagDef(), f.lag, name),
		m.GaugeFunc(ageDef(), f.age, name),
	}
	return f
}

// start follows the table at a buffer until stop.
func (f *follower) start(ctx context.Context, address string, conn grpc.ClientConnInterface) {
	ctx, f.cancel = context.WithCancel(ctx)
	f.address, f.conn, f.done = address, conn, make(chan struct{})
	done := f.done
	go func() {
		defer close(done)
		err := follow.Run(ctx, follow.Options{
			Conn: conn, Table: f.name, Role: bufferv1.FollowerRole_FOLLOWER_ROLE_READSTATE, Name: f.cfg.Instance,
			Log: f.cfg.Log, Backoff: f.cfg.Backoff,
		}, f)
		if ctx.Err() == nil { // it only ends by itself when it was called wrongly
			f.cfg.Log.Error("following ended", "table", f.name, "error", err)
		}
	}()
}

// stop ends the stream and waits for that; what was learned stays.
func (f *follower) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel, f.address, f.conn = nil, "", nil
	f.connected.Set(0)
}

// remove takes the table out of health and metrics.
func (f *follower) remove() {
	f.ready.Remove()
	for _, gone := range f.gone {
		gone()
	}
	for _, def := range []obs.Def{appendsDef(), rowsDef(), bytesDef(), imagesDef(), connectedDef()} {
		f.cfg.Metrics.Forget(def, f.name)
	}
}

// Image implements follow.Handler.
func (f *follower) Image(img event.Image) error {
	f.live.Load(img)
	f.images.Inc()
	f.ready.Ready()
	return nil
}

// Event implements follow.Handler.
func (f *follower) Event(ev event.Event) error {
	f.live.Apply(ev)
	if a := ev.Append; a != nil {
		f.appends.Inc()
		f.rows.Add(float64(a.Rows))
		f.bytes.Add(float64(a.Bytes()))
	}
	return nil
}

// Notice implements follow.Handler.
func (f *follower) Notice(n follow.Notice) {
	switch {
	case n.Progress != nil:
		f.live.SetProgress(n.Progress, time.Now())
	case n.Up:
		f.setDown("")
		f.connected.Set(1)
	case n.Down != nil:
		f.setDown(fault.Describe(n.Down))
		f.connected.Set(0)
		if _, err := f.live.Position(); err != nil {
			f.ready.NotReady("waiting for the state image: %s", fault.Describe(n.Down))
		}
	}
}

func (f *follower) setDown(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = reason
}

// lag is how many records the source holds above the visible positions.
func (f *follower) lag() float64 {
	pos, err := f.live.Position()
	if err != nil {
		return 0
	}
	var n int64
	for p, pr := range f.live.Status().Progress {
		n += max(pr.StableEnd-pos.Vector[p], 0)
	}
	return float64(n)
}

// age is how long ago the newest visible record was made.
func (f *follower) age() float64 {
	pos, err := f.live.Position()
	if err != nil || pos.NewestTime.IsZero() {
		return 0
	}
	return time.Since(pos.NewestTime).Seconds()
}

// Fact says for people where a table stands, one line.
func (f *follower) fact() string {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	st := f.live.Status()
	out := fmt.Sprintf("%s, %d hot rows, %d hot bytes, at %s", st.State, st.Rows, st.Bytes, f.address)
	if down != "" {
		out += ", stream down: " + down
	}
	return out
}

// Facts says for people where every table stands.
func (r *Replica) Facts() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]string, len(r.tables))
	for name, f := range r.tables {
		out[name] = f.fact()
	}
	return out
}
