package schema

import "strings"

// Describe is the type of a node with everything below it:
// "list<struct<a: int, b: map<string, long>>>". Wide structs are cut short.
func Describe(n *Node) string {
	switch n.Type.Kind {
	case Struct:
		const few = 4
		parts := make([]string, 0, few+1)
		for i, k := range n.Kids {
			if i == few {
				parts = append(parts, "…")
				break
			}
			parts = append(parts, k.Name+": "+Describe(k))
		}
		return "struct<" + strings.Join(parts, ", ") + ">"
	case List:
		return "list<" + Describe(n.Kids[0]) + ">"
	case Map:
		return "map<" + Describe(n.Kids[0]) + ", " + Describe(n.Kids[1]) + ">"
	default:
		return n.Type.String()
	}
}

// TextInLists makes variants that are the elements of lists or the values of maps
// JSON text: iceberg-go v0.7.0 cannot read a list or a map of variants. In a struct
// inside a list they may stand.
func TextInLists(nodes []*Node) {
	for _, n := range nodes {
		for _, k := range n.Kids {
			if n.Type.Kind != Struct && k.Type.Kind == Variant {
				k.Type = Of(String)
			}
		}
		TextInLists(n.Kids)
	}
}

// why says in words why no lossless change leads from the table's type to the
// candidate's.
func why(table, candidate Type) string {
	t, c := table.Kind, candidate.Kind
	number := func(k Kind) bool { return k == Int || k == Long || k == Float || k == Double || k == Decimal }
	switch {
	case t == List && !c.Nested(), c == List && !t.Nested(), t == List && c == Struct, t == Struct && c == List:
		return "one value and a list of values are different columns"
	case t == Map || c == Map:
		return "a map and another type are different columns"
	case t == Struct || c == Struct:
		return "a message and a single value are different columns"
	case t == Decimal && c == Decimal:
		return "another scale would lose digits or move the point of values already written"
	case t == Long && c == Decimal && candidate.Scale == 0, t == Int && c == Decimal && candidate.Scale == 0:
		return "values above the signed maximum would not fit"
	case number(t) && number(c):
		return "some values of one have no exact place in the other"
	case t == Variant || c == Variant:
		return "a variant and a value of one type are different columns"
	case t == String || c == String:
		return "text is never turned into another type, nor another type into text"
	case t == Binary || t == Fixed || c == Binary || c == Fixed:
		return "bytes are never turned into another type, nor another type into bytes"
	case t == Timestamp && c == TimestampTZ:
		return "an instant is not a local time"
	case (t == TimestampTZNano || t == TimestampNano) && c == TimestampTZ:
		return "nanoseconds since 1970 in 64 bits do not reach every instant that microseconds do"
	case t == TimestampTZ && c == TimestampTZNano, t == Timestamp && c == TimestampNano:
		return "a column of microseconds has no room for nanoseconds, and no engine may make one of the other"
	case t == Time && c == Long:
		return "a time of day has no room for 24:00 and leap seconds; the option time_of_day makes the field a time"
	default:
		return "no lossless change leads from one to the other"
	}
}
