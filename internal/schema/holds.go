package schema

// Holds reports whether files of shape to can take rows of shape from without
// losing a column or a value: every column of from, at any depth, is in to under
// its field id, with a type that can hold it. Schemas of one table differ so
// when a pipeline still writes with an older one, when several pipelines feed the
// table, or when quarantined records of an older schema are replayed.
func Holds(to, from *Schema) bool {
	types := make(map[int32]Type)
	to.Walk(func(_ string, n *Node) { types[n.FieldID] = n.Type })
	fits := true
	from.Walk(func(_ string, n *Node) {
		t, ok := types[n.FieldID]
		switch {
		case !ok:
			fits = false
		case t == n.Type:
		case t.Kind.Nested() || n.Type.Kind.Nested() || !CanHold(t, n.Type):
			fits = false
		}
	})
	return fits
}
