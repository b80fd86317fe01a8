package lake

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/icestream/icestream/services/committer/internal/levels"
)

// maxWords bounds what is kept of one column.
const maxWords = 4 << 10

// words knows the dictionary that the library has built for one column of strings or bytes
// in one row group. The library (v18.8.0) looks each value up with allocations, which is most
// of what such a column costs; here those that it has met are looked up without, and it is
// given their places. The file is the same, byte for byte.
type words struct {
	place map[string]int32 // in the library's dictionary; nil once that is given up or too large
	list  []parquet.ByteArray
	met   []int // by place: the last turn that had the word
	turn  int

	slots  []int   // scratch of a turn: the slots that have a value
	places []int32 // by slot
	valid  []byte
}

// text is an array of strings or bytes.
type text interface {
	arrow.Array
	ValueOffsets() []int32
}

// dictEncoder is what the library's dictionary encoders offer beyond their interface.
type dictEncoder interface {
	NumEntries() int
	AddRawSize(bytes int64) // of values in plain encoding, by which it ends pages
}

// write appends a leaf in turns of as many entries as the library takes at once, since after
// each it looks whether a page is full and the dictionary still pays. Without a dictionary
// all that is left is one turn.
func (w *words) write(ctx context.Context, to *file.ByteArrayColumnChunkWriter, l levels.Leaf, a text) error {
	if w.place == nil { // nothing to look up: most columns of strings, soon after their first turn
		return writeLeaf(ctx, to, l)
	}
	entries, slot := a.Len(), 0
	if l.Def != nil {
		entries = len(l.Def)
	}
	for from := 0; from < entries; {
		encoder, ok := to.CurrentEncoder().(dictEncoder)
		if !ok {
			w.place = nil
		}
		until := entries
		if w.place != nil {
			until = min(from+int(to.Properties().WriteBatchSize()), entries)
		}
		turn := levels.Leaf{Def: someLevels(l.Def, from, until), Rep: someLevels(l.Rep, from, until), Nullable: l.Nullable, Dense: l.Dense}
		n := w.find(turn.Def, until-from, to.LevelInfo())
		turn.Values = array.NewSlice(a, int64(slot), int64(slot+n))
		err := w.append(ctx, to, encoder, turn)
		turn.Values.Release()
		if err != nil {
			return err
		}
		from, slot = until, slot+n
	}
	return nil
}

// find notes which slots of a turn have a value and says how many slots there are.
func (w *words) find(def []int16, entries int, info file.LevelInfo) int {
	w.slots = w.slots[:0]
	if def == nil {
		for i := range entries {
			w.slots = append(w.slots, i)
		}
		return entries
	}
	n := 0
	for _, d := range def {
		if d == info.DefLevel {
			w.slots = append(w.slots, n)
		}
		if d >= info.RepeatedAncestorDefLevel {
			n++
		}
	}
	return n
}

// append writes a turn: the places of its words where all are known, else the words. Those
// are learnt then, if the dictionary has outlived them.
func (w *words) append(ctx context.Context, to *file.ByteArrayColumnChunkWriter, encoder dictEncoder, l levels.Leaf) error {
	if w.place == nil || len(w.slots) == 0 {
		return writeLeaf(ctx, to, l)
	}
	a := l.Values.(text)
	raw, known := w.lookUp(a)
	if !known {
		err := writeLeaf(ctx, to, l)
		if err == nil {
			w.learn(to, a)
		}
		return err
	}
	encoder.AddRawSize(int64(raw))
	w.count(to, max(len(l.Def), a.Len()))
	places := w.array(a.Len())
	defer places.Release()
	return to.WriteDictIndices(places, l.Def, l.Rep)
}

// lookUp finds the places of a turn's values and counts their bytes as the encoder would. It
// reports false if a word is new.
func (w *words) lookUp(a text) (raw int, known bool) {
	data, offsets := bytesOf(a), a.ValueOffsets()
	w.places = append(w.places[:0], make([]int32, a.Len())...)
	for _, i := range w.slots {
		v := data[offsets[i]:offsets[i+1]]
		p, ok := w.place[string(v)]
		if !ok {
			return 0, false
		}
		w.places[i] = p
		raw += len(v) + arrow.Uint32SizeBytes
	}
	return raw, true
}

// count takes a turn into the statistics of its page, which the library does for values alone.
func (w *words) count(to *file.ByteArrayColumnChunkWriter, entries int) {
	stats, ok := to.PageStatistics().(*metadata.ByteArrayStatistics)
	if !ok {
		return
	}
	stats.IncNumValues(int64(len(w.slots)))
	stats.IncNulls(int64(entries - len(w.slots)))
	w.turn++
	for _, i := range w.slots {
		if p := w.places[i]; w.met[p] != w.turn {
			w.met[p] = w.turn
			stats.SetMinMax(w.list[p], w.list[p])
		}
	}
}

// array is the places as the library takes them.
func (w *words) array(slots int) arrow.Array {
	buffers := []*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(w.places))}
	if len(w.slots) < slots {
		w.valid = append(w.valid[:0], make([]byte, bitutil.BytesForBits(int64(slots)))...)
		for _, i := range w.slots {
			bitutil.SetBit(w.valid, i)
		}
		buffers[0] = memory.NewBufferBytes(w.valid)
	}
	data := array.NewData(arrow.PrimitiveTypes.Int32, slots, buffers, nil, slots-len(w.slots), 0)
	defer data.Release()
	return array.NewInt32Data(data)
}

// learn adds what a turn has brought into the dictionary, in its order.
func (w *words) learn(to *file.ByteArrayColumnChunkWriter, a text) {
	encoder, ok := to.CurrentEncoder().(dictEncoder)
	if !ok || encoder.NumEntries() > maxWords {
		w.place = nil
		return
	}
	data, offsets := bytesOf(a), a.ValueOffsets()
	for _, i := range w.slots {
		v := data[offsets[i]:offsets[i+1]]
		if _, ok := w.place[string(v)]; !ok {
			word := string(v)
			w.place[word] = int32(len(w.list))
			w.list = append(w.list, parquet.ByteArray(word))
			w.met = append(w.met, 0)
		}
	}
	if len(w.list) != encoder.NumEntries() { // another release of the library: do without
		w.place = nil
	}
}

// someLevels is some entries of levels, which there may be none of.
func someLevels(levels []int16, from, until int) []int16 {
	if levels == nil {
		return nil
	}
	return levels[from:until]
}
