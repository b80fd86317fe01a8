package main

import (
	"encoding/json"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
)

// holdsVariant reports whether a column is a variant, or has one inside.
func holdsVariant(f arrow.Field) bool {
	if schema.IsVariant(f) {
		return true
	}
	nested, ok := f.Type.(arrow.NestedType)
	return ok && slices.ContainsFunc(nested.Fields(), holdsVariant)
}

// forJSON is a value as JSON has it; a variant is the value that it holds, not its bytes.
func forJSON(f arrow.Field, a arrow.Array, row int) any {
	switch {
	case a.IsNull(row):
		return nil
	case schema.IsVariant(f):
		return variantOf(a, row)
	case !holdsVariant(f):
		return a.GetOneForMarshal(row)
	}
	switch a := a.(type) {
	case *array.Struct:
		out := map[string]any{}
		for i, k := range f.Type.(*arrow.StructType).Fields() {
			out[k.Name] = forJSON(k, a.Field(i), row)
		}
		return out
	case *array.Map:
		t := f.Type.(*arrow.MapType)
		from, to := a.ValueOffsets(row)
		out := []any{}
		for i := int(from); i < int(to); i++ {
			out = append(out, map[string]any{schema.KeyName: forJSON(t.KeyField(), a.Keys(), i), schema.ValueName: forJSON(t.ItemField(), a.Items(), i)})
		}
		return out
	case *array.List:
		from, to := a.ValueOffsets(row)
		out := []any{}
		for i := int(from); i < int(to); i++ {
			out = append(out, forJSON(f.Type.(*arrow.ListType).ElemField(), a.ListValues(), i))
		}
		return out
	default:
		return a.GetOneForMarshal(row)
	}
}

// variantOf is the value as JSON, or its bytes where they are malformed.
func variantOf(a arrow.Array, row int) any {
	s, ok := a.(*array.Struct)
	if ok {
		metadata, okM := s.Field(0).(*array.Binary)
		value, okV := s.Field(1).(*array.Binary)
		if okM && okV {
			if text, err := variant.JSON(nil, metadata.Value(row), value.Value(row)); err == nil {
				return json.RawMessage(text)
			}
		}
	}
	return a.GetOneForMarshal(row)
}
