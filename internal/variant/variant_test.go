package variant

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	oracle "github.com/apache/arrow-go/v18/parquet/variant"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// plain is a JSON text as values that compare: numbers by their exact value.
func plain(t testing.TB, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v), "%s", text)
	return exact(t, v)
}

func exact(t testing.TB, v any) any {
	switch v := v.(type) {
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String())
		require.True(t, ok)
		return "number " + r.RatString()
	case []any:
		for i := range v {
			v[i] = exact(t, v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exact(t, v[k])
		}
	}
	return v
}

// same encodes a text and reads it back with our reader and with Arrow's, which also
// checks the bytes.
func same(t testing.TB, e *Encoder, text string) {
	t.Helper()
	metadata, value, err := e.JSON([]byte(text))
	require.NoError(t, err, text)
	want := plain(t, []byte(text))
	ours, err := JSON(nil, metadata, value)
	require.NoError(t, err, text)
	require.Equal(t, want, plain(t, ours), text)
	if keys, _ := readUint(metadata, 1, int(metadata[0]>>6)+1); keys > 100 {
		return // arrow-go v18.8.0 counts the bytes of the dictionary's offsets in eight bits and panics beyond 255
	}
	theirs, err := oracle.New(metadata, value)
	require.NoError(t, err, text)
	out, err := theirs.MarshalJSON()
	require.NoError(t, err, text)
	require.Equal(t, sloppy(want), sloppy(plain(t, out)), text)
}

// sloppy takes empty arrays for null, as Arrow's text of a variant does.
func sloppy(v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = sloppy(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = sloppy(v[k])
		}
	}
	return v
}

func TestTextsBecomeVariantsOfTheSameValue(t *testing.T) { // issue 4 point 3
	var e Encoder
	for _, text := range []string{
		`null`, `true`, `false`, `0`, `-1`, `127`, `-128`, `128`, `-129`, `32767`, `-32769`, `2147483647`, `-2147483649`, `9223372036854775807`,
		`-9223372036854775808`, `9223372036854775808`, `99999999999999999999999999999999999999`, `-99999999999999999999999999999999999999`,
		`0.1`, `-0.5`, `1.50`, `123456789.123456789`, `0.00000000000000000000000000000000000001`, `-12345678901234567890.12345`, `-0`, `-0.0`, `1e3`, `1.5E-7`, `1e300`,
		`""`, `"a"`, `"grüße"`, `"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00"`, `"\ud800\u0041"`, `"\ud800\ud83d\ude00"`, `"\udc00x\ud800"`, `"` + strings.Repeat("x", 63) + `"`, `"` + strings.Repeat("é", 32) + `"`,
		`"` + strings.Repeat("long", 70_000) + `"`, `[]`, `{}`, ` [ 1 , [ ] , { } ] `, `{"b":1,"a":{"b":[null,{"a":2}]},"":0,"\u0062b":"x"}`,
		`{"ä":1,"z":2,"A":3}`, strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500),
	} {
		same(t, &e, text)
	}
	for _, n := range []int{255, 256, 257, 70_000} { // counts, ids and offsets of every width
		var items, members []string
		for i := range n {
			items, members = append(items, strconv.Itoa(i)), append(members, fmt.Sprintf(`"k%d":%d`, n-i, i))
		}
		same(t, &e, "["+strings.Join(items, ",")+"]")
		same(t, &e, "{"+strings.Join(members, ",")+"}")
	}
}

func TestNumbersTakeTheSmallestTypeThatHoldsThemExactly(t *testing.T) {
	var e Encoder
	for text, want := range map[string]oracle.Type{
		`1`: oracle.Int8, `-129`: oracle.Int16, `40000`: oracle.Int32, `-9223372036854775808`: oracle.Int64, `9223372036854775808`: oracle.Decimal16,
		`1.0`: oracle.Decimal4, `12345678.91`: oracle.Decimal8, `0.1234567890123456789`: oracle.Decimal16,
		`1e2`: oracle.Double, `-0`: oracle.Double, `0.` + strings.Repeat("1", 38): oracle.Double,
	} {
		metadata, value, err := e.JSON([]byte(text))
		require.NoError(t, err)
		v, err := oracle.New(metadata, value)
		require.NoError(t, err)
		require.Equal(t, want, v.Type(), text)
	}
}

func TestWhatIsNoVariantIsNamed(t *testing.T) {
	var e Encoder
	for text, want := range map[string]error{
		`{"a":1,"b":{"a":1,"\u0061":2}}`: ErrDuplicateKey,
		`[1e999]`:                        ErrRange,
		strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1): ErrDepth,
		``:      ErrSyntax,
		`{"a"`:  ErrSyntax,
		`"a`:    ErrSyntax,
		`[1 2]`: ErrSyntax,
		`nul`:   ErrSyntax,
	} {
		_, _, err := e.JSON([]byte(text))
		require.ErrorIs(t, err, want, text)
		same(t, &e, `{"after":[1]}`)
	}
}

