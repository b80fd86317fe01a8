// Package faulty stands between a client and a real server and spoils what passes:
// Catalog spoils the answers of an Iceberg REST catalog, Link the bytes of a TCP
// connection. It is for tests alone.
package faulty

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Catalog is a proxy before a REST catalog. Requests pass untouched but for the
// commits and loads of tables for which a fault is in force. It is safe for
// concurrent use.
type Catalog struct {
	server  *httptest.Server
	target  *url.URL
	forward *httputil.ReverseProxy
	late    sync.WaitGroup

	mu       sync.Mutex
	commits  Choice
	loads    Choice
	versions map[string][]body // of each table, by path, oldest first
	did      map[string]int
	header   http.Header
}

type body struct {
	header http.Header
	text   []byte
}

// Fault is what becomes of one request. The zero value lets it pass.
type Fault struct {
	Name  string
	serve func(c *Catalog, w http.ResponseWriter, r *request)
}

// request is a request whose body has been read, so that it can be sent whenever
// and however often.
type request struct {
	*http.Request
	text []byte
}

// NewCatalog starts a proxy before the catalog at target; it ends with the test.
func NewCatalog(t testing.TB, target string) *Catalog {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatalf("starting a proxy before the catalog at %s: %v", target, err)
	}
	c := &Catalog{target: u, forward: httputil.NewSingleHostReverseProxy(u), versions: map[string][]body{}, did: map[string]int{}}
	c.forward.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
	c.server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.Heal()
		c.server.CloseClientConnections()
		c.server.Close()
		c.late.Wait()
	})
	return c
}

// URL is where clients find the catalog.
func (c *Catalog) URL() string { return c.server.URL }

// Choice says which fault a commit or a load of a table meets; table is the last
// part of its path.
type Choice func(table string) Fault

// Commits has each commit of a table meet the fault that choose returns.
func (c *Catalog) Commits(choose Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits = choose
}

// Loads has each load of a table meet the fault that choose returns.
func (c *Catalog) Loads(choose Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads = choose
}

// Heal lets everything pass from now on. What was delayed stays delayed.
func (c *Catalog) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits, c.loads = nil, nil
}

// Settle waits until every request that was held back has been sent.
func (c *Catalog) Settle() { c.late.Wait() }

// Did counts the faults that came to pass, by name.
func (c *Catalog) Did() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.did)
}

// LastHeader is the header of the newest request.
func (c *Catalog) LastHeader() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header.Clone()
}

// Script returns a choice that gives out faults in turn, and lets everything pass
// after the last.
func Script(faults ...Fault) Choice {
	var mu sync.Mutex
	return func(string) Fault {
		mu.Lock()
		defer mu.Unlock()
		if len(faults) == 0 {
			return Fault{}
		}
		f := faults[0]
		faults = faults[1:]
		return f
	}
}

// ScriptEach is Script for each table by itself.
func ScriptEach(faults ...Fault) Choice {
	var mu sync.Mutex
	scripts := map[string]Choice{}
	return func(table string) Fault {
		mu.Lock()
		defer mu.Unlock()
		if scripts[table] == nil {
			scripts[table] = Script(faults...)
		}
		return scripts[table](table)
	}
}

// Always returns a choice that gives out one fault for ever.
func Always(f Fault) Choice { return func(string) Fault { return f } }

// For restricts a choice to one table.
func For(table string, choose Choice) Choice {
	return func(name string) Fault {
		if name != table {
			return Fault{}
		}
		return choose(name)
	}
}

