package ingest

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"google.golang.org/protobuf/encoding/protowire"

	adminv1 "github.com/icestream/icestream/gen/go/icestream/admin/v1"
	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	ingestv1 "github.com/icestream/icestream/gen/go/icestream/ingest/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/obs"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/wire"
)

const ordersTopic = "topics: [orders], commit: {interval: 1s}"

func topic(partitions int32) kfake.Opt { return kfake.SeedTopics(partitions, "orders") }

func (w *world) groupAt(partition int32) int64 {
	w.t.Helper()
	got, err := kadm.NewClient(w.producer).FetchOffsets(w.t.Context(), "icestream.p")
	if err != nil {
		return -1
	}
	o, ok := got.Lookup("orders", partition)
	if !ok {
		return -1
	}
	return o.At
}

func (w *world) ready(i *instance) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return i.health.Report("ingest").Ready }, 30*time.Second, 10*time.Millisecond)
}

func TestRecordsBecomeRowsAndBadOnesHarmNobody(t *testing.T) { // O1, K11, G1, G8
	w := newWorld(t, ordersTopic, topic(1))
	values := orders(1, 0, 1000)
	values[500] = framed(1, "cut", 7, "")[:8]            // ends inside a value
	values[501] = framed(99, "unknown", 1, "")           // no such schema
	values[502] = []byte("garbage")                      // no frame
	values[503] = nil                                    // tombstone
	values[504] = []byte{}                               // zero length
	values[505] = framed(1, "", 0, "")[:6]               // a framed message without fields: a row of defaults
	values[506] = append([]byte{0, 0, 0, 0, 1, 2, 8}, 0) // message [4], which the schema lacks
	w.produce(0, values...)
	i := w.start()
	w.appended(0, 1000)
	got := w.outcome(0)
	require.Len(t, got, 1000)
	require.Equal(t, "o0", got[0])
	require.Equal(t, "o999", got[999])
	require.Equal(t, "bad truncated", got[500])
	require.Equal(t, "bad schema_unknown", got[501])
	require.Equal(t, "bad frame_missing", got[502])
	require.Equal(t, "skip tombstone", got[503])
	require.Equal(t, "bad frame_short", got[504])
	require.Empty(t, got[505])
	require.Equal(t, "bad schema_invalid", got[506])
	w.ready(i)
	n, ok := i.metrics.Value("icestream_ingest_rows_total", "p", "orders", "0")
	require.True(t, ok)
	require.Equal(t, 994, int(n))
	n, _ = i.metrics.Value("icestream_ingest_quarantined_total", "p", "orders", "schema_unknown")
	require.Equal(t, 1, int(n))
}

func TestOffsetsAreCommittedAfterTheTableAndARestartAddsNothing(t *testing.T) { // K4, G2
	w := newWorld(t, ordersTopic, topic(2))
	w.produce(0, orders(1, 0, 50)...)
	w.produce(1, orders(1, 50, 20)...)
	i := w.start()
	w.appended(0, 50)
	w.appended(1, 20)
	require.LessOrEqual(t, w.groupAt(0), int64(0), "nothing is committed before the table holds it")
	w.commit()
	require.Eventually(t, func() bool { return w.groupAt(0) == 50 && w.groupAt(1) == 20 }, 20*time.Second, 10*time.Millisecond)
	i.stop(t)
	w.mu.Lock()
	before := len(w.entries)
	w.mu.Unlock()
	i = w.start()
	w.ready(i)
	w.produce(0, orders(1, 100, 1)...)
	w.appended(0, 51)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.entries, before+1)
}

func TestGroupPositionIsRepairedFromTheTable(t *testing.T) { // design section 3, crash after 5
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	i.stop(t)
	w.commit() // while ingest was away
	w.start()
	require.Eventually(t, func() bool { return w.groupAt(0) == 10 }, 20*time.Second, 10*time.Millisecond)
}

