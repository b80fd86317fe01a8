package ingest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// Schemas of the registry beside those of the world: what 3 has, 4 has with other types.
const (
	wasProto = `syntax = "proto3";
package shop;
message Order { string id = 1; int64 units = 2; Detail detail = 4; oneof pick { int64 a = 5; string b = 6; } repeated Detail lines = 7; map<string, Detail> by = 8; }
message Detail { string x = 1; int64 y = 2; Inner in = 3; }
message Inner { int64 z = 1; string w = 2; }`
	isProto = `syntax = "proto3";
package shop;
message Order { string id = 1; string units = 2; Detail detail = 4; oneof pick { string a = 5; string b = 6; } repeated Detail lines = 7; map<string, Detail> by = 8; }
message Detail { string x = 1; bool y = 2; Inner in = 3; }
message Inner { string z = 1; string w = 2; }`
)

func text(number protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), v)
}

func num(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func join(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func frameOf(schemaID int, parts ...[]byte) []byte {
	return append(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(schemaID)), 0), join(parts...)...)
}

// was and is are one order in the old and in the new types.
func was(id string) []byte {
	detail := join(text(1, "x"), num(2, 1), text(3, string(join(num(1, 9), text(2, "w")))))
	return frameOf(3, text(1, id), num(2, 7), text(4, string(detail)), num(5, 5), text(7, string(detail)), text(7, string(detail)),
		text(8, string(join(text(1, "k"), text(2, string(detail))))))
}

func is(id string) []byte {
	detail := join(text(1, "x"), num(2, 1), text(3, string(join(text(1, "z"), text(2, "w")))))
	return frameOf(4, text(1, id), text(2, "seven"), text(4, string(detail)), text(6, "b"), text(5, "a"), text(7, string(detail)), text(7, string(detail)),
		text(8, string(join(text(1, "k"), text(2, string(detail))))))
}

// evolving is a world that holds old orders and in which partition 1 waits with new ones.
func evolving(t *testing.T, options ...string) (*world, *instance) {
	t.Helper()
	w := newWorld(t, strings.Join(append([]string{ordersTopic}, options...), ", "), topic(2))
	w.schemas[3], w.schemas[4] = wasProto, isProto
	w.produce(0, was("o0"), was("o1"))
	i := w.start()
	w.appended(0, 2)
	w.produce(1, was("p0"), is("p1"), was("p2"), is("p3"))
	w.await("stopped", func() bool { return w.progress[1].State == event.PartitionStopped })
	return w, i
}

// decide makes decisions about everything that is refused and lets the partition try again at once.
func (w *world) answer(i *instance, action schema.Action, fields ...string) {
	w.mu.Lock()
	for _, f := range fields {
		w.decisions, _ = schema.Decide(w.decisions, schema.Decision{Action: action, Field: f})
	}
	if len(fields) == 0 {
		w.decisions, _ = schema.Decide(w.decisions, schema.Decision{Action: action, Source: "schema id 4, message shop.Order"})
	}
	w.mu.Unlock()
	i.s.pipelines[0].Pause(false)
}

var refusedFields = []string{"2", "4.2", "4.3.1", "5", "7.element.2", "7.element.3.1", "8.value.2", "8.value.3.1"}

// rowsOf are the rows of a partition as JSON by offset.
func (w *world) rowsOf(partition int32) map[int64]string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[int64]string{}
	for _, e := range w.entries {
		if e.Partition.Number != partition || e.Rows == 0 {
			continue
		}
		rec, err := arrowx.Decode(arrowx.RowSchema(w.known[e.Fingerprint]), e.RowBatch)
		require.NoError(w.t, err)
		for i, o := range arrowx.Offsets(rec) {
			line := ""
			for c, f := range rec.Schema().Fields() {
				if f.Name == "offset" {
					break
				}
				line += fmt.Sprintf("%s=%s ", f.Name, rec.Column(c).ValueStr(i))
			}
			out[o] = line
		}
	}
	return out
}

// G10: only the partition waits, both types are named, nothing is acknowledged past the record, and the way out is told.
func TestARefusedSchemaNamesBothTypesAndTheWayOut(t *testing.T) {
	w, i := evolving(t)

	w.mu.Lock()
	reason := w.progress[1].Reason
	require.EqualValues(t, 1, w.at(1), "the record before is in, the refused one is not")
	w.mu.Unlock()
	for _, want := range []string{"shop.orders", "schema id 4, message shop.Order", "column units (field 2) is long in the table and string in the source", "`icestream schema accept shop.orders`", "and 5 more"} {
		require.Contains(t, reason, want)
	}
	require.False(t, i.health.Report("ingest").Ready)
	w.produce(0, was("o2"))
	w.appended(0, 3)
}

