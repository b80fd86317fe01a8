package ingest

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// BenchmarkIngest is Kafka to acknowledged entries, the scripted world included, per record.
func BenchmarkIngest(b *testing.B) {
	w := newWorld(b, ordersTopic, topic(4))
	values := orders(1, 0, 1000)
	for n := range b.N {
		w.producer.Produce(b.Context(), &kgo.Record{Topic: "orders", Partition: int32(n & 3), Key: []byte("k"), Value: values[n%1000]}, nil)
	}
	if err := w.producer.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	w.start()
	for p := range int32(4) {
		w.appended(p, int64((b.N+3-int(p))/4))
	}
	w.mu.Lock()
	b.ReportMetric(float64(len(w.entries)), "entries")
	w.mu.Unlock()
}
