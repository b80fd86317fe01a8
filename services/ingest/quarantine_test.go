package ingest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/wire"
)

// dial connects to an instance as the CLI and the committer do.
func (i *instance) dial(t testing.TB) grpc.ClientConnInterface {
	t.Helper()
	pool := rpc.NewPool(rpc.Options{Service: "test", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus})
	t.Cleanup(func() { _ = pool.Close() })
	conn, err := pool.Conn(i.s.Addr())
	require.NoError(t, err)
	return conn
}

func garbage(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = fmt.Appendf(nil, "garbage %d", i)
	}
	return out
}

// stopped waits until partition 0 stands still for a reason that holds all words.
func (w *world) stopped(words ...string) {
	w.t.Helper()
	w.await("stopped for "+strings.Join(words, ", "), func() bool {
		p := w.progress[0]
		for _, word := range words {
			if !strings.Contains(p.Reason, word) {
				return false
			}
		}
		return p.State == event.PartitionStopped
	})
}

// Issue 4 point 9: a partition that stopped for a bad record names it and goes on
// by itself when an operator switches; what was decided stays decided.
func TestAPolicyIsSwitchedWhilePartitionsRun(t *testing.T) {
	w := newWorld(t, ordersTopic+", on_invalid: stop", topic(1))
	w.produce(0, append(orders(1, 0, 2), []byte("garbage"))...)
	i := w.start()
	admin := adminv1.NewAdminServiceClient(i.dial(t))
	w.appended(0, 2)
	w.stopped("offset 2 of p/orders[0]", "icestream policy set p quarantine")
	got, err := admin.GetPolicy(t.Context(), &adminv1.GetPolicyRequest{})
	require.NoError(t, err)
	require.Len(t, got.GetPolicies(), 1)
	require.Equal(t, "stop", got.GetPolicies()[0].GetPolicy())
	require.Len(t, got.GetPolicies()[0].GetStopped(), 1)
	require.Contains(t, got.GetPolicies()[0].GetStopped()[0].GetReason(), "offset 2")

	set := func(policy string) *adminv1.PipelinePolicy {
		r, err := admin.SetPolicy(t.Context(), &adminv1.SetPolicyRequest{Pipeline: "p", Policy: policy})
		require.NoError(t, err)
		return r.GetPolicy()
	}
	set("quarantine")
	w.appended(0, 3)
	p := set("skip")
	require.Equal(t, "skip", p.GetPolicy())
	require.Equal(t, "stop", p.GetConfigured())
	require.Empty(t, p.GetStopped())
	w.produce(0, append(orders(1, 3, 1), []byte("more"))...)
	w.appended(0, 5)
	out := w.outcome(0)
	require.Contains(t, out[2], "bad ")
	require.Equal(t, "skip invalid", out[4])
	set("stop")
	w.produce(0, append(orders(1, 5, 1), []byte("last"))...)
	w.appended(0, 6)
	w.stopped("offset 6")
	w.mu.Lock()
	revisions := map[uint64]bool{}
	for _, e := range w.entries {
		revisions[e.Revision] = true
	}
	w.mu.Unlock()
	require.GreaterOrEqual(t, len(revisions), 3, "the log must not take one policy's entry for another's")

	_, err = admin.SetPolicy(t.Context(), &adminv1.SetPolicyRequest{Pipeline: "p", Policy: "ignore"})
	require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.InvalidArgument))
	_, err = admin.SetPolicy(t.Context(), &adminv1.SetPolicyRequest{Pipeline: "p1", Policy: "skip"})
	require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.NotFound))
	require.ErrorContains(t, err, `there is no pipeline "p1" here, there is p; did you mean p?`)
}

