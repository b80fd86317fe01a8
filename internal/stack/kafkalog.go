package stack

import (
	"context"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/committer"
	"github.com/icestream/icestream/services/ingest"
)

// KafkaLog is the log as the audit of the committer wants it, read by ingest,
// which alone knows Kafka. Close it in the end.
type KafkaLog struct{ *ingest.Log }

// OpenKafkaLog makes a client with the kafka section of the settings.
func OpenKafkaLog(settings *config.Config) (KafkaLog, error) {
	l, err := ingest.OpenLog(settings)
	return KafkaLog{l}, err
}

// Topic implements committer.KafkaLog.
func (l KafkaLog) Topic(ctx context.Context, name string) (committer.LogTopic, error) {
	t, err := l.Log.Topic(ctx, name)
	return committer.LogTopic(t), err
}

// Read implements committer.KafkaLog.
func (l KafkaLog) Read(ctx context.Context, topic string, partition int32, r ident.Range, visit func(committer.LogRecord) error) error {
	return l.Log.Read(ctx, topic, partition, r, func(rec ingest.LogRecord) error { return visit(committer.LogRecord(rec)) })
}
