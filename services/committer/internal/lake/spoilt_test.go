package lake

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/fault"
)

// Strings whose offsets go back, or lead behind their memory to what is not theirs, are the column's fault, whether its
// words are known or new, and nothing that ends the process.
func TestStringsWithSpoiltOffsetsAreCorrupt(t *testing.T) {
	const rows, word, end = 1200, "word", 1200 * 4
	sch := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	memoryOf := []byte(strings.Repeat(word, rows+1)) // the last word is somebody else's
	batch := func(spoilt map[int]int32, holes ...int) arrow.RecordBatch {
		offsets, valid := make([]int32, rows+1), bytes.Repeat([]byte{0xff}, rows/8)
		for i := range offsets {
			offsets[i] = int32(i * len(word))
		}
		for at, offset := range spoilt {
			offsets[at] = offset
		}
		for _, hole := range holes {
			valid[hole/8] &^= 1 << (hole % 8)
		}
		return array.NewRecordBatch(sch, []arrow.Array{array.MakeFromData(array.NewData(arrow.BinaryTypes.String, rows, []*memory.Buffer{
			memory.NewBufferBytes(valid), memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), memory.NewBufferBytes(memoryOf[:end]),
		}, nil, len(holes), 0))}, rows)
	}
	for _, known := range []bool{false, true} {
		for name, spoilt := range map[string]arrow.RecordBatch{
			"back":                batch(map[int]int32{700: 3}),
			"behind":              batch(map[int]int32{rows - 1: end + 4}),
			"behind, before null": batch(map[int]int32{rows - 1: end + 4}, rows-1),
			"a word of others":    batch(map[int]int32{rows - 2: end, rows - 1: end + 4}, rows-3, rows-1),
			"far behind":          batch(map[int]int32{700: 1 << 30}),
			"negative":            batch(map[int]int32{700: -1}),
		} {
			t.Run(fmt.Sprintf("%s, known: %v", name, known), func(t *testing.T) {
				l, err := newLayout(sch)
				require.NoError(t, err)
				f, err := l.open(&bytes.Buffer{})
				require.NoError(t, err)
				if known {
					require.NoError(t, f.write(batch(nil)))
					require.NoError(t, f.write(batch(nil, 9)))
				}
				err = f.write(spoilt)
				require.ErrorIs(t, err, fault.Of(fault.Corrupt))
				require.ErrorContains(t, err, `column "s"`)
			})
		}
	}
}
