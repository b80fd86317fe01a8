package orders

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

func made(cfg Config, from, n uint64) []Record {
	cfg.SchemaID = 42
	g := NewGenerator(cfg)
	records := make([]Record, n)
	for i := range records {
		g.Make(from+uint64(i), &records[i])
		records[i].Key, records[i].Value = bytes.Clone(records[i].Key), bytes.Clone(records[i].Value)
	}
	return records
}

func TestChecksumsAgreeWithAnIndependentDecoder(t *testing.T) {
	const n = 10_000
	desc := orderDescriptor(t)
	records := made(Config{Seed: 7}, 0, n)
	values, offsets := make([][]byte, n), make([]int64, n)
	size := 0
	for i, r := range records {
		require.Equal(t, OutcomeRow, r.Expect.Outcome)
		values[i], offsets[i] = r.Value, int64(i)
		size += len(r.Value)
	}
	rec := table(t, desc, values, 0, offsets)
	defer rec.Release()
	sums, err := HashRows(rec)
	require.NoError(t, err)
	for i, r := range records {
		require.Equal(t, r.Expect.Checksum, sums[i], "record %d", i)
	}
	t.Logf("%d bytes a record", size/n)

	part := rec.NewSlice(100, 200) // a slice has offsets of its own
	defer part.Release()
	sliced, err := HashRows(part)
	require.NoError(t, err)
	require.Equal(t, sums[100:200], sliced)
}

func TestOrdersHoldEveryKindOfValue(t *testing.T) {
	desc := orderDescriptor(t)
	set := map[string]bool{}
	for _, r := range made(Config{Seed: 1}, 0, 3000) {
		m, err := decode(t, desc, r.Value)
		require.NoError(t, err)
		for i := range desc.Fields().Len() {
			f := desc.Fields().Get(i)
			if m.Has(f) {
				set[string(f.Name())] = true
			} else {
				set["no "+string(f.Name())] = true
			}
		}
		if m.Get(desc.Fields().ByName("status")).Enum() == unknownStatus {
			set["unknown enum"] = true
		}
		if v := m.Get(desc.Fields().ByName("voucher")); m.Has(desc.Fields().ByName("voucher")) && v.String() == "" {
			set["empty oneof member"] = true
		}
	}
	for i := range desc.Fields().Len() {
		require.True(t, set[string(desc.Fields().Get(i).Name())], desc.Fields().Get(i).Name())
	}
	for _, name := range []string{
		"no shipped_at", "no customer", "no labels", "no fees", "no card", "no transfer", "no voucher",
		"no cash", "no note", "no priority", "no coupon", "no loyalty_points", "no signature", "no shelves", "unknown enum", "empty oneof member",
	} {
		require.True(t, set[name], name)
	}
}

func TestAnyChangedValueChangesTheChecksum(t *testing.T) {
	desc := orderDescriptor(t)
	original := made(Config{Seed: 3}, 5, 1)[0]
	for i := range desc.Fields().Len() {
		f := desc.Fields().Get(i)
		m, err := decode(t, desc, original.Value)
		require.NoError(t, err)
		if !m.Has(f) {
			continue
		}
		changed := dynamicpb.NewMessage(desc)
		proto.Merge(changed, m.Interface())
		changed.Clear(f)
		raw, err := proto.Marshal(changed)
		require.NoError(t, err)
		rec := table(t, desc, [][]byte{append(bytes.Clone(original.Value[:7]), raw...)}, 0, []int64{0})
		sums, err := HashRows(rec)
		require.NoError(t, err)
		require.NotEqual(t, original.Expect.Checksum, sums[0], f.Name())
		rec.Release()
	}
}

func TestGeneratorIsDeterministicAndStartsAnywhere(t *testing.T) {
	cfg := Config{Seed: 9, PoisonEvery: 10, TombstoneEvery: 10}
	all := made(cfg, 0, 500)
	require.Equal(t, all[300:], made(cfg, 300, 200))
	require.NotEqual(t, all[:50], made(Config{Seed: 10, PoisonEvery: 10, TombstoneEvery: 10}, 0, 50))
}

func TestPoisonIsUndecodable(t *testing.T) {
	desc := orderDescriptor(t)
	seen := map[Poison]int{}
	skipped := 0
	for _, r := range made(Config{Seed: 2, PoisonEvery: 4, TombstoneEvery: 20}, 0, 4000) {
		seen[r.Poison]++
		switch r.Expect.Outcome {
		case OutcomeSkip:
			skipped++
			require.Nil(t, r.Value)
			require.NotEmpty(t, r.Key)
			continue
		case OutcomeQuarantine:
			require.Equal(t, HashValue(r.Value), r.Expect.Checksum)
		default:
		}
		switch r.Poison {
		case PoisonShort:
			require.Less(t, len(r.Value), 5)
		case PoisonUnframed:
			require.NotZero(t, r.Value[0])
		case PoisonUnknownSchemaID:
			require.NotEqual(t, []byte{0, 0, 0, 0, 42}, r.Value[:5])
		case PoisonBadIndex:
			require.Equal(t, []byte{0, 0, 0, 0, 42, 2, 198, 1}, r.Value[:8])
		case PoisonTruncated, PoisonInvalidUTF8:
			_, err := decode(t, desc, r.Value)
			require.Error(t, err, r.Poison)
		case PoisonInvalidNanos:
			m, err := decode(t, desc, r.Value)
			require.NoError(t, err)
			at := m.Get(desc.Fields().ByName("placed_at")).Message()
			require.GreaterOrEqual(t, at.Get(at.Descriptor().Fields().ByName("nanos")).Int(), int64(1e9))
		default:
		}
	}
	require.Greater(t, skipped, 100)
	for p := range poisons {
		require.Greater(t, seen[p], 50, p)
	}
}

func TestHashRowsRefusesATableOfAnotherShape(t *testing.T) {
	desc := orderDescriptor(t)
	rec := table(t, desc, [][]byte{made(Config{}, 0, 1)[0].Value}, 0, []int64{0})
	columns, fields := rec.Columns(), rec.Schema().Fields()
	without := array.NewRecordBatch(arrow.NewSchema(fields[1:], nil), columns[1:], 1)
	_, err := HashRows(without)
	require.ErrorContains(t, err, `0 columns named "order_id"`)
	swapped := append([]arrow.Field{}, fields...)
	swapped[0].Name, swapped[20].Name = fields[20].Name, fields[0].Name
	_, err = HashRows(array.NewRecordBatch(arrow.NewSchema(swapped, nil), columns, 1))
	require.ErrorContains(t, err, "order_id has type")
}

func BenchmarkGenerator(b *testing.B) {
	g := NewGenerator(Config{Seed: 1, SchemaID: 1})
	var rec Record
	b.ReportAllocs()
	size := 0
	for i := range b.N {
		g.Make(uint64(i), &rec)
		size += len(rec.Value)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(size)/float64(b.N), "bytes/record")
}
