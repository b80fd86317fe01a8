package ingest

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
)

// divergedAt makes the brokers say that every leader epoch they are asked about ended at offset.
func (w *world) divergedAt(offset int64) {
	w.kafka.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range r.(*kmsg.OffsetForLeaderEpochRequest).Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, offset
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

// failFetch answers the next fetches with an error of every partition, as often as said.
func (w *world) failFetch(code *kerr.Error, times int) {
	w.kafka.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		req, resp := r.(*kmsg.FetchRequest), r.ResponseKind().(*kmsg.FetchResponse)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case times == 0:
			return nil, nil, false
		case len(req.Topics) == 0: // an incremental request names nothing: have the session begun anew
			resp.ErrorCode = kerr.FetchSessionIDNotFound.Code
			return resp, nil, true
		}
		times--
		for _, t := range req.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

func containsAll(s string, words ...string) bool {
	for _, word := range words {
		if !strings.Contains(s, word) {
			return false
		}
	}
	return true
}

// beyondTheEnd makes a world whose table holds more than its Kafka log, without a leader epoch that could tell.
func beyondTheEnd(t *testing.T, pipeline string) *world {
	w := newWorld(t, pipeline, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	i.stop(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	for p, pos := range w.committed {
		pos.Next = 15
		w.committed[p], w.next[p] = pos, 15
	}
	return w
}

func TestPositionBeyondTheEndStopsThePartition(t *testing.T) { // K5: the log lost its tail
	w := beyondTheEnd(t, ordersTopic)
	i := w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Contains(t, w.progress[0].Reason, "ends at offset 10, but everything below 15 was read already")
	w.produce(0, orders(1, 10, 10)...) // the log has grown beyond the position: the loss is no smaller for that
	w.await("the end is seen", func() bool { return w.progress[0].StableEnd == 20 })
	i.s.pipelines[0].Pause(false) // try again at once
	w.await("still stopped", func() bool {
		return w.progress[0].State == event.PartitionStopped && w.progress[0].Reason != "" && w.at(0) == 15 &&
			containsAll(w.progress[0].Reason, "ended below offset 15", "has grown beyond it", "on_data_loss: continue")
	})
	require.Empty(t, w.recorded(), "nobody has accepted the loss")
}

func TestPositionBeyondTheEndWaitsForTheLogWhereThePipelineSaysSo(t *testing.T) { // K5
	w := beyondTheEnd(t, ordersTopic+", on_data_loss: continue")
	i := w.start()
	w.await("waits", func() bool {
		return w.progress[0].State == event.PartitionWaiting && containsAll(w.progress[0].Reason, "was truncated")
	})
	w.produce(0, orders(1, 10, 10)...)
	w.appended(0, 20)
	require.NotContains(t, w.outcome(0), int64(14))
	require.Equal(t, "o15", w.outcome(0)[15])
	require.Equal(t, []string{"p/orders[0] 10 to 15, read up to 15"}, w.recorded())
	n, _ := i.metrics.Value("icestream_ingest_data_loss_total", "p", "orders", "0")
	require.InDelta(t, 1, n, 0, "one loss, however often it was looked at")
}

// An end that was seen below the position does not say where the log was replaced: the leader epoch does when there is one.
func TestALogThatGrewAgainBeforeItsEndWasSeenIsRecordedFromWhereItWasReplaced(t *testing.T) { // K5, G1
	w := beyondTheEnd(t, ordersTopic+", on_data_loss: continue")
	w.mu.Lock()
	for p, pos := range w.committed {
		pos.LeaderEpoch = 0
		w.committed[p] = pos
	}
	w.entries = nil
	w.mu.Unlock()
	w.divergedAt(4)
	i := w.start()
	w.await("waits", func() bool {
		return w.progress[0].State == event.PartitionWaiting && containsAll(w.progress[0].Reason, "was truncated")
	})
	w.produce(0, orders(1, 10, 10)...)
	w.await("read on", func() bool { return w.at(0) == 20 })
	require.Contains(t, w.recorded(), "p/orders[0] 4 to 15, read up to 15")
	n, _ := i.metrics.Value("icestream_ingest_data_loss_total", "p", "orders", "0")
	require.InDelta(t, 1, n, 0, "one loss, however often it was looked at")
}

func TestTruncationIsFoundByTheLeaderEpoch(t *testing.T) { // K13
	for name, committed := range map[string]bool{"committed": true, "uncommitted, by the next owner": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ordersTopic, topic(1))
			w.produce(0, orders(1, 0, 10)...)
			i := w.start()
			w.appended(0, 10)
			if committed {
				w.commit()
			}
			i.stop(t)
			w.divergedAt(4)
			w.produce(0, orders(1, 10, 5)...)
			w.start()
			w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
			require.Contains(t, w.progress[0].Reason, "other records from offset 4 on than those that were read up to 10")
			w.mu.Lock()
			defer w.mu.Unlock()
			require.EqualValues(t, 10, w.at(0))
		})
	}
}