// Issue 4 point 9: too many bad records stop their partition, nothing past it is
// acknowledged, and an operator can let them go on.
func TestAFloodOfBadRecordsStopsThePartitionUntilItIsAllowed(t *testing.T) {
	w := newWorld(t, ordersTopic+", flood: {share: 50%, window: 20}", topic(1))
	w.produce(0, append(append(orders(1, 0, 15), garbage(40)...), orders(1, 55, 5)...)...)
	i := w.start()
	w.stopped("11 of the last 20 records could not be rows", "flood.share allows 50%", "icestream quarantine allow p")
	require.Contains(t, w.progress[0].Reason, "offset 25")
	w.appended(0, 25) // and no further
	admin := adminv1.NewAdminServiceClient(i.dial(t))
	r, err := admin.AllowFlood(t.Context(), &adminv1.AllowFloodRequest{Pipeline: "p"})
	require.NoError(t, err)
	require.Len(t, r.GetReleased(), 1)
	w.appended(0, 60)
	require.Equal(t, "o55", w.outcome(0)[55])
	require.Len(t, w.outcome(0), 60)
}

// The permission is for the flood that the operator saw.
func TestAllowingAFloodLeavesTheGuardOfAPartitionThatRunsArmed(t *testing.T) {
	w := newWorld(t, ordersTopic+", flood: {share: 50%, window: 20}", topic(1))
	w.produce(0, orders(1, 0, 25)...)
	i := w.start()
	w.appended(0, 25)
	r, err := adminv1.NewAdminServiceClient(i.dial(t)).AllowFlood(t.Context(), &adminv1.AllowFloodRequest{Pipeline: "p"})
	require.NoError(t, err)
	require.Empty(t, r.GetReleased())
	w.produce(0, append(garbage(40), orders(1, 65, 1)...)...)
	w.stopped("11 of the last 20 records could not be rows", "offset 35")
	w.appended(0, 35)
}

// A pipeline with the wrong format meets only bad records: it stops before the
// whole topic is in quarantine.
func TestATopicOfAnotherFormatDoesNotFloodTheQuarantine(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, garbage(500)...)
	w.start()
	w.stopped("none of the first 100 records could be a row", "are format, message and schema of the pipeline right?")
	w.appended(0, 99)
}

// A wrong message name on a table that has rows already is recognised by the
// subject of the topic: nothing goes to quarantine, also after a restart.
func TestAWrongMessageNameOnAnExistingTableMakesRecordsWait(t *testing.T) {
	w := newWorld(t, ordersTopic+", message: shop.Order", topic(1))
	w.produce(0, orders(1, 0, 3)...)
	i := w.start()
	w.appended(0, 3)
	i.stop(t)
	right := w.cfg
	w.cfg = w.config(ordersTopic + ", message: shop.Oder")
	w.produce(0, orders(1, 3, 3)...)
	i = w.start()
	w.stopped("the configuration of pipeline p does not fit topic orders", "subject orders-value", "shop.Oder", "shop.Order")
	w.appended(0, 3)
	i.stop(t)
	w.cfg = right
	w.start()
	w.appended(0, 6)
	require.Equal(t, "o5", w.outcome(0)[5])
}

// The other way round: a record whose schema lacks the message is a stray one
// when the topic's subject has it, even as the first that is met.
func TestAStrayRecordIsNotTakenForAWrongMessageName(t *testing.T) {
	w := newWorld(t, ordersTopic+", message: shop.Order", topic(1))
	w.mu.Lock()
	w.schemas[9] = `syntax = "proto3"; package other; message Thing { string id = 1; }`
	w.mu.Unlock()
	w.produce(0, append(orders(9, 0, 2), orders(1, 2, 2)...)...)
	w.start()
	w.appended(0, 4)
	out := w.outcome(0)
	require.Equal(t, "bad schema_invalid", out[0])
	require.Equal(t, "o3", out[3])
}

