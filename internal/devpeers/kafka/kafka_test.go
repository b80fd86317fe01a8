package kafka

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/devpeers"
)

func start(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func produce(t *testing.T, addr, topic string, partition int32, values ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, err)
	defer client.Close()
	for _, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v)}
		require.NoError(t, client.ProduceSync(t.Context(), r).FirstErr())
	}
}

func TestRecordsTopicsAndClusterIDOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Config{Dir: dir})
	require.NoError(t, b.EnsureTopic("orders", 3))
	require.NoError(t, b.EnsureTopic("orders", 3), "creating it again is fine")
	require.ErrorContains(t, b.EnsureTopic("orders", 4), "exists with 3 partitions")
	produce(t, b.Addr(), "orders", 1, "a", "b")
	topicID, cluster := b.Cluster().TopicInfo("orders").TopicID, b.ClusterID()
	require.NoError(t, b.Close())

	b = start(t, Config{Dir: dir})
	require.Equal(t, []int64{0, 2, 0}, b.EndOffsets("orders"))
	require.Equal(t, topicID, b.Cluster().TopicInfo("orders").TopicID)
	require.Equal(t, cluster, b.ClusterID())

	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ConsumeTopics("orders"))
	require.NoError(t, err)
	defer client.Close()
	var got []string
	for len(got) < 2 {
		fetches := client.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	require.Equal(t, []string{"a", "b"}, got)
}

func TestSecondUserOfAFolderIsToldFolderAndProcess(t *testing.T) {
	dir := t.TempDir()
	b := start(t, Config{Dir: dir})
	_, err := Start(Config{Dir: dir})
	require.ErrorIs(t, err, ErrDirInUse)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, strconv.Itoa(os.Getpid()))

	require.NoError(t, b.Close())
	start(t, Config{Dir: dir})
}

func TestTakenPortIsNamed(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	dir := t.TempDir()
	_, err = Start(Config{Dir: dir, Port: port})
	require.ErrorIs(t, err, devpeers.ErrPortInUse)
	require.ErrorContains(t, err, fmt.Sprintf("127.0.0.1:%d", port))

	start(t, Config{Dir: dir}) // the failed start has given the folder free
}

func TestRetentionBoundsTheLogOfAPartition(t *testing.T) {
	b := start(t, Config{Dir: t.TempDir(), MaxBytesPerPartition: 1 << 10, RetentionEvery: time.Millisecond})
	require.NoError(t, b.EnsureTopic("orders", 1))
	value := string(make([]byte, 600))
	produce(t, b.Addr(), "orders", 0, value, value, value, value)
	require.Eventually(t, func() bool {
		return b.Cluster().PartitionInfo("orders", 0).LogStartOffset > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, []int64{4}, b.EndOffsets("orders"))
}

// Most producers ask for a topic that does not exist and expect to get it.
func TestATopicComesIntoBeingWithItsFirstProducerIfAllowed(t *testing.T) {
	for _, partitions := range []int{0, 3} {
		b := start(t, Config{Dir: t.TempDir(), AutoCreate: partitions})
		client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1))
		require.NoError(t, err)
		err = client.ProduceSync(t.Context(), &kgo.Record{Topic: "new", Value: []byte("x")}).FirstErr()
		client.Close()
		require.Equal(t, partitions > 0, err == nil, "%v", err)
		require.Len(t, b.EndOffsets("new"), partitions)
	}
}

func TestAllTopicsAreListed(t *testing.T) {
	b, err := Start(Config{Dir: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	topics, err := b.Topics(t.Context())
	require.NoError(t, err)
	require.Empty(t, topics)
	require.NoError(t, b.EnsureTopic("b", 2))
	require.NoError(t, b.EnsureTopic("a.x", 1))
	topics, err = b.Topics(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a.x", "b"}, topics)
}
