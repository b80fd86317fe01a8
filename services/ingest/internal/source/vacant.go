package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	vacantBytes = 64 << 10 // of one look; a broker returns at least one batch, whatever its size
	vacantLooks = 64       // in a row: a log may be full of batches that compaction has emptied
)

var errAnswer = errors.New("the broker answered another question")

// Refresh is how often the limits of cursors are looked up.
func (c *Consumer) Refresh() time.Duration { return c.cfg.Refresh }

// VacantTo is the offset up to which Kafka holds no record that a reader may see, from offset on: what was there was
// compacted away. It is offset itself where a record comes next. The leader is asked by a request of its own, since the
// client passes such offsets without a word until a record follows.
func (k *Cursor) VacantTo(ctx context.Context, offset int64) (int64, error) {
	k.c.mu.Lock()
	known := k.c.topics[k.Topic]
	k.c.mu.Unlock()
	return vacantTo(ctx, k.c.fetch, k.TopicPartition, known.ID, known.Compacted, offset)
}

// vacantTo is VacantTo of any client. An answer without any batch says nothing of a topic that is not known to be
// compacted: brokers that keep old segments in an object store answer so when that is away or slow, and records would be
// taken for absent (G1).
func vacantTo(ctx context.Context, client *kgo.Client, tp TopicPartition, id [16]byte, compacted bool, offset int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	for range vacantLooks {
		p, err := look(ctx, client, tp, id, offset)
		if err != nil {
			return offset, fmt.Errorf("looking for the next record of %s: %w", tp, err)
		}
		if len(p.RecordBatches) == 0 { // nothing at all up to the end of what is stable
			if !compacted {
				return offset, nil
			}
			return max(offset, p.LastStableOffset), nil
		}
		got, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			KeepControlRecords: true, Offset: offset, IsolationLevel: kgo.ReadCommitted(), Topic: tp.Topic, Partition: tp.Number,
		}, p, kgo.DefaultDecompressor(), nil)
		switch {
		case got.Err != nil:
			return offset, fmt.Errorf("looking for the next record of %s: %w", tp, got.Err)
		case len(got.Records) > 0 || next <= offset:
			return offset, nil
		}
		offset = next
	}
	return offset, nil
}

// look fetches once from the leader, without waiting.
func look(ctx context.Context, client *kgo.Client, tp TopicPartition, id [16]byte, offset int64) (*kmsg.FetchResponseTopicPartition, error) {
	leader, _, err := client.PartitionLeader(tp.Topic, tp.Number)
	if err != nil || leader < 0 {
		return nil, fmt.Errorf("its leader is not known (%d): %w", leader, err)
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel = 0, 0, vacantBytes, 1
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = tp.Topic, id
	part := kmsg.NewFetchRequestTopicPartition()
	part.Partition, part.FetchOffset, part.PartitionMaxBytes = tp.Number, offset, vacantBytes
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	raw, err := client.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := raw.(*kmsg.FetchResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, errAnswer
	}
	p := &resp.Topics[0].Partitions[0]
	return p, kerr.ErrorForCode(p.ErrorCode)
}

// Held reports whether an operator has stopped fetching.
func (k *Cursor) Held() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hold
}