// What the committer asks for a replay: the same rows as ingest itself makes, per
// target, refusals with reasons, and nothing sent to the log.
func TestRawRecordsAreDecodedForAReplay(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	i := w.start()
	decode := ingestv1.NewDecodeServiceClient(i.dial(t))
	ask := func(dry bool, values ...[]byte) (*ingestv1.DecodeResponse, error) {
		req := &ingestv1.DecodeRequest{
			Pipeline: "p", Table: "shop.orders", DryRun: dry,
			Partition: wire.PartitionToProto(ident.Partition{Pipeline: "p", Topic: "orders"}),
		}
		for n, v := range values {
			req.Records = append(req.Records, &ingestv1.RawRecord{
				Offset: int64(10 * n), Timestamp: 1000, Key: []byte("k"), Value: v,
				Headers: []*ingestv1.RawHeader{{Key: "h", Value: []byte("v")}, {Key: "null"}},
			})
		}
		resp, err := decode.Decode(t.Context(), req)
		return resp, wire.FromStatus(err)
	}
	values := append(append(orders(1, 0, 2), []byte("garbage"), nil), append(orders(7, 4, 1), orders(2, 5, 2)...)...)
	dry, err := ask(true, values...)
	require.NoError(t, err)
	require.Len(t, dry.GetBatches(), 2)
	require.Empty(t, dry.GetBatches()[0].GetRows())
	require.Empty(t, w.table.Mapped(), "a dry run evolves nothing")

	got, err := ask(false, values...)
	require.NoError(t, err)
	require.Len(t, got.GetBatches(), 2, "two schemas")
	var rows []string
	for _, b := range got.GetBatches() {
		s := &schema.Schema{}
		require.NoError(t, json.Unmarshal(b.GetSchema().GetColumns(), s))
		rec, err := arrowx.Decode(arrowx.RowSchema(s), b.GetRows())
		require.NoError(t, err)
		require.Equal(t, b.GetCount(), rec.NumRows())
		id := rec.Column(rec.Schema().FieldIndices("id")[0])
		for n, o := range arrowx.Offsets(rec) {
			rows = append(rows, fmt.Sprint(o, " ", id.ValueStr(n)))
		}
	}
	require.Equal(t, []string{"0 o0", "10 o1", "50 o5", "60 o6"}, rows)
	var refused []string
	for _, r := range got.GetRefusals() {
		refused = append(refused, fmt.Sprint(r.GetOffset(), " ", r.GetReason()))
		require.NotEmpty(t, r.GetError())
	}
	require.Equal(t, []string{"20 frame_missing", "30 no_value", "40 schema_unknown"}, refused)
	require.Len(t, w.table.Mapped(), 3)
	w.mu.Lock()
	require.Empty(t, w.entries)
	w.refuse = true
	w.schemas[3] = fmt.Sprintf(registryProto, "string more = 4;")
	w.mu.Unlock()

	got, err = ask(false, orders(3, 0, 1)...)
	require.NoError(t, err)
	require.Equal(t, "schema_refused", got.GetRefusals()[0].GetReason())
	w.mu.Lock()
	w.registryErr = http.StatusServiceUnavailable
	w.mu.Unlock()
	_, err = ask(false, orders(8, 0, 1)...)
	require.ErrorIs(t, err, fault.Of(fault.Unavailable), "a registry that is away says nothing about the record")
	_, err = decode.Decode(t.Context(), &ingestv1.DecodeRequest{Pipeline: "gone", Table: "shop.orders"})
	require.ErrorIs(t, wire.FromStatus(err), fault.Of(fault.NotFound))
}

// A tombstone can be in quarantine for its key; where tombstones are rows it comes
// back as one.
func TestATombstoneIsDecodedForAReplayWhereTombstonesAreRows(t *testing.T) {
	w := newWorld(t, ordersTopic+", tombstones: row", topic(1))
	i := w.start()
	resp, err := ingestv1.NewDecodeServiceClient(i.dial(t)).Decode(t.Context(), &ingestv1.DecodeRequest{
		Pipeline: "p", Table: "shop.orders", Partition: wire.PartitionToProto(ident.Partition{Pipeline: "p", Topic: "orders"}),
		Records: []*ingestv1.RawRecord{{Offset: 3, Key: []byte("k")}, {Offset: 4, Value: orders(1, 4, 1)[0]}},
	})
	require.NoError(t, err)
	require.Empty(t, resp.GetRefusals())
	require.Len(t, resp.GetBatches(), 2, "the row without values is of another plan")
	require.EqualValues(t, 1, resp.GetBatches()[0].GetCount())
}
