package lake

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/testkit/random"
)

// Columns whose words come again are looked up here and not by the library, and the file does not show it: places,
// pages, bounds and the moment at which a dictionary is given up are the library's, at every depth, with nulls and
// empty words, for few words and for more than are kept, for words that come late, and from row group to row group.
func TestColumnsOfWordsAreThoseOfTheLibrarysWriter(t *testing.T) {
	kept := 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 79))
		fields := []arrow.Field{{Name: "flat", Type: arrow.BinaryTypes.String, Nullable: seed%2 == 0}}
		if seed%3 > 0 {
			word := arrow.Field{Name: "element", Type: arrow.BinaryTypes.Binary, Nullable: seed%4 < 2}
			fields = append(fields, arrow.Field{Name: "list", Type: arrow.ListOfField(word), Nullable: true},
				arrow.Field{Name: "struct", Type: arrow.StructOf(fields[0]), Nullable: true},
				arrow.Field{Name: "map", Type: arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String}, fields[0])})
		}
		sch := arrow.NewSchema(fields, nil)
		about := fmt.Sprintf("seed %d: %s", seed, sch)
		p := newPair(t, sch)
		for batch := range 2 + r.IntN(6) {
			if batch > 0 && r.IntN(6) == 0 {
				require.NoError(t, p.ours.cut())
				p.theirs.NewBufferedRowGroup()
			}
			n, words := 1+r.IntN(8000), []uint32{1, 2, 12, 40, 700, 6000}[r.IntN(6)] // vocabularies grow and shrink
			columns := make([]arrow.Array, len(fields))
			for i, f := range fields {
				columns[i] = array.MakeFromData(inWords(random.Batch(r, n, f).Column(0).Data(), words, seed%5 == 0))
			}
			rec := array.NewRecordBatch(sch, columns, int64(n))
			require.NoError(t, p.ours.write(rec), about)
			for _, w := range p.ours.words {
				if w.turn > 0 {
					kept++
				}
			}
			require.NoError(t, p.theirs.WriteBuffered(rec), about)
		}
		p.requireSame(t, about)
	}
	require.Greater(t, kept, 50, "hardly a column was looked up")
}

// inWords is an array whose strings are made words of a vocabulary, in which one is empty.
func inWords(d arrow.ArrayData, words uint32, long bool) arrow.ArrayData {
	var kids []arrow.ArrayData
	for _, k := range d.Children() {
		kids = append(kids, inWords(k, words, long))
	}
	buffers := d.Buffers()
	if id := d.DataType().ID(); (id == arrow.STRING || id == arrow.BINARY) && d.Len() > 0 {
		old := arrow.Int32Traits.CastFromBytes(buffers[1].Bytes())[:d.Offset()+d.Len()+1]
		offsets, data := make([]int32, 1, len(old)), make([]byte, 0, 1)
		for i := range old[1:] {
			p := crc32.ChecksumIEEE(buffers[2].Bytes()[old[i]:old[i+1]]) % words
			if p > 0 {
				data = fmt.Appendf(data, "%d word", p)
			}
			if long && p > 0 {
				data = append(data, strings.Repeat("\xff", int(p%90))...)
			}
			offsets = append(offsets, int32(len(data)))
		}
		buffers = []*memory.Buffer{buffers[0], memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), memory.NewBufferBytes(data)}
	}
	return array.NewData(d.DataType(), d.Len(), buffers, kids, d.NullN(), d.Offset())
}

// BenchmarkWords is a column of twelve words, looked up here or by the library.
func BenchmarkWords(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 80))
	f := arrow.Field{Name: "kind", Type: arrow.BinaryTypes.String, Nullable: true}
	sch := arrow.NewSchema([]arrow.Field{f}, nil)
	const rows = 16 << 10
	column := array.NewStringBuilder(memory.DefaultAllocator)
	for range rows {
		column.Append(fmt.Sprintf("word %d", r.IntN(12)))
	}
	rec := array.NewRecordBatch(sch, []arrow.Array{column.NewArray()}, rows)
	l, err := newLayout(sch)
	require.NoError(b, err)
	for name, kept := range map[string]bool{"here": true, "library": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ours, err := l.open(&bytes.Buffer{})
			require.NoError(b, err)
			require.NoError(b, ours.write(rec))
			if !kept {
				ours.words[0].place = nil
			}
			for b.Loop() {
				require.NoError(b, ours.write(rec))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/value")
		})
	}
}
