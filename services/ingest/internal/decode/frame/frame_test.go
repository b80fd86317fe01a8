package frame

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func raw(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func reason(t testing.TB, err error) string {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Reason
}

// F1, F2, F4: the shorthand and the long form of a message path, and paths whose
// entries or length need more than one byte.
func TestPrefixForm(t *testing.T) {
	for _, c := range []struct {
		value string
		id    int32
		path  []int
	}{
		{"00" + "00000007" + "00" + "0801", 7, []int{0}},
		{"00" + "00000007" + "0200" + "0801", 7, []int{0}},
		{"00" + "0000012c" + "0202" + "0801", 300, []int{1}},
		{"00" + "00000007" + "028a01" + "0801", 7, []int{69}},
		{"00" + "00000007" + "06040200" + "0801", 7, []int{2, 1, 0}},
	} {
		f, err := Parse(raw(t, c.value), nil, true)
		require.NoError(t, err, c.value)
		require.Equal(t, PrefixID, f.Form)
		require.Equal(t, c.id, f.ID)
		require.Equal(t, c.path, f.Path(), c.value)
		require.Equal(t, "0801", hex.EncodeToString(f.Payload))
	}
	f, err := Parse(raw(t, "00"+"00000007"+"0801"), nil, false)
	require.NoError(t, err)
	require.Equal(t, "0801", hex.EncodeToString(f.Payload), "formats without a path have none")
	f, err = Parse(raw(t, "00"+"00000007"+"00"), nil, true)
	require.NoError(t, err)
	require.Empty(t, f.Payload, "an empty message is a message")
}

// F10: the reference in a header, as GUID or id, with a bare value.
func TestHeaderForm(t *testing.T) {
	f, err := Parse(raw(t, "0801"), raw(t, "01"+"000102030405060708090a0b0c0d0e0f"+"0402"+"00"), true)
	require.NoError(t, err)
	require.Equal(t, HeaderGUID, f.Form)
	require.Equal(t, "guid 00010203-0405-0607-0809-0a0b0c0d0e0f", f.Reference())
	require.Equal(t, []int{1, 0}, f.Path())
	require.Equal(t, "0801", hex.EncodeToString(f.Payload))

	f, err = Parse(nil, raw(t, "00"+"00000009"+"00"), true)
	require.NoError(t, err)
	require.Equal(t, "id 9", f.Reference())
	require.Equal(t, []int{0}, f.Path())
	require.Equal(t, HeaderID, f.Form)

	f, err = Parse(raw(t, "00"), raw(t, "00"+"00000009"), true)
	require.NoError(t, err)
	require.Equal(t, []int{0}, f.Path())
	require.Equal(t, "00", hex.EncodeToString(f.Payload), "the value is bare, whatever it starts with")
}

// The deprecated form of the message path, by option only: plain varints. Read the
// new way the same bytes name another message, so nothing may guess.
func TestUnsignedPathByOption(t *testing.T) {
	for _, c := range []struct {
		value string
		path  []int
	}{
		{"00" + "00000007" + "00" + "0801", []int{0}},
		{"00" + "00000007" + "0100" + "0801", []int{0}},
		{"00" + "00000007" + "0102" + "0801", []int{2}},
		{"00" + "00000007" + "01c801" + "0801", []int{200}},
		{"00" + "00000007" + "03020100" + "0801", []int{2, 1, 0}},
	} {
		f, err := ParseUnsigned(raw(t, c.value), nil)
		require.NoError(t, err, c.value)
		require.Equal(t, c.path, f.Path(), c.value)
		require.Equal(t, "0801", hex.EncodeToString(f.Payload))
	}
	f, err := Parse(raw(t, "00"+"00000007"+"0202"+"0801"), nil, true)
	require.NoError(t, err)
	old, err := ParseUnsigned(raw(t, "00"+"00000007"+"0202"+"0801"), nil)
	require.NoError(t, err)
	require.Equal(t, []int{1}, f.Path())
	require.Equal(t, []int{2, 8}, old.Path())

	f, err = ParseUnsigned(raw(t, "0801"), raw(t, "00"+"00000009"+"0202"))
	require.NoError(t, err)
	require.Equal(t, []int{1}, f.Path(), "the header form has always been zig-zag")

	for value, want := range map[string]string{
		"":                              ReasonShort,
		"0801":                          ReasonUnframed,
		"00" + "00000007":               ReasonIndex,
		"00" + "00000007" + "02" + "01": ReasonIndex,
		"00" + "00000007" + "41":        ReasonIndex, // 65 levels
		"00" + "00000007" + "01" + "ffffffffffffffffff01": ReasonIndex,
	} {
		_, err := ParseUnsigned(raw(t, value), nil)
		require.Equal(t, want, reason(t, err), value)
	}
}

// F11: what is not framed is said to be so.
func TestFaultsHaveReasons(t *testing.T) {
	for value, want := range map[string]string{
		"":                              ReasonShort,
		"0801":                          ReasonUnframed,
		"00000000":                      ReasonShort,
		"00" + "00000007":               ReasonIndex,
		"00" + "00000007" + "01":        ReasonIndex, // length -1
		"00" + "00000007" + "0201":      ReasonIndex, // entry -1
		"00" + "00000007" + "04" + "00": ReasonIndex,
		"00" + "00000007" + "fe01":      ReasonIndex, // 127 levels
		"00" + "00000007" + "80":        ReasonIndex,
	} {
		_, err := Parse(raw(t, value), nil, true)
		require.Equal(t, want, reason(t, err), value)
	}
	for _, header := range []string{"", "02", "0000", "01000102", "00" + "00000009" + "00" + "ff", "01" + "000102030405060708090a0b0c0d0e0f" + "80"} {
		_, err := Parse(raw(t, "0801"), raw(t, header), true)
		require.Error(t, err, header)
	}
}

func TestUnframedIsTheWholeValue(t *testing.T) {
	f := Unframed([]byte{0, 1})
	require.Equal(t, []byte{0, 1}, f.Payload)
	require.Equal(t, []int{0}, f.Path())
	require.Equal(t, "the configured schema", f.Reference())
}

func TestParseDoesNotAllocate(t *testing.T) {
	value := raw(t, "00"+"00000007"+"06040200"+"0801")
	plans := map[Key]int{}
	f, err := Parse(value, nil, true)
	require.NoError(t, err)
	plans[f.Key()] = 5
	old := raw(t, "00"+"00000007"+"020100"+"0801")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseUnsigned(old, nil) }))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f, _ := Parse(value, nil, true)
		if plans[Key{Form: f.Form, ID: f.ID, GUID: f.GUID, Index: string(f.Index)}] != 5 {
			t.Fatal("not found")
		}
	}))
}

// FuzzParse checks that nothing panics and that what is taken apart adds up.
func FuzzParse(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 7, 0, 8, 1}, []byte(nil), true)
	f.Add([]byte{0, 0, 0, 0, 7, 6, 4, 2, 0, 8, 1}, []byte(nil), true)
	f.Add([]byte{8, 1}, []byte{0, 0, 0, 0, 9, 0}, true)
	f.Fuzz(func(t *testing.T, value, header []byte, indexed bool) {
		fr, err := Parse(value, header, indexed)
		if err != nil {
			require.NotEmpty(t, reason(t, err))
			return
		}
		for _, i := range fr.Path() {
			require.GreaterOrEqual(t, i, 0)
		}
		if fr.Form == PrefixID {
			require.Len(t, value, 5+len(fr.Index)+len(fr.Payload))
		} else {
			require.Equal(t, value, fr.Payload)
		}
	})
}
