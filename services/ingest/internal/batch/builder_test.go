package batch

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// textRows decodes a payload into one string column; payloads that begin with "!" are undecodable.
type textRows struct{ values []any }

var errBad = errors.New("undecodable")

func (r *textRows) Append(p []byte) error {
	if bytes.HasPrefix(p, []byte("!")) {
		return errBad
	}
	r.values = append(r.values, string(p))
	return nil
}

func (r *textRows) AppendNull() error {
	r.values = append(r.values, nil)
	return nil
}
func (r *textRows) Undo()      { r.values = r.values[:len(r.values)-1] }
func (r *textRows) Rows() int  { return len(r.values) }
func (r *textRows) Grown() int { return 0 }
func (r *textRows) Size() int {
	n := 0
	for _, v := range r.values {
		if s, ok := v.(string); ok {
			n += len(s)
		}
	}
	return n
}
func (r *textRows) Reset() { r.values = nil }
func (r *textRows) Finish() []arrow.Array {
	b := array.NewStringBuilder(memory.DefaultAllocator)
	for _, v := range r.values {
		if s, ok := v.(string); ok {
			b.Append(s)
		} else {
			b.AppendNull()
		}
	}
	return []arrow.Array{b.NewArray()}
}

func target(kafka bool) *Target {
	s := &schema.Schema{Columns: append([]*schema.Node{{Name: "text", FieldID: 1, Type: schema.Of(schema.String)}}, schema.MetadataColumns(true, kafka)...)}
	return &Target{Schema: arrowx.RowSchema(s), Fingerprint: "f1", Mapped: 1}
}

func part() ident.Partition { return ident.Partition{Pipeline: "p", Topic: "t", Number: 3} }

func newBuilder(first int64) *Builder {
	return New(Options{Partition: part(), Revision: 9, MaxBytes: 1 << 20, MaxRows: 1000}, first)
}

func bind(t *testing.T, b *Builder, kafka bool) {
	t.Helper()
	require.NoError(t, b.Bind(target(kafka), &textRows{}, func(Rows) {}))
}

func rec(offset int64, value string) *Record {
	return &Record{Offset: offset, Time: 1000 + offset, LeaderEpoch: 4, Key: []byte("k"), Value: []byte(value)}
}

func join(slices [][]byte) []byte { return bytes.Join(slices, nil) }

func TestEveryOffsetIsARowQuarantinedOrSkipped(t *testing.T) { // G1, K2, K11
	b := newBuilder(10)
	bind(t, b, true)
	r := rec(12, "a")
	r.Headers = []Header{{"h1", []byte("v1")}, {"h2", nil}}
	require.NoError(t, b.Row(r, r.Value, 7))
	require.NoError(t, b.Skip(&Record{Offset: 13, Control: true, LeaderEpoch: 5}, event.SkipControl))
	require.NoError(t, b.Quarantine(rec(14, "!x"), "bad_wire", "it is broken", 7))
	require.NoError(t, b.Skip(&Record{Offset: 17, Time: 2000, Key: []byte("k"), LeaderEpoch: 5}, event.SkipTombstone))
	null := rec(18, "")
	null.Value, null.Key = nil, nil
	require.NoError(t, b.NullRow(null))
	e, err := b.Cut()
	require.NoError(t, err)

	require.Equal(t, ident.Range{First: 10, Next: 19}, e.Range)
	require.EqualValues(t, 2, e.Rows)
	require.EqualValues(t, 1, e.Quarantined)
	require.Equal(t, []event.Skip{
		{Range: ident.Range{First: 10, Next: 12}, Reason: event.SkipAbsent},
		{Range: ident.Range{First: 13, Next: 14}, Reason: event.SkipControl},
		{Range: ident.Range{First: 15, Next: 17}, Reason: event.SkipAbsent},
		{Range: ident.Range{First: 17, Next: 18}, Reason: event.SkipTombstone},
	}, e.Skips)
	require.EqualValues(t, 5, e.LeaderEpoch)
	require.EqualValues(t, 1012, e.MinTime)
	require.EqualValues(t, 2000, e.MaxTime)
	require.Equal(t, map[string]int64{"bad_wire": 1}, e.Reasons)
	require.Equal(t, part(), e.Partition)
	require.EqualValues(t, 9, e.Revision)
	require.Equal(t, "f1", e.Fingerprint)

	rows, err := arrowx.Decode(target(true).Schema, join(e.RowSlices))
	require.NoError(t, err)
	got, err := rows.MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `[{"text":"a","offset":12,"timestamp":"1970-01-01T00:00:01.012Z","key":"aw==","headers":[{"key":"h1","value":"djE="},{"key":"h2","value":null}],"schema_id":7},
		{"text":null,"offset":18,"timestamp":"1970-01-01T00:00:01.018Z","key":null,"headers":[],"schema_id":null}]`, string(got))
	bad, err := arrowx.Decode(arrowx.QuarantineSchema(), join(e.QuarantineData))
	require.NoError(t, err)
	got, err = bad.MarshalJSON()
	require.NoError(t, err)
	require.JSONEq(t, `[{"offset":14,"timestamp":"1970-01-01T00:00:01.014Z","key":"aw==","value":"IXg=","headers":[],"schema_id":7,"reason":"bad_wire","error":"it is broken"}]`, string(got))

	full := e.Append
	full.RowBatch, full.Quarantine = join(e.RowSlices), join(e.QuarantineData)
	require.Equal(t, full.Bytes(), e.Size(), "the size is what the log counts")
	e.Release(true)
	require.True(t, b.Empty())
	require.EqualValues(t, 19, b.First())
}

