package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/run"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/plan"
)

// live answers with a table of the columns given.
func live(numbers schema.NumberMap, decisions []schema.Decision, columns ...*schema.Node) func(context.Context, string, string) (PlanTable, error) {
	s := &schema.Schema{Columns: append(columns, schema.MetadataColumns(true, true)...)}
	s.AssignIDs()
	return func(context.Context, string, string) (PlanTable, error) {
		return PlanTable{Exists: true, Schema: s, Numbers: numbers, Decisions: decisions}, nil
	}
}

func column(name string, k schema.Kind) *schema.Node {
	return &schema.Node{Name: name, Type: schema.Of(k)}
}

func verdicts(r *PlanReport) []plan.Verdict {
	var out []plan.Verdict
	for _, s := range r.Steps {
		out = append(out, s.Verdict)
	}
	return out
}

func noTable(context.Context, string, string) (PlanTable, error) { return PlanTable{}, nil }

// Issue 4 point 8: all versions, each on top of the ones before, and the newest records of each partition.
func TestPlanSaysWhatSchemasAndRecordsWouldDo(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(2))
	w.schemas[3], w.schemas[4] = wasProto, isProto
	w.schemas[5] = "this is no schema"
	w.produce(0, append(orders(1, 0, 30), []byte("junk"), framed(99, "x", 1, ""), nil)...)
	w.produce(1, was("a"), is("b"), is("c"), framed(5, "x", 1, ""))
	r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: live(nil, nil, column("id", schema.String), column("units", schema.Int)), Sample: 10})
	require.NoError(t, err)
	require.Empty(t, r.Unknown)
	require.Equal(t, []plan.Verdict{plan.Changes, plan.Changes, plan.Changes, plan.Refused, plan.Unusable}, verdicts(r))
	first := r.Steps[0]
	require.Equal(t, []string{"widened units from int to long"}, first.Changes)
	require.Equal(t, "orders-value", first.Subject)
	require.Equal(t, 1, first.Version)
	require.Contains(t, r.Steps[1].Changes, "added note string")
	require.Equal(t, plan.Refusal{
		Column: "units", Field: "2", TableType: "long", SourceType: "string", Why: "text is never turned into another type, nor another type into text",
	}, r.Steps[3].Refusals[0])
	require.Contains(t, r.Steps[4].Error, "syntax error")
	require.True(t, r.Breaking())
	require.Equal(t, run.Violated, r.Code())

	require.Len(t, r.Samples, 2)
	s := r.Samples[0]
	require.Equal(t, []int64{23, 33, 10, 7, 1, 2, 0}, []int64{s.From, s.Next, s.Records, s.Rows, s.Tombstones, s.Quarantined(), s.Waiting})
	require.EqualValues(t, 30, s.Quarantine["frame_missing"].Offset+s.Quarantine["frame_bad_magic"].Offset+s.Quarantine["frame_short"].Offset)
	require.EqualValues(t, 31, s.Quarantine["schema_unknown"].Offset)
	s = r.Samples[1]
	require.Equal(t, []int64{0, 4, 4, 1, 1, 2}, []int64{s.From, s.Next, s.Records, s.Rows, s.Quarantined(), s.Waiting})
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"verdict":"refused"`)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Zero(t, w.proposed, "nothing is asked of the committer")
}

func TestPlanOfATableThatIsNotThereIsItsCreation(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Version: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"added id string", "added units long", "added note string"}, r.Steps[0].Changes)
	require.Equal(t, run.OK, r.Code())
}

// What CI of a schema repository asks: a file that is not registered, against the live table, without broker and
// registry.
func TestPlanOfAFileThatIsNotRegistered(t *testing.T) {
	w := newWorld(t, ordersTopic+", message: shop.Order", topic(1))
	w.registry.Close()
	w.kafka.Close()
	numbers := schema.NumberMap{"1": 1, "2": 2}
	table := live(numbers, nil, column("id", schema.String), column("units", schema.Long))
	ask := func(text string, imports map[string]string, decided ...schema.Decision) *PlanReport {
		o := PlanOptions{Table: table, File: "order.proto", Text: text, Imports: imports}
		if len(decided) > 0 {
			o.Table = live(numbers, decided, column("id", schema.String), column("units", schema.Long))
		}
		r, err := Plan(t.Context(), w.cfg, o)
		require.NoError(t, err)
		require.Len(t, r.Steps, 1)
		return r
	}
	r := ask(`syntax = "proto3"; package shop; import "a/b.proto"; message Order { string id = 1; int32 amount = 2; B b = 3; }`,
		map[string]string{"a/b.proto": `syntax = "proto3"; package shop; message B { string x = 1; }`})
	require.Equal(t, []string{"added b struct<x: string>"}, r.Steps[0].Changes)
	require.Equal(t, []string{"units from int to long"}, r.Steps[0].Casts, "renamed and narrower")
	require.Equal(t, run.OK, r.Code())
	r = ask(`syntax = "proto3"; package shop; message Order { string id = 1; string units = 2; }`, nil)
	require.Equal(t, []plan.Verdict{plan.Refused}, verdicts(r))
	require.Equal(t, run.Violated, r.Code())
	r = ask(`syntax = "proto3"; package shop; message Order { string id = 1; string units = 2; }`, nil, schema.Decision{Action: schema.Ignore, Field: "2"})
	require.Equal(t, []plan.Verdict{plan.Fits}, verdicts(r))
	require.Equal(t, []string{"2"}, r.Steps[0].Ignored)
	r = ask(`syntax = "proto3"; package shop; message Other { string id = 1; }`, nil)
	require.Equal(t, []plan.Verdict{plan.Unusable}, verdicts(r))
	require.Contains(t, r.Steps[0].Error, "no message shop.Order")
	r = ask(`syntax = "proto3"; package shop; import "missing.proto"; message Order { string id = 1; }`, nil)
	require.Equal(t, []plan.Verdict{plan.Unusable}, verdicts(r))
	require.Contains(t, r.Steps[0].Error, "missing.proto")
}

func TestPlanSaysWhatItCannotTell(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.registryErr = http.StatusServiceUnavailable
	r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: noTable})
	require.NoError(t, err)
	require.Equal(t, run.CannotTell, r.Code())
	require.Contains(t, r.Unknown[0], "503")
	w.registryErr = 0
	r, err = Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Subject: "orders-value", Version: 77})
	require.NoError(t, err)
	require.Equal(t, run.CannotTell, r.Code(), "there is no such version")
	r, err = Plan(t.Context(), w.cfg, PlanOptions{Table: func(context.Context, string, string) (PlanTable, error) {
		return PlanTable{}, errors.New("the catalog is away")
	}})
	require.NoError(t, err)
	require.Equal(t, run.CannotTell, r.Code())
	require.Contains(t, r.Unknown[0], "the catalog is away")
	_, err = Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Pipelines: []string{"x"}})
	require.Equal(t, fault.NotFound, fault.ReasonOf(err))
	w.kafka.Close()
	r, err = Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Version: 1, Sample: 5})
	require.NoError(t, err)
	require.Equal(t, run.CannotTell, r.Code())
	require.Equal(t, []plan.Verdict{plan.Changes}, verdicts(r), "the schemas are compared all the same")
}

// Key columns, other formats: what the pipeline proposes is what is planned.
func TestPlanKnowsKeysAndOtherFormats(t *testing.T) {
	w := newWorld(t, ordersTopic+", key: string", topic(1))
	w.produce(0, orders(1, 0, 3)...)
	r, err := Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Version: 1, Sample: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"added id string", "added units long", "added _key string"}, r.Steps[0].Changes)
	require.Len(t, r.Steps, 1, "the samples have the same schemas")
	require.EqualValues(t, 3, r.Samples[0].Rows)
	w.cfg = w.config(ordersTopic + ", key: string, unknown_fields: keep")
	r, err = Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Version: 1, Sample: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"added id string", "added units long", "added _raw binary", "added _key string"}, r.Steps[0].Changes)
	w = newWorld(t, "topics: [orders], format: raw", topic(1))
	w.produce(0, []byte("x"))
	r, err = Plan(t.Context(), w.cfg, PlanOptions{Table: noTable, Sample: 10})
	require.NoError(t, err)
	require.Equal(t, []string{"added value binary"}, r.Steps[0].Changes)
	require.EqualValues(t, 1, r.Samples[0].Rows)
}
