package stack

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/discovery"
)

// unreliable is a catalog whose answers to commits cannot be trusted while it is on: they get lost after the commit,
// or come as errors though it was applied, or the request is applied long after its sender has given up.
type unreliable struct {
	forward *httputil.ReverseProxy
	on      atomic.Bool
	late    sync.WaitGroup
	mu      sync.Mutex
	rng     *rand.Rand
	did     map[string]int
}

func newUnreliable(t *testing.T, real string, seed uint64) (address string, u *unreliable) {
	target, err := url.Parse(real)
	require.NoError(t, err)
	u = &unreliable{forward: httputil.NewSingleHostReverseProxy(target), rng: rand.New(rand.NewPCG(seed, 2)), did: map[string]int{}}
	s := httptest.NewServer(u)
	t.Cleanup(func() {
		s.Close()
		u.late.Wait()
	})
	return s.URL, u
}

// ServeHTTP implements http.Handler.
func (u *unreliable) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	commit := r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/tables/")
	if !commit || !u.on.Load() {
		u.forward.ServeHTTP(out, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	send := func(ctx context.Context) {
		again := r.Clone(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		u.forward.ServeHTTP(httptest.NewRecorder(), again)
	}
	detached := context.WithoutCancel(r.Context())
	switch u.choose() {
	case "answer lost":
		send(detached)
		panic(http.ErrAbortHandler)
	case "applied, error 500":
		send(detached)
		failed(out, http.StatusInternalServerError, "InternalServerError")
	case "applied, error 504":
		send(detached)
		failed(out, http.StatusGatewayTimeout, "CommitStateUnknownException")
	case "not applied, error 503":
		failed(out, http.StatusServiceUnavailable, "ServiceUnavailableException")
	case "not applied, conflict":
		failed(out, http.StatusConflict, "CommitFailedException")
	case "applied late":
		u.late.Go(func() {
			time.Sleep(u.delay()) //nolint:forbidigo // the delay is what is tested
			send(detached)
		})
		panic(http.ErrAbortHandler)
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		u.forward.ServeHTTP(out, r)
	}
}

func failed(out http.ResponseWriter, code int, kind string) {
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	_, _ = io.WriteString(out, `{"error":{"message":"made up","type":"`+kind+`","code":`+strconv.Itoa(code)+`}}`)
}

func (u *unreliable) choose() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	kinds := []string{
		"answer lost", "applied, error 500", "applied, error 504", "not applied, error 503", "not applied, conflict", "applied late",
		"ok", "ok", "ok", "ok", "ok", "ok",
	}
	kind := kinds[u.rng.IntN(len(kinds))]
	u.did[kind]++
	return kind
}

func (u *unreliable) delay() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Duration(50+u.rng.IntN(1500)) * time.Millisecond
}

// The catalog's answers cannot be trusted while rows flow and the committer is restarted: every row lands once, every
// read is exact, nothing is restarted for it (C1, C2, C4, C5, C10, C20, G1, G6, G11).
func TestACatalogWhoseAnswersCannotBeTrustedDoublesAndLosesNothing(t *testing.T) {
	w := newWorld(t, ordersText)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	real := w.settings.Catalog.URI
	proxy, u := newUnreliable(t, real, seed)
	w.settings.Catalog.URI = proxy
	u.on.Store(true)
	l := w.produce("orders", 4, 0, 2500)
	w.start()
	stopReading := w.readAlong(l)
	length := 6 * time.Second
	if *soak {
		length = 2 * time.Minute
	}
	for began := time.Now(); time.Since(began) < length; {
		w.pause(2 * time.Second)
		w.restart(discovery.Committer)
	}
	u.on.Store(false)
	u.late.Wait()
	w.ready()
	l.halt()
	w.settle("shop.orders", "orders")
	stopReading()
	t.Logf("%d records; the catalog did %v", l.ledger.Total(), u.did)
	w.settings.Catalog.URI = real
	w.verify("shop.orders", l.ledger)
}
