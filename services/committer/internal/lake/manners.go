package lake

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/icestream/icestream/internal/fault"
)

// manners keeps what a REST catalog says beside its answers, which the errors of
// the library do not tell. It is safe for concurrent use.
type manners struct {
	until atomic.Int64 // Unix nanoseconds before which the catalog does not want to be asked
}

// maxPatience bounds how long a catalog may ask us to stay away.
const maxPatience = time.Minute

// over returns a transport that listens to the answers that next gets.
func (m *manners) over(next http.RoundTripper) http.RoundTripper { return listener{m, next} }

type listener struct {
	m    *manners
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err != nil {
		return res, err
	}
	if err := recognise(r, res); err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusUnprocessableEntity:
		// Understood and not done, as 400 is; the library gives it no type.
		res.StatusCode = http.StatusBadRequest
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if wait := retryAfter(res.Header.Get("Retry-After"), time.Now()); wait > 0 {
			l.m.until.Store(time.Now().Add(min(wait, maxPatience)).UnixNano())
		}
	}
	return res, nil
}

// retryAfter reads both forms of the header: seconds, and a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(v); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return at.Sub(now)
	}
	return 0
}

// hint adds the time for which the catalog asked us to stay away to an error that
// a later try may heal.
func (m *manners) hint(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Reason != fault.Unavailable {
		return err
	}
	if wait := time.Until(time.Unix(0, m.until.Load())); wait > 0 {
		return f.After(wait)
	}
	return err
}
