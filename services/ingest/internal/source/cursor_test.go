package source

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
)

// After it found that the log was replaced, the client goes on by itself where the new history begins. Nothing of that
// may follow the records before, however full the queue is (K5, K13, G1).
func TestNothingFollowsAnErrorBeforeTheNextSeek(t *testing.T) {
	c, err := New(config(cluster(t), "t"), probeGroup{})
	require.NoError(t, err)
	t.Cleanup(c.group.Close)
	t.Cleanup(c.fetch.Close)
	k := &Cursor{TopicPartition: TopicPartition{"t", 0}, c: c, ready: make(chan struct{}, 1), active: true}
	fetched := func(from, to int64, err error) *kgo.FetchPartition {
		p := &kgo.FetchPartition{Err: err}
		for o := from; o < to; o++ {
			p.Records = append(p.Records, &kgo.Record{Topic: "t", Offset: o, LeaderEpoch: 3})
		}
		return p
	}
	k.deliver(ident.UUID{}, fetched(0, 10, nil))
	k.deliver(ident.UUID{}, fetched(0, 0, &kgo.ErrDataLoss{Topic: "t", ConsumedTo: 10, ResetTo: 4}))
	k.deliver(ident.UUID{}, fetched(4, 20, nil))
	f, err := k.Take()
	require.NoError(t, err, "what was read before is taken first")
	require.Equal(t, 10, f.Len())
	f.Release()
	for range 2 {
		f, err = k.Take()
		require.Nil(t, f)
		require.ErrorIs(t, Classify(err), ErrTruncated)
		require.EqualValues(t, 4, DivergedAt(err))
	}
}
