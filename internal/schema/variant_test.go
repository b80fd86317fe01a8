package schema

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A list or a map of variants could not be read back; a struct inside one may hold them.
func TestVariantsInListsAreText(t *testing.T) {
	s := of(
		col("v", 1, Variant), list("l", 2, col("", 0, Variant)), mapOf("m", 3, String, col("", 0, Variant)),
		list("s", 4, col("", 0, Struct, col("v", 1, Variant), list("l", 2, list("", 0, col("", 0, Variant))))),
	)
	TextInLists(s.Columns)
	kinds := map[string]string{}
	s.Walk(func(path string, n *Node) {
		if len(n.Kids) == 0 {
			kinds[path] = n.Type.String()
		}
	})
	require.Equal(t, map[string]string{
		"v": "variant", "l.element": "string", "m.key": "string", "m.value": "string", "s.element.v": "variant", "s.element.l.element.element": "string",
	}, kinds)
}
