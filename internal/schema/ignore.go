package schema

// WithIgnored is the target with a column for each field that it leaves out, at
// the end of its level and without a field id, so that a decoder can read the
// candidate's records as they are. Without those columns, at every level, it is
// the target again. The target is not changed.
func (s *Schema) WithIgnored(candidate *Schema) *Schema {
	out := s.Clone()
	out.Columns = s.widen(out.Columns, candidate.Columns, "")
	out.Ignored = nil
	return out
}

func (s *Schema) widen(nodes, candidate []*Node, path string) []*Node {
	out := nodes
	for _, c := range candidate {
		at := join(path, step(c))
		if s.Ignores(at) {
			n := optional(c)
			n.Name = " ignored " + step(c)
			out = append(out, n)
			continue
		}
		for _, n := range nodes {
			if n.Number == c.Number && n.Source == c.Source && identified(n) {
				s.widenBelow(n, c, at)
			}
		}
	}
	return out
}

func (s *Schema) widenBelow(n, c *Node, path string) {
	switch {
	case n.Type.Kind != c.Type.Kind:
	case n.Type.Kind == Struct:
		n.Kids = s.widen(n.Kids, c.Kids, path)
	default:
		for i, k := range n.Kids {
			s.widenBelow(k, c.Kids[i], join(path, k.Name))
		}
	}
}
