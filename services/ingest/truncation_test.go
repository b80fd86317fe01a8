package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/event"
)

func TestPositionBeyondTheEndStopsThePartition(t *testing.T) { // K5: the log lost its tail
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	i.stop(t)
	w.mu.Lock()
	for p, pos := range w.committed {
		pos.Next = 15
		w.committed[p], w.next[p] = pos, 15
	}
	w.mu.Unlock()
	w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Contains(t, w.progress[0].Reason, "ends at offset 10, but everything below 15 was read already")
	w.produce(0, orders(1, 10, 10)...)
	w.appended(0, 20) // the log has grown beyond the position
	require.NotContains(t, w.outcome(0), int64(14))
}

func TestTruncationIsFoundByTheLeaderEpoch(t *testing.T) { // K13
	w := newWorld(t, ordersTopic, topic(1))
	w.produce(0, orders(1, 0, 10)...)
	i := w.start()
	w.appended(0, 10)
	w.commit()
	i.stop(t)
	w.kafka.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range r.(*kmsg.OffsetForLeaderEpochRequest).Topics {
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, p.LeaderEpoch, 4
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	w.produce(0, orders(1, 10, 5)...)
	w.start()
	w.await("stopped", func() bool { return w.progress[0].State == event.PartitionStopped })
	require.Contains(t, w.progress[0].Reason, "truncated below the position")
}
