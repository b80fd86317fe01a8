package run

import "context"

// Turn is a lock for work that waits for others, such as a call to a peer: whoever waits for a turn can give up. Make
// it with NewTurn.
type Turn chan struct{}

// NewTurn returns a Turn that nobody has.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn, or returns why ctx ended.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TryTake takes the turn if nobody has it.
func (t Turn) TryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give ends the turn of the caller.
func (t Turn) Give() { <-t }
