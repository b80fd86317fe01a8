package ingest

import (
	"context"
	"errors"
	"log/slog"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/source"
)

// Log reads what the Kafka cluster of the settings holds, so that a table can be
// compared with it. It takes part in no consumer group and changes nothing. It is
// for one goroutine.
type Log struct{ log *source.Log }

// LogTopic is a topic as its cluster describes it.
type LogTopic struct {
	Cluster string
	ID      ident.UUID // zero where the brokers have no topic ids
	// Compacted topics may lose records one by one. It is also set where the
	// topic's settings may not be seen.
	Compacted bool
	// Partitions are the offsets that can be read: from the log start to the end of
	// what is committed.
	Partitions map[int32]ident.Range
}

// LogRecord is a record or a control record.
type LogRecord struct {
	Offset    int64
	Millis    int64 // timestamp, milliseconds since 1970
	Control   bool
	Tombstone bool // no value
}

// OpenLog makes a client with the kafka section of the settings. Nothing is asked
// before the first call.
func OpenLog(settings *config.Config) (*Log, error) {
	c := Config{Settings: settings}
	if err := c.normal(); err != nil {
		return nil, err
	}
	cfg, err := c.sourceConfig(&config.Pipeline{}, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	l, err := source.OpenLog(cfg)
	if err != nil {
		return nil, err
	}
	return &Log{log: l}, nil
}

// Close ends the connections.
func (l *Log) Close() { l.log.Close() }

// Topic looks a topic up: NotFound when there is none, Unavailable when nobody
// answers.
func (l *Log) Topic(ctx context.Context, name string) (LogTopic, error) {
	t, err := l.log.Topic(ctx, name)
	if err != nil {
		return LogTopic{}, logFault(err)
	}
	out := LogTopic{Cluster: t.Cluster, ID: t.ID, Compacted: t.Compacted, Partitions: map[int32]ident.Range{}}
	for n, limits := range t.Limits {
		out.Partitions[n] = ident.Range{First: limits.LogStart, Next: limits.StableEnd}
	}
	return out, nil
}

// Read visits what a consumer that reads committed records gets of the offsets of
// r, in their order. All of them should be below the end of the partition.
func (l *Log) Read(ctx context.Context, topic string, partition int32, r ident.Range, visit func(LogRecord) error) error {
	var failed error
	err := l.log.Read(ctx, topic, partition, r.First, r.Next, func(rec source.LogRecord) error {
		failed = visit(LogRecord{Offset: rec.Offset, Millis: rec.Time.UnixMilli(), Control: rec.Control, Tombstone: rec.Tombstone})
		return failed
	})
	if failed != nil {
		return failed
	}
	return logFault(err)
}

func logFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, source.ErrGone):
		return fault.New(fault.NotFound, "%w", err)
	default:
		return fault.New(fault.Unavailable, "%w", err)
	}
}