// ServeHTTP implements http.Handler.
func (c *Catalog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.header = r.Header.Clone()
	choose := c.loads
	if r.Method == http.MethodPost {
		choose = c.commits
	}
	table, is := tableOf(r)
	c.mu.Unlock()
	if is && r.Method == http.MethodPost {
		c.remember(r)
	}
	var f Fault
	if is && choose != nil {
		f = choose(table)
	}
	if f.serve == nil {
		c.forward.ServeHTTP(w, r)
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.note(f.Name)
	f.serve(c, w, &request{r, text})
}

func (c *Catalog) note(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.did[name]++
}

// tableOf is the table that a load or a commit is about.
func tableOf(r *http.Request) (string, bool) {
	_, rest, found := strings.Cut(r.URL.Path, "/tables/")
	if !found || strings.Contains(rest, "/") || r.Method != http.MethodGet && r.Method != http.MethodPost {
		return "", false
	}
	return rest, !strings.HasSuffix(r.URL.Path, "/v1/tables/rename")
}

// remember keeps the table as it is before a commit, for stale loads.
func (c *Catalog) remember(r *http.Request) {
	text, header, err := c.load(r)
	if err != nil {
		return // away, or not there yet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.versions[r.URL.Path]
	if n := len(list); n == 0 || !bytes.Equal(list[n-1].text, text) {
		c.versions[r.URL.Path] = append(list, body{header, text})
	}
}

// load asks the catalog for the table that a request is about.
func (c *Catalog) load(r *http.Request) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 10*time.Second)
	defer cancel()
	again := r.Clone(ctx)
	again.Method, again.Body, again.ContentLength = http.MethodGet, http.NoBody, 0
	again.Header.Del("Content-Length")
	again.Header.Set("Accept-Encoding", "identity")
	out := httptest.NewRecorder()
	c.forward.ServeHTTP(out, again)
	if out.Code != http.StatusOK {
		return nil, nil, fmt.Errorf("loading %s: %d", r.URL.Path, out.Code)
	}
	return out.Body.Bytes(), out.Header(), nil
}

// send passes a request on, whether its client still waits or not.
func (c *Catalog) send(r *request) *httptest.ResponseRecorder {
	again := r.Clone(context.WithoutCancel(r.Context()))
	again.Body = io.NopCloser(bytes.NewReader(r.text))
	out := httptest.NewRecorder()
	c.forward.ServeHTTP(out, again)
	return out
}

func fail(w http.ResponseWriter, code int, kind string, header ...string) {
	for i := 0; i+1 < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, `{"error":{"message":"made up","type":"`+kind+`","code":`+strconv.Itoa(code)+`}}`)
}

// Refused answers an error and does nothing. Pairs of name and value add headers.
func Refused(code int, kind string, header ...string) Fault {
	return Fault{fmt.Sprintf("not done, %d %s", code, kind), func(_ *Catalog, w http.ResponseWriter, _ *request) {
		fail(w, code, kind, header...)
	}}
}

// Applied does what was asked for and answers an error.
func Applied(code int, kind string, header ...string) Fault {
	return Fault{fmt.Sprintf("done, %d %s", code, kind), func(c *Catalog, w http.ResponseWriter, r *request) {
		c.send(r)
		fail(w, code, kind, header...)
	}}
}

// Pretended answers 200 with the table as it is, and does nothing.
func Pretended() Fault {
	return Fault{"not done, 200", func(c *Catalog, w http.ResponseWriter, r *request) {
		text, header, err := c.load(r.Request)
		if err != nil {
			fail(w, http.StatusServiceUnavailable, "ServiceUnavailableException")
			return
		}
		copyTo(w, http.StatusOK, header, text)
	}}
}

// Lost does nothing and ends the connection without an answer.
func Lost() Fault {
	return Fault{"not done, cut", func(*Catalog, http.ResponseWriter, *request) { panic(http.ErrAbortHandler) }}
}

// Unanswered does what was asked for and ends the connection without an answer.
func Unanswered() Fault {
	return Fault{"done, cut before the answer", func(c *Catalog, _ http.ResponseWriter, r *request) {
		c.send(r)
		panic(http.ErrAbortHandler)
	}}
}

// Torn does what was asked for and ends the connection in the middle of the
// answer's body.
func Torn() Fault {
	return Fault{"done, cut in the answer", func(c *Catalog, w http.ResponseWriter, r *request) {
		out := c.send(r)
		copyTo(w, out.Code, out.Header(), out.Body.Bytes()[:out.Body.Len()/2], "Content-Length", strconv.Itoa(out.Body.Len()))
		flush(w)
		panic(http.ErrAbortHandler)
	}}
}

