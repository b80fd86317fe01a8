package schema

// Cast is a field whose values are stored in another type than its own, without
// loss.
type Cast struct {
	Path string // of the column
	From string // type of the field
	To   string // type of the column
}

// String is one line about the cast.
func (c Cast) String() string { return c.Path + " from " + c.From + " to " + c.To }

// Casts lists the fields of a candidate that its target stores in another type.
func Casts(target, candidate *Schema) []Cast {
	var out []Cast
	casts("", target.Columns, candidate.Columns, &out)
	return out
}

func casts(path string, target, candidate []*Node, out *[]Cast) {
	for _, c := range candidate {
		for _, t := range target {
			if t.Number == c.Number && t.Source == c.Source && identified(t) {
				castsBelow(join(path, t.Name), t, c, out)
			}
		}
	}
}

func castsBelow(path string, t, c *Node, out *[]Cast) {
	switch {
	case t.Type.Kind != c.Type.Kind || !t.Type.Kind.Nested():
		if t.Type != c.Type {
			*out = append(*out, Cast{Path: path, From: Describe(c), To: Describe(t)})
		}
	case t.Type.Kind == Struct:
		casts(path, t.Kids, c.Kids, out)
	default:
		for i, k := range t.Kids {
			castsBelow(join(path, k.Name), k, c.Kids[i], out)
		}
	}
}

// Diff lists what another schema of the same table changed, by field id, in the
// order of the newer one; what is gone comes last.
func Diff(before, after *Schema) []Change {
	was, paths := map[int32]*Node{}, map[int32]string{}
	before.Walk(func(path string, n *Node) { was[n.FieldID], paths[n.FieldID] = n, path })
	there := map[int32]bool{}
	var out []Change
	diff("", after.Columns, was, paths, there, &out)
	gone := map[string]bool{}
	before.Walk(func(path string, n *Node) {
		if there[n.FieldID] || above(gone, path) {
			return
		}
		gone[path] = true
		out = append(out, Change{Kind: Dropped, Path: path, From: Describe(n)})
	})
	return out
}

func diff(path string, nodes []*Node, was map[int32]*Node, paths map[int32]string, there map[int32]bool, out *[]Change) {
	for _, n := range nodes {
		at := join(path, n.Name)
		there[n.FieldID] = true
		old := was[n.FieldID]
		if old == nil {
			*out = append(*out, Change{Kind: Added, Path: at, To: Describe(n)})
			markAll(n.Kids, there)
			continue
		}
		if old.Name != n.Name {
			*out = append(*out, Change{Kind: Renamed, Path: paths[n.FieldID], From: old.Name, To: n.Name})
		}
		if old.Type != n.Type {
			*out = append(*out, Change{Kind: Widened, Path: at, From: old.Type.String(), To: n.Type.String()})
		}
		if old.Required != n.Required {
			kind := Optional
			if n.Required {
				kind = Required
			}
			*out = append(*out, Change{Kind: kind, Path: at, From: n.Type.String(), To: n.Type.String()})
		}
		diff(at, n.Kids, was, paths, there, out)
	}
}

func above(gone map[string]bool, path string) bool {
	for i, c := range path {
		if c == '.' && gone[path[:i]] {
			return true
		}
	}
	return false
}

func markAll(nodes []*Node, there map[int32]bool) {
	for _, n := range nodes {
		there[n.FieldID] = true
		markAll(n.Kids, there)
	}
}
