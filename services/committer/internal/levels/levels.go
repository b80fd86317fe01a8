// Package levels turns Arrow columns into what Parquet stores of nesting: for each
// leaf its values and their definition and repetition levels (Parquet format,
// "Nested Encoding").
//
// The library's own way to do it gives back none of the buffers it takes from the
// pool of its page writers, twice for each leaf and batch, so that each page is
// gathered in new memory; and it hands columns without a null to its slow path for
// nulls (docs/benchmarks.md).
package levels

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Leaf is one leaf column of a batch. Its slices and array are valid until the
// callback returns.
type Leaf struct {
	Values   arrow.Array // one slot for each entry that reaches the leaf or a null on the way from the last list to it
	Def, Rep []int16     // levels of the entries; nil where all are 0
	Nullable bool        // the leaf itself may be null
	Dense    bool        // every slot holds a value
}

// Walker visits columns. It keeps its memory from column to column and belongs to
// one goroutine. The zero value is ready.
type Walker struct {
	scratch [][]int16 // stack: what is above used is free
	used    int
	same    [][]int16 // by level: as many entries of that level as were asked for so far
}

// entries is how far a walk has come.
type entries struct {
	n        int     // entries: one for each value, null and empty list so far
	def, rep []int16 // def nil: all of n have level; rep nil: all 0
	level    int16   // definition level of the entries that go on
	slot     int16   // entries of at least this level have a slot in the array at hand
	slots    int     // number of slots
	lists    int16   // lists so far
	holes    bool    // some slots are below a null
}

// Column calls leaf for each leaf of a column, in the order of a Parquet schema. It
// fails for a null where there may be none, a null list that is not empty, a list that
// ends before it begins, and for types that Parquet tables of Iceberg do not have.
func (w *Walker) Column(column arrow.Array, nullable bool, leaf func(Leaf) error) error {
	return w.visit(column, nullable, entries{n: column.Len(), slots: column.Len()}, leaf)
}

func (w *Walker) visit(a arrow.Array, nullable bool, e entries, leaf func(Leaf) error) error {
	mark := w.used
	defer func() { w.used = mark }()
	switch a := a.(type) {
	case array.ExtensionArray:
		return w.visit(a.Storage(), nullable, e, leaf)
	case *array.Struct:
		e, err := w.optional(a, nullable, e)
		if err != nil {
			return err
		}
		for i, f := range a.DataType().(*arrow.StructType).Fields() {
			if err := w.visit(a.Field(i), f.Nullable, e, leaf); err != nil {
				return err
			}
		}
		return nil
	case *array.Map:
		return w.list(a.List, nullable, e, leaf)
	case *array.List:
		return w.list(a, nullable, e, leaf)
	}
	if _, nested := a.DataType().(arrow.NestedType); nested || a.DataType().ID() == arrow.DICTIONARY {
		return fmt.Errorf("a column of type %s cannot be written to Parquet", a.DataType())
	}
	e, err := w.optional(a, nullable, e)
	if err != nil {
		return err
	}
	if b := a.Data().Buffers(); len(b) == 2 && b[1] == nil && a.Len() > 0 && (!e.holes || slices.Contains(e.def, e.level)) {
		return fmt.Errorf("%d values of type %s are missing", a.Len(), a.DataType())
	}
	out := Leaf{Values: a, Def: e.def, Rep: e.rep, Nullable: nullable, Dense: !e.holes}
	if out.Def == nil && e.level > 0 {
		out.Def = w.constant(e.level, e.n)
	}
	return leaf(out)
}

// optional takes in that a may be null: entries whose slot is not go up a level.
func (w *Walker) optional(a arrow.Array, nullable bool, e entries) (entries, error) {
	nulls, err := nullsOf(a)
	if err != nil {
		return e, err
	}
	switch {
	case nulls == 0 && (e.def == nil || !nullable):
	case nulls == 0:
		def := w.take(e.n)
		for i, d := range e.def {
			if d == e.level {
				d++
			}
			def[i] = d
		}
		e.def = def
	default:
		def, found := w.lift(a, e)
		if nullable {
			e.def, e.holes = def, true
		} else if found > 0 {
			return e, fmt.Errorf("a value is null and may not be: %d of %d of its type %s are", nulls, a.Len(), a.DataType())
		}
	}
	if nullable {
		e.level++
	}
	return e, nil
}

