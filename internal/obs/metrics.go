// Package obs is how Icestream is seen from outside: a logger factory, metrics that are declared once with their
// meaning, readiness by named component, and the HTTP server that shows all of it.
//
// Everything is injected; nothing is global. Several services may share one process, one Metrics and one Health.
package obs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Kind of a metric.
type Kind uint8

// The kinds of metrics.
const (
	KindCounter Kind = iota + 1
	KindGauge
	KindHistogram
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"", "counter", "gauge", "histogram"}[k]
}

// Def declares a metric. Each is declared once, in the Defs function of the package that measures it, from which the
// reference page is made.
type Def struct {
	// Name is icestream_<service>_<what>_<unit>; counters end in _total.
	Name string
	// Help says in one sentence what is measured and, where it is not plain, what a high value means.
	Help string
	Kind Kind
	// Labels are the names of its labels; their values are given in this order.
	Labels []string
	// Buckets of a histogram, ascending; nil means Latency.
	Buckets []float64
}

// Latency returns buckets in seconds from 1 ms to about a minute.
func Latency() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

// Metrics hands out the values of declared metrics and registers them with a Prometheus registry at their first use.
// It is safe for concurrent use. Asking twice for the same labels gives the same value, so services in one process
// add up. A nil *Metrics measures nothing and costs nothing, for tests that do not care.
type Metrics struct {
	registry *prometheus.Registry

	mu       sync.Mutex
	families map[string]*family
}

type family struct {
	def       Def
	counters  *prometheus.CounterVec
	gauges    *prometheus.GaugeVec
	histogram *prometheus.HistogramVec
	funcs     *funcs
}

// NewMetrics returns metrics on the given registry; nil makes a new one.
func NewMetrics(registry *prometheus.Registry) *Metrics {
	if registry == nil {
		registry = prometheus.NewRegistry()
	}
	return &Metrics{registry: registry, families: map[string]*family{}}
}

// WithProcess adds the metrics of the Go runtime and of the process, and the build as icestream_build_info.
func (m *Metrics) WithProcess(version string) *Metrics {
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Gauge(buildInfo(), version).Set(1)
	return m
}

func buildInfo() Def {
	return Def{Name: "icestream_build_info", Help: "Always 1; the label names the version.", Kind: KindGauge, Labels: []string{"version"}}
}

// Registry returns the registry behind m, for packages that bring their own collectors.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// family returns what belongs to def. A second declaration under the same name, or a value of another kind or with
// another number of labels, is a fault of the program and panics: measured wrongly is worse than not started.
func (m *Metrics) family(def Def, kind Kind, values int) *family {
	if def.Kind != kind || len(def.Labels) != values {
		panic(fmt.Sprintf("metric %s is declared as a %s with %d labels but used as a %s with %d", def.Name, def.Kind, len(def.Labels), kind, values))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.families[def.Name]
	if ok {
		if f.def.Help != def.Help || !slices.Equal(f.def.Labels, def.Labels) || f.def.Kind != def.Kind {
			panic("metric " + def.Name + " is declared twice, in two ways")
		}
		return f
	}
	f = &family{def: def}
	switch kind {
	case KindCounter:
		f.counters = prometheus.NewCounterVec(prometheus.CounterOpts{Name: def.Name, Help: def.Help}, def.Labels)
		m.registry.MustRegister(f.counters)
	case KindGauge:
		f.gauges = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: def.Name, Help: def.Help}, def.Labels)
		f.funcs = newFuncs(def)
		m.registry.MustRegister(gaugeFamily{f})
	case KindHistogram:
		buckets := def.Buckets
		if buckets == nil {
			buckets = Latency()
		}
		f.histogram = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: def.Name, Help: def.Help, Buckets: buckets}, def.Labels)
		m.registry.MustRegister(f.histogram)
	}
	m.families[def.Name] = f
	return f
}

// Counter returns the counter of def with these label values.
func (m *Metrics) Counter(def Def, labels ...string) *Counter {
	if m == nil {
		return nil
	}
	return &Counter{m.family(def, KindCounter, len(labels)).counters.WithLabelValues(labels...)}
}

// Gauge returns the gauge of def with these label values.
func (m *Metrics) Gauge(def Def, labels ...string) *Gauge {
	if m == nil {
		return nil
	}
	return &Gauge{m.family(def, KindGauge, len(labels)).gauges.WithLabelValues(labels...)}
}

// Histogram returns the histogram of def with these label values.
func (m *Metrics) Histogram(def Def, labels ...string) *Histogram {
	if m == nil {
		return nil
	}
	return &Histogram{m.family(def, KindHistogram, len(labels)).histogram.WithLabelValues(labels...)}
}