func TestFailedRowLeavesTheRecordToBeDecided(t *testing.T) { // O1, G8
	b := newBuilder(0)
	bind(t, b, true)
	require.NoError(t, b.Row(rec(0, "a"), []byte("a"), -1))
	require.ErrorIs(t, b.Row(rec(1, "!"), []byte("!"), -1), errBad)
	require.EqualValues(t, 1, b.Next())
	require.NoError(t, b.Quarantine(rec(1, "!"), "bad", "bad", -1))
	require.NoError(t, b.Row(rec(2, "b"), []byte("b"), -1))
	e, err := b.Cut()
	require.NoError(t, err)
	require.EqualValues(t, 2, e.Rows)
	require.EqualValues(t, 1, e.Quarantined)
}

func TestRecordBelowTheNextOffsetIsRefused(t *testing.T) {
	b := newBuilder(5)
	bind(t, b, true)
	require.ErrorIs(t, b.Row(rec(4, "a"), []byte("a"), -1), ErrOrder)
	require.ErrorIs(t, b.Quarantine(rec(4, "a"), "r", "t", -1), ErrOrder)
	require.ErrorIs(t, b.Skip(rec(4, "a"), event.SkipInvalid), ErrOrder)
	require.ErrorIs(t, b.NullRow(rec(4, "a")), ErrOrder)
}

func TestLostRangeIsAnEntryOfItsOwn(t *testing.T) { // K1
	b := newBuilder(100)
	b.Lost(500)
	e, err := b.Cut()
	require.NoError(t, err)
	require.Equal(t, ident.Range{First: 100, Next: 500}, e.Range)
	require.Equal(t, []event.Skip{{Range: e.Range, Reason: event.SkipLost}}, e.Skips)
	require.Zero(t, e.Rows+e.Quarantined)
	require.Empty(t, e.Fingerprint)
	require.Nil(t, e.RowSlices)
}

func TestOversizedRecordIsCutAndDescribed(t *testing.T) { // design section 7
	b := newBuilder(0)
	r := rec(0, "")
	r.Value = bytes.Repeat([]byte("x"), 200<<10)
	require.NoError(t, b.Quarantine(r, ReasonOversized, "too large", -1))
	e, err := b.Cut()
	require.NoError(t, err)
	bad, err := arrowx.Decode(arrowx.QuarantineSchema(), join(e.QuarantineData))
	require.NoError(t, err)
	require.Len(t, bad.Column(3).(*array.Binary).Value(0), KeepOversized)
	require.Contains(t, bad.Column(7).(*array.String).Value(0), "value 204800 bytes")
	require.Contains(t, bad.Column(7).(*array.String).Value(0), "value xxh3-128 ")
}

