package lake

import (
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/ident"
)

// BenchmarkParquetStage writes 8,192-row batches of the test table into files on
// disk, as they come, by day with a bucket, and sorted. The bytes are those of
// Arrow. The floor of the whole pipeline is the first.
func BenchmarkParquetStage(b *testing.B) {
	for _, c := range []struct {
		name string
		Settings
	}{
		{name: "plain"}, {name: "partitioned", Settings: Settings{Partition: "bucket(8, id)"}}, {name: "sorted", Settings: Settings{Sort: "amount"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			t := newBench(b, c.Settings)
			const rows = 8192
			batches := make([]arrow.RecordBatch, 4)
			var size int64
			for i := range batches {
				first := int64(i) * rows
				batches[i] = t.batch(part(0), ident.Range{First: first, Next: first + rows})
				size += batchBytes(batches[i])
			}
			w, err := t.NewWriter(b.Context(), t.Head().Schema, t.options())
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size / int64(len(batches)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if err := w.Write(batches[n%len(batches)]); err != nil {
					b.Fatal(err)
				}
				n++
			}
			files, err := w.Close(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			var written int64
			for _, f := range files {
				written += f.Bytes
			}
			b.ReportMetric(float64(written)/float64(n*rows), "file-B/row")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*rows), "ns/row")
		})
	}
}

// BenchmarkStateCodec encodes and decodes the state of many partitions: what each
// commit and each reload pays.
func BenchmarkStateCodec(b *testing.B) {
	for _, partitions := range []int32{12, 1000} {
		b.Run(fmt.Sprint(partitions), func(b *testing.B) {
			s := sampleState(partitions)
			for b.Loop() {
				keys, err := encodeState(s)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := decodeState(keys); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
