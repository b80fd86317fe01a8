package pipeline

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// Whoever watches readiness sees one reason that stays, not one of many by chance, and what else waits.
func TestTheReasonOfAPipelineIsTheSameEachTimeAndNamesWhatElseWaits(t *testing.T) {
	p := &Pipeline{workers: map[source.TopicPartition]*worker{}}
	for n := range int32(12) {
		p.workers[source.TopicPartition{Topic: "b", Number: n}] = &worker{state: event.PartitionStopped, reason: fmt.Sprintf("reason %d", n)}
	}
	p.workers[source.TopicPartition{Topic: "a", Number: 1}] = &worker{state: event.PartitionRunning}
	p.workers[source.TopicPartition{Topic: "a", Number: 2}] = &worker{state: event.PartitionWaiting, reason: "no schema"}
	for range 20 {
		ready, reason := p.health()
		require.False(t, ready)
		require.Equal(t, "a[2]: no schema; also waiting: b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7] and 4 more", reason)
	}
	p.refused = map[string]error{"y": errors.New("no"), "x": errors.New("two topics, one table")}
	p.tables = map[string]*table{"n.t": {down: errors.New("away")}, "n.u": {}}
	for range 20 {
		_, reason := p.health()
		require.Equal(t, "topic x is not read: two topics, one table; also waiting: topic y, table n.t, a[2], b[0], b[1], b[2], b[3], b[4] and 7 more", reason)
	}
	clear(p.workers)
	clear(p.tables)
	delete(p.refused, "y")
	_, reason := p.health()
	require.Equal(t, "topic x is not read: two topics, one table", reason)
	clear(p.refused)
	ready, reason := p.health()
	require.True(t, ready)
	require.Empty(t, reason)
	p.trouble = errors.New("no broker")
	_, reason = p.health()
	require.Equal(t, "no broker", reason)
}
