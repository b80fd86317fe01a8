package obs

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Health knows which components of a process are ready, and why the others are not. A component is named
// "<service>/<what>", such as "buffer/journal". It is safe for concurrent use.
type Health struct {
	metrics *Metrics

	mu         sync.Mutex
	components map[string]*Component
	order      []string
	watchers   map[int]*watcher
	nextWatch  int
	dead       string
}

type watcher struct {
	changed chan struct{} // holds one token while there is news
}

// Component is one part that has to be ready before its service is. It starts not ready.
type Component struct {
	health *Health
	name   string
	gauge  *Gauge

	// guarded by health.mu
	ready  bool
	reason string
	since  time.Time
}

func readyDef() Def {
	return Def{Name: "icestream_component_ready", Help: "1 while a component is ready, else 0; the reason is at /readyz.", Kind: KindGauge, Labels: []string{"component"}}
}

// NewHealth returns an empty health. Readiness is also shown as a metric; nil metrics leave that out.
func NewHealth(m *Metrics) *Health {
	return &Health{metrics: m, components: map[string]*Component{}, watchers: map[int]*watcher{}}
}

// Component returns the component of that name, added with the reason "starting" at the first call.
func (h *Health) Component(name string) *Component {
	gauge := h.metrics.Gauge(readyDef(), name)
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.components[name]
	if !ok {
		c = &Component{health: h, name: name, gauge: gauge, reason: "starting", since: time.Now()}
		gauge.Set(0)
		h.components[name] = c
		h.order = append(h.order, name)
		h.notify()
	}
	return c
}

// Ready marks the component as ready.
func (c *Component) Ready() { c.set(true, "") }

// NotReady marks it as not ready. The reason names the thing that is waited for and what to do about it.
func (c *Component) NotReady(format string, args ...any) { c.set(false, fmt.Sprintf(format, args...)) }

// Remove takes the component out, for things that are gone, such as a table.
func (c *Component) Remove() {
	h := c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.components[c.name] != c {
		return
	}
	delete(h.components, c.name)
	h.order = slices.DeleteFunc(h.order, func(n string) bool { return n == c.name })
	h.metrics.Forget(readyDef(), c.name)
	h.notify()
}

func (c *Component) set(ready bool, reason string) {
	h := c.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.components[c.name] != c {
		return // removed
	}
	if c.ready == ready && c.reason == reason {
		return
	}
	if c.ready != ready {
		c.since = time.Now()
	}
	c.ready, c.reason = ready, reason
	if ready {
		c.gauge.Set(1)
	} else {
		c.gauge.Set(0)
	}
	h.notify()
}

// Fail marks the whole process as beyond repair, so that /healthz tells the orchestrator to restart it. The first
// reason stays.
func (h *Health) Fail(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead == "" {
		h.dead = reason
		h.notify()
	}
}

// Status of one component.
type Status struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// Report is the state of a process, or of one service in it.
type Report struct {
	Ready      bool     `json:"ready"`
	Failed     string   `json:"failed,omitempty"`
	Components []Status `json:"components"`
}

// Report returns the state of the components whose name begins with "<service>/"; "" means all. A service without
// any component is not ready: it has not started.
func (h *Health) Report(service string) Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Report{Ready: h.dead == "", Failed: h.dead, Components: []Status{}}
	for _, name := range h.order {
		if service != "" && !strings.HasPrefix(name, service+"/") {
			continue
		}
		c := h.components[name]
		r.Components = append(r.Components, Status{c.name, c.ready, c.reason, c.since.UTC()})
		r.Ready = r.Ready && c.ready
	}
	r.Ready = r.Ready && len(r.Components) > 0
	return r
}

// Watch returns a channel that holds a token whenever the state may have changed since it was last taken, at first
// at once, until stop is called.
func (h *Health) Watch() (changed <-chan struct{}, stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &watcher{changed: make(chan struct{}, 1)}
	w.changed <- struct{}{}
	id := h.nextWatch
	h.nextWatch++
	h.watchers[id] = w
	return w.changed, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, id)
	}
}

// notify wakes all watchers; the caller holds mu.
func (h *Health) notify() {
	for _, w := range h.watchers {
		select {
		case w.changed <- struct{}{}:
		default: // it has not looked yet
		}
	}
}
