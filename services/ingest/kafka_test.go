package ingest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/event"
)

// keyed sends values, each with a key and in a batch of its own; "" is a tombstone.
func (w *world) keyed(pairs ...string) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		r := &kgo.Record{Topic: "orders", Key: []byte(pairs[i])}
		if id := pairs[i+1]; id != "" {
			r.Value = framed(1, id, 1, "")
		}
		require.NoError(w.t, w.producer.ProduceSync(w.t.Context(), r).FirstErr())
	}
}

// left are the offsets that still have a record.
func (w *world) left() (offsets []int64) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.kafka.ListenAddrs()...), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(w.t, err)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(w.t.Context(), "orders")
	require.NoError(w.t, err)
	end, _ := ends.Lookup("orders", 0)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil && (len(offsets) == 0 || offsets[len(offsets)-1] < end.Offset-1) {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { offsets = append(offsets, r.Offset) })
	}
	return offsets
}

// Offsets that compaction removed are gaps and no loss; tombstones go by policy (K2, K11).
func TestCompactedTopicsHaveGapsAndNoLosses(t *testing.T) {
	w := newWorld(t, ordersTopic+", tombstones: row")
	require.NoError(t, w.kafka.CreateTopic("orders", 1, map[string]string{"cleanup.policy": "compact"}))
	w.keyed("u", "u0", "a", "a1", "a", "a2", "b", "b3", "a", "a4", "c", "c5", "d", "", "a", "a7")
	w.kafka.Compact()
	have := w.left()
	require.Equal(t, []int64{0, 3, 4, 5, 6, 7}, have, "what is in the last segment is not compacted")
	i := w.start()
	w.appended(0, 8)
	require.Equal(t, map[int64]string{
		0: "u0", 1: "skip absent", 2: "skip absent", 3: "b3", 4: "a4", 5: "c5", 6: "null", 7: "a7",
	}, w.outcome(0))
	w.ready(i)
	n, _ := i.metrics.Value("icestream_ingest_data_loss_total", "p", "orders", "0")
	require.Zero(t, n)
	w.commit()
	require.Eventually(t, func() bool { return w.groupAt(0) == 8 }, 20*time.Second, 10*time.Millisecond)
}

// hideFrom makes the brokers answer fetches from offset on as if compaction had left nothing there, up to end.
func (w *world) hideFrom(offset, end int64) (show func()) {
	hidden := true
	w.kafka.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		req, resp := r.(*kmsg.FetchRequest), r.ResponseKind().(*kmsg.FetchResponse)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case !hidden:
			return nil, nil, false
		case len(req.Topics) == 0: // an incremental request names nothing: have the session begun anew
			resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
			return resp, nil, true
		case req.Topics[0].Partitions[0].FetchOffset < offset:
			return nil, nil, false
		}
		if req.MaxWaitMillis == 0 { // no consumer asks so
			w.looks++
		}
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = end, end, 0
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	return func() { w.mu.Lock(); hidden = false; w.mu.Unlock() }
}

// Compaction took the last offsets of a log: they are passed when nothing has come for a while, so that the partition is
// caught up, retention does not seem to take them, and a log that crashed gets them back without a record (K2, K14, G5).
func TestOffsetsWithoutRecordsAtTheEndArePassed(t *testing.T) {
	w := newWorld(t, ordersTopic)
	require.NoError(t, w.kafka.CreateTopic("orders", 1, map[string]string{"cleanup.policy": "compact,delete"}))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	w.commit()
	show := w.hideFrom(10, 12)
	w.produce(0, orders(1, 10, 2)...)
	w.appended(0, 12)
	got := w.outcome(0)
	require.Equal(t, "skip absent", got[10])
	require.Equal(t, "skip absent", got[11])
	require.Eventually(t, func() bool {
		lag, _ := i.metrics.Value("icestream_ingest_lag_records", "p", "orders", "0")
		return lag == 0
	}, 20*time.Second, 10*time.Millisecond)
	w.restartLog()
	w.appended(0, 12)
	w.mu.Lock()
	require.Empty(t, w.outstanding)
	w.mu.Unlock()
	show()
	w.produce(0, orders(1, 12, 3)...)
	w.appended(0, 15)
	require.Equal(t, "o12", w.outcome(0)[12])
}

// G1: brokers that keep old segments in an object store answer without a batch while that is away. Nothing leaves a topic
// that is not compacted one by one, so its records are waited for.
func TestRecordsThatABrokerCannotGiveAtTheMomentAreNotTakenForAbsent(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	w.start()
	w.appended(0, 10)
	show := w.hideFrom(10, 12)
	w.produce(0, orders(1, 10, 2)...)
	w.await("the leader was asked", func() bool { return w.looks > 2 })
	show()
	w.appended(0, 12)
	require.Equal(t, "o11", w.outcome(0)[11])
}

// A partition without records, and one that nothing comes to for a while, are no faults: the pipeline is ready, their
// start is told to the group, and the first record is read at once (issue 5 point 5).
func TestEmptyAndIdlePartitionsAreReady(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(2))
	i := w.start()
	w.await("read", func() bool {
		return w.progress[0].State == event.PartitionRunning && w.progress[1].State == event.PartitionRunning
	})
	w.ready(i)
	require.Eventually(t, func() bool { return w.groupAt(0) == 0 && w.groupAt(1) == 0 }, 20*time.Second, 10*time.Millisecond)
	w.produce(1, orders(1, 0, 1)...)
	w.appended(1, 1)
	require.Equal(t, "o0", w.outcome(1)[0])
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Len(t, w.entries, 1, "nothing is sent for what has no records")
}

// Retention overtakes a reader that runs: it stops and says what is lost, or records it and goes on (K1, G1).
func TestRetentionThatOvertakesTheReader(t *testing.T) {
	for policy, stops := range map[string]bool{"stop": true, "continue": false} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", on_data_loss: "+policy, topic(1))
			w.produce(0, orders(1, 0, 10)...)
			i := w.start()
			w.appended(0, 10)
			overtake := func(at int64) {
				i.s.pipelines[0].Pause(true)
				w.produce(0, orders(1, int(at), 40)...)
				w.deleteBelow(at + 20)
				i.s.pipelines[0].Pause(false)
			}
			if stops {
				for at, stopped := int64(10), false; !stopped; at += 40 { // what a fetch that was under way brings is read all the same
					overtake(at)
					w.await("stopped, or had it already", func() bool {
						stopped = w.progress[0].State == event.PartitionStopped
						return stopped || w.at(0) == at+40
					})
				}
				require.Contains(t, w.progress[0].Reason, "were not read: they are lost")
				return
			}
			overtake(10)
			w.appended(0, 50)
			got := w.outcome(0)
			require.Len(t, got, 50)
			lost := 0
			for o := int64(10); o < 30; o++ { // what was fetched before it was held is read all the same
				if got[o] == "skip lost" {
					lost++
				} else {
					require.Equal(t, fmt.Sprintf("o%d", o), got[o])
				}
			}
			w.awaitLost(i, lost)
		})
	}
}
