package commit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

func field(name string, number int32, k schema.Kind) *schema.Node {
	return &schema.Node{Name: name, Number: number, Type: schema.Of(k)}
}

func (r *rig) propose(source string, order int64, columns ...*schema.Node) (Proposed, error) {
	return r.table.Propose(r.t.Context(), Proposal{
		Pipeline: "p", Source: source, Order: order, Rename: order > 0, Candidate: &schema.Schema{Columns: columns},
	})
}

// accepted proposes a schema that must be accepted.
func (r *rig) accepted(source string, order int64, columns ...*schema.Node) *schema.Schema {
	r.t.Helper()
	p, err := r.propose(source, order, columns...)
	require.NoError(r.t, err)
	require.Empty(r.t, p.Refusals)
	s := &schema.Schema{}
	require.NoError(r.t, s.UnmarshalJSON(p.Schema.Columns))
	return s
}

// evolving runs a test on a table with the columns id long and units string.
func evolving(t *testing.T, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.pass(time.Second)
		r.open(0)
		r.accepted("schema id 1", 0, field("id", 1, schema.Long), field("units", 2, schema.String))
		test(t, r)
		require.NoError(t, r.stop())
	})
}

// G8, G10: a change that the catalog does not want is an answer to who proposed it;
// everybody else's rows go on.
func TestASchemaThatTheCatalogDeniesHoldsNobodyElseUp(t *testing.T) {
	for _, lostBefore := range []int{0, 1} {
		evolving(t, func(t *testing.T, r *rig) {
			lost := lostBefore
			r.lake.view(func() {
				r.lake.answer = func(kind string) mood {
					switch {
					case kind != lake.KindSchema:
						return fine
					case lost > 0: // whether it lands later is not known
						lost--
						return late
					default:
						return denies
					}
				}
			})
			_, err := r.propose("schema id 2", 0, field("id", 1, schema.Long), field("odd", 3, schema.Double))
			require.ErrorIs(t, err, fault.Of(fault.InvalidArgument))
			require.ErrorContains(t, err, "not supported here")
			r.lake.view(func() {
				for _, arrive := range r.lake.inflight {
					arrive()
				}
			})
			require.Nil(t, r.head().Schema.Column("odd"))
			r.log.grow(part(0), 10)
			_, err = r.table.CommitNow(t.Context())
			require.NoError(t, err)
			require.Equal(t, int64(10), r.head().State.Positions()[part(0)].Next)
			r.lake.view(func() { r.lake.answer = nil })
			r.accepted("schema id 2", 0, field("id", 1, schema.Long), field("odd", 3, schema.Double))
			r.check()
		})
	}
}

// An answer was lost, and somebody changes the schema without a snapshot: the head
// never moves by itself, and the catalog refuses the request for ever.
func TestALostAnswerIsSettledWhereOthersChangedTheSchemaWithoutASnapshot(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		first := true
		r.lake.view(func() {
			r.lake.answer = func(kind string) mood {
				if kind != lake.KindSchema || !first {
					return fine
				}
				first = false
				r.lake.schema, r.lake.schemaID = r.lake.schema.Clone(), r.lake.schemaID+1
				return neverArrived
			}
		})
		s := r.accepted("schema id 2", 0, field("id", 1, schema.Long), field("odd", 3, schema.Double))
		require.NotNil(t, s.Column("odd"))
		r.check()
	})
}

// G11: ingest makes rows without a value by the schema that it is answered. It is the target of no proposal, and the log
// knows it all the same; so when others added a column.
func TestTheSchemaThatAnOpeningAnswersIsPublished(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		r.lake.view(func() { // a table does not say what feeds its columns
			r.lake.schema = r.lake.schema.Clone()
			r.lake.schema.Column("units").Number = 0
		})
		r.pass(time.Minute)
		o, err := r.table.OpenPipeline(t.Context(), "me/cluster", "p", nil)
		require.NoError(t, err)
		require.Equal(t, o.Schema, r.buffer.schemas[len(r.buffer.schemas)-1])
		r.lake.view(func() {
			s := r.lake.schema.Clone()
			s.Columns = append(s.Columns, field("theirs", 0, schema.Long))
			s.AssignIDs()
			r.lake.schema, r.lake.schemaID = s, r.lake.schemaID+1
		})
		r.lake.foreign()
		r.pass(time.Minute)
		for range 2 {
			o, err := r.table.OpenPipeline(t.Context(), "me/cluster", "p", nil)
			require.NoError(t, err)
			require.Contains(t, string(o.Schema.Columns), "theirs")
			require.Equal(t, o.Schema, r.buffer.schemas[len(r.buffer.schemas)-1])
		}
		r.buffer.set(func() { r.buffer.fail = fault.New(fault.Unavailable, "no route") })
		_, err = r.table.OpenPipeline(t.Context(), "me/cluster", "p", nil)
		require.ErrorContains(t, err, "no route")
		r.buffer.set(func() { r.buffer.fail = nil })
	})
}