func TestCrashedLogIsRefilledWithTheSameEntries(t *testing.T) { // design section 2, Restart; G5
	w := newWorld(t, ordersTopic, topic(1))
	w.start()
	at := 0
	for n := range 8 { // several entries of several sizes
		values := orders(1+n%2, at, 3+n*7)
		values[1] = []byte("garbage")
		w.produce(0, values...)
		at += len(values)
		w.appended(0, int64(at))
		if n == 2 {
			w.commit()
		}
	}
	before := w.outcome(0)
	w.restartLog()
	w.produce(0, orders(1, at, 100)...)
	w.appended(0, int64(at+100))
	w.mu.Lock()
	require.Empty(t, w.outstanding)
	require.GreaterOrEqual(t, w.refilled, 5)
	w.mu.Unlock()
	after := w.outcome(0)
	for o, what := range before {
		require.Equal(t, what, after[o], "offset %d", o)
	}
}

func TestRefusedEntriesAreReadAgain(t *testing.T) { // G1, G11
	w := newWorld(t, ordersTopic, topic(1))
	w.start()
	at := 0
	for _, o := range []bufferv1.AppendOutcome{
		bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER, bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_SCHEMA,
		bufferv1.AppendOutcome_APPEND_OUTCOME_UNKNOWN_PARTITION, bufferv1.AppendOutcome_APPEND_OUTCOME_WAIT,
	} {
		w.mu.Lock()
		w.refuseNext = o
		w.mu.Unlock()
		w.produce(0, orders(1, at, 10)...)
		at += 10
		w.appended(0, int64(at))
	}
	require.Len(t, w.outcome(0), at)
}

func TestInterleavedWriterSchemasAllLand(t *testing.T) { // S5
	w := newWorld(t, ordersTopic, topic(1))
	var values [][]byte
	for n := range 200 {
		values = append(values, orders(1+n%2, n, 1)...)
	}
	w.produce(0, values...)
	w.start()
	w.appended(0, 200)
	got := w.outcome(0)
	for n := range int64(200) {
		require.Equal(t, fmt.Sprintf("o%d", n), got[n])
	}
}

func TestRegistryThatIsDownIsNoBadRecord(t *testing.T) { // G8, G11
	w := newWorld(t, ordersTopic, topic(1))
	w.registryErr = http.StatusServiceUnavailable
	w.produce(0, orders(1, 0, 5)...)
	i := w.start()
	w.await("waiting is told", func() bool { return w.progress[0].State == event.PartitionWaiting && w.requests > 1 })
	require.False(t, i.health.Report("ingest").Ready)
	w.mu.Lock()
	w.registryErr = 0
	w.mu.Unlock()
	w.appended(0, 5)
	require.Equal(t, "o4", w.outcome(0)[4])
	w.ready(i)
}

func TestRefusedSchemaStopsOnlyItsPartition(t *testing.T) { // G10
	w := newWorld(t, ordersTopic, topic(2))
	w.produce(0, orders(1, 0, 5)...)
	i := w.start()
	w.appended(0, 5)
	w.mu.Lock()
	w.refuse = true
	w.mu.Unlock()
	w.produce(1, orders(2, 0, 5)...)
	w.await("stopped", func() bool { return w.progress[1].State == event.PartitionStopped })
	require.Contains(t, w.progress[1].Reason, "text is never a number")
	w.produce(0, orders(1, 5, 5)...)
	w.appended(0, 10)
	w.mu.Lock()
	require.EqualValues(t, 0, w.at(1), "nothing is acknowledged")
	w.refuse = false
	w.mu.Unlock()
	conn, err := rpc.Dial(i.s.Addr(), rpc.Options{Codec: wire.Codec{}, FromStatus: wire.FromStatus})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	admin := adminv1.NewAdminServiceClient(conn)
	_, err = admin.SetPipelineState(t.Context(), &adminv1.SetPipelineStateRequest{Pipeline: "p", State: adminv1.PipelineState_PIPELINE_STATE_RUNNING})
	require.NoError(t, err)
	w.appended(1, 5)
	st, err := admin.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "ingest", st.GetService())
	require.Contains(t, st.GetFacts()["p/orders[0]"], "appended 10")
	_, err = admin.SetPipelineState(t.Context(), &adminv1.SetPipelineStateRequest{Pipeline: "x", State: adminv1.PipelineState_PIPELINE_STATE_PAUSED})
	require.ErrorContains(t, err, `no pipeline "x"`)
}

