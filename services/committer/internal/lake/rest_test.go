package lake

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	devcatalog "github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
)

// front stands before a REST catalog and spoils the answers to commits.
type front struct {
	*httptest.Server
	fault atomic.Value // "", "409", "500 after", "drop after", "500 before", "hang"
	seen  atomic.Value // headers of the last request
}

func newFront(t *testing.T, target string) *front {
	u, err := url.Parse(target)
	require.NoError(t, err)
	f := &front{}
	f.fault.Store("")
	proxy := httputil.NewSingleHostReverseProxy(u)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.seen.Store(r.Header.Clone())
		kind := f.fault.Load().(string)
		if r.Method != http.MethodPost || !strings.Contains(r.URL.Path, "/tables/") {
			kind = ""
		}
		f.serve(w, r, proxy, kind)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *front) serve(w http.ResponseWriter, r *http.Request, proxy http.Handler, kind string) {
	drop := func() {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
	}
	switch kind {
	case "409":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"error":{"message":"planted","type":"CommitFailedException","code":409}}`))
	case "500 before":
		w.WriteHeader(http.StatusInternalServerError)
	case "500 after":
		proxy.ServeHTTP(httptest.NewRecorder(), r)
		w.WriteHeader(http.StatusInternalServerError)
	case "drop after":
		proxy.ServeHTTP(httptest.NewRecorder(), r)
		drop()
	case "hang":
		// The server sees a client go only once the body was read.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	default:
		proxy.ServeHTTP(w, r)
	}
}

func newRESTBench(t *testing.T, properties map[string]string) (*bench, *front) {
	dir := t.TempDir()
	server, err := devcatalog.Start(t.Context(), devcatalog.Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	f := newFront(t, server.URL())
	l, err := Open(t.Context(), Config{
		Type: "rest", URI: f.URL, Properties: properties, Timeouts: Timeouts{Commit: 2 * time.Second},
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	tbl, err := l.Create(t.Context(), tableName, Settings{LSN: true, Kafka: true, Owner: "test", Partition: "day(created_at)"})
	require.NoError(t, err)
	b := &bench{TB: t, lake: l, Table: tbl, dir: dir}
	b.setSchema()
	return b, f
}

func TestTheWholeLifeOfATableThroughAREST(t *testing.T) {
	b, f := newRESTBench(t, map[string]string{"header.X-Team": "shop"})
	require.Equal(t, "shop", f.seen.Load().(http.Header).Get("X-Team"))
	for range 5 {
		c := b.change(KindData)
		r := c.advance(part(0), Totals{Rows: 20})
		poison := c.advance(part(1), Totals{Quarantined: 1})
		c.Files = b.write(b.batch(part(0), r))
		b.poison(&c, quarantined(part(1), poison))
		b.commit(c)
	}
	require.NoError(t, b.ApplyQuarantine(t.Context(), b.Head().State.Pending()))
	b.other().insert(1, nil)
	b.reload()
	b.cleanAt = 1
	c := b.change(KindExpire)
	c.Expire = &ExpirePolicy{Keep: 2}
	for _, p := range c.State.Pipelines {
		p.Pending = nil
	}
	st := b.commit(c)
	require.NoError(t, b.Clean(t.Context(), st))
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
	require.Equal(t, int64(101), b.rows(tableName))
	require.Equal(t, int64(5), b.rows(quarantineName))
}

// C1, C2, C4, C10: what each answer of a catalog means, and that the table is
// exact after each.
func TestEveryAnswerToACommitIsSettledByTheTable(t *testing.T) {
	b, f := newRESTBench(t, nil)
	rows := int64(0)
	for _, c := range []struct {
		fault  string
		landed bool
		reason fault.Reason
	}{
		{"409", false, fault.Conflict},
		{"500 before", false, fault.Unavailable},
		{"500 after", true, fault.Unavailable},
		{"drop after", true, fault.Unavailable},
		{"hang", false, fault.Unavailable},
	} {
		change := b.change(KindData)
		r := change.advance(part(0), Totals{Rows: 5})
		change.Files = b.write(b.batch(part(0), r))
		st := b.stage(change)
		f.fault.Store(c.fault)
		err := b.Send(t.Context(), st)
		require.Equal(t, c.reason, fault.ReasonOf(err), "%s: %v", c.fault, err)
		f.fault.Store("")
		b.reload()
		require.Equal(t, c.landed, b.Find(change.CommitID), c.fault)
		if !c.landed {
			require.NoError(t, b.Send(t.Context(), st), c.fault)
			b.reload()
		}
		rows += 5
		require.Equal(t, rows, b.rows(tableName), c.fault)
	}
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}

// G11: a catalog that is away when the service starts.
func TestALakeConnectsWhenItsCatalogComes(t *testing.T) {
	f := newFront(t, "http://127.0.0.1:1")
	l, err := Open(t.Context(), Config{Type: "rest", URI: f.URL}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = l.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.Unavailable))

	server, err := devcatalog.Start(t.Context(), devcatalog.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	l, err = Open(t.Context(), Config{Type: "rest", URI: server.URL()}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, l.Ping(t.Context()))
	_, err = l.Load(t.Context(), tableName)
	require.ErrorIs(t, err, fault.Of(fault.UnknownTable))
}

func TestACancelledCallSaysSo(t *testing.T) {
	b := newBench(t, Settings{})
	st := b.stage(b.change(KindProgress))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Send(ctx, st), context.Canceled)
}

func TestSkipsAloneMakeAProvenTable(t *testing.T) {
	b := newBench(t, Settings{})
	c := b.change(KindProgress)
	c.advance(part(0), Totals{Skipped: map[event.SkipReason]int64{event.SkipFiltered: 9, event.SkipAbsent: 1}})
	b.commit(c)
	r := b.audit(true)
	require.Equal(t, Proven, r.Verdict, r.Text())
}
