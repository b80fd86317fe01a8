//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/boot"
)

// positions of one table, by partition.
type positions struct{ visible, committed map[int32]int64 }

// seen asks readstate, through a connection of its own, what readers see now.
func (s *suite) seen(table string) (positions, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer cancel()
	p := positions{map[int32]int64{}, map[int32]int64{}}
	conn, err := boot.Dial(fmt.Sprintf("127.0.0.1:%d", s.ports["readstated"]), 64<<20)
	if err != nil {
		return p, err
	}
	defer func() { _ = conn.Close() }()
	desc, err := readstatev1.NewReadStateServiceClient(conn).DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: table})
	if err != nil {
		return p, err
	}
	for _, d := range desc.GetPartitions() {
		p.visible[d.GetPartition().GetNumber()], p.committed[d.GetPartition().GetNumber()] = d.GetVisible(), d.GetCommitted()
	}
	return p, nil
}

// beyond reports whether every partition has gone beyond a position.
func beyond(have, than map[int32]int64) bool {
	for n, at := range than {
		if have[n] <= at {
			return false
		}
	}
	return true
}

// broker asks Kafka, past any link.
func (b *bed) broker(s *suite) *kadm.Client {
	s.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.kafka))
	require.NoError(s.t, err)
	s.t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// ends are the ends of a topic now.
func ends(s *suite, admin *kadm.Client, topic string) map[int32]int64 {
	s.t.Helper()
	list, err := admin.ListEndOffsets(s.t.Context(), topic)
	require.NoError(s.t, err)
	out := map[int32]int64{}
	list.Each(func(o kadm.ListedOffset) { out[o.Partition] = o.Offset })
	require.NotEmpty(s.t, out)
	return out
}

// recovery is how long rows produced after a fault took until they were hot, and until they were cold, in every
// partition.
type recovery struct{ hot, cold time.Duration }

// recovered waits until rows from beyond the given ends, which were those at began, are hot and then cold.
func (s *suite) recovered(table string, from map[int32]int64, began time.Time, within time.Duration) recovery {
	s.t.Helper()
	var r recovery
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		p, err := s.seen(table)
		if err == nil && r.hot == 0 && beyond(p.visible, from) {
			r.hot = time.Since(began)
		}
		if err == nil && beyond(p.committed, from) {
			r.cold = time.Since(began)
			if r.hot == 0 {
				r.hot = r.cold
			}
			return r
		}
		require.Less(s.t, time.Since(began), within, "not recovered: %v; want beyond %v, have %v", err, from, p)
		select {
		case <-tick.C:
		case <-s.t.Context().Done():
			require.NoError(s.t, s.t.Context().Err())
		}
	}
}

// figures collects recoveries by what was done.
type figures map[string][]recovery

func (f figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %4s  %17s  %17s\n", "", "n", "next hot row, s", "next commit, s")
	fmt.Fprintf(&b, "%-34s %4s  %8s %8s  %8s %8s\n", "", "", "median", "max", "median", "max")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		list := f[name]
		hot, cold := make([]time.Duration, len(list)), make([]time.Duration, len(list))
		for i, r := range list {
			hot[i], cold[i] = r.hot, r.cold
		}
		slices.Sort(hot)
		slices.Sort(cold)
		n := len(list)
		fmt.Fprintf(&b, "%-34s %4d  %8.2f %8.2f  %8.2f %8.2f\n", name, n,
			hot[n/2].Seconds(), hot[n-1].Seconds(), cold[n/2].Seconds(), cold[n-1].Seconds())
	}
	return b.String()
}