func TestPausedPipelineFetchesNothingUntilItIsResumed(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 5)...)
	i := w.start()
	w.appended(0, 5)
	i.s.pipelines[0].Pause(true)
	w.produce(0, orders(1, 5, 5)...)
	w.await("paused is told", func() bool { return w.progress[0].State == event.PartitionPaused && w.progress[0].StableEnd == 10 })
	w.mu.Lock()
	require.EqualValues(t, 5, w.at(0))
	w.mu.Unlock()
	i.s.pipelines[0].Pause(false)
	w.appended(0, 10)
}

func TestLostOffsetsStopThePartition(t *testing.T) { // K1
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	i.stop(t)
	w.produce(0, orders(1, 10, 40)...)
	w.deleteBelow(25)
	i = w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Contains(t, w.progress[0].Reason, "offsets 10 to 24 were not read")
	require.False(t, i.health.Report("ingest").Ready)
	w.mu.Lock()
	require.EqualValues(t, 10, w.at(0))
	w.mu.Unlock()
}

func (w *world) deleteBelow(offset int64) {
	w.t.Helper()
	var offs kadm.Offsets
	offs.AddOffset("orders", 0, offset, -1)
	_, err := kadm.NewClient(w.producer).DeleteRecords(w.t.Context(), offs)
	require.NoError(w.t, err)
}

func TestLostOffsetsAreRecordedWhereThePipelineSaysSo(t *testing.T) { // K1
	w := newWorld(t, ordersTopic+", on_data_loss: continue", topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	i.stop(t)
	w.produce(0, orders(1, 10, 40)...)
	w.deleteBelow(25)
	w.mu.Lock()
	w.refuseNext = bufferv1.AppendOutcome_APPEND_OUTCOME_OUT_OF_ORDER // what it refuses is not lost yet, and not counted
	w.mu.Unlock()
	i = w.start()
	w.appended(0, 50)
	got := w.outcome(0)
	require.Equal(t, "skip lost", got[10])
	require.Equal(t, "skip lost", got[24])
	require.Equal(t, "o25", got[25])
	w.awaitLost(i, 15)
}

func TestNewPartitionsBeginAtTheEarliestWhateverTheStart(t *testing.T) { // K7
	w := newWorld(t, ordersTopic+", start: latest", topic(1))
	w.produce(0, orders(1, 0, 10)...)
	w.start()
	w.await("opened", func() bool { return w.at(0) == 10 })
	_, err := kadm.NewClient(w.producer).CreatePartitions(t.Context(), 1, "orders")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.kafka.PartitionInfos("orders")) == 2 }, 10*time.Second, time.Millisecond)
	w.producer = w.dialProducer() // one that has never seen the topic with one partition
	w.produce(1, orders(1, 0, 100)...)
	w.appended(1, 100)
	require.Len(t, w.outcome(1), 100)
	require.Empty(t, w.outcome(0), "the first partition began at its end")
}

