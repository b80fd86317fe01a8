package server

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// sent is a stream as its sender sees it.
type sent struct {
	c    *credit
	left int64
}

func (b *budget) join(window int64) *sent {
	s := &sent{}
	s.c, s.left = b.open(window, func() int64 { return math.MaxInt64 }, func(n int64) { s.left += n })
	return s
}

// G7: whatever senders do within their credit, and however commits come, used
// and granted bytes stay inside the budget, both sides agree about the credit,
// and nobody waits for ever.
func TestRandomTrafficNeverLeavesTheBudgetAndNeverStalls(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 9))
		b := newBudget(10 << 20)
		streams := []*sent{b.join(4 << 20)}
		held := int64(0)
		for range 1500 {
			switch r.IntN(20) {
			case 0:
				if len(streams) < 12 {
					streams = append(streams, b.join(4<<20))
				}
			case 1:
				if len(streams) > 1 {
					b.close(streams[0].c)
					streams = streams[1:]
				}
			case 2, 3, 4:
				freed := r.Int64N(held + 1)
				held -= freed
				b.change(-freed)
			default:
				s := streams[r.IntN(len(streams))]
				n := 1 + r.Int64N(1<<20)
				if s.left < n {
					continue
				}
				s.left -= n
				b.spend(s.c, n)
				require.NoError(t, b.admit(t.Context(), n), "within its credit nobody waits")
				held += n
			}
			used, granted := b.read()
			require.Equal(t, held, used, "seed %d", seed)
			sum := int64(0)
			for _, s := range streams {
				require.Equal(t, s.c.balance, s.left, "seed %d: both ends count alike", seed)
				sum += max(0, s.left)
			}
			require.Equal(t, sum, granted, "seed %d", seed)
			require.LessOrEqual(t, used+granted, b.limit, "seed %d", seed)
		}
		b.change(-held)
		for _, s := range streams {
			require.Positive(t, s.left, "seed %d: with everything committed every sender has credit", seed)
		}
	}
}

func TestAMessageWithoutCreditWaitsForRoomAndAHugeOnePassesAlone(t *testing.T) {
	b := newBudget(1000)
	s := b.join(250)
	require.NoError(t, b.admit(t.Context(), 900))
	b.spend(s.c, 5000)
	done := make(chan error, 1)
	go func() { done <- b.admit(t.Context(), 5000) }()
	b.change(-400)
	select {
	case err := <-done:
		t.Fatalf("there is no room yet: %v", err)
	default:
	}
	b.change(-500)
	require.NoError(t, <-done)
	b.change(-5000)
	require.Positive(t, s.c.balance, "its credit comes back")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.admit(t.Context(), 1000))
	require.ErrorIs(t, b.admit(ctx, 1), context.Canceled)
}

// G7: credit stays within what the table of a stream may still take, and comes back with it.
func TestCreditStaysWithinTheRoomOfItsTable(t *testing.T) {
	b, room := newBudget(100<<20), int64(10<<20)
	s := &sent{}
	s.c, s.left = b.open(8<<20, func() int64 { return room }, func(n int64) { s.left += n })
	take := func(n int64) {
		s.left -= n
		room -= n
		b.spend(s.c, n)
		require.NoError(t, b.admit(t.Context(), n))
	}
	require.EqualValues(t, 8<<20, s.left)
	take(6 << 20)
	require.EqualValues(t, 4<<20, s.left, "what the table may still take")
	take(4 << 20)
	require.Zero(t, s.left)
	other := b.join(8 << 20)
	require.EqualValues(t, 8<<20, other.left, "others have theirs")
	room = 20 << 20
	b.change(-10 << 20)
	require.EqualValues(t, 8<<20, s.left)
}

// A message may arrive when its stream has been closed: the credit it was sent on has been given back.
func TestCreditOfAClosedStreamIsGivenBackOnce(t *testing.T) {
	b := newBudget(100 << 20)
	s, other := b.join(8<<20), b.join(8<<20)
	b.close(s.c)
	b.spend(s.c, 5<<20)
	_, granted := b.read()
	require.Equal(t, other.left, granted)
}

func TestManyIdleStreamsLeaveRoomForRows(t *testing.T) {
	b := newBudget(64 << 20)
	var streams []*sent
	for range 200 {
		streams = append(streams, b.join(4<<20))
	}
	for range 200 { // streams spend what they got early and are refilled to their share
		for _, s := range streams {
			if n := s.left; n > 0 {
				s.left = 0
				b.spend(s.c, n)
				require.NoError(t, b.admit(t.Context(), n))
				b.change(-n)
			}
		}
	}
	_, granted := b.read()
	require.LessOrEqual(t, granted, b.limit/4)
}
