package source

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What an audit is told of a log: records, tombstones and control records, nothing
// of an aborted transaction, and the offsets that can be read.
func TestTheLogIsReadAsAConsumerOfCommittedRecordsSeesIt(t *testing.T) {
	c := cluster(t, kfake.SeedTopics(1, "t"))
	tx := client(t, c, kgo.TransactionalID("x"))
	for i, how := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		require.NoError(t, tx.BeginTransaction())
		rec := &kgo.Record{Topic: "t", Value: []byte("v"), Timestamp: time.UnixMilli(int64(1000 + i))}
		if i == 2 {
			rec.Value = nil
		}
		require.NoError(t, tx.ProduceSync(t.Context(), rec).FirstErr())
		require.NoError(t, tx.EndTransaction(t.Context(), how))
	}
	l, err := OpenLog(config(c))
	require.NoError(t, err)
	t.Cleanup(l.Close)
	topic, err := l.Topic(t.Context(), "t")
	require.NoError(t, err)
	require.False(t, topic.ID.IsZero())
	require.NotEmpty(t, topic.Cluster)
	require.False(t, topic.Compacted)
	require.Equal(t, int64(0), topic.Limits[0].LogStart)
	end := topic.Limits[0].StableEnd
	require.Equal(t, int64(6), end)

	var seen []LogRecord
	read := func(first, next int64) error {
		seen = nil
		return l.Read(t.Context(), "t", 0, first, next, func(r LogRecord) error {
			seen = append(seen, r)
			return nil
		})
	}
	require.NoError(t, read(0, end))
	data := map[int64]bool{}
	for _, r := range seen {
		if !r.Control {
			data[r.Offset] = r.Tombstone
			require.Equal(t, 1000+r.Offset/2, r.Time.UnixMilli())
		}
	}
	require.Equal(t, map[int64]bool{0: false, 4: true}, data)
	require.Equal(t, end-1, seen[len(seen)-1].Offset)
	require.NoError(t, read(1, 3))
	require.NotEmpty(t, seen)
	require.Less(t, seen[len(seen)-1].Offset, int64(3))
	require.NoError(t, read(2, 2))
	require.Empty(t, seen)

	_, err = l.Topic(t.Context(), "other")
	require.ErrorIs(t, err, ErrGone)
	_, err = kadm.NewClient(client(t, c)).DeleteRecords(t.Context(), kadm.Offsets{"t": {0: {Topic: "t", At: 4}}})
	require.NoError(t, err)
	require.Error(t, read(0, end), "offsets below the log start are an error, not silence")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Read(ctx, "t", 0, 4, 6, func(LogRecord) error { return nil }), context.Canceled)
}

// Records at the end of a range that were compacted away: no record says so, but the
// leader does. Of a topic that is not compacted its silence says nothing.
func TestTheLogIsReadToTheEndWhereItsLastRecordsWereCompactedAway(t *testing.T) {
	for policy, compacted := range map[string]bool{"compact": true, "delete": false} {
		t.Run(policy, func(t *testing.T) {
			c := cluster(t)
			require.NoError(t, c.CreateTopic("t", 1, map[string]string{"cleanup.policy": policy}))
			producer := client(t, c)
			for range 2 {
				require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Key: []byte("k"), Value: []byte("v")}).FirstErr())
			}
			silentFrom(c, 2, 4)
			l, err := OpenLog(config(c))
			require.NoError(t, err)
			t.Cleanup(l.Close)
			l.quiet = 100 * time.Millisecond
			var seen []int64
			read := func(first, next int64) error {
				return l.Read(t.Context(), "t", 0, first, next, func(r LogRecord) error {
					seen = append(seen, r.Offset)
					return nil
				})
			}
			if compacted {
				require.NoError(t, read(0, 4))
				require.Equal(t, []int64{0, 1}, seen)
			}
			l.stalls = 200 * time.Millisecond
			require.ErrorContains(t, read(4, 6), "gave no record for 200ms", "beyond the end")
			if !compacted {
				require.ErrorContains(t, read(2, 4), "gave no record for 200ms")
			}
		})
	}
}

// silentFrom makes the brokers answer fetches from offset on without a batch.
func silentFrom(c *kfake.Cluster, offset, end int64) {
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		f, ok := req.(*kmsg.FetchRequest)
		if !ok || len(f.Topics) != 1 || len(f.Topics[0].Partitions) != 1 || f.Topics[0].Partitions[0].FetchOffset < offset {
			return nil, nil, false
		}
		resp := f.ResponseKind().(*kmsg.FetchResponse)
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic, topic.TopicID = f.Topics[0].Topic, f.Topics[0].TopicID
		part := kmsg.NewFetchResponseTopicPartition()
		part.HighWatermark, part.LastStableOffset = end, end
		topic.Partitions = append(topic.Partitions, part)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
}
