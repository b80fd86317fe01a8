package commit

import (
	"fmt"
	"strings"

	"github.com/icestream/icestream/internal/ident"
)

// Extent is what Kafka holds of a topic partition.
type Extent struct {
	Cluster   string          // empty where it is not known
	Partition ident.Partition // the pipeline does not matter
	ident.Range
}

// extent finds what is known of a partition in the log, of whatever life its topic
// is in.
func (o Order) extent(part ident.Partition) (Extent, bool) {
	for _, e := range o.Log {
		if e.Partition.Topic == part.Topic && e.Partition.Number == part.Number {
			return e, true
		}
	}
	return Extent{}, false
}

// another says why the log is not the one that the offsets of a partition are of.
func (e Extent) another(part ident.Partition, owner string) string {
	_, cluster, _ := strings.Cut(owner, "/")
	id := e.Partition.TopicID
	switch {
	case cluster != "" && e.Cluster != "" && cluster != e.Cluster:
		return fmt.Sprintf("the table is fed by the Kafka cluster %s, the one that was asked is %s", cluster, e.Cluster)
	case !id.IsZero() && !part.TopicID.IsZero() && id != part.TopicID:
		return fmt.Sprintf("the topic was created again in Kafka (id %s, was %s): its offsets are not those of the table any more", id, part.TopicID)
	default:
		return ""
	}
}

// forbids says why a partition that stands at have must not be moved forward to an
// offset, or "". A position never goes back, so one that the log has not reached
// stops the partition until it has.
func (o Order) forbids(part ident.Partition, owner string, have, offset int64) string {
	if o.Unchecked {
		return ""
	}
	e, known := o.extent(part)
	if !known {
		return "it is not known whether Kafka has that offset, and positions never go back; where Kafka cannot be asked, --unchecked moves on without"
	}
	if why := e.another(part, owner); why != "" {
		return why
	}
	if offset > e.Next {
		return fmt.Sprintf("Kafka's log is [%d,%d) and the table stands at %d: offsets %d to %d do not exist yet. They would be counted as lost, and the records that get them never read. Go to %d at most",
			e.First, e.Next, have, max(have, e.Next), offset-1, e.Next)
	}
	return ""
}

// remark says what is amiss with going on at an offset, or "".
func (o Order) remark(part ident.Partition, owner string, next int64) string {
	e, known := o.extent(part)
	if !known {
		return ""
	}
	switch why := e.another(part, owner); {
	case why != "":
		return why
	case next < e.First:
		return fmt.Sprintf("Kafka's log begins at %d: offsets %d to %d are gone from it, and the partition stops there unless its pipeline has on_data_loss: continue, which counts them as lost",
			e.First, next, e.First-1)
	case next > e.Next:
		return fmt.Sprintf("Kafka's log ends at %d: the records that get offsets %d to %d will not be read", e.Next, e.Next, next-1)
	default:
		return ""
	}
}
