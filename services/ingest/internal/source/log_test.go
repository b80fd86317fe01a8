package source

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
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
