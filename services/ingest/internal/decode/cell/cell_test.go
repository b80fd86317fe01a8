package cell

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/column"
)

func TestValidUTF8IsWhatTheStandardLibrarySays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		b := make([]byte, r.IntN(30))
		for i := range b {
			b[i] = "abcdefgh\x00\x7f\x80\xc3\xa9\xff"[r.IntN(14)]
		}
		require.Equal(t, utf8.Valid(b), ValidUTF8(b), "%q", b)
	}
}

func TestNumbersInTwosComplement(t *testing.T) {
	for _, want := range []string{"0", "1", "-1", "127", "128", "-128", "-129", "170141183460469231731687303715884105727", "-170141183460469231731687303715884105728"} {
		n, _ := new(big.Int).SetString(want, 10)
		raw := new(big.Int).And(n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 128), big.NewInt(1))).FillBytes(make([]byte, 16))
		require.Equal(t, want, Words(raw).BigInt().String())
		require.Equal(t, want, Big(raw).String())
		require.Equal(t, want, Big(append([]byte{raw[0] & 0x80 >> 7 * 0xff}, raw...)).String(), "with a byte of sign before it")
	}
	require.Equal(t, "0", Big(nil).String())
	require.Equal(t, "-1", Words([]byte{0xff}).BigInt().String())
}

func TestDecimalsArePlainDigits(t *testing.T) {
	for _, c := range []struct {
		n     int64
		scale int
		want  string
	}{{0, 0, "0"}, {0, 2, "0.00"}, {0, -2, "0"}, {5, 0, "5"}, {-5, 2, "-0.05"}, {12345, 2, "123.45"}, {12, -3, "12000"}, {-100, 2, "-1.00"}} {
		n := big.NewInt(c.n)
		require.Equal(t, "x"+c.want, string(AppendDecimal([]byte("x"), n, c.scale)))
		require.Equal(t, c.n, n.Int64(), "the number is not changed")
	}
}

func TestTextsAreJSON(t *testing.T) {
	for _, s := range []string{"", "a", "\"\\/\b\f\n\r\t\x00\x1f", "grüße \U0001f600", "\u2028"} {
		var back string
		require.NoError(t, json.Unmarshal(AppendJSON(nil, []byte(s)), &back))
		require.Equal(t, s, back)
	}
	require.Equal(t, "00112233-4455-6677-8899-aabbccddeeff", string(AppendUUID(nil, []byte{0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff})))
}

func TestInstantsAndDatesOfTheYears1To9999(t *testing.T) {
	at, err := column.New(arrow.FixedWidthTypes.Timestamp_us)
	require.NoError(t, err)
	day, err := column.New(arrow.FixedWidthTypes.Date32)
	require.NoError(t, err)
	require.Equal(t, OK, StoreMicros(at, 0, minMicros))
	require.Equal(t, OK, StoreMicros(at, 1, maxMicros))
	require.Equal(t, Timestamp, StoreMicros(at, 2, minMicros-1))
	require.Equal(t, Timestamp, StoreMicros(at, 2, math.MaxInt64))
	require.Equal(t, OK, StoreDays(day, 0, minDays))
	require.Equal(t, OK, StoreDays(day, 1, maxDays))
	require.Equal(t, Date, StoreDays(day, 2, maxDays+1))
	require.Equal(t, "0001-01-01T00:00:00Z 9999-12-31T23:59:59.999999Z", at.Finish(2).ValueStr(0)+" "+at.Finish(2).ValueStr(1))
	require.Equal(t, "0001-01-01 9999-12-31", day.Finish(2).ValueStr(0)+" "+day.Finish(2).ValueStr(1))
}

func TestEveryFailureHasAReasonOfItsOwn(t *testing.T) {
	seen := map[string]Fail{}
	for f := Truncated; f <= Full; f++ {
		reason, detail := f.Describe()
		require.NotEmpty(t, detail)
		require.NotContains(t, seen, reason)
		seen[reason] = f
	}
	require.NotContains(t, seen, "malformed")
}

func TestBatchTakesRowsBack(t *testing.T) {
	b, err := NewBatch("Test", []*schema.Node{{Name: "x", Type: schema.Of(schema.Long)}})
	require.NoError(t, err)
	x := b.Columns()[0]
	x.Set8(0, 1)
	b.Took(1)
	x.Set8(1, 2)
	require.EqualError(t, b.Failed(Range, "x"), "decoding Test field x: the number does not fit its column exactly")
	x.Set8(1, 3)
	b.Took(1)
	b.Undo()
	require.NoError(t, b.AppendNull())
	require.Equal(t, 2, b.Rows())
	require.Equal(t, "[1 (null)]", b.Finish()[0].String())
	require.NoError(t, b.Room(1))
	require.ErrorIs(t, b.Room(maxSlots), ErrBatchFull)
	b.Reset()
	require.EqualError(t, b.Room(maxSlots+1), "decoding Test record: the row is larger than a batch can be (2147483647 bytes)")
}
