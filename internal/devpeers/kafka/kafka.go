// Package kafka is the Kafka of `icestream dev`: one in-process broker on loopback whose log lives in a folder and
// outlives the process.
//
// It speaks the real protocol on a real port, so any Kafka client can produce to it and consume from it. It is a
// development peer: one broker, no replication, and writes reach the disk with the operating system's page cache (a
// kill of the process loses nothing, a power loss may).
package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/devpeers"
)

// DefaultRetentionEvery is how often retention is applied when Config.RetentionEvery is 0.
const DefaultRetentionEvery = 5 * time.Second

// Config says where the broker keeps its log and where it listens.
type Config struct {
	// Dir is the folder of the log; it is created if it does not exist. One process at a time may use it.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one.
	Port int
	// MaxBytesPerPartition bounds the log of every partition whose topic sets no retention of its own, in bytes; 0
	// keeps everything. The oldest batches go first, so a consumer that is too slow finds its offset gone.
	MaxBytesPerPartition int64
	// RetentionEvery is the time between two applications of retention; 0 means DefaultRetentionEvery.
	RetentionEvery time.Duration
	// MaxMessageBytes is the largest accepted record batch; 0 means 40 MiB, which lets records of the product's own
	// limit (32 MiB) through.
	MaxMessageBytes int
	// AutoCreate is the number of partitions of topics that come into being when a producer asks for them, as on a
	// broker with its default settings; 0 lets none come.
	AutoCreate int
	// Logger gets one line at start and stop; nil discards.
	Logger *slog.Logger
}

// Broker is a running broker. Its methods are safe for concurrent use.
type Broker struct {
	cluster *kfake.Cluster
	lock    *dirLock
	addr    string
	id      string
	log     *slog.Logger
	stop    context.CancelFunc
	ticking sync.WaitGroup
	once    sync.Once
	closed  error
}

// Start locks the folder, loads its log and listens. A taken port is devpeers.ErrPortInUse. Starting reads the whole log once, so it takes longer the more
// the folder holds (about 0.5 s per GB).
func Start(cfg Config) (*Broker, error) {
	if cfg.Dir == "" {
		return nil, errors.New("starting the embedded Kafka: no folder was given for its log")
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded Kafka: %w", err)
	}
	id, err := clusterID(cfg.Dir)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	cluster, err := newCluster(cfg, id)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &Broker{
		cluster: cluster, lock: lock, id: id, log: log, stop: stop,
		addr: cluster.ListenAddrs()[0],
	}
	every := cfg.RetentionEvery
	if every <= 0 {
		every = DefaultRetentionEvery
	}
	b.ticking.Go(func() { b.applyRetention(ctx, every) })
	log.Info("embedded Kafka is listening", "address", b.addr, "folder", cfg.Dir, "cluster_id", id)
	return b, nil
}

func newCluster(cfg Config, id string) (*kfake.Cluster, error) {
	maxMessage := cfg.MaxMessageBytes
	if maxMessage <= 0 {
		maxMessage = 40 << 20
	}
	retention := int64(-1)
	if cfg.MaxBytesPerPartition > 0 {
		retention = cfg.MaxBytesPerPartition
	}
	options := []kfake.Opt{
		kfake.ClusterID(id),
		kfake.Ports(cfg.Port),
		kfake.DataDir(filepath.Join(cfg.Dir, "log")),
		kfake.ListenFn(func(_, _ string) (net.Listener, error) {
			return devpeers.Listen(cfg.Port)
		}),
		kfake.BrokerConfigs(map[string]string{
			"message.max.bytes": strconv.Itoa(maxMessage),
			// By age nothing goes: generated records may carry any timestamp.
			"log.retention.ms":    "-1",
			"log.retention.bytes": strconv.FormatInt(retention, 10),
		}),
	}
	if cfg.AutoCreate > 0 {
		options = append(options, kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(cfg.AutoCreate))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return nil, fmt.Errorf("starting the embedded Kafka on port %d with its log in %s: %w", cfg.Port, cfg.Dir, err)
	}
	return cluster, nil
}

// Addr is the bootstrap address, host:port.
func (b *Broker) Addr() string { return b.addr }

// ClusterID is the Kafka cluster id. It is drawn once per folder, so a folder that was cleared is another cluster.
func (b *Broker) ClusterID() string { return b.id }

// EnsureTopic creates the topic with this many partitions, unless it exists. An existing topic with another number of
// partitions is an error, because a ledger of the old ones would no longer fit.
func (b *Broker) EnsureTopic(topic string, partitions int) error {
	if info := b.cluster.TopicInfo(topic); info != nil {
		if got := len(b.cluster.PartitionInfos(topic)); got != partitions {
			return fmt.Errorf("creating topic %q: it exists with %d partitions, wanted are %d: use another folder or that number",
				topic, got, partitions)
		}
		return nil
	}
	err := b.cluster.CreateTopic(topic, int32(partitions), nil)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("creating topic %q with %d partitions: %w", topic, partitions, err)
	}
	return nil
}

// EndOffsets returns the next offset of every partition of the topic, indexed by partition; empty for an unknown topic.
func (b *Broker) EndOffsets(topic string) []int64 {
	infos := b.cluster.PartitionInfos(topic)
	ends := make([]int64, len(infos))
	for _, info := range infos {
		if info != nil && int(info.Partition) < len(ends) {
			ends[info.Partition] = info.HighWatermark
		}
	}
	return ends
}

// Topics returns the names of all topics, as a client sees them.
func (b *Broker) Topics(ctx context.Context) ([]string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addr))
	if err != nil {
		return nil, fmt.Errorf("making a client of the embedded Kafka: %w", err)
	}
	defer client.Close()
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client) // without topics: all
	if err != nil {
		return nil, fmt.Errorf("listing the topics of the embedded Kafka: %w", err)
	}
	names := make([]string, 0, len(answer.Topics))
	for _, t := range answer.Topics {
		if t.Topic != nil && !t.IsInternal {
			names = append(names, *t.Topic)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Cluster is the broker underneath, for tests that need its faults and controls.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

func (b *Broker) applyRetention(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.cluster.ApplyRetention()
		}
	}
}

// Close stops the broker, syncs its log and gives the folder free. Closing twice is allowed.
func (b *Broker) Close() error {
	b.once.Do(func() {
		b.stop()
		b.ticking.Wait()
		b.cluster.Close()
		b.closed = b.lock.release()
		b.log.Info("embedded Kafka has stopped", "address", b.addr)
	})
	return b.closed
}

// clusterID reads the folder's cluster id, or draws one and keeps it.
func clusterID(dir string) (string, error) {
	path := filepath.Join(dir, "cluster-id")
	data, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(data))) > 0 {
		return strings.TrimSpace(string(data)), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the cluster id: %w", err)
	}
	id := uuid.NewString()
	if err := os.WriteFile(path, []byte(id+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("keeping the cluster id: %w", err)
	}
	return id, nil
}
