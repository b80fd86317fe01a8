package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
)

// Log reads what a cluster holds, for whoever compares it with something else. It
// takes part in no group and changes nothing. It is for one goroutine.
type Log struct {
	cfg    Config
	common []kgo.Opt
	client *kgo.Client
	admin  *kadm.Client
	quiet  time.Duration
	stalls time.Duration
}

// A partition that gives nothing for logQuiet is asked whether more comes at all: the
// client passes offsets whose records were compacted away without a word. Where the
// answer is yes, its reading is given up after logStalls.
const (
	logQuiet  = 2 * time.Second
	logStalls = 30 * time.Second
)

// OpenLog connects with the credentials of cfg; its topics do not matter.
func OpenLog(cfg Config) (*Log, error) {
	cfg.Refresh = defaultRefresh
	common, err := cfg.common()
	if err != nil {
		return nil, err
	}
	common = append(common, kgo.RetryTimeout(adminTimeout/2))
	client, err := kgo.NewClient(common...)
	if err != nil {
		return nil, fmt.Errorf("making the Kafka client: %w", err)
	}
	return &Log{cfg: cfg, common: common, client: client, admin: kadm.NewClient(client), quiet: logQuiet, stalls: logStalls}, nil
}

// Close ends the connections.
func (l *Log) Close() { l.client.Close() }

// LogTopic is a topic with what can be read of it.
type LogTopic struct {
	Cluster string
	ID      ident.UUID // zero where the brokers have no topic ids
	// Compacted is also set where the topic's settings may not be seen.
	Compacted bool
	Limits    map[int32]Limits
}

// Topic looks a topic up. It wraps ErrGone when there is none.
func (l *Log) Topic(ctx context.Context, name string) (LogTopic, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	md, err := l.admin.Metadata(ctx, name)
	if err != nil {
		return LogTopic{}, fmt.Errorf("looking up topic %s: %w", name, err)
	}
	t, ok := md.Topics[name]
	switch {
	case !ok || errors.Is(t.Err, kerr.UnknownTopicOrPartition):
		return LogTopic{}, fmt.Errorf("looking up topic %s: %w", name, ErrGone)
	case t.Err != nil:
		return LogTopic{}, fmt.Errorf("looking up topic %s: %w", name, t.Err)
	}
	compacted, known := l.compacted(ctx, name)
	out := LogTopic{Cluster: md.Cluster, ID: ident.UUID(t.ID), Compacted: compacted || !known, Limits: map[int32]Limits{}}
	starts, err := l.admin.ListStartOffsets(ctx, name)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return LogTopic{}, fmt.Errorf("looking up the first offsets of topic %s: %w", name, err)
	}
	ends, err := l.admin.ListCommittedOffsets(ctx, name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return LogTopic{}, fmt.Errorf("looking up the last offsets of topic %s: %w", name, err)
	}
	ends.Each(func(e kadm.ListedOffset) {
		if first, ok := starts.Lookup(e.Topic, e.Partition); ok {
			out.Limits[e.Partition] = Limits{LogStart: first.Offset, StableEnd: e.Offset, LeaderEpoch: e.LeaderEpoch}
		}
	})
	return out, nil
}

// compacted reports whether records may leave the topic one by one, and whether that is known.
func (l *Log) compacted(ctx context.Context, name string) (compacted, known bool) {
	configs, err := l.admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return false, false
	}
	for _, rc := range configs {
		if rc.Err != nil {
			return false, false
		}
		for _, kv := range rc.Configs {
			if kv.Key == cleanupPolicy {
				return compacts(kv.MaybeValue()), true
			}
		}
	}
	return false, true // the default is to delete
}

// LogRecord is a record or a control record.
type LogRecord struct {
	Offset    int64
	Time      time.Time
	Control   bool
	Tombstone bool
}

// Read visits what a consumer that reads committed records gets of offsets
// [first,next) of a partition, in their order. It ends with the last of them, with a
// record behind them, or where the leader says that none comes before next, which
// should be at most the stable end.
func (l *Log) Read(ctx context.Context, topic string, partition int32, first, next int64, visit func(LogRecord) error) error {
	if first >= next {
		return nil
	}
	client, err := kgo.NewClient(append(slices.Clone(l.common),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxBytes(maxFetch), kgo.FetchMaxPartitionBytes(maxFetch), kgo.MaxConcurrentFetches(1),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(first)}}))...)
	if err != nil {
		return fmt.Errorf("making the Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	heard := time.Now()
	for at := first; at < next; {
		fetches, err := poll(ctx, client, l.quiet)
		if errors.Is(err, errQuiet) {
			vacant, verr := l.vacantTo(ctx, client, TopicPartition{topic, partition}, at)
			switch {
			case verr == nil && vacant > at:
				at, heard = vacant, time.Now()
				continue
			case ctx.Err() == nil && time.Since(heard) < l.stalls:
				continue
			}
			err = errors.Join(fmt.Errorf("the brokers gave no record for %v: offsets may have left the log meanwhile; try again", l.stalls), verr)
		}
		if err != nil {
			return fmt.Errorf("reading %s from offset %d: %w", ident.TopicPartition(topic, partition), at, err)
		}
		heard = time.Now()
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if at = r.Offset + 1; r.Offset >= next {
				break
			}
			if err := visit(LogRecord{Offset: r.Offset, Time: r.Timestamp, Control: r.Attrs.IsControl(), Tombstone: r.Value == nil}); err != nil {
				return err
			}
		}
	}
	return nil
}

// vacantTo is the offset up to which a partition holds no record, from offset on.
func (l *Log) vacantTo(ctx context.Context, client *kgo.Client, tp TopicPartition, offset int64) (int64, error) {
	md, err := l.admin.Metadata(ctx, tp.Topic)
	if err != nil {
		return offset, fmt.Errorf("looking up topic %s: %w", tp.Topic, err)
	}
	compacted, known := l.compacted(ctx, tp.Topic)
	return vacantTo(ctx, client, tp, md.Topics[tp.Topic].ID, compacted && known, offset)
}

// errQuiet says that no record came for a while.
var errQuiet = errors.New("no record came")

func poll(ctx context.Context, client *kgo.Client, quiet time.Duration) (kgo.Fetches, error) {
	wait, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	fetches := client.PollFetches(wait)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := fetches.Err0(); errors.Is(err, context.DeadlineExceeded) {
		return nil, errQuiet
	}
	for _, e := range fetches.Errors() {
		return nil, e.Err
	}
	return fetches, nil
}
