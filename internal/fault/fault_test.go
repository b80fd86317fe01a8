package fault_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	errorsv1 "github.com/icestream/icestream/gen/go/icestream/errors/v1"
	"github.com/icestream/icestream/internal/fault"
)

func TestAReasonIsFoundThroughWrapping(t *testing.T) {
	err := fmt.Errorf("outer: %w", fault.New(fault.Fenced, "writer epoch %d: %w", 3, io.ErrUnexpectedEOF))
	require.Equal(t, fault.Fenced, fault.ReasonOf(err))
	require.ErrorIs(t, err, fault.Of(fault.Fenced))
	require.NotErrorIs(t, err, fault.Of(fault.TooOld))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, fault.Internal, fault.ReasonOf(errors.New("x")))
	require.Equal(t, fault.Unspecified, fault.ReasonOf(nil))
	require.Equal(t, "outer: writer epoch 3: unexpected EOF [FENCED]", fault.Describe(err))
}

func TestFactsAreAddedToACopy(t *testing.T) {
	base := fault.New(fault.NotOwner, "not here")
	a := base.With("address", "a:1").After(time.Second)
	require.Nil(t, base.Meta)
	require.Zero(t, base.RetryAfter)
	require.Equal(t, "a:1", a.Meta["address"])
}

// The words here and on the wire are one list.
func TestReasonsAreThoseOfTheWire(t *testing.T) {
	require.Len(t, fault.Reasons(), len(errorsv1.Reason_name))
	for _, r := range fault.Reasons() {
		require.Equal(t, "REASON_"+r.String(), errorsv1.Reason(r).String())
	}
}

// A message that passed several hands says its reason once, and a place that says
// what kind of trouble it is needs none.
func TestAReasonIsSaidOnceHoweverOftenItWasWrapped(t *testing.T) {
	inner := fault.New(fault.Stopped, "somebody rolled it back")
	err := fmt.Errorf("running: %w", fault.New(fault.Stopped, "table a.b is stopped: %w", fault.New(fault.Stopped, "%w", inner)))
	require.Equal(t, "running: STOPPED: table a.b is stopped: somebody rolled it back", err.Error())
	require.Equal(t, "running: table a.b is stopped: somebody rolled it back", fault.Text(err))
	require.Equal(t, "running: table a.b is stopped: somebody rolled it back [STOPPED]", fault.Describe(err))
	require.ErrorIs(t, err, inner)

	other := fault.New(fault.Unavailable, "asking: %w", fault.New(fault.NotFound, "no such topic"))
	require.Equal(t, "UNAVAILABLE: asking: NOT_FOUND: no such topic", other.Error())
	require.Equal(t, "asking: no such topic", fault.Text(other))
	require.Equal(t, "a\nb", fault.Text(errors.Join(fault.New(fault.Corrupt, "a"), fault.New(fault.NotYet, "b"))))
}

func TestALongListIsCutAndCounted(t *testing.T) {
	require.Empty(t, fault.FirstOf(nil, 2))
	require.Equal(t, []string{"a", "b"}, fault.FirstOf([]string{"a", "b"}, 2))
	require.Equal(t, []string{"a", "b", "and 2 more"}, fault.FirstOf([]string{"a", "b", "c", "d"}, 2))
}