// G10: a refusal changes nothing, names both types, and waits for an answer; older writers go on.
func TestARefusedSchemaWaitsForADecision(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		at := r.head().SnapshotID
		refused, err := r.propose("schema id 2", 0, field("id", 1, schema.Long), field("units", 2, schema.Long))
		require.NoError(t, err)
		require.Len(t, refused.Refusals, 1)
		require.Equal(t, []string{"string", "long", "2"}, []string{refused.Refusals[0].TableType, refused.Refusals[0].CandidateType, refused.Refusals[0].Field})
		require.False(t, refused.Quarantine)
		require.Empty(t, refused.Schema.Fingerprint)
		require.Equal(t, at, r.head().SnapshotID)
		waiting, err := r.table.Waiting(t.Context())
		require.NoError(t, err)
		require.Len(t, waiting, 1)
		require.Equal(t, "schema id 2", waiting[0].Source)
		r.accepted("schema id 1", 0, field("id", 1, schema.Long), field("units", 2, schema.String))
		require.Equal(t, at, r.head().SnapshotID)
	})
}

func TestAcceptedFieldsGetAColumnBeside(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		_, err := r.propose("schema id 2", 0, field("units", 2, schema.Long))
		require.NoError(t, err)
		d, err := r.table.Decide(t.Context(), Question{Action: schema.Accept})
		require.NoError(t, err)
		require.False(t, d.Already)
		require.Empty(t, d.Waiting)
		require.Len(t, d.Made, 1)
		require.Equal(t, "2", d.Made[0].Field)
		require.Nil(t, r.head().Schema.Column("units_2"), "the column comes with the proposal")
		s := r.accepted("schema id 2", 0, field("units", 2, schema.Long))
		require.Equal(t, int32(2), s.Column("units_2").Number)
		require.Zero(t, s.Column("units").Number)
		old := r.accepted("schema id 1", 0, field("id", 1, schema.Long), field("units", 2, schema.String))
		require.Equal(t, int32(2), old.Column("units").Number)
		// Once more changes nothing, and what was decided and changed is remembered.
		at := r.head().SnapshotID
		again, err := r.table.Decide(t.Context(), Question{Action: schema.Accept, Column: "units"})
		require.NoError(t, err)
		require.True(t, again.Already)
		require.Equal(t, d.Made, again.Made)
		require.Equal(t, at, r.head().SnapshotID)
		log := r.head().Evolution.Log
		require.Len(t, log, 3)
		require.Equal(t, []string{"added id long", "added units string"}, log[0].Changes)
		require.Contains(t, log[1].Decision, "accept field 2")
		require.Equal(t, []string{"added units_2 long"}, log[2].Changes)
		require.Equal(t, "schema id 2", log[2].Source)
		require.Equal(t, r.head().SchemaID, log[2].SchemaID)
	})
}

func TestIgnoredFieldsAreLeftOutAndTheDecisionCanBeChanged(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		_, err := r.propose("schema id 2", 0, field("units", 2, schema.Long))
		require.NoError(t, err)
		_, err = r.table.Decide(t.Context(), Question{Action: schema.Ignore, Pipeline: "p", Column: "2"})
		require.NoError(t, err)
		s := r.accepted("schema id 2", 0, field("units", 2, schema.Long))
		require.Equal(t, []string{"2"}, s.Ignored)
		require.Nil(t, s.Column("units_2"))
		require.Empty(t, r.head().Schema.Ignored, "the table has no such thing")
		_, err = r.table.Decide(t.Context(), Question{Action: schema.Accept, Column: "units"})
		require.Equal(t, fault.NotFound, fault.ReasonOf(err), "nothing waits, and it was decided otherwise")
		require.ErrorContains(t, err, "nothing waits")
	})
}

