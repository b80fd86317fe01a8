package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/forward"
)

// anyID takes every schema id for text.
type anyID struct{ Text }

// committer agrees to everything, and counts.
type committer struct {
	grpc.ClientConnInterface

	mu   sync.Mutex
	asks int
	down error
}

func (c *committer) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asks++; c.down != nil {
		return c.down
	}
	wanted := &schema.Schema{}
	if err := json.Unmarshal(args.(*committerv1.ProposeSchemaRequest).GetCandidate(), wanted); err != nil {
		return err
	}
	columns, err := json.Marshal(schema.Reconcile(&schema.Schema{}, wanted, nil).Schema)
	reply.(*committerv1.ProposeSchemaResponse).Schema = &typesv1.TableSchema{Fingerprint: "f", Columns: columns}
	return err
}

func TestPlansOfATableAreBounded(t *testing.T) {
	c := &committer{}
	p := &Pipeline{budget: forward.NewBudget(1), c: Config{
		Codec: anyID{}, Log: slog.New(slog.DiscardHandler),
		Committer: func(context.Context, string) (grpc.ClientConnInterface, error) { return c, nil },
	}}
	tab := newTable(p, "events")
	plan := func(id int) *plan {
		pl, err := tab.planFor(t.Context(), refs{value: &frame.Frame{Form: frame.PrefixID, ID: int32(id)}})
		require.NoError(t, err)
		return pl
	}
	held, often := plan(0), plan(1)
	rows := held.rows()
	for id := 2; id < 2*maxPlans; id++ {
		plan(id)
		require.Same(t, often, plan(1), "what is in use stays")
	}
	require.Equal(t, maxPlans, tab.plans.Len())
	require.Equal(t, 2*maxPlans, c.asks, "each schema was agreed on once")
	require.Empty(t, tab.proposing)

	require.NoError(t, rows.Append([]byte("a")), "a session keeps the plan that it holds")
	held.put(rows)
	again := plan(0)
	require.NotSame(t, held, again)
	require.Equal(t, 2*maxPlans+1, c.asks)
	tab.forget(held)
	require.Same(t, again, plan(0), "only the plan itself is forgotten")
	tab.forget(again)
	require.NotSame(t, again, plan(0))
}

func TestSchemasThatNobodyAgreesOnLeaveNothingBehind(t *testing.T) {
	c := &committer{down: errors.New("the committer is away")}
	p := &Pipeline{budget: forward.NewBudget(1), c: Config{
		Codec: anyID{}, Committer: func(context.Context, string) (grpc.ClientConnInterface, error) { return c, nil },
	}}
	tab := newTable(p, "events")
	for id := range int32(10) {
		_, err := tab.planFor(t.Context(), refs{value: &frame.Frame{Form: frame.PrefixID, ID: id}})
		require.Error(t, err)
	}
	require.Empty(t, tab.proposing)
	require.Zero(t, tab.plans.Len())
}
