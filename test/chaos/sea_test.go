//go:build synctests

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// mood is what becomes of one request to the catalog.
type mood string

const (
	fine          mood = "fine"
	appliedLost   mood = "applied, answer lost"
	appliedError  mood = "applied, error 500"
	appliedClash  mood = "applied, answer 409" // a proxy sent it twice
	neverArrived  mood = "not applied, answer lost"
	clash         mood = "not applied, error 409"
	badRequest    mood = "not applied, error 400"
	tooMany       mood = "not applied, error 429"
	unavailable   mood = "not applied, error 503"
	lying         mood = "not applied, answer 200"
	late          mood = "applied late"
	slowly        mood = "applied slowly"
	stale         mood = "stale read"
	readFails     mood = "read fails"
	longestSlow        = 40 * time.Second
	keptResponses      = 4
)

var commitMoods = []mood{appliedLost, appliedError, appliedClash, neverArrived, clash, badRequest, tooMany, unavailable, lying, late, slowly}

// sea is the catalog with all that can go wrong on the way to it.
type sea struct {
	w       *world
	handler http.Handler

	mu       sync.Mutex
	rng      *rand.Rand
	inflight []*http.Request     // requests that arrive later, or never
	bodies   map[string][][]byte // answers of loads, for stale reads
}

func newSea(w *world, h http.Handler) *sea {
	return &sea{w: w, handler: h, rng: rand.New(rand.NewPCG(w.seed, 5)), bodies: map[string][][]byte{}}
}

// way is how a node reaches the catalog.
type way struct {
	sea *sea
	n   *node
}

// RoundTrip implements http.RoundTripper.
func (y *way) RoundTrip(r *http.Request) (*http.Response, error) {
	s, w := y.sea, y.sea.w
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	commit := r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/tables/") && !strings.HasSuffix(r.URL.Path, "/metrics")
	load := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/tables/")
	if y.n.slot == nil { // somebody else
		return s.apply(r, body), nil
	}
	what := strings.TrimPrefix(r.Method+" "+r.URL.Path, "POST ")
	if commit {
		what = "commit " + r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	}
	if err := w.step(y.n, "before "+what); err != nil {
		return nil, err
	}
	if w.fabric.away(y.n.name) {
		return nil, errCut
	}
	if err := s.wait(r.Context(), w.fabric.lag()); err != nil {
		return nil, err
	}
	if w.fabric.isFrozen(y.n.name) {
		return s.frozen(y.n, r, body, commit)
	}
	m := s.mood(commit, load)
	if m != fine {
		w.say("catalog: %s of %s: %s", what, y.n.name, m)
	}
	resp, err := s.answer(r, body, m, load)
	if dead := w.step(y.n, "after "+what); dead != nil {
		return nil, dead
	}
	if w.fabric.away(y.n.name) {
		return nil, errCut
	}
	return resp, err
}

