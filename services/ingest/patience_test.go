package ingest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A far or slow broker that gives a backlog batch by batch does not keep its rows from being hot.
func TestSmallFetchesOfABacklogDoNotPutAnEntryOff(t *testing.T) {
	const batches, each = 40, 5
	w := newWorld(t, ordersTopic, topic(1))
	for n := range batches {
		w.produce(0, orders(1, n*each, each)...)
	}
	w.kafka.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		req := r.(*kmsg.FetchRequest)
		req.MaxBytes = 300
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				req.Topics[i].Partitions[j].PartitionMaxBytes = 300
			}
		}
		w.kafka.SleepControl(func() { <-time.After(35 * time.Millisecond) })
		return nil, nil, false
	})
	w.start()
	require.Eventually(t, func() bool { return w.at(0) == batches*each }, time.Minute, 10*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Greater(t, len(w.entries), 5, "1.4 s of fetches, 50 ms each entry at the most")
}
