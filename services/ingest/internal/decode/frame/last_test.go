package frame

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestComparingWithTheLastValueGivesWhatParsingGives(t *testing.T) {
	values := []string{
		"00" + "00000007" + "00" + "0801", "00" + "00000007" + "00" + "0802", "00" + "00000007" + "00", "00" + "00000007" + "0200" + "0801",
		"00" + "00000007" + "0202" + "0801", "00" + "00000007" + "02", "00" + "00000007" + "028a01" + "00", "00" + "00000007" + "028a", "00" + "00000008" + "00" + "0801",
		"00" + "00000007", "00" + "0000", "", "01" + "00000007" + "00", "00" + "00000007" + "06040200" + "0801", "00" + "00000007" + "060402" + "0801",
	}
	parsers := map[string]func(value []byte) (Frame, error){
		"path":     func(value []byte) (Frame, error) { return Parse(value, nil, true) },
		"no path":  func(value []byte) (Frame, error) { return Parse(value, nil, false) },
		"unsigned": func(value []byte) (Frame, error) { return ParseUnsigned(value, nil) },
		"bare":     func(value []byte) (Frame, error) { return Unframed(value), nil },
	}
	for name, parse := range parsers {
		for _, before := range values {
			for _, after := range values {
				var l Last
				first := raw(t, before)
				f, err := parse(first)
				require.False(t, l.Same(first), "nothing was kept yet")
				if err != nil {
					continue
				}
				l.Keep(f, first)
				clear(first) // a fetch's memory is used again
				value := raw(t, after)
				want, err := parse(value)
				if l.Same(value) {
					require.NoError(t, err, "%s: %s after %s", name, after, before)
					require.Equal(t, want, l.Frame, "%s: %s after %s", name, after, before)
				} else {
					require.False(t, before == after && f.Form == PrefixID, "%s: %s again is not seen", name, before)
				}
			}
		}
	}
}

// A header's reference is about one record only.
func TestAFrameFromAHeaderIsNotComparedWith(t *testing.T) {
	var l Last
	value := raw(t, "0000000007000801")
	f, err := Parse(value, nil, true)
	require.NoError(t, err)
	l.Keep(f, value)
	f, err = Parse(value, raw(t, "000000000900"), true)
	require.NoError(t, err)
	l.Keep(f, value)
	require.False(t, l.Same(value))
	require.EqualValues(t, 9, l.ID)
}
