package orders

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/devpeers/kafka"
)

// filled holds offsets 0..9 of partition 0: rows but 3 (quarantined) and 4 (skipped); the checksum is 100 + offset.
func filled() *Ledger {
	l := NewLedger()
	for offset := range int64(10) {
		outcome := OutcomeRow
		switch offset {
		case 3:
			outcome = OutcomeQuarantine
		case 4:
			outcome = OutcomeSkip
		}
		l.Record(0, offset, outcome, uint64(100+offset))
	}
	return l
}

func addRows(c *Check, except int64) {
	for offset := range int64(10) {
		if offset != 3 && offset != 4 && offset != except {
			c.Add(0, offset, uint64(100+offset))
		}
	}
}

func TestCheckPassesExactlyTheLedgersRows(t *testing.T) { // G1, G2
	c := filled().NewCheck(OutcomeRow, nil)
	addRows(c, -1)
	report := c.Finish()
	require.True(t, report.OK(), report)
	require.EqualValues(t, 8, report.Expected)

	q := filled().NewCheck(OutcomeQuarantine, nil)
	q.Add(0, 3, 103)
	require.True(t, q.Finish().OK())
}

func TestCheckNamesWhatIsLostDoubledAlteredOrForeign(t *testing.T) {
	c := filled().NewCheck(OutcomeRow, nil)
	addRows(c, 7)
	c.Add(0, 5, 105)
	report := c.Finish()
	require.Equal(t, [4]int64{1, 1, 0, 0}, [4]int64{report.Missing, report.Doubled, report.Altered, report.Unexpected})
	require.False(t, report.OK(), "equal counts do not hide a lost and a doubled row")
	require.Contains(t, report.String(), "partition 0 offset 7: is missing")
	require.Contains(t, report.String(), "partition 0 offset 5: came more than once")

	c = filled().NewCheck(OutcomeRow, nil)
	addRows(c, 9)
	c.Add(0, 9, 1)
	c.Add(0, 3, 103)
	c.Add(0, 10, 110)
	c.Add(8, 0, 0)
	report = c.Finish()
	require.Equal(t, [4]int64{0, 0, 1, 3}, [4]int64{report.Missing, report.Doubled, report.Altered, report.Unexpected})
	require.Contains(t, report.String(), "must have outcome quarantine")
}

func TestCheckOfAPrefixReadKnowsItsEnd(t *testing.T) {
	c := filled().NewCheck(OutcomeRow, map[int32]int64{0: 6})
	for _, offset := range []int64{0, 1, 2, 5} {
		c.Add(0, offset, uint64(100+offset))
	}
	require.True(t, c.Finish().OK())
	c = filled().NewCheck(OutcomeRow, map[int32]int64{0: 6})
	for _, offset := range []int64{0, 1, 2, 6} { // 6 too early, 5 missing
		c.Add(0, offset, uint64(100+offset))
	}
	report := c.Finish()
	require.EqualValues(t, 1, report.Missing)
	require.EqualValues(t, 1, report.Unexpected)
}

func TestLedgerKeepsHolesAndRefusesAnOffsetTwice(t *testing.T) {
	l := NewLedger()
	l.Record(1, 0, OutcomeRow, 1)
	l.Record(1, 20_000, OutcomeRow, 2)
	require.Equal(t, map[int32]int64{1: 1}, l.Vector())
	require.NoError(t, l.Err())
	l.Record(1, 0, OutcomeRow, 1)
	require.ErrorContains(t, l.Err(), "partition 1 offset 0")
	require.EqualValues(t, 2, l.Total())
}

func TestWaitForReturnsWhenTheVectorIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		done := make(chan error, 1)
		go func() { done <- l.WaitFor(t.Context(), map[int32]int64{0: 2, 5: 0}) }()
		l.Record(0, 1, OutcomeRow, 1)
		synctest.Wait()
		require.Empty(t, done, "offset 0 is not known yet")
		l.Record(0, 0, OutcomeSkip, 0)
		require.NoError(t, <-done)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.WaitFor(ctx, map[int32]int64{0: 3}), context.Canceled)
	})
}

func TestLedgerFileSurvivesATornTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dev", "ledger")
	l, err := OpenLedger(path)
	require.NoError(t, err)
	l.Record(0, 0, OutcomeRow, 11)
	l.Record(2, 0, OutcomeQuarantine, 12)
	require.NoError(t, l.Close())
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.Write([]byte{1, 2, 3})
	require.NoError(t, err)
	require.NoError(t, file.Close())

	l, err = OpenLedger(path)
	require.NoError(t, err)
	l.Record(0, 1, OutcomeRow, 13)
	require.NoError(t, l.Close())
	l, err = OpenLedger(path)
	require.NoError(t, err)
	require.Equal(t, map[int32]int64{0: 2, 2: 1}, l.Vector())
	require.EqualValues(t, 1, l.Count(OutcomeQuarantine))
	c := l.NewCheck(OutcomeRow, nil)
	c.Add(0, 0, 11)
	c.Add(0, 1, 13)
	require.True(t, c.Finish().OK())
	require.NoError(t, l.Close())

	require.NoError(t, os.WriteFile(path, []byte("something else entirely"), 0o600))
	_, err = OpenLedger(path)
	require.ErrorContains(t, err, "not a ledger")
}

func TestLedgerIsCompact(t *testing.T) {
	const n = 1 << 20
	l := NewLedger()
	for offset := range int64(n) {
		l.Record(0, offset, OutcomeRow, uint64(offset))
	}
	bytes := len(l.partitions[0].chunks) * int(unsafe.Sizeof(chunk{}))
	require.LessOrEqual(t, bytes/n, 30)
}

// The whole circle: generator, broker, ledger, a consumer that decodes by itself, check.
func TestProducedRecordsMatchTheLedger(t *testing.T) {
	const records, partitions = 3000, 3
	broker, err := kafka.Start(kafka.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()
	require.NoError(t, broker.EnsureTopic("orders", partitions))
	ledger := NewLedger()
	run := func(ctx context.Context, first, n uint64) *Producer {
		p, err := NewProducer(ProducerConfig{
			Brokers: []string{broker.Addr()}, Topic: "orders", Partitions: partitions, Ledger: ledger, First: first, Records: n,
			Generator: NewGenerator(Config{Seed: 5, SchemaID: 42, PoisonEvery: 20, TombstoneEvery: 50}),
		})
		require.NoError(t, err)
		require.NoError(t, p.Run(ctx))
		return p
	}
	require.EqualValues(t, records-500, run(t.Context(), 0, records-500).Acknowledged())
	require.EqualValues(t, 500, run(t.Context(), records-500, 500).Acknowledged(), "a second run goes on")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Zero(t, run(ended, records, 0).Sent())
	require.EqualValues(t, records, ledger.Total())
	ends := broker.EndOffsets("orders")
	for part, end := range ledger.Vector() {
		require.Equal(t, ends[part], end)
		require.Positive(t, end)
	}

	rows, quarantined := ledger.NewCheck(OutcomeRow, nil), ledger.NewCheck(OutcomeQuarantine, nil)
	values, offsets := map[int32][][]byte{}, map[int32][]int64{}
	consume(t, broker.Addr(), records, func(r *kgo.Record) {
		outcome, _ := ledger.partitions[r.Partition].at(r.Offset)
		switch outcome {
		case OutcomeRow:
			values[r.Partition] = append(values[r.Partition], r.Value)
			offsets[r.Partition] = append(offsets[r.Partition], r.Offset)
		case OutcomeQuarantine:
			require.NoError(t, quarantined.AddQuarantined(quarantineRow(r)))
		case OutcomeSkip:
			require.Nil(t, r.Value)
		default:
			require.Fail(t, "unknown outcome", "%v", outcome)
		}
	})
	desc := orderDescriptor(t)
	for part := range values {
		require.NoError(t, rows.AddRows(table(t, desc, values[part], part, offsets[part])))
	}
	for _, report := range []Report{rows.Finish(), quarantined.Finish()} {
		require.True(t, report.OK(), report)
		require.Positive(t, report.Expected)
	}
}

func consume(t *testing.T, addr string, n int, each func(*kgo.Record)) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics("orders"))
	require.NoError(t, err)
	defer client.Close()
	for got := 0; got < n; {
		fetches := client.PollFetches(t.Context())
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { got++; each(r) })
	}
}

func quarantineRow(r *kgo.Record) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "partition", Type: arrow.PrimitiveTypes.Int32},
		{Name: "offset", Type: arrow.PrimitiveTypes.Int64},
		{Name: "value", Type: arrow.BinaryTypes.Binary},
	}, nil))
	b.Field(0).(*array.Int32Builder).Append(r.Partition)
	b.Field(1).(*array.Int64Builder).Append(r.Offset)
	b.Field(2).(*array.BinaryBuilder).Append(r.Value)
	return b.NewRecordBatch()
}
