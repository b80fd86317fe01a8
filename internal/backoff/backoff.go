// Package backoff spaces out attempts: exponential waits with jitter, and a retry loop that ends with its context.
//
// It reads no clock but timers of package time, so it runs in virtual time under testing/synctest; the source of
// randomness can be injected.
package backoff

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Policy says how long to wait between attempts. The zero value means Default.
type Policy struct {
	// Initial is the wait after the first failure.
	Initial time.Duration
	// Max bounds every wait.
	Max time.Duration
	// Factor by which each wait grows; at least 1.
	Factor float64
	// Jitter in [0, 1]: the part of each wait that is random. With 0.5 a wait of 1 s lies between 0.5 s and 1 s, so
	// replicas that failed together do not come back together, and the bound still holds.
	Jitter float64
	// Rand returns numbers in [0, 1). Nil means the standard generator. It must be safe for concurrent use when the
	// policy is shared.
	Rand func() float64
}

// Default is what a peer that is down for minutes should see: 100 ms, doubling, at most 10 s, half of it random.
func Default() Policy {
	return Policy{Initial: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.5}
}

func (p Policy) normal() Policy {
	d := Default()
	if p.Initial <= 0 {
		p.Initial = d.Initial
	}
	if p.Max <= 0 {
		p.Max = max(d.Max, p.Initial)
	}
	if p.Factor < 1 {
		p.Factor = d.Factor
	}
	p.Jitter = min(max(p.Jitter, 0), 1)
	if p.Rand == nil {
		p.Rand = rand.Float64
	}
	return p
}

// Backoff is the state of one series of attempts. It is not safe for concurrent use.
type Backoff struct {
	policy Policy
	next   time.Duration
	count  int
}

// Start begins a series of attempts.
func (p Policy) Start() *Backoff {
	if p.Initial == 0 && p.Max == 0 && p.Factor == 0 && p.Jitter == 0 {
		r := p.Rand
		p = Default()
		p.Rand = r
	}
	b := &Backoff{policy: p.normal()}
	b.Reset()
	return b
}

// Next returns the wait before the next attempt and lengthens the one after it.
func (b *Backoff) Next() time.Duration {
	b.count++
	wait := b.next
	if grown := float64(b.next) * b.policy.Factor; grown < float64(b.policy.Max) {
		b.next = time.Duration(grown)
	} else {
		b.next = b.policy.Max
	}
	return wait - time.Duration(float64(wait)*b.policy.Jitter*b.policy.Rand())
}

// Count returns how many waits were handed out since the start or the last Reset.
func (b *Backoff) Count() int { return b.count }

// Reset starts over with the initial wait; call it after a success.
func (b *Backoff) Reset() {
	b.next = min(b.policy.Initial, b.policy.Max)
	b.count = 0
}

// Wait sleeps for Next, or for atLeast if that is longer (what a peer asked for, such as Retry-After). It returns
// the cause when the context ends first.
func (b *Backoff) Wait(ctx context.Context, atLeast time.Duration) error {
	return Sleep(ctx, max(b.Next(), atLeast))
}

// Sleep waits for d or the end of the context, whose cause it then returns.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Verdict on a failed attempt.
type Verdict struct {
	// Stop ends the retries: the error is returned as it is.
	Stop bool
	// After is the least wait before the next attempt; zero leaves it to the policy.
	After time.Duration
}

// Again is the verdict of an error that may heal by itself.
func Again() Verdict { return Verdict{} }

// AgainAfter is the verdict of an error whose peer asked for a pause.
func AgainAfter(d time.Duration) Verdict { return Verdict{After: d} }

// GiveUp is the verdict of an error that no retry heals.
func GiveUp() Verdict { return Verdict{Stop: true} }

// Retry calls fn until it succeeds, classify says GiveUp, or the context ends. classify sees every error, so it is
// also the place to count and log attempts; nil means that every error may heal. When the context ends the result
// wraps both its cause and the last error of fn, since the latter says what was waited for.
func Retry(ctx context.Context, p Policy, fn func(context.Context) error, classify func(error) Verdict) error {
	b := p.Start()
	for {
		err := fn(ctx)
		if err == nil {
			return nil
		}
		var v Verdict
		if classify != nil {
			v = classify(err)
		}
		if v.Stop {
			return err
		}
		if werr := b.Wait(ctx, v.After); werr != nil {
			if errors.Is(err, werr) {
				return err
			}
			return fmt.Errorf("giving up after %d attempts, %w; last error: %w", b.Count(), werr, err)
		}
	}
}
