package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// G7: what a table keeps for followers that resume are rows which no budget counts any more, so the tables of a buffer
// share it, and an event counts what it holds.
func TestTheFeedsOfAllTablesKeepTogetherWhatOneWould(t *testing.T) {
	h := &Host{opt: Options{MaxLag: 64 << 20}}
	h.used.Store(1)
	fill := func(f *feed, n int) {
		for range n {
			f.push(event.Event{Append: &event.Append{RowBatch: make([]byte, 1<<10)}})
		}
		f.trim(h.feedKeep())
	}
	f := newFeed()
	fill(f, 10_000)
	require.Greater(t, f.kept(), int64(10<<20), "one table alone keeps all of it")
	h.used.Store(100)
	fill(f, 1)
	require.LessOrEqual(t, f.kept(), int64(64<<20)/100)
	require.Greater(t, f.kept(), int64(64<<20)/200)
	h.used.Store(1_000_000)
	fill(f, 1)
	require.InDelta(t, leastKept, f.kept(), 2<<10)
}

func TestACommitOfManyPartitionsCountsThemInTheFeed(t *testing.T) {
	positions := ident.Positions{}
	for n := range int32(1000) {
		positions[ident.Partition{Pipeline: "p", Topic: "t", Number: n}] = ident.Position{Next: 1}
	}
	f := newFeed()
	for range 1000 {
		f.push(event.Event{Commit: &event.Commit{Positions: positions}})
	}
	f.push(event.Event{Epoch: &event.Epoch{Commit: event.Commit{Positions: positions}}})
	f.push(event.Event{Schema: &event.Schema{Columns: make([]byte, 1<<20)}})
	require.Greater(t, f.kept(), int64(100<<20))
	f.trim(4 << 20)
	kept := 0
	for n := f.oldest; n != nil; n = n.next {
		kept++
	}
	require.Less(t, kept, 30)
}