// S5: once accepted, old and new records of one partition land interleaved, each in the columns of its types.
func TestAcceptedFieldsLandBesideTheOldOnes(t *testing.T) {
	w, i := evolving(t)
	w.answer(i, schema.Accept, refusedFields...)
	w.appended(1, 4)
	w.ready(i)
	rows := w.rowsOf(1)
	require.Contains(t, rows[2], "id=p2 units=7 ")
	require.NotContains(t, rows[2], "units_2", "its schema was agreed on before")
	require.Contains(t, rows[3], "id=p3 units=(null) ")
	require.Contains(t, rows[3], "units_2=seven")
	require.Contains(t, rows[3], "b=(null)", "the last member of the oneof won")
	require.Contains(t, rows[3], "a_2=a")
	require.Contains(t, rows[3], `"y_2":true`)
	require.Contains(t, rows[3], `"z_2":"z"`)
	require.Contains(t, rows[2], `"y":1`)
}

func TestIgnoredFieldsAreLeftOutAtEveryDepth(t *testing.T) {
	w, i := evolving(t)
	w.answer(i, schema.Ignore, refusedFields...)
	w.appended(1, 4)
	rows := w.rowsOf(1)
	require.Equal(t, `id=p3 units=(null) detail={"in":{"w":"w","z":null},"x":"x","y":null} a=(null) b=(null) `+
		`lines=[{"in":{"w":"w","z":null},"x":"x","y":null},{"in":{"w":"w","z":null},"x":"x","y":null}] `+
		`by=[{"key":"k","value":{"in":{"w":"w","z":null},"x":"x","y":null}}] `, rows[3], "a was set last, so b is not")
	require.Contains(t, rows[2], `detail={"in":{"w":"w","z":9},"x":"x","y":1} a=5`)
	// A crashed log is filled again with the same (G5).
	w.restartLog()
	w.appended(1, 4)
	require.Equal(t, rows, w.rowsOf(1))
}

func TestRecordsOfARefusedSchemaGoToQuarantineWhereDecided(t *testing.T) {
	w, i := evolving(t, "on_invalid: stop", "flood: {share: 10%, window: 20}") // neither asks again
	w.answer(i, schema.Quarantine)
	w.appended(1, 4)
	require.Equal(t, map[int64]string{0: "p0", 1: "bad schema_refused", 2: "p2", 3: "bad schema_refused"}, w.outcome(1))
	w.ready(i)
	w.mu.Lock()
	before := w.proposed
	w.mu.Unlock()
	for n := range 50 {
		w.produce(1, is(fmt.Sprint(n)))
	}
	w.appended(1, 54)
	w.mu.Lock()
	require.Equal(t, before, w.proposed, "not every record asks the committer")
	w.mu.Unlock()
}

// A replay that follows a decision takes it in at once, and asks once about each schema, decided or not.
func TestAReplayAsksAnewAboutARefusedSchemaAndOnce(t *testing.T) {
	w, i := evolving(t)
	decode := ingestv1.NewDecodeServiceClient(i.dial(t))
	replay := func(dry bool) (refused, asked int) {
		w.mu.Lock()
		before := w.asked
		w.mu.Unlock()
		resp, err := decode.Decode(t.Context(), &ingestv1.DecodeRequest{
			Pipeline: "p", Table: "shop.orders", DryRun: dry, Partition: wire.PartitionToProto(ident.Partition{Pipeline: "p", Topic: "orders"}),
			Records: []*ingestv1.RawRecord{{Offset: 1, Value: is("p1")}, {Offset: 3, Value: is("p3")}, {Offset: 4, Value: is("p4")}},
		})
		require.NoError(t, err)
		for _, r := range resp.GetRefusals() {
			require.Equal(t, "schema_refused", r.GetReason())
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(resp.GetRefusals()), w.asked - before
	}
	check := func(dry bool, want int) {
		t.Helper()
		refused, asked := replay(dry)
		require.Equal(t, want, refused)
		require.Equal(t, 1, asked)
	}
	w.mu.Lock()
	w.decisions = []schema.Decision{{Action: schema.Quarantine, Source: "schema id 4, message shop.Order"}}
	w.mu.Unlock()
	i.s.pipelines[0].Pause(false)
	w.appended(1, 4) // the refusal is remembered
	check(true, 3)
	check(false, 3)
	w.mu.Lock()
	w.decisions = nil
	w.mu.Unlock()
	check(true, 3)
	check(false, 3)
	w.mu.Lock()
	for _, f := range refusedFields {
		w.decisions, _ = schema.Decide(w.decisions, schema.Decision{Action: schema.Ignore, Field: f})
	}
	w.mu.Unlock()
	check(true, 0)
	check(false, 0)
}

// A field that is renamed stays its column; with on_rename the proposal says so and brings the age of its schema.
func TestRenamedFieldsStayTheirColumns(t *testing.T) { // issue 4 point 7
	for _, c := range []struct{ option, want string }{{"", "units"}, {", on_rename: rename", "amount"}} {
		w := newWorld(t, ordersTopic+c.option, topic(1))
		w.schemas[5] = `syntax = "proto3"; package shop; message Order { string id = 1; int64 amount = 2; }`
		w.produce(0, orders(1, 0, 2)...)
		w.produce(0, framed(5, "o2", 2, ""), framed(1, "o3", 3, ""))
		w.start()
		w.appended(0, 4)
		rows := w.rowsOf(0)
		require.Contains(t, rows[2], c.want+"=2 ")
	}
}
