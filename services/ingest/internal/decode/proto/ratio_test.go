package proto

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// BenchmarkRatios measures, for each shape, the decoder, the walk, the decoder with
// one bad record in ten, and dynamicpb with Arrow's builders, in turns of a few
// milliseconds, and takes the best turn of each: that is the only figure which
// other work on the machine leaves alone. make bench prints and gates the ratios.
//
//	ns/record   the decoder
//	of-walk     time of the walk : time of the decoder
//	x-dynamicpb time of dynamicpb and builders : time of the decoder
//	x-bad       time per record with bad ones among them : without
//	x-schemas   time after 500 other schemas were used : before (of the first shape)
//	allocs      per record
func BenchmarkRatios(b *testing.B) {
	for i, s := range benchShapes(b) {
		b.Run(s.name, func(b *testing.B) {
			allocs := testing.AllocsPerRun(3, s.decoder(b, s.records)) / float64(len(s.records))
			s.records = s.records[:s.count(b)]
			decoder, walker, bad := s.decoder(b, s.records), s.walker(b), s.decoder(b, s.spoiled())
			best := turns(b, 200, decoder, walker, bad)
			rival := turns(b, 10, s.dynamicpb(b))[0]
			n := float64(len(s.records))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(best[0])/n, "ns/record")
			b.ReportMetric(float64(best[1])/float64(best[0]), "of-walk")
			b.ReportMetric(float64(rival)/float64(best[0]), "x-dynamicpb")
			b.ReportMetric(float64(best[2])/float64(best[0]), "x-bad")
			b.ReportMetric(allocs, "allocs")
			if i == 0 {
				others := manySchemas(b, 500)
				after := turns(b, 200, decoder, s.decoder(b, s.records))
				b.ReportMetric(float64(max(after[0], after[1]))/float64(best[0]), "x-schemas")
				runtime.KeepAlive(others)
			}
		})
	}
}

// turn is how long a turn of the decoder may take: less than a slice of the
// scheduler, so that some are not interrupted.
const turn = 2 * time.Millisecond

// count is how many records a turn has.
func (s benchShape) count(t testing.TB) int {
	decode := s.decoder(t, s.records)
	decode()
	start := time.Now()
	decode()
	took := time.Since(start)
	return min(len(s.records), max(256, int(int64(len(s.records))*int64(turn)/int64(took))))
}

// turns runs the contenders one after the other, many times, and gives the best
// time of each.
func turns(b *testing.B, rounds int, contenders ...func()) []time.Duration {
	b.Helper()
	best := make([]time.Duration, len(contenders))
	for round := range rounds {
		for i, run := range contenders {
			start := time.Now()
			run()
			if took := time.Since(start); round < 2 || took < best[i] {
				best[i] = took
			}
		}
	}
	return best
}

// decoder makes a function that decodes all the records into one batch.
func (s benchShape) decoder(t testing.TB, records [][]byte) func() {
	batch := planOf(t, s.md).NewBatch()
	return func() {
		for _, r := range records {
			_ = batch.Append(r)
		}
		for _, c := range batch.Finish() {
			c.Release()
		}
		batch.Reset()
	}
}

func (s benchShape) walker(t testing.TB) func() {
	fields := walkOf(s.md)
	return func() {
		for _, r := range s.records {
			if !walk(fields, r) {
				t.Fatal("malformed")
			}
		}
	}
}

// spoiled has one record in ten that is refused at its very end.
func (s benchShape) spoiled() [][]byte {
	out := slices.Clone(s.records)
	for i := 0; i < len(out); i += 10 {
		out[i] = append(slices.Clone(out[i]), 0x0a, 0x7f)
	}
	return out
}

func (s benchShape) dynamicpb(t testing.TB) func() {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, targetOf(t, s.md, Options{}).Arrow())
	return func() {
		for _, r := range s.records {
			m := dynamicpb.NewMessage(s.md)
			require.NoError(t, protobuf.Unmarshal(r, m))
			appendScalars(m, builder)
		}
		builder.NewRecordBatch().Release()
	}
}

// manySchemas decodes a record of each of many schemas and keeps their batches.
func manySchemas(t testing.TB, schemas int) []*Batch {
	maker := newSchemaMaker(t)
	var out []*Batch
	for i := range schemas {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		md := maker.next(t, r)
		batch := planOf(t, md).NewBatch()
		_ = batch.Append((&wireMaker{r: r}).record(nil, md)) // good or bad
		out = append(out, batch)
	}
	return out
}
