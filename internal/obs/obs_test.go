package obs

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func def(kind Kind, name string, labels ...string) Def {
	return Def{Name: name, Help: "A test.", Kind: kind, Labels: labels}
}

func TestMetricsOfOneNameAddUpAcrossServices(t *testing.T) {
	m := NewMetrics(nil)
	d := def(KindCounter, "icestream_test_rows_total", "table")
	m.Counter(d, "a").Add(2)
	m.Counter(d, "a").Inc()
	m.Counter(d, "b").Inc()
	v, ok := m.Value(d.Name, "a")
	require.True(t, ok)
	require.InDelta(t, 3, v, 0)
	m.Forget(d, "a")
	_, ok = m.Value(d.Name, "a")
	require.False(t, ok)
}

func TestGaugeFuncsAreSummedAndGoAwayWhenRemoved(t *testing.T) {
	m := NewMetrics(nil)
	d := def(KindGauge, "icestream_test_lag", "table")
	remove := m.GaugeFunc(d, func() float64 { return 5 }, "a")
	remove2 := m.GaugeFunc(d, func() float64 { return 2 }, "a")
	m.Gauge(d, "b").Set(9)
	v, ok := m.Value(d.Name, "a")
	require.True(t, ok)
	require.InDelta(t, 7, v, 0)
	v, _ = m.Value(d.Name, "b")
	require.InDelta(t, 9, v, 0)
	remove()
	remove()
	v, _ = m.Value(d.Name, "a")
	require.InDelta(t, 2, v, 0)
	remove2()
	_, ok = m.Value(d.Name, "a")
	require.False(t, ok)
}

func TestHistogramCountsObservations(t *testing.T) {
	m := NewMetrics(nil)
	d := def(KindHistogram, "icestream_test_seconds")
	m.Histogram(d).Observe(0.2)
	m.Histogram(d).Observe(2)
	v, ok := m.Value(d.Name)
	require.True(t, ok)
	require.InDelta(t, 2, v, 0)
}

func TestAWrongUseOfADeclarationPanics(t *testing.T) {
	m := NewMetrics(nil)
	d := def(KindCounter, "icestream_test_rows_total", "table")
	require.Panics(t, func() { m.Gauge(d, "a") })
	require.Panics(t, func() { m.Counter(d) })
	m.Counter(d, "a")
	d.Help = "Something else."
	require.Panics(t, func() { m.Counter(d, "a") })
}

func TestNilMetricsMeasureNothing(t *testing.T) {
	var m *Metrics
	m.Counter(def(KindCounter, "x")).Inc()
	m.Gauge(def(KindGauge, "x")).Set(1)
	m.Gauge(def(KindGauge, "x")).Add(1)
	m.Histogram(def(KindHistogram, "x")).Observe(1)
	m.GaugeFunc(def(KindGauge, "x"), nil)()
	m.Forget(def(KindGauge, "x"))
}

func TestCatalogueRulesAreChecked(t *testing.T) {
	require.NoError(t, Check([]Group{{Title: "Process", Defs: Defs()}}))
	err := Check([]Group{{Title: "T", Defs: []Def{
		{Name: "rows", Help: "x", Kind: KindCounter, Labels: []string{"Table"}},
		{Name: "icestream_a_b_total", Help: "X.", Kind: KindGauge},
		{Name: "icestream_a_b_total", Help: "X.", Kind: KindHistogram, Buckets: []float64{2, 1}},
		{Name: "icestream_a_c", Help: "X."},
	}}})
	for _, want := range []string{"icestream_<service>", "only they", "help sentence", "not lower case", "declared twice", "ascend", "no kind"} {
		require.ErrorContains(t, err, want)
	}
	page := string(Reference([]Group{{Title: "Process", Defs: Defs()}}))
	require.Contains(t, page, "| `icestream_build_info` | gauge | version |")
}

func TestReadinessNeedsEveryComponentAndKeepsReasons(t *testing.T) {
	m := NewMetrics(nil)
	h := NewHealth(m)
	require.False(t, h.Report("").Ready, "nothing has started")
	journal := h.Component("buffer/journal")
	kafka := h.Component("ingest/kafka")
	require.Equal(t, "starting", h.Report("buffer").Components[0].Reason)
	journal.Ready()
	require.True(t, h.Report("buffer").Ready)
	require.False(t, h.Report("").Ready)
	kafka.NotReady("waiting for broker %s", "b:9092")
	require.Equal(t, "waiting for broker b:9092", h.Report("ingest").Components[0].Reason)
	v, _ := m.Value("icestream_component_ready", "buffer/journal")
	require.InDelta(t, 1, v, 0)
	kafka.Remove()
	require.True(t, h.Report("").Ready)
	kafka.NotReady("late news of something gone")
	require.True(t, h.Report("").Ready)
	journal.NotReady("disk full")
	require.False(t, h.Report("buffer").Ready, "there is a way back to not ready")
}

func TestWatchersSeeChanges(t *testing.T) {
	h := NewHealth(nil)
	changed, stop := h.Watch()
	<-changed // the state at the beginning
	c := h.Component("a/b")
	<-changed
	c.Ready()
	<-changed
	c.Ready() // no news
	select {
	case <-changed:
		t.Fatal("news without a change")
	default:
	}
	stop()
	c.NotReady("x")
	require.Empty(t, changed)
}

func TestEndpoints(t *testing.T) {
	m := NewMetrics(nil).WithProcess("v1.2.3")
	h := NewHealth(m)
	c := h.Component("buffer/journal")
	c.NotReady("replaying")
	srv := httptest.NewServer(Handler(m, h))
	defer srv.Close()
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
		require.NoError(t, err)
		resp, err := srv.Client().Do(req)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	code, body := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	var report Report
	require.NoError(t, json.Unmarshal([]byte(body), &report))
	require.Equal(t, "replaying", report.Components[0].Reason)
	c.Ready()
	code, _ = get("/readyz?service=buffer")
	require.Equal(t, http.StatusOK, code)
	code, _ = get("/readyz?service=ingest")
	require.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = get("/healthz")
	require.Equal(t, http.StatusOK, code)
	h.Fail("fsync of the journal failed")
	code, body = get("/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "fsync")
	_, body = get("/metrics")
	require.Contains(t, body, `icestream_build_info{version="v1.2.3"} 1`)
	require.Contains(t, body, "go_goroutines")
	code, _ = get("/debug/pprof/cmdline")
	require.Equal(t, http.StatusOK, code)
}

func TestServerEndsWithItsContextAndNamesATakenPort(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Listen(ctx, "127.0.0.1:0", NewMetrics(nil), NewHealth(nil), log)
	require.NoError(t, err)
	_, err = Listen(ctx, s.Address(), NewMetrics(nil), NewHealth(nil), log)
	require.ErrorContains(t, err, s.Address())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	cancel()
	require.NoError(t, <-done)
}

func TestLoggerWritesUTCAndRefusesUnknownWords(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, "json", "info")
	require.NoError(t, err)
	log.Debug("hidden")
	log.Info("shown", "n", 1)
	var line map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &line))
	require.Equal(t, "shown", line["msg"])
	require.True(t, strings.HasSuffix(line["time"].(string), "Z"))
	_, err = NewLogger(&b, "xml", "info")
	require.ErrorContains(t, err, "xml")
	_, err = NewLogger(&b, "json", "loud")
	require.ErrorContains(t, err, "loud")
}
