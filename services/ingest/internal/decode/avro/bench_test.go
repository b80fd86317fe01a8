package avro

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

const orderSchema = `{"type":"record","name":"Order","fields":[
 {"name":"id","type":"long"},{"name":"customer","type":"string"},{"name":"created","type":{"type":"long","logicalType":"timestamp-millis"}},
 {"name":"amount","type":{"type":"bytes","logicalType":"decimal","precision":12,"scale":2}},{"name":"state","type":{"type":"enum","name":"S","symbols":["NEW","PAID"]}},
 {"name":"note","type":["null","string"]},{"name":"units","type":"int"},{"name":"ratio","type":"double"},
 {"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[{"name":"sku","type":"string"},{"name":"count","type":"int"}]}}}]}`

func benchRecords(b testing.TB) (*tool, [][]byte, int64) {
	x := newTool(b, orderSchema, Options{})
	g := &gen{r: rand.New(rand.NewPCG(1, 2))}
	var out [][]byte
	bytes := int64(0)
	for len(out) < 1000 {
		p := g.encode(nil, x.schema.root, 5)
		x.batch.Reset()
		if x.batch.Append(p) == nil {
			out = append(out, p)
			bytes += int64(len(p))
		}
	}
	x.batch.Reset()
	return x, out, bytes
}

func BenchmarkDecode(b *testing.B) {
	x, records, bytes := benchRecords(b)
	b.Run("columns", func(b *testing.B) {
		b.SetBytes(bytes)
		b.ReportAllocs()
		for b.Loop() {
			x.batch.Reset()
			for _, r := range records {
				if err := x.batch.Append(r); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	})
	b.Run("twmb-generic", func(b *testing.B) {
		b.SetBytes(bytes)
		b.ReportAllocs()
		for b.Loop() {
			for _, r := range records {
				var v any
				if _, err := x.judge.Decode(r, &v); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	})
	b.Run("twmb-struct", func(b *testing.B) {
		b.SetBytes(bytes)
		b.ReportAllocs()
		type line struct {
			SKU   string `avro:"sku"`
			Count int32  `avro:"count"`
		}
		var v struct {
			ID       int64   `avro:"id"`
			Customer string  `avro:"customer"`
			Created  int64   `avro:"created"`
			Amount   any     `avro:"amount"`
			State    string  `avro:"state"`
			Note     *string `avro:"note"`
			Units    int32   `avro:"units"`
			Ratio    float64 `avro:"ratio"`
			Lines    []line  `avro:"lines"`
		}
		for b.Loop() {
			for _, r := range records {
				if _, err := x.judge.Decode(r, &v); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/record")
	})
}

func TestRecordsAreDecodedWithoutAllocation(t *testing.T) { // issue 4 point 5: at most 0.1 per record
	x, records, _ := benchRecords(t)
	round := func() {
		x.batch.Reset()
		for _, r := range records {
			require.NoError(t, x.batch.Append(r))
		}
	}
	round()
	require.Less(t, testing.AllocsPerRun(5, round)/float64(len(records)), 0.1)
}