// lift is the levels of the entries where those whose slot in a holds a value are up by
// one, and the number of nulls in a that are not below another.
func (w *Walker) lift(a arrow.Array, e entries) (def []int16, nulls int) {
	def, valid, slot := w.take(e.n), a.NullBitmapBytes(), a.Data().Offset()
	for i := range def {
		d := e.level
		if e.def != nil {
			d = e.def[i]
		}
		if d >= e.slot {
			if d == e.level {
				up := bit(valid, slot)
				nulls += 1 - int(up)
				d += up
			}
			slot++
		}
		def[i] = d
	}
	return def, nulls
}

// nullsOf is the number of nulls of an array. One that has no bitmap has none.
func nullsOf(a arrow.Array) (int, error) {
	if len(a.NullBitmapBytes()) > 0 {
		return a.NullN(), nil
	}
	if n := a.Data().NullN(); n > 0 {
		return 0, fmt.Errorf("%d values of type %s are null, and nothing says which", n, a.DataType())
	}
	return 0, nil
}

// bit is 1 for a valid slot.
func bit(valid []byte, slot int) int16 { return int16(valid[slot>>3] >> (slot & 7) & 1) }

// list goes down into the elements: an entry becomes as many as it has elements,
// and stays one where the list is null or empty.
func (w *Walker) list(a *array.List, nullable bool, e entries, leaf func(Leaf) error) error {
	e, err := w.optional(a, nullable, e)
	if err != nil {
		return err
	}
	offsets := []int32{0} // an array without lists need not have offsets
	if e.slots > 0 {
		offsets = a.Offsets()[a.Data().Offset():][:e.slots+1]
	}
	first, end := offsets[0], offsets[e.slots]
	if !slices.IsSorted(offsets) {
		return fmt.Errorf("the elements of a list end before they begin")
	}
	most := e.n + int(end-first)
	def, rep, slot := w.take(most)[:0], w.take(most)[:0], 0
	for i := range e.n {
		d, r := e.level, int16(0)
		if e.def != nil {
			d = e.def[i]
		}
		if e.rep != nil {
			r = e.rep[i]
		}
		elements := int32(0)
		if d >= e.slot {
			elements = offsets[slot+1] - offsets[slot]
			slot++
		}
		switch {
		case elements == 0:
			def, rep = append(def, d), append(rep, r)
		case d < e.level:
			return fmt.Errorf("a list that is null, or lies in a struct that is, has %d elements", elements)
		default:
			def, rep = append(def, d+1), append(rep, r)
			for range elements - 1 {
				def, rep = append(def, d+1), append(rep, e.lists+1)
			}
		}
	}
	kids := array.NewSlice(a.ListValues(), int64(first), int64(end))
	defer kids.Release()
	up := e.level + 1
	return w.visit(kids, a.DataType().(arrow.ListLikeType).ElemField().Nullable,
		entries{n: len(def), def: def, rep: rep, level: up, slot: up, slots: int(end - first), lists: e.lists + 1}, leaf)
}

// take is n entries of the stack.
func (w *Walker) take(n int) []int16 {
	if w.used == len(w.scratch) {
		w.scratch = append(w.scratch, nil)
	}
	w.scratch[w.used] = slices.Grow(w.scratch[w.used][:0], n)[:n]
	w.used++
	return w.scratch[w.used-1]
}

// constant is n entries of one level.
func (w *Walker) constant(level int16, n int) []int16 {
	for len(w.same) <= int(level) {
		w.same = append(w.same, nil)
	}
	for have := len(w.same[level]); have < n; have++ {
		w.same[level] = append(w.same[level], level)
	}
	return w.same[level][:n]
}
