package source

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestSizesOfRecordSlicesHoldTheirBatchAndLittleMore(t *testing.T) {
	last, lastSize := 4, 8
	for n := 1; n < 70_000; n++ {
		class, size := classOf(n)
		require.GreaterOrEqual(t, size, n)
		require.LessOrEqual(t, size, max(8, n+n/4), n)
		if size == lastSize {
			require.Equal(t, last, class, n)
		} else {
			require.Equal(t, last+1, class, n)
		}
		last, lastSize = class, size
		again, same := classOf(size)
		require.Equal(t, class, again, n)
		require.Equal(t, size, same, n)
	}
}

func TestRecordSlicesComeBackForBatchesOfTheirSize(t *testing.T) {
	var p recordPool
	first := p.GetRecords(1000)[:1000]
	p.PutRecords(first[:cap(first)])
	require.Same(t, &first[0], &p.GetRecords(950)[:1][0])
	require.NotSame(t, &first[0], &p.GetRecords(950)[:1][0], "handed out twice")
	p.PutRecords(first[:cap(first)])
	require.NotSame(t, &first[0], &p.GetRecords(10)[:1][0], "a large one for a small batch")
	require.GreaterOrEqual(t, cap(p.GetRecords(2000)), 2000)
}

func TestRecordSlicesThatAreKeptAreBounded(t *testing.T) {
	var p recordPool
	for range 4 * poolKeep / 512 {
		p.PutRecords(make([]kgo.Record, 512))
	}
	require.Equal(t, poolKeep, p.kept)
	p.PutRecords(make([]kgo.Record, 100_000)) // of nobody's size, and too large
	require.Equal(t, poolKeep, p.kept)
	for range poolKeep / 512 {
		p.GetRecords(512)
	}
	require.Zero(t, p.kept)
}
