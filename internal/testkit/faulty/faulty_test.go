package faulty

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counter is a catalog whose only table counts its commits.
func counter(t *testing.T) (*Catalog, *atomic.Int64) {
	n := &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			n.Add(1)
		}
		_, _ = io.WriteString(w, "version "+strconv.FormatInt(n.Load(), 10))
	}))
	t.Cleanup(s.Close)
	return NewCatalog(t, s.URL), n
}

const path = "/v1/namespaces/shop/tables/orders"

func ask(t *testing.T, c *Catalog, method, path string) (int, string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.URL()+path, strings.NewReader("{}"))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

func TestEachFaultDoesAndAnswersWhatItSays(t *testing.T) {
	for _, tt := range []struct {
		fault Fault
		done  bool
		code  int
		broke bool
	}{
		{Fault{}, true, 200, false},
		{Refused(409, "CommitFailedException"), false, 409, false},
		{Applied(503, "ServiceUnavailableException"), true, 503, false},
		{Pretended(), false, 200, false},
		{Lost(), false, 0, true},
		{Unanswered(), true, 0, true},
		{Torn(), true, 200, true},
		{Silent(), true, 0, true},
		{Ignored(), false, 0, true},
		{Slow(50 * time.Millisecond), true, 200, false},
		{Stale(1), true, 200, false}, // of a commit it knows nothing
	} {
		t.Run(tt.fault.Name, func(t *testing.T) {
			c, n := counter(t)
			c.Commits(Script(tt.fault))
			code, _, err := ask(t, c, http.MethodPost, path)
			require.Equal(t, tt.broke, err != nil, "%v", err)
			require.Equal(t, tt.code, code)
			require.Equal(t, tt.done, n.Load() == 1)
			_, _, err = ask(t, c, http.MethodPost, path) // the script is over
			require.NoError(t, err)
		})
	}
}

func TestALateRequestArrivesWhenItIsReleased(t *testing.T) {
	c, n := counter(t)
	release := make(chan struct{})
	c.Commits(Script(Late(release, 504, "CommitStateUnknownException")))
	code, _, err := ask(t, c, http.MethodPost, path)
	require.NoError(t, err)
	require.Equal(t, 504, code)
	require.Zero(t, n.Load())
	close(release)
	c.Settle()
	require.EqualValues(t, 1, n.Load())
	require.Equal(t, map[string]int{"done late, 504 CommitStateUnknownException": 1}, c.Did())
}

func TestAStaleLoadIsTheTableBeforeACommit(t *testing.T) {
	c, _ := counter(t)
	for range 3 {
		_, _, err := ask(t, c, http.MethodPost, path)
		require.NoError(t, err)
	}
	for back, want := range []string{"version 3", "version 2", "version 1", "version 0", "version 3"} {
		if back > 0 {
			c.Loads(Always(Stale(back)))
		}
		_, text, err := ask(t, c, http.MethodGet, path)
		require.NoError(t, err)
		require.Equal(t, want, text)
	}
}

func TestFaultsAreForTablesAlone(t *testing.T) {
	c, _ := counter(t)
	c.Loads(Always(Lost()))
	c.Commits(Always(Lost()))
	for _, p := range []string{"/v1/namespaces/shop/tables", "/v1/namespaces/shop/tables/orders/metrics", "/v1/tables/rename"} {
		_, _, err := ask(t, c, http.MethodPost, p)
		require.NoError(t, err, p)
	}
	c.Commits(For("customers", Always(Lost())))
	_, _, err := ask(t, c, http.MethodPost, path)
	require.NoError(t, err)
	c.Commits(For("orders", ScriptEach(Lost())))
	_, _, err = ask(t, c, http.MethodPost, path)
	require.Error(t, err)
	_, _, err = ask(t, c, http.MethodPost, path)
	require.NoError(t, err)
}

// echo answers what it gets.
func echo(t *testing.T) *Link {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return NewLink(t, "127.0.0.1:0", l.Addr().String())
}

func dial(t *testing.T, l *Link) net.Conn {
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

func TestALinkIsCutFrozenSlowedAndHealed(t *testing.T) {
	l := echo(t)
	c := dial(t, l)
	require.NoError(t, say(c, time.Second))
	l.Slow(50*time.Millisecond, 0)
	began := time.Now()
	require.NoError(t, say(c, time.Second))
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	l.Heal()

	l.Freeze()
	var timeout net.Error
	require.ErrorAs(t, say(c, 50*time.Millisecond), &timeout)
	require.True(t, timeout.Timeout(), "a frozen link says nothing")
	l.Heal()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
	_, err := io.ReadFull(c, make([]byte, 5))
	require.NoError(t, err, "the bytes were held, not lost")

	l.Cut()
	require.Error(t, say(c, time.Second))
	require.Error(t, say(dial(t, l), time.Second))
	l.Heal()
	require.NoError(t, say(dial(t, l), time.Second))
}
