package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/batch"
)

// sampleTimeout bounds the reading of a sample.
const sampleTimeout = 30 * time.Second

// Sample is the newest records of a partition.
type Sample struct {
	TopicPartition

	// From and End are the offsets of the first record that was asked for and of
	// the end of what is committed in Kafka.
	From, End int64
	Records   []batch.Record
	// Whole is false when time was up before the end was reached.
	Whole bool
}

// ReadSamples reads the newest n offsets of every partition, read-committed and
// without control records, so there may be fewer records. It takes part in no
// group and changes nothing.
func ReadSamples(ctx context.Context, cfg Config, topics map[string]Topic, n int64) ([]Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	cfg.Refresh = defaultRefresh
	common, err := cfg.common()
	if err != nil {
		return nil, err
	}
	at := map[string]map[int32]kgo.Offset{}
	client, err := kgo.NewClient(append(common,
		kgo.RetryTimeout(adminTimeout/2), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...)
	if err != nil {
		return nil, fmt.Errorf("making the Kafka client: %w", err)
	}
	defer client.Close()
	samples, err := bounds(ctx, kadm.NewClient(client), topics, n)
	if err != nil {
		return nil, err
	}
	open := 0
	for tp, s := range samples {
		if s.Whole = s.From >= s.End; !s.Whole {
			open++
			if at[tp.Topic] == nil {
				at[tp.Topic] = map[int32]kgo.Offset{}
			}
			at[tp.Topic][tp.Number] = kgo.NewOffset().At(s.From)
		}
	}
	client.AddConsumePartitions(at)
	for open > 0 && ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			if ctx.Err() == nil {
				return nil, fmt.Errorf("reading %s: %w", ident.TopicPartition(e.Topic, e.Partition), e.Err)
			}
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			s := samples[TopicPartition{Topic: p.Topic, Number: p.Partition}]
			if s != nil && s.take(p.Records) {
				open--
			}
		})
	}
	out := make([]Sample, 0, len(samples))
	for _, s := range samples {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Sample) int {
		if a.Topic != b.Topic {
			return strings.Compare(a.Topic, b.Topic)
		}
		return int(a.Number) - int(b.Number)
	})
	return out, nil
}

// take adds records and reports whether the end was reached with them.
func (s *Sample) take(records []*kgo.Record) bool {
	if s.Whole {
		return false
	}
	for _, r := range records {
		if r.Offset < s.End && !r.Attrs.IsControl() {
			var rec batch.Record
			show(r, &rec)
			s.Records = append(s.Records, rec)
		}
		s.Whole = s.Whole || r.Offset >= s.End-1
	}
	return s.Whole
}

// bounds looks up where the samples begin and end.
func bounds(ctx context.Context, admin *kadm.Client, topics map[string]Topic, n int64) (map[TopicPartition]*Sample, error) {
	out := map[TopicPartition]*Sample{}
	if len(topics) == 0 {
		return out, nil // no names would mean all topics
	}
	names := make([]string, 0, len(topics))
	for name := range topics {
		names = append(names, name)
	}
	starts, err := admin.ListStartOffsets(ctx, names...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the first offsets: %w", err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("looking up the last offsets: %w", err)
	}
	ends.Each(func(e kadm.ListedOffset) {
		first, _ := starts.Lookup(e.Topic, e.Partition)
		tp := TopicPartition{Topic: e.Topic, Number: e.Partition}
		out[tp] = &Sample{TopicPartition: tp, From: max(first.Offset, e.Offset-n), End: e.Offset}
	})
	return out, nil
}