func (s *sea) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// frozen keeps what a stopped process was about to send; it goes out when the process goes on, whether or not
// somebody still waits for the answer.
func (s *sea) frozen(n *node, r *http.Request, body []byte, commit bool) (*http.Response, error) {
	for s.w.fabric.isFrozen(n.name) {
		if err := s.wait(context.WithoutCancel(r.Context()), 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if s.w.fabric.away(n.name) {
		return nil, errCut
	}
	if commit {
		s.w.say("catalog: the request of %s arrives after the freeze", n.name)
	}
	resp := s.apply(r, body)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return resp, nil
}

// mood draws what happens to a request.
func (s *sea) mood(commit, load bool) mood {
	if !s.w.inChaos() {
		return fine
	}
	p := &s.w.plan
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.rng.Float64()
	switch {
	case commit && x < p.ambiguous:
		return p.moods[s.rng.IntN(len(p.moods))]
	case load && x < p.staleReads:
		return stale
	case !commit && x < p.staleReads+p.readFails:
		return readFails
	}
	return fine
}

func (s *sea) answer(r *http.Request, body []byte, m mood, load bool) (*http.Response, error) {
	switch m {
	case appliedLost:
		s.apply(r, body)
		return nil, errCut
	case appliedError:
		s.apply(r, body)
		return failed(r, http.StatusInternalServerError, "InternalServerError"), nil
	case appliedClash:
		s.apply(r, body)
		return s.apply(r, body), nil
	case neverArrived, readFails:
		return nil, errCut
	case clash:
		return failed(r, http.StatusConflict, "CommitFailedException"), nil
	case badRequest:
		return failed(r, http.StatusBadRequest, "BadRequestException"), nil
	case tooMany:
		return failed(r, http.StatusTooManyRequests, "TooManyRequestsException"), nil
	case unavailable:
		return failed(r, http.StatusServiceUnavailable, "ServiceUnavailableException"), nil
	case lying:
		get := r.Clone(r.Context())
		get.Method = http.MethodGet
		return s.apply(get, nil), nil
	case late:
		s.mu.Lock()
		s.inflight = append(s.inflight, held(r, body))
		s.mu.Unlock()
		return nil, errCut
	case slowly:
		s.mu.Lock()
		d := time.Duration(s.rng.Int64N(int64(longestSlow)))
		s.mu.Unlock()
		again := held(r, body)
		done := make(chan *http.Response, 1)
		s.w.late.Go(func() {
			time.Sleep(d) //nolint:forbidigo // virtual time: the delay is the fault
			done <- s.apply(again, body)
		})
		select {
		case resp := <-done:
			return resp, nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	case stale:
		s.mu.Lock()
		defer s.mu.Unlock()
		if old := s.bodies[r.URL.Path]; len(old) > 0 {
			return response(r, http.StatusOK, old[s.rng.IntN(len(old))]), nil
		}
		return nil, errCut
	}
	resp := s.apply(r, body)
	if load && resp.StatusCode == http.StatusOK {
		s.remember(r.URL.Path, resp)
	}
	return resp, nil
}

// remember keeps the last answers of loads.
func (s *sea) remember(path string, resp *http.Response) {
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies[path] = append(s.bodies[path], data)
	if n := len(s.bodies[path]) - keptResponses; n > 0 {
		s.bodies[path] = s.bodies[path][n:]
	}
}

// held is a request that outlives its sender.
func held(r *http.Request, body []byte) *http.Request {
	again := r.Clone(context.WithoutCancel(r.Context()))
	again.Body = io.NopCloser(bytes.NewReader(body))
	return again
}

// deliver lets one of the requests under way arrive, or drops it.
func (s *sea) deliver(n int, lost bool) {
	s.mu.Lock()
	if len(s.inflight) == 0 {
		s.mu.Unlock()
		return
	}
	i := n % len(s.inflight)
	r := s.inflight[i]
	s.inflight = append(s.inflight[:i:i], s.inflight[i+1:]...)
	s.mu.Unlock()
	if lost {
		s.w.say("catalog: a late request is lost")
		return
	}
	body, _ := io.ReadAll(r.Body)
	resp := s.apply(r, body)
	s.w.say("catalog: a late request arrives: %d", resp.StatusCode)
}

// drain empties what is under way.
func (s *sea) drain(arrive bool) {
	for {
		s.mu.Lock()
		n := len(s.inflight)
		s.mu.Unlock()
		if n == 0 {
			return
		}
		s.deliver(0, !arrive)
	}
}

// apply asks the real catalog, and lets the oracle look at what has landed.
func (s *sea) apply(r *http.Request, body []byte) *http.Response {
	in := r.Clone(context.WithoutCancel(r.Context()))
	in.RequestURI = r.URL.RequestURI()
	in.Body = io.NopCloser(bytes.NewReader(body))
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, in)
	if r.Method == http.MethodPost && rec.Code == http.StatusOK && strings.HasSuffix(r.URL.Path, "/tables/"+tableName) {
		s.w.book.landed(rec.Body.Bytes())
	}
	return rec.Result()
}

func failed(r *http.Request, code int, kind string) *http.Response {
	return response(r, code, fmt.Appendf(nil, `{"error":{"message":"made up","type":"%s","code":%d}}`, kind, code))
}

func response(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}
