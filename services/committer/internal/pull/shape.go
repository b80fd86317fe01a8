package pull

import (
	"errors"
	"time"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/cut"
)

// errNewShape means that an entry has columns that the open files lack.
var errNewShape = errors.New("the rows have columns that the open files lack")

// holds reports whether files of shape to can take rows of shape from without
// losing a column or a value: every column of from, at any depth, is in to under
// its field id, with a type that can hold it. Schemas of one table differ so
// when a pipeline still writes with an older one, or when several pipelines feed
// the table.
func holds(to, from *schema.Schema) bool {
	types := make(map[int32]schema.Type)
	to.Walk(func(_ string, n *schema.Node) { types[n.FieldID] = n.Type })
	fits := true
	from.Walk(func(_ string, n *schema.Node) {
		t, ok := types[n.FieldID]
		switch {
		case !ok:
			fits = false
		case t == n.Type:
		case t.Kind.Nested() || n.Type.Kind.Nested() || !schema.CanHold(t, n.Type):
			fits = false
		}
	})
	return fits
}

// loadOf is the load of what waits in a queue; how long it has waited is not
// known any more, so it counts from now.
func loadOf(queue []entry) cut.Load {
	var l cut.Load
	now := time.Now()
	for _, e := range queue {
		l.Since = now
		if n := e.append.Rows + e.append.Quarantined; n > 0 {
			l.SinceRows = now
			l.Rows += n
		}
	}
	return l
}