func TestRecordsUpToTheLimitAreRowsAndLargerOnesQuarantined(t *testing.T) { // issue 3 point 10
	w := newWorld(t, ordersTopic, topic(1))
	sized := func(n int) []byte { // a record of n bytes with its key
		v := framed(1, "", 1, "")[:6]
		pad := n - len("k") - 6 - 1 - protowire.SizeVarint(uint64(n))
		v = protowire.AppendTag(v, 1, protowire.BytesType)
		v = protowire.AppendBytes(v, bytes.Repeat([]byte("a"), pad))
		require.Len(t, v, n-1)
		return v
	}
	bad := func(n int) []byte {
		v := sized(n)
		v[len(v)-1] = 0xff // no UTF-8
		return v
	}
	const limit = 1 << 20
	w.produce(0, sized(limit-1))
	w.produce(0, sized(limit), sized(limit+1), bad(limit-1), bad(limit), bad(limit+1))
	w.produce(0, orders(1, 6, 1)...)
	w.start()
	w.appended(0, 7)
	got := w.outcome(0)
	require.Len(t, got[0], len(got[1])-1)
	require.Greater(t, len(got[1]), limit-100)
	require.Equal(t, "bad oversized", got[2])
	require.Equal(t, "bad invalid_utf8", got[3])
	require.Equal(t, "bad invalid_utf8", got[4])
	require.Equal(t, "bad oversized", got[5])
	require.Equal(t, "o6", got[6])
}

// wideProto is a message of which two bytes on the wire are an element with 40 columns.
func wideProto() string {
	fields := ""
	for n := range 40 {
		fields += fmt.Sprintf("int64 n%d = %d; ", n, n+1)
	}
	return `syntax = "proto3"; package shop; message Wide { string id = 1; repeated Item items = 2; } message Item { ` + fields + "}"
}

func wide(id string, items int) []byte {
	v := protowire.AppendTag(framed(9, "", 1, "")[:6], 1, protowire.BytesType)
	v = protowire.AppendString(v, id)
	return append(v, bytes.Repeat([]byte{0x12, 0}, items)...)
}

// A row may be many times larger than its record; a message of the world holds 5 MiB, less a little. What is too large
// goes to quarantine, what only is too large together is sent apart (G8).
func TestASmallRecordWhoseRowNoMessageCanCarryGoesToQuarantine(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.mu.Lock()
	w.schemas[9] = wideProto()
	w.mu.Unlock()
	const mib = 1 << 20 / (40 * 8) // elements in about 1 MiB
	w.produce(0, wide("a", 1), wide("b", 40*mib), wide("c", 3*mib), wide("d", 3*mib), wide("e", 5*mib), wide("f", 4*mib), wide("g", 1))
	i := w.start()
	w.appended(0, 7)
	require.Equal(t, map[int64]string{0: "a", 1: "bad oversized", 2: "c", 3: "d", 4: "bad oversized", 5: "f", 6: "g"}, w.outcome(0))
	w.mu.Lock()
	for _, e := range w.entries {
		require.LessOrEqual(t, e.Bytes(), int64(w.cfg.Limits.MaxMessage()))
	}
	w.mu.Unlock()

	resp, err := ingestv1.NewDecodeServiceClient(i.dial(t)).Decode(t.Context(), &ingestv1.DecodeRequest{
		Pipeline: "p", Table: "shop.orders", Partition: wire.PartitionToProto(ident.Partition{Pipeline: "p", Topic: "orders"}),
		Records: []*ingestv1.RawRecord{{Offset: 0, Value: wide("a", 1)}, {Offset: 1, Value: wide("b", 40*mib)}},
	})
	require.NoError(t, err)
	require.Len(t, resp.GetRefusals(), 1)
	require.Equal(t, "oversized", resp.GetRefusals()[0].GetReason())
}

func TestRowsThatNoMessageCanCarryCountForTheFloodGuard(t *testing.T) {
	w := newWorld(t, ordersTopic+", flood: {share: 50%, window: 10}", topic(1))
	w.mu.Lock()
	w.schemas[9] = wideProto()
	w.mu.Unlock()
	var values [][]byte
	for n := range 12 {
		values = append(values, wide("x", n/5*20_000))
	}
	w.produce(0, values...)
	w.start()
	w.stopped("6 of the last 10 records could not be rows, most often for oversized (6)")
	w.appended(0, 10)
}