// Silent does what was asked for and never answers; the client gives up.
func Silent() Fault {
	return Fault{"done, never answered", func(c *Catalog, _ http.ResponseWriter, r *request) {
		c.send(r)
		<-r.Context().Done()
	}}
}

// Ignored does nothing and never answers.
func Ignored() Fault {
	return Fault{"not done, never answered", func(_ *Catalog, _ http.ResponseWriter, r *request) { <-r.Context().Done() }}
}

// Slow does what was asked for and lets the answer drip for about d.
func Slow(d time.Duration) Fault {
	return Fault{"done, answered slowly", func(c *Catalog, w http.ResponseWriter, r *request) {
		out := c.send(r)
		copyTo(w, out.Code, out.Header(), nil)
		const pieces = 10
		tick := time.NewTicker(d / pieces)
		defer tick.Stop()
		text := out.Body.Bytes()
		for i := range pieces {
			_, _ = w.Write(text[i*len(text)/pieces : (i+1)*len(text)/pieces])
			flush(w)
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
	}}
}

// Late answers an error at once, and does what was asked for when release is
// closed.
func Late(release <-chan struct{}, code int, kind string) Fault {
	return Fault{fmt.Sprintf("done late, %d %s", code, kind), func(c *Catalog, w http.ResponseWriter, r *request) {
		c.late.Go(func() {
			<-release
			c.send(r)
		})
		fail(w, code, kind)
	}}
}

// Delayed ends the connection without an answer, and does what was asked for
// after d.
func Delayed(d time.Duration) Fault {
	return Fault{"done late, cut", func(c *Catalog, _ http.ResponseWriter, r *request) {
		c.late.Go(func() {
			<-time.After(d)
			c.send(r)
		})
		panic(http.ErrAbortHandler)
	}}
}

// Held keeps a request until release is closed or its client gives up, and then
// does it and answers: a client that was frozen in the middle of a call.
func Held(release <-chan struct{}) Fault {
	return Fault{"held", func(c *Catalog, w http.ResponseWriter, r *request) {
		<-release
		out := c.send(r)
		copyTo(w, out.Code, out.Header(), out.Body.Bytes())
	}}
}

// Stale answers a load with the table as it was before its last n commits that
// came through here; it passes where there were fewer.
func Stale(n int) Fault {
	return Fault{fmt.Sprintf("stale by %d", n), func(c *Catalog, w http.ResponseWriter, r *request) {
		c.mu.Lock()
		list := c.versions[r.URL.Path]
		c.mu.Unlock()
		if len(list) < n || r.Method != http.MethodGet {
			out := c.send(r)
			copyTo(w, out.Code, out.Header(), out.Body.Bytes())
			return
		}
		old := list[len(list)-n]
		copyTo(w, http.StatusOK, old.header, old.text)
	}}
}

// Named answers a load with the name of the metadata and nothing that could be decoded.
func Named() Fault {
	return retold("named alone", `{"metadata-location":LOCATION,"metadata":"left out"}`)
}

// NamedLast answers a load with the metadata first and its name behind it.
func NamedLast() Fault {
	return retold("named last", `{"metadata":METADATA,"metadata-location":LOCATION}`)
}

// retold answers a load in another form, in which LOCATION and METADATA stand for what the catalog says.
func retold(name, form string) Fault {
	return Fault{name, func(c *Catalog, w http.ResponseWriter, r *request) {
		var answer struct {
			Location json.RawMessage `json:"metadata-location"`
			Metadata json.RawMessage `json:"metadata"`
		}
		text, header, err := c.load(r.Request)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		told := strings.NewReplacer("LOCATION", string(answer.Location), "METADATA", string(answer.Metadata)).Replace(form)
		copyTo(w, http.StatusOK, header, []byte(told))
	}}
}

func copyTo(w http.ResponseWriter, code int, header http.Header, text []byte, extra ...string) {
	for name, values := range header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	for i := 0; i+1 < len(extra); i += 2 {
		w.Header().Set(extra[i], extra[i+1])
	}
	w.WriteHeader(code)
	_, _ = w.Write(text)
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}
