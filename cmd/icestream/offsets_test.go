package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	committerv1 "github.com/icestream/icestream/gen/go/icestream/committer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/devpeers/kafka"
	"github.com/icestream/icestream/internal/run"
)

// ResetOffsets answers with one partition, and remarks what Kafka is said to hold.
func (o *operators) ResetOffsets(_ context.Context, r *committerv1.ResetOffsetsRequest) (*committerv1.ResetOffsetsResponse, error) {
	o.resets = append(o.resets, r)
	p := &committerv1.ResetPartition{Partition: &typesv1.Partition{Pipeline: "p", Topic: "orders", Number: 1}, Table: 5, Copy: 5, Next: 9, Lost: 4}
	for _, l := range r.GetLog() {
		if l.GetPartition().GetNumber() == 1 {
			p.Remark = fmt.Sprintf("Kafka has [%d,%d)", l.GetRange().GetFirst(), l.GetRange().GetNext())
		}
	}
	return &committerv1.ResetOffsetsResponse{Partitions: []*committerv1.ResetPartition{p}, SnapshotId: 7, LogEpoch: 2}, nil
}

// G1: an order is only given after a look at what Kafka holds; who cannot look must
// say so.
func TestAResetIsSentWithWhatKafkaHolds(t *testing.T) {
	broker, err := kafka.Start(kafka.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()
	require.NoError(t, broker.EnsureTopic("orders", 2))
	settings := func(bootstrap string) string {
		path := filepath.Join(t.TempDir(), "icestream.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "kafka: { bootstrap.servers: %q }\ncatalog: { uri: \"http://c:1\", warehouse: \"file:///w\" }\n"+
			"pipelines: [{ name: p, topics: [orders], table: a.b, format: json }]\n", bootstrap), 0o600))
		return path
	}
	o := &operators{policy: &policies{}}
	cli := o.cli(t)
	out, errs, code := cli("offsets", "reset", "a.b", "--partition", "1=9", "--yes", "-c", settings(broker.Addr()))
	require.Equal(t, run.OK, code, errs)
	require.Contains(t, out, "p/orders[1]: Kafka has [0,0)")
	require.Contains(t, out, "a.b was reset in snapshot 7")
	require.Len(t, o.resets, 2)
	require.True(t, o.resets[0].GetDryRun(), "the first question changes nothing")
	order := o.resets[1]
	require.False(t, order.GetDryRun())
	require.False(t, order.GetUnchecked())
	require.Len(t, order.GetLog(), 2)
	for _, l := range order.GetLog() {
		require.Equal(t, broker.ClusterID(), l.GetCluster())
		require.Len(t, l.GetPartition().GetTopicId(), 16)
	}

	// Without Kafka nothing is moved forward, unless that is what is asked for.
	away := settings(nowhere(t))
	o.resets = nil
	_, errs, code = cli("offsets", "reset", "a.b", "--partition", "1=9", "--yes", "-c", away)
	require.Equal(t, run.Dependency, code, errs)
	require.Contains(t, errs, "--unchecked")
	require.Len(t, o.resets, 1, "it was not sent")
	_, errs, code = cli("offsets", "reset", "a.b", "--to", "table", "--yes", "-c", away)
	require.Equal(t, run.OK, code, "what the table says needs no look: %s", errs)
	require.Contains(t, errs, "warning: what Kafka still has of it is not known")
	o.resets = nil
	_, errs, code = cli("offsets", "reset", "a.b", "--partition", "1=9", "--yes", "--unchecked", "-c", away)
	require.Equal(t, run.OK, code, errs)
	require.Len(t, o.resets, 1)
	require.True(t, o.resets[0].GetUnchecked())
}