func TestPoliciesForBadRecordsAndTombstones(t *testing.T) {
	t.Run("skip and row", func(t *testing.T) {
		w := newWorld(t, ordersTopic+", on_invalid: skip, tombstones: row", topic(1))
		w.produce(0, append([][]byte{nil, []byte("garbage")}, orders(1, 2, 2)...)...)
		w.start()
		w.appended(0, 4)
		require.Equal(t, map[int64]string{0: "null", 1: "skip invalid", 2: "o2", 3: "o3"}, w.outcome(0))
	})
	t.Run("stop", func(t *testing.T) {
		w := newWorld(t, ordersTopic+", on_invalid: stop", topic(1))
		w.produce(0, append(orders(1, 0, 2), []byte("garbage"))...)
		w.start()
		w.appended(0, 2)
		w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
		require.Contains(t, w.progress[0].Reason, "offset 2 of p/orders[0]")
	})
}

func TestRawFormatNeedsNoRegistry(t *testing.T) {
	w := newWorld(t, ordersTopic+", format: raw", topic(1))
	w.registryErr = http.StatusServiceUnavailable
	w.produce(0, []byte("a"), nil, []byte{})
	w.start()
	w.appended(0, 3)
	require.Equal(t, map[int64]string{0: "YQ==", 1: "skip tombstone", 2: ""}, w.outcome(0))
}

func TestScalingOutAndInReadsEveryRecordOnce(t *testing.T) { // K10, G1
	w := newWorld(t, ordersTopic, topic(4))
	a := w.start()
	at := int64(0)
	feed := func() {
		for p := range int32(4) {
			w.produce(p, orders(1, int(at), 100)...)
		}
		at += 100
	}
	feed()
	b := w.start()
	feed()
	c := w.start()
	feed()
	b.stop(t)
	feed()
	a.stop(t)
	feed()
	for p := range int32(4) {
		w.appended(p, at)
		require.Len(t, w.outcome(p), int(at))
	}
	w.ready(c)
}

func TestTopicThatIsNotThereYetIsNamedAndReadLater(t *testing.T) {
	w := newWorld(t, ordersTopic)
	i := w.start()
	require.Eventually(t, func() bool {
		for _, c := range i.health.Report("ingest").Components {
			if bytes.Contains([]byte(c.Reason), []byte(`"orders"`)) {
				return true
			}
		}
		return false
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, w.kafka.CreateTopic("orders", 1, nil))
	w.produce(0, orders(1, 0, 3)...)
	w.appended(0, 3)
}

func TestRecreatedTopicStopsThePartitionOrIsReadAnew(t *testing.T) { // G9
	for policy, stops := range map[string]bool{"stop": true, "continue": false} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", on_data_loss: "+policy, topic(1))
			w.produce(0, orders(1, 0, 3)...)
			w.start()
			w.appended(0, 3)
			w.recreateTopic()
			if stops {
				w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
				require.Contains(t, w.progress[0].Reason, "on_data_loss: continue")
				return
			}
			w.producer.PurgeTopicsFromClient("orders")
			w.produce(0, orders(1, 0, 2)...)
			w.await("the new topic is read", func() bool {
				for p, n := range w.next {
					if n == 2 && len(w.next) == 2 {
						return p.Topic == "orders"
					}
				}
				return false
			})
		})
	}
}