func TestTombstonesMoveToTheFirstRealSchema(t *testing.T) {
	b := newBuilder(0)
	bind(t, b, true)
	null := rec(0, "")
	null.Value = nil
	require.NoError(t, b.NullRow(null))
	other := target(true)
	other.Fingerprint = "f2"
	moved, err := b.Rebind(other, &textRows{}, func(Rows) {})
	require.NoError(t, err)
	require.True(t, moved)
	require.NoError(t, b.Row(rec(1, "a"), []byte("a"), -1))
	moved, err = b.Rebind(target(true), &textRows{}, func(Rows) {})
	require.NoError(t, err)
	require.False(t, moved, "there is a row with values now")
	e, err := b.Cut()
	require.NoError(t, err)
	require.Equal(t, "f2", e.Fingerprint)
	require.EqualValues(t, 2, e.Rows)
}

func TestFullByRecordsAndByBytes(t *testing.T) {
	b := New(Options{Partition: part(), MaxBytes: 1 << 20, MaxRows: 3}, 0)
	bind(t, b, false)
	for i := range int64(3) {
		require.False(t, b.Full())
		require.NoError(t, b.Row(rec(i, "a"), []byte("a"), -1))
	}
	require.True(t, b.Full())
	b = New(Options{Partition: part(), MaxBytes: 10_000, MaxRows: 1 << 20}, 0)
	bind(t, b, false)
	big := bytes.Repeat([]byte("y"), 4000)
	for i := range int64(3) {
		require.False(t, b.Full(), "record %d", i)
		r := rec(i, string(big))
		require.NoError(t, b.Row(r, r.Value, -1))
	}
	require.True(t, b.Full())
}

// Whether rows or tombstones fill it, an entry is cut before a message cannot carry it (G8).
func TestARowThatMakesTheEntryLargerThanAMessageIsNotTaken(t *testing.T) {
	b := New(Options{Partition: part(), MaxBytes: 1 << 30, MaxRows: 1000, MaxMessage: 1 << 16}, 0)
	bind(t, b, true)
	row := func(offset int64, size int) error {
		v := strings.Repeat("a", size)
		return b.Row(rec(offset, v), []byte(v), -1)
	}
	require.NoError(t, row(0, 15_000))
	require.NoError(t, row(1, 15_000))
	require.ErrorIs(t, row(2, 20_000), cell.ErrBatchFull)
	require.Equal(t, int64(2), b.Next())
	e, err := b.Cut()
	require.NoError(t, err)
	require.EqualValues(t, 2, e.Rows)
	e.Release(true)

	bind(t, b, true)
	var large *TooLargeError
	require.ErrorAs(t, row(2, 1<<16), &large)
	require.True(t, b.Empty())
	require.NoError(t, b.Quarantine(rec(2, "x"), ReasonOversized, large.Error(), -1))
	require.NoError(t, row(3, 1_000))

	long := rec(4, "")
	long.Value, long.Key = nil, make([]byte, 1<<16)
	require.ErrorIs(t, b.NullRow(long), cell.ErrBatchFull)
}

func TestDigestDependsOnEveryPartOfARecord(t *testing.T) {
	sum := func(r *Record, o outcome) ident.Digest {
		var d digest
		d.add(r, o)
		return d.sum()
	}
	base := func() *Record {
		return &Record{Offset: 1, Time: 2, Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"a", []byte("b")}}}
	}
	seen := map[ident.Digest]string{sum(base(), outcomeRow): "base"}
	note := func(what string, d ident.Digest) {
		require.NotContains(t, seen, d, what)
		seen[d] = what
	}
	note("outcome", sum(base(), outcomeQuarantine))
	for what, change := range map[string]func(*Record){
		"offset": func(r *Record) { r.Offset = 2 }, "time": func(r *Record) { r.Time = 3 },
		"key": func(r *Record) { r.Key = []byte("l") }, "null key": func(r *Record) { r.Key = nil }, "empty key": func(r *Record) { r.Key = []byte{} },
		"value": func(r *Record) { r.Value = []byte("w") }, "null value": func(r *Record) { r.Value = nil },
		"shifted": func(r *Record) { r.Key, r.Value = []byte("kv"), []byte("") }, "no headers": func(r *Record) { r.Headers = nil },
		"header key": func(r *Record) { r.Headers[0].Key = "x" }, "header value": func(r *Record) { r.Headers[0].Value = nil },
	} {
		r := base()
		change(r)
		note(what, sum(r, outcomeRow))
	}
}

