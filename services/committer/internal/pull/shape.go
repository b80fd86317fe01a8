package pull

import (
	"errors"
	"time"

	"github.com/icestream/icestream/services/committer/internal/cut"
)

// errNewShape means that an entry has columns that the open files lack.
var errNewShape = errors.New("the rows have columns that the open files lack")

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