// GaugeFunc measures by calling fn at every scrape, until remove is called; the value is gone then. fn must be fast
// and safe for concurrent use. Several functions with the same labels are summed.
func (m *Metrics) GaugeFunc(def Def, fn func() float64, labels ...string) (remove func()) {
	if m == nil {
		return func() {}
	}
	return m.family(def, KindGauge, len(labels)).funcs.add(fn, labels)
}

// Forget removes the values of def with these labels, for things that are gone, such as a revoked partition.
func (m *Metrics) Forget(def Def, labels ...string) {
	if m == nil {
		return
	}
	f := m.family(def, def.Kind, len(labels))
	switch def.Kind {
	case KindCounter:
		f.counters.DeleteLabelValues(labels...)
	case KindGauge:
		f.gauges.DeleteLabelValues(labels...)
	case KindHistogram:
		f.histogram.DeleteLabelValues(labels...)
	}
}

// Value reads a metric as a scrape would: a counter's or gauge's value, or the number of a histogram's observations.
// It is for tests and status displays.
func (m *Metrics) Value(name string, labels ...string) (float64, bool) {
	gathered, err := m.registry.Gather()
	if err != nil {
		return math.NaN(), false
	}
	for _, mf := range gathered {
		if mf.GetName() != name {
			continue
		}
		m.mu.Lock()
		f := m.families[name]
		m.mu.Unlock()
		if f == nil || len(f.def.Labels) != len(labels) {
			return math.NaN(), false
		}
		for _, metric := range mf.GetMetric() {
			got := map[string]string{}
			for _, pair := range metric.GetLabel() {
				got[pair.GetName()] = pair.GetValue()
			}
			want := map[string]string{}
			for i, l := range f.def.Labels {
				want[l] = labels[i]
			}
			if !maps.Equal(got, want) {
				continue
			}
			switch f.def.Kind {
			case KindCounter:
				return metric.GetCounter().GetValue(), true
			case KindGauge:
				return metric.GetGauge().GetValue(), true
			default:
				return float64(metric.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return math.NaN(), false
}

// Counter only grows. A nil Counter ignores everything.
type Counter struct{ c prometheus.Counter }

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Add adds n, which must not be negative.
func (c *Counter) Add(n float64) {
	if c != nil {
		c.c.Add(n)
	}
}

// Gauge goes up and down. A nil Gauge ignores everything.
type Gauge struct{ g prometheus.Gauge }

// Set sets the value.
func (g *Gauge) Set(v float64) {
	if g != nil {
		g.g.Set(v)
	}
}

// Add adds v, which may be negative.
func (g *Gauge) Add(v float64) {
	if g != nil {
		g.g.Add(v)
	}
}

// Histogram counts observations in buckets. A nil Histogram ignores everything.
type Histogram struct{ h prometheus.Observer }

// Observe counts v; times are in seconds.
func (h *Histogram) Observe(v float64) {
	if h != nil {
		h.h.Observe(v)
	}
}

// funcs is the part of a gauge family that is measured by functions.
type funcs struct {
	desc *prometheus.Desc

	mu   sync.Mutex
	next int
	sets map[string]*funcSet
}

type funcSet struct {
	labels []string
	fns    map[int]func() float64
}

func newFuncs(def Def) *funcs {
	return &funcs{desc: prometheus.NewDesc(def.Name, def.Help, def.Labels, nil), sets: map[string]*funcSet{}}
}

func (f *funcs) add(fn func() float64, labels []string) (remove func()) {
	key := strings.Join(labels, "\xff")
	f.mu.Lock()
	defer f.mu.Unlock()
	set, ok := f.sets[key]
	if !ok {
		set = &funcSet{labels: slices.Clone(labels), fns: map[int]func() float64{}}
		f.sets[key] = set
	}
	id := f.next
	f.next++
	set.fns[id] = fn
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(set.fns, id)
		if len(set.fns) == 0 && f.sets[key] == set {
			delete(f.sets, key)
		}
	}
}

// collect calls the functions outside of the lock, since one of them may end up in add or remove.
func (f *funcs) collect(out chan<- prometheus.Metric) {
	type call struct {
		labels []string
		fns    []func() float64
	}
	f.mu.Lock()
	calls := make([]call, 0, len(f.sets))
	for _, set := range f.sets {
		calls = append(calls, call{set.labels, slices.Collect(maps.Values(set.fns))})
	}
	f.mu.Unlock()
	for _, c := range calls {
		sum := 0.0
		for _, fn := range c.fns {
			sum += fn()
		}
		out <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, sum, c.labels...)
	}
}

// gaugeFamily collects the set and the measured gauges of one name together.
type gaugeFamily struct{ f *family }

// Describe implements prometheus.Collector.
func (g gaugeFamily) Describe(out chan<- *prometheus.Desc) { g.f.gauges.Describe(out) }

// Collect implements prometheus.Collector.
func (g gaugeFamily) Collect(out chan<- prometheus.Metric) {
	g.f.gauges.Collect(out)
	g.f.funcs.collect(out)
}