func TestRecordsOfARefusedSchemaGoToQuarantineWhereAnOperatorSaysSo(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		for _, source := range []string{"schema id 2", "schema id 3"} {
			_, err := r.propose(source, 0, field("units", 2, schema.Long))
			require.NoError(t, err)
		}
		_, err := r.table.Decide(t.Context(), Question{Action: schema.Quarantine, Column: "units"})
		require.Equal(t, fault.InvalidArgument, fault.ReasonOf(err))
		d, err := r.table.Decide(t.Context(), Question{Action: schema.Quarantine, Source: "schema id 2"})
		require.NoError(t, err)
		require.Len(t, d.Waiting, 1, "the other one still waits")
		p, err := r.propose("schema id 2", 0, field("units", 2, schema.Long))
		require.NoError(t, err)
		require.True(t, p.Quarantine)
		p, err = r.propose("schema id 3", 0, field("units", 2, schema.Long))
		require.NoError(t, err)
		require.False(t, p.Quarantine)
		_, err = r.table.Decide(t.Context(), Question{Action: schema.Accept, Column: "nothing"})
		require.Equal(t, fault.NotFound, fault.ReasonOf(err))
		require.ErrorContains(t, err, "schema id 3")
	})
}

// Writers of different age cannot make a column's name flap.
func TestColumnsFollowTheNamesOfNewerSchemasOnly(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		id := r.head().Schema.Column("units").FieldID
		r.accepted("schema id 5", 5, field("amount", 2, schema.String))
		require.Equal(t, id, r.head().Schema.Column("amount").FieldID)
		at := r.head().SnapshotID
		r.accepted("schema id 4", 4, field("units", 2, schema.String))
		r.accepted("schema id 5", 5, field("amount", 2, schema.String))
		require.Equal(t, at, r.head().SnapshotID, "an older one changes nothing, and the same one neither")
		r.accepted("schema id 6", 6, field("total", 2, schema.String))
		require.Equal(t, id, r.head().Schema.Column("total").FieldID)
		r.accepted("schema id 7", 7, field("total", 2, schema.String))
		r.accepted("schema id 6", 6, field("total", 2, schema.String))
		r.accepted("a schema without an id", 0, field("other", 2, schema.String))
		require.NotNil(t, r.head().Schema.Column("total"))
		require.EqualValues(t, 7, r.head().Evolution.Newest["p"])
	})
}

// A crash of the answer: the decision landed, whoever asked did not hear it.
func TestADecisionWhoseAnswerWasLostIsFoundDone(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		_, err := r.propose("schema id 2", 0, field("units", 2, schema.Long))
		require.NoError(t, err)
		r.lake.view(func() {
			r.lake.answer = func(string) mood { r.lake.answer = nil; return appliedLost }
		})
		d, err := r.table.Decide(t.Context(), Question{Action: schema.Accept})
		require.NoError(t, err)
		require.Len(t, d.Made, 1)
		require.Len(t, r.head().Evolution.Decisions["p"], 1)
		require.Len(t, r.head().Evolution.Log, 2)
	})
}

func TestADryRunChangesNothing(t *testing.T) {
	evolving(t, func(t *testing.T, r *rig) {
		at, words := r.head().SnapshotID, len(r.buffer.lastWords)
		ask := func(columns ...*schema.Node) Proposed {
			p, err := r.table.Propose(t.Context(), Proposal{Pipeline: "p", Source: "x", DryRun: true, Candidate: &schema.Schema{Columns: columns}})
			require.NoError(t, err)
			return p
		}
		p := ask(field("units", 2, schema.String), field("more", 3, schema.Int))
		require.Len(t, p.Changes, 1)
		s := &schema.Schema{}
		require.NoError(t, s.UnmarshalJSON(p.Schema.Columns))
		require.NotNil(t, s.Column("more"))
		require.Len(t, ask(field("units", 2, schema.Long)).Refusals, 1)
		require.Equal(t, at, r.head().SnapshotID)
		require.Len(t, r.buffer.lastWords, words)
		waiting, err := r.table.Waiting(t.Context())
		require.NoError(t, err)
		require.Empty(t, waiting)
	})
}
