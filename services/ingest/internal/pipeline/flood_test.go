package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/config"
)

// feed counts records from offset first on; '.' is a good one, any other letter
// is the reason of a bad one. It returns the first offset at which the partition
// must stop, -1 for none.
func feed(f *flood, first int64, records string) int64 {
	for i, c := range records {
		o := first + int64(i)
		if c == '.' {
			f.good(o)
		} else if f.hit(o, string(c)) != "" {
			return o
		}
	}
	return -1
}

func guard(share config.Percent, window int) *flood {
	return newFlood(config.Flood{Share: share, Window: window})
}

func TestAFloodStopsThePartitionAndNamesCountsAndTheCommonestReason(t *testing.T) {
	f := guard(50, 10)
	require.Equal(t, int64(-1), feed(f, 0, "..........y.y"), "never more than half of ten")
	require.Equal(t, int64(16), feed(f, 13, "xxxx"))
	require.Contains(t, f.tripped, "6 of the last 10 records could not be rows, most often for x (4); flood.share allows 50%")
	require.NotEmpty(t, f.hit(16, "x"), "read again: it still stands")
}

// A session may begin below the record that tripped the guard: a restart of the buffer loses what was not committed.
func TestAFloodStillStandsWhenRecordsBeforeItAreReadAgain(t *testing.T) {
	f := guard(50, 10)
	at := feed(f, 0, "..........xxxxxxx")
	require.Equal(t, int64(15), at)
	require.Equal(t, at, feed(f, 5, ".....xxxxxxx"), "what passed before passes again, and nothing more")
	f.good(at - 1) // one of them decodes now, which says nothing about the rest
	require.Equal(t, at, feed(f, at, "x"))
	f.good(at)
	require.Empty(t, f.tripped)
}

func TestAFloodNeedsAWholeWindow(t *testing.T) {
	f := guard(50, 10)
	require.Equal(t, int64(-1), feed(f, 0, ".xxxxxxxx"))
	require.Equal(t, int64(9), feed(f, 9, "x"))
}

// A pipeline whose format or message is wrong has no good record at all.
func TestAPartitionThatBeginsWithBadRecordsOnlyStopsEarly(t *testing.T) {
	f := guard(100, 1000)
	for o := range int64(coldStart - 1) {
		require.Empty(t, f.hit(o, "frame_magic"))
	}
	require.Contains(t, f.hit(coldStart-1, "frame_magic"), "none of the first 100 records could be a row, most often for frame_magic (100)")
	f = guard(100, 1000)
	f.good(0)
	for o := range int64(300) {
		require.Empty(t, f.hit(o+1, "x"))
	}
}

func TestAMendedCauseLetsThePartitionGoOn(t *testing.T) {
	f := guard(50, 10)
	at := feed(f, 0, "..........xxxxxxx")
	require.Equal(t, int64(15), at)
	f.good(at) // a schema was repaired: the same record decodes
	require.Empty(t, f.tripped)
	require.Equal(t, int64(-1), feed(f, at+1, ".x.x.x.."))
}

func TestAnAllowedFloodPassesUntilAWindowIsFineAgain(t *testing.T) {
	f := guard(50, 10)
	at := feed(f, 0, "..........xxxxxx")
	require.Equal(t, int64(15), at)
	f.allow()
	require.Empty(t, f.hit(at, "x"))
	require.Equal(t, int64(-1), feed(f, at+1, "xxxxxxxxxxxxxxxxxxxxxxxx"))
	require.True(t, f.allowed)
	require.Equal(t, int64(-1), feed(f, 100, ".........."))
	require.False(t, f.allowed, "armed again")
	require.Equal(t, int64(115), feed(f, 110, "xxxxxxx"))
}

func TestTheGuardCanBeOff(t *testing.T) {
	f := guard(0, 10)
	for o := range int64(5000) {
		require.Empty(t, f.hit(o, "x"))
	}
	require.Nil(t, f.ring)
}

// The counts of the window are those of a naive one, over random records, re-reads
// included.
func TestTheWindowCountsLikeANaiveOne(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	f := guard(100, 16)
	var list []uint8
	f.good(0)
	list = append(list, 0)
	for o := int64(1); o < 20000; o++ {
		what := rnd.IntN(4)
		if what == 0 {
			f.good(o)
		} else {
			f.hit(o, string(rune('a'+what)))
		}
		list = append(list, uint8(what))
		if rnd.IntN(5) == 0 {
			f.hit(max(0, o-3), "z") // read again
		}
		want := 0
		for _, w := range list[max(0, len(list)-16):] {
			if w > 0 {
				want++
			}
		}
		require.Equal(t, want, f.bad, "offset %d", o)
		if f.tripped != "" {
			f.tripped = ""
		}
	}
}
