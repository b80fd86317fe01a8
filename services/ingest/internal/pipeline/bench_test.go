package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
)

const eventProto = `syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
enum Status { UNKNOWN = 0; ACTIVE = 1; PAUSED = 2; CLOSED = 3; }
message Event {
  int64 id = 1; string event_id = 2; string user_id = 3; string kind = 4; int32 code = 5; int64 session = 6;
  double amount = 7; double score = 8; bool ok = 9; Status status = 10; google.protobuf.Timestamp ts = 11; string url = 12;
}`

// eventRecords are framed records of eventProto, side by side in memory as a fetch brings them.
func eventRecords(n int) []batch.Record {
	r := rand.New(rand.NewPCG(1, 1))
	text := func(b []byte, num protowire.Number, format string, args ...any) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), fmt.Sprintf(format, args...))
	}
	number := func(b []byte, num protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
	}
	double := func(b []byte, num protowire.Number, v float64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), math.Float64bits(v))
	}
	word := func() string {
		return []string{"view", "click", "add_to_cart", "purchase", "winter", "lamp"}[r.IntN(6)]
	}
	memory := make([]byte, 0, 256*n)
	out := make([]batch.Record, n)
	for i := range out {
		at := len(memory)
		memory = text(memory, 1, "user-%06d", r.IntN(50_000))
		key := memory[at+2:]
		at = len(memory)
		memory = append(binary.BigEndian.AppendUint32(append(memory, 0), 7), 0)
		memory = number(memory, 1, uint64(i))
		memory = text(memory, 2, "%08x-%04x-%04x-%04x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<16), r.IntN(1<<16), r.Uint64()>>16)
		memory = text(memory, 3, "%s", key)
		memory = text(memory, 4, "%s", word())
		memory = number(memory, 5, 1+r.Uint64N(600))
		memory = number(memory, 6, r.Uint64N(1_000_000_000))
		memory = double(memory, 7, float64(1+r.IntN(1_000_000))/100)
		memory = double(memory, 8, r.Float64())
		memory = number(memory, 9, 1)
		memory = number(memory, 10, 1+r.Uint64N(3))
		memory = append(protowire.AppendTag(memory, 11, protowire.BytesType), 12)
		memory = number(number(memory, 1, 1_790_000_000), 2, 1+r.Uint64N(400)*1_000_000+(1<<28))
		memory = text(memory, 12, "/shop/%s/%s/item-%05d?ref=%s", word(), word(), r.IntN(20_000), word())
		out[i] = batch.Record{Offset: int64(i), Time: 1_790_000_000_000 + int64(i), LeaderEpoch: 1, Key: key, Value: memory[at:len(memory):len(memory)]}
	}
	return out
}

// eventSession is a session whose plan is made. Nothing is cut, so it needs no lane.
func eventSession(t testing.TB) *session {
	codec := answers{"/schemas/ids/7": eventProto}.codec(t)
	src, err := sourceOf(t, codec, eventRecords(1)[0].Value, nil)
	require.NoError(t, err)
	target := schema.Evolve(&schema.Schema{Columns: schema.MetadataColumns(true, true)}, src.Candidate(), schema.NumberMap{}, schema.Options{}).Schema
	rows, err := Compile(src, target)
	require.NoError(t, err)
	p := &Pipeline{c: Config{Codec: codec, RecordMax: 1 << 20}}
	f, err := codec.Split(eventRecords(1)[0].Value, nil)
	require.NoError(t, err)
	s := &session{w: &worker{p: p, flood: newFlood(config.Flood{Share: 50, Window: 1000})}, policy: &policy{}, part: ident.Partition{}}
	s.last, s.lastValue, s.lastKey = &plan{target: newTarget(target, target.Fingerprint()), make: rows}, meet(&f), meet(nil)
	s.b = batch.New(batch.Options{Partition: s.part, MaxBytes: 64 << 20, MaxRows: math.MaxInt, MaxMessage: 64 << 20}, 0)
	return s
}

// BenchmarkTake is the way of a record from the fetch into columns: best of short turns, since whatever disturbs one makes
// it slower.
func BenchmarkTake(b *testing.B) {
	s := eventSession(b)
	records := eventRecords(4096)
	ctx := b.Context()
	best := math.Inf(1)
	for b.Loop() {
		begin := time.Now()
		for i := range records {
			if err := s.accept(ctx, &records[i]); err != nil {
				b.Fatal(err)
			}
		}
		best = min(best, float64(time.Since(begin).Nanoseconds())/float64(len(records)))
		s.b.Drop(0)
		s.bound = nil
	}
	b.ReportMetric(best, "ns/record")
}