// random is a random JSON text.
func random(r *rand.Rand, depth int) string {
	switch n := r.IntN(12); {
	case n < 3 && depth > 0:
		var items []string
		for range r.IntN(6) {
			items = append(items, random(r, depth-1))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case n < 6 && depth > 0:
		var members []string
		for i := range r.IntN(6) {
			key, _ := json.Marshal(fmt.Sprintf("%c%d", 'a'+rune(r.IntN(900)), i))
			members = append(members, fmt.Sprintf("%s:%s", key, random(r, depth-1)))
		}
		return "{" + strings.Join(members, ",") + "}"
	case n < 8:
		return strconv.FormatInt(r.Int64()>>r.IntN(64), 10)
	case n < 9:
		return strconv.FormatFloat(r.NormFloat64(), "fge"[r.IntN(3)], -1, 64)
	case n < 10:
		return [...]string{"null", "true", "false"}[r.IntN(3)]
	default:
		s, _ := json.Marshal(strings.Repeat(string('a'+rune(r.IntN(900))), r.IntN(40)))
		return string(s)
	}
}

func TestRandomTextsAgreeWithArrow(t *testing.T) {
	var e Encoder
	for seed := range uint64(3000) {
		text := random(rand.New(rand.NewPCG(seed, 1)), 5)
		same(t, &e, text)
		theirs, err := oracle.ParseJSON(text, false)
		require.NoError(t, err, text)
		ours, err := JSON(nil, theirs.Metadata().Bytes(), theirs.Bytes())
		require.NoError(t, err, text)
		back, err := theirs.MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, sloppy(plain(t, back)), sloppy(plain(t, ours)), text)
	}
}

// Types that JSON has no word for come from other writers.
func TestEveryTypeIsReadable(t *testing.T) {
	id := uuid.MustParse("00010203-0405-0607-0809-0a0b0c0d0e0f")
	var b oracle.Builder
	start := b.Offset()
	var offsets []int
	add := func(err error) { require.NoError(t, err) }
	for _, f := range []func() error{
		func() error { return b.AppendUUID(id) }, func() error { return b.AppendDate(arrow.Date32(-1)) }, func() error { return b.AppendBinary([]byte{1, 255}) },
		func() error { return b.AppendFloat32(0.1) }, func() error { return b.AppendTimeMicro(3_600_000_001) },
		func() error { return b.AppendTimestamp(1, true, true) }, func() error { return b.AppendTimestamp(-1, true, false) },
		func() error { return b.AppendTimestamp(1, false, true) }, func() error { return b.AppendTimestamp(-1, false, false) },
	} {
		offsets = append(offsets, b.NextElement(start))
		add(f())
	}
	add(b.FinishArray(start, offsets))
	v, err := b.Build()
	require.NoError(t, err)
	out, err := JSON(nil, v.Metadata().Bytes(), v.Bytes())
	require.NoError(t, err)
	require.Equal(t, `["00010203-0405-0607-0809-0a0b0c0d0e0f","1969-12-31","Af8=",0.1,"01:00:00.000001","1970-01-01T00:00:00.000001Z",`+
		`"1969-12-31T23:59:59.999999","1970-01-01T00:00:00.000000001Z","1969-12-31T23:59:59.999999999"]`, string(out))
}

// Bytes of others are never trusted: no panic, no read outside.
func FuzzJSON(f *testing.F) {
	var e Encoder
	for seed := range uint64(50) {
		metadata, value, err := e.JSON([]byte(random(rand.New(rand.NewPCG(seed, 1)), 4)))
		require.NoError(f, err)
		f.Add(bytes.Clone(metadata), bytes.Clone(value))
	}
	f.Fuzz(func(t *testing.T, metadata, value []byte) {
		if out, err := JSON(nil, metadata, value); err == nil {
			require.True(t, json.Valid(out), "%s", out)
		}
	})
}

// Damaged bytes are errors or other values.
func TestDamagedVariantsDoNoHarm(t *testing.T) {
	var e Encoder
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 2))
		metadata, value, err := e.JSON([]byte(random(r, 4)))
		require.NoError(t, err)
		m, v := bytes.Clone(metadata), bytes.Clone(value)
		for range 20 {
			m, v := bytes.Clone(m), bytes.Clone(v)
			if r.IntN(3) == 0 {
				m[r.IntN(len(m))] ^= 1 << r.IntN(8)
			}
			v[r.IntN(len(v))] ^= 1 << r.IntN(8)
			v = v[:r.IntN(len(v)+1)]
			_, _ = JSON(nil, m, v)
		}
	}
}
