package pull

import (
	"errors"
	"time"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/cut"
)

// errNewShape means that an entry has columns that the open files lack.
var errNewShape = errors.New("the rows have columns that the open files lack")

// shapeFor is the schema of files for rows of a target: that of the table where
// it holds them, because others may have added a column and partition or sort by
// it, which files without it could not.
func shapeFor(head, target *schema.Schema) *schema.Schema {
	if head == nil || head.Fingerprint() == target.Fingerprint() || !schema.Holds(head, target) {
		return target
	}
	known := make(map[int32]bool, len(target.Columns))
	for _, n := range target.Columns {
		known[n.FieldID] = true
	}
	for _, n := range head.Columns {
		if n.Required && !known[n.FieldID] {
			return target // there is nothing to put into it
		}
	}
	return head
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