// The leader changes while the log is read, and the new one holds other records below the position (K5, K13).
func TestLogThatIsReplacedWhileItIsReadStopsThePartition(t *testing.T) {
	for policy, stops := range map[string]bool{"stop": true, "continue": false} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, ordersTopic+", on_data_loss: "+policy, topic(1))
			w.produce(0, orders(1, 0, 10)...)
			i := w.start()
			w.appended(0, 10)
			w.divergedAt(4)
			w.failFetch(kerr.FencedLeaderEpoch, 1)
			if stops {
				w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
				require.Contains(t, w.progress[0].Reason, "other records from offset 4 on")
				w.produce(0, orders(1, 10, 5)...)
				w.await("the end is seen", func() bool { return w.progress[0].StableEnd == 15 })
				i.s.pipelines[0].Pause(false) // the next look finds the same
				w.await("still stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
				w.mu.Lock()
				defer w.mu.Unlock()
				require.EqualValues(t, 10, w.at(0))
				require.Empty(t, w.replaced, "nobody has accepted the loss")
				return
			}
			w.produce(0, orders(1, 10, 5)...)
			w.appended(0, 15)
			require.Len(t, w.outcome(0), 15)
			require.Equal(t, []string{"p/orders[0] 4 to 10, read up to 10"}, w.recorded())
			n, _ := i.metrics.Value("icestream_ingest_data_loss_total", "p", "orders", "0")
			require.InDelta(t, 1, n, 0)
		})
	}
}

// Nothing is read of a log that was replaced before the table has recorded it, and a drain does not wait for that (K5, G1).
func TestWhatWasReplacedIsRecordedBeforeReadingGoesOn(t *testing.T) {
	w := newWorld(t, ordersTopic+", on_data_loss: continue", topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	w.replaceUnrecorded(4, "the catalog is away")
	waits := func() {
		t.Helper()
		w.await("waits for the record", func() bool {
			return w.progress[0].State == event.PartitionWaiting && containsAll(w.progress[0].Reason, "recording", "[4,10) of p/orders[0]", "the catalog is away")
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		require.EqualValues(t, 10, w.at(0))
	}
	waits()
	i.stop(t)
	w.commit()
	w.mu.Lock()
	w.progress = map[int32]event.Progress{}
	w.mu.Unlock()
	w.start() // who comes next finds the same
	waits()
	w.mu.Lock()
	w.recordErr = nil
	w.mu.Unlock()
	w.appended(0, 15)
	require.Equal(t, []string{"p/orders[0] 4 to 10, read up to 10"}, w.recorded())
}

// What the log has forgotten with its journal is read again as it is now: it was not replaced, and nothing waits until it
// is committed (G11).
func TestWhatIsReadAgainIsNotRecordedAsReplaced(t *testing.T) {
	w := newWorld(t, ordersTopic+", on_data_loss: continue", topic(1))
	w.produce(0, orders(1, 0, 6)...)
	w.start()
	w.appended(0, 6)
	w.commit()
	w.produce(0, orders(1, 6, 4)...)
	w.appended(0, 10)
	w.replaceUnrecorded(3, "it is at 6, the rest is not committed yet")
	w.await("waits for the record", func() bool { return containsAll(w.progress[0].Reason, "[3,10) of p/orders[0]") })
	w.restartLog()
	w.mu.Lock()
	w.outstanding, w.recordErr = nil, nil
	w.mu.Unlock()
	w.appended(0, 15)
	require.Equal(t, []string{"p/orders[0] 3 to 6, read up to 6"}, w.recorded())
}

// replaceUnrecorded replaces the log from an offset on and puts five more records behind ten, while the committer records
// nothing and says why.
func (w *world) replaceUnrecorded(from int64, why string) {
	w.mu.Lock()
	w.recordErr = fault.New(fault.Unavailable, "%s", why)
	w.mu.Unlock()
	w.divergedAt(from)
	w.failFetch(kerr.FencedLeaderEpoch, 1)
	w.produce(0, orders(1, 10, 5)...)
}

// recorded is what the table has recorded as replaced, each once however often it was found.
func (w *world) recorded() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Compact(slices.Clone(w.replaced))
}

// Leaders move without a loss, and a broker that lags behind says things that pass (G11).
func TestErrorsOfLeaderChangesPass(t *testing.T) {
	w := newWorld(t, ordersTopic, topic(1))
	w.start()
	at := 0
	for _, code := range []*kerr.Error{
		kerr.UnknownLeaderEpoch, kerr.FencedLeaderEpoch, kerr.NotLeaderForPartition, kerr.ReplicaNotAvailable, kerr.OffsetNotAvailable,
		kerr.UnknownTopicID, kerr.InconsistentTopicID, kerr.KafkaStorageError, kerr.OffsetOutOfRange, kerr.UnknownServerError,
	} {
		w.produce(0, orders(1, at, 5)...)
		at += 5
		w.appended(0, int64(at))
		w.failFetch(code, 2)
		w.produce(0, orders(1, at, 5)...)
		at += 5
		w.appended(0, int64(at))
	}
	require.Len(t, w.outcome(0), at)
}