// G1, G9: the log knows the topic that was, and says so when it comes back; what stands at those offsets now is of
// another topic.
func TestATopicThatIsCreatedAgainWhileTheLogIsAwayIsNotTakenForTheOldOne(t *testing.T) {
	for policy, stops := range map[string]bool{"stop": true, "continue": false} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", on_data_loss: "+policy, topic(1))
			w.produce(0, orders(1, 0, 3)...)
			i := w.start()
			w.appended(0, 3)
			i.stop(t)
			old := w.next.Partitions()[0]
			w.away = true
			w.start()
			w.await("the partition waits for the log", func() bool { return w.knocks > 2 })
			w.recreateTopic()
			w.producer = w.dialProducer()
			w.produce(0, orders(1, 0, 6)...)
			w.mu.Lock()
			w.away = false
			w.mu.Unlock()
			if stops {
				w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
			} else {
				w.await("the new topic is read", func() bool {
					for p, n := range w.next {
						if p != old && n == 6 {
							return true
						}
					}
					return false
				})
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			require.EqualValues(t, 3, w.next[old])
		})
	}
}

// Nothing is lost with a topic of which the table never heard.
func TestATopicThatIsCreatedAgainBeforeItWasReadIsRead(t *testing.T) { // G9, G11
	w := newWorld(t, ordersTopic+", on_data_loss: stop", topic(1))
	w.openErr = fault.New(fault.Unavailable, "the committer is away")
	i := w.start()
	require.Eventually(t, func() bool {
		for _, c := range i.health.Report("ingest").Components {
			if strings.Contains(c.Reason, "is away") {
				return true
			}
		}
		return false
	}, 20*time.Second, 5*time.Millisecond)
	w.recreateTopic()
	w.producer = w.dialProducer()
	w.produce(0, orders(1, 0, 4)...)
	looked := 0
	w.kafka.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		w.mu.Lock()
		defer w.mu.Unlock()
		looked++
		return nil, nil, false
	})
	w.await("the new topic was looked up", func() bool { return looked > 30 })
	w.mu.Lock()
	w.openErr = nil
	w.mu.Unlock()
	w.appended(0, 4)
	w.produce(0, orders(1, 4, 4)...)
	w.appended(0, 8)
	w.ready(i)
}

func TestUnframedRecordsHaveTheConfiguredSchema(t *testing.T) { // F11
	for _, ref := range []string{"id: 1", "subject: orders-value"} {
		t.Run(ref, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", schema: {framing: none, "+ref+"}", topic(1))
			w.produce(0, framed(1, "bare", 3, "")[6:], []byte{}, []byte{0xff})
			w.start()
			w.appended(0, 3)
			require.Equal(t, map[int64]string{0: "bare", 1: "", 2: "bad truncated"}, w.outcome(0))
		})
	}
	t.Run("missing", func(t *testing.T) { // a wrong configuration is no bad record (G8)
		w := newWorld(t, ordersTopic+", schema: {framing: none, id: 77}", topic(1))
		w.produce(0, framed(1, "bare", 3, "")[6:])
		w.start()
		w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
		require.Contains(t, w.progress[0].Reason, "schema id 77")
		require.Empty(t, w.outcome(0))
	})
}

func TestAnotherCommitterIsAskedToOpenTheTable(t *testing.T) { // G11
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 2)...)
	w.start()
	w.appended(0, 2)
	w.mu.Lock()
	w.forgot = true
	w.mu.Unlock()
	w.produce(0, orders(2, 2, 2)...)
	w.appended(0, 4)
}

func TestTableThatIsRefusedStopsItsPartitionsUntilItIsGiven(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.openErr = fault.New(fault.Stopped, "table shop.orders belongs to another deployment")
	w.produce(0, orders(1, 0, 2)...)
	i := w.start()
	require.Eventually(t, func() bool {
		s := i.s.pipelines[0].Status()
		return len(s) == 1 && s[0].State == event.PartitionStopped && strings.Contains(s[0].Reason, "another deployment")
	}, 20*time.Second, 10*time.Millisecond)
	w.mu.Lock()
	w.openErr = nil
	w.mu.Unlock()
	i.s.pipelines[0].Pause(false) // an operator's "try again"
	w.appended(0, 2)
}

func TestMetricsAreDeclaredOnce(t *testing.T) { // O11
	require.NoError(t, obs.Check([]obs.Group{{Title: "ingest", Defs: Defs()}}))
}