func TestDigestOfLargeRecordsIsTheSameInPieces(t *testing.T) {
	r := &Record{Offset: 1, Time: 2, Key: []byte("k"), Value: bytes.Repeat([]byte("v"), streamAbove+1), Headers: []Header{{"a", nil}, {"b", []byte("c")}}}
	var pieces digest
	pieces.add(r, outcomeRow) // streams
	whole := xxh3.Hash128(appendAll(nil, r, outcomeRow))
	require.Equal(t, whole.Hi, pieces.hi)
	require.Equal(t, whole.Lo, pieces.lo)
	var small digest
	r2 := *r
	r2.Value = r.Value[:10]
	small.add(&r2, outcomeRow)
	streamed := small.stream(&r2, outcomeRow)
	require.Equal(t, small.hi, streamed.Hi)
	require.Equal(t, small.lo, streamed.Lo)
}

// A seeded run against a naive account: whatever the outcomes and the cuts, the entries tile the offsets, their counts
// agree, and the digests of the same records add up to the same sum under any cuts (G1; re-filling after a restart).
func TestRandomRunsTileTheOffsetsUnderAnyCuts(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var records []*Record
		at := int64(rng.IntN(50))
		first := at
		for range 400 {
			at += int64(rng.IntN(3)) / 2 * int64(rng.IntN(5))
			v := []string{"good", "!bad", "", "skip"}[rng.IntN(4)]
			r := rec(at, v)
			r.Control = rng.IntN(20) == 0
			records = append(records, r)
			at++
		}
		one := runCuts(t, first, records, func() bool { return false })
		many := runCuts(t, first, records, func() bool { return rng.IntN(5) == 0 })
		require.Equal(t, one, many, "seed %d", seed)
	}
}

type account struct {
	rows, quarantined, skipped int64
	digest                     ident.Digest
	next                       int64
}

func runCuts(t *testing.T, first int64, records []*Record, cut func() bool) account {
	t.Helper()
	b := newBuilder(first)
	a := account{next: first}
	take := func() {
		e, err := b.Cut()
		require.NoError(t, err)
		require.Equal(t, a.next, e.Range.First)
		var skipped int64
		for _, s := range e.Skips {
			skipped += s.Len()
		}
		require.Equal(t, e.Range.Len(), e.Rows+e.Quarantined+skipped)
		if e.Rows > 0 {
			got, err := arrowx.Decode(target(true).Schema, join(e.RowSlices))
			require.NoError(t, err)
			require.Equal(t, e.Rows, got.NumRows())
		}
		a.rows, a.quarantined, a.skipped, a.next = a.rows+e.Rows, a.quarantined+e.Quarantined, a.skipped+skipped, e.Range.Next
		a.digest = a.digest.Add(e.Digest)
		e.Release(true)
	}
	for _, r := range records {
		switch {
		case r.Control:
			require.NoError(t, b.Skip(r, event.SkipControl))
		case string(r.Value) == "skip":
			require.NoError(t, b.Skip(r, event.SkipInvalid))
		default:
			if b.Bound() == nil {
				bind(t, b, true)
			}
			if b.Row(r, r.Value, -1) != nil {
				require.NoError(t, b.Quarantine(r, "bad", "bad", -1))
			}
		}
		if cut() {
			take()
		}
	}
	if !b.Empty() {
		take()
	}
	require.Equal(t, records[len(records)-1].Offset+1, a.next)
	return a
}
