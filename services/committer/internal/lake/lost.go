package lake

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Loss says why offsets are remembered as lost.
type Loss string

// The reasons.
const (
	// LossGone: Kafka did not have them any more when they were to be read, and the
	// pipeline says on_data_loss: continue. Retention took them, or somebody deleted
	// records.
	LossGone Loss = "gone"
	// LossGivenUp: an operator moved the partition beyond them.
	LossGivenUp Loss = "given_up"
	// LossReplaced: Kafka's log was replaced below what was read, and the pipeline says
	// on_data_loss: continue. The table holds what was read, and counts it so; the
	// records that took those offsets since are not in it.
	LossReplaced Loss = "replaced"
)

// counted reports whether the totals count such offsets as lost.
func (l Loss) counted() bool { return l != LossReplaced }

// words is the reason for people.
func (l Loss) words() string {
	switch l {
	case LossGone:
		return "Kafka did not have them any more when they were to be read: its retention took them, or somebody deleted records (on_data_loss: continue)"
	case LossGivenUp:
		return "an operator gave them up"
	case LossReplaced:
		return "Kafka's log was replaced below what was read (an unclean leader election, or a broker that lost its disk): " +
			"the table holds the records that were there, not those that took their offsets since (on_data_loss: continue)"
	default:
		return string(l)
	}
}

// Lost is a range of offsets that a state remembers as lost. Neither the expiry of
// snapshots nor the commits of others take it out of the state.
type Lost struct {
	Partition ident.Partition
	ident.Range
	Why Loss
}

// Lose adds a range to those that are remembered, the newest last. It takes up those
// of the same reason that it meets, and is the newest then; none that is counted may
// overlap another. More than twice as many as the pipeline has partitions, and 64, are
// not kept: the oldest are only counted then.
func (p *Pipeline) Lose(l Lost) {
	if l.Empty() {
		return
	}
	p.Lost = slices.DeleteFunc(p.Lost, func(have Lost) bool {
		meets := have.Next == l.First || l.Next == have.First || !l.Why.counted() && have.Overlaps(l.Range)
		if have.Partition != l.Partition || have.Why != l.Why || !meets {
			return false
		}
		l.Range = ident.Range{First: min(have.First, l.First), Next: max(have.Next, l.Next)}
		return true
	})
	p.Lost = append(p.Lost, l)
	if more := len(p.Lost) - p.mostLost(); more > 0 {
		p.Lost = slices.Delete(p.Lost, 0, more)
	}
}

// Remembers reports whether a whole range is remembered as lost for that reason.
func (p *Pipeline) Remembers(l Lost) bool {
	return slices.ContainsFunc(p.Lost, func(have Lost) bool {
		return have.Partition == l.Partition && have.Why == l.Why && have.First <= l.First && l.Next <= have.Next
	})
}

// lostJSON are ranges of one partition that were lost for one reason. Topics have
// the names of the offsets key.
type lostJSON struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	First     int64  `json:"first"`
	Next      int64  `json:"next"`
	Why       Loss   `json:"why"`
}

func lostOf(p *Pipeline) []lostJSON {
	keys := topicKeys(p.Positions)
	out := make([]lostJSON, 0, len(p.Lost))
	for _, l := range p.Lost {
		if key, ok := keys[l.Partition]; ok {
			out = append(out, lostJSON{Topic: key, Partition: l.Partition.Number, First: l.First, Next: l.Next, Why: l.Why})
		}
	}
	return out
}

func readLost(p *Pipeline, name string, topics map[string]topicOffsets, list []lostJSON) error {
	for _, l := range list {
		topic, _, _ := strings.Cut(l.Topic, "#")
		t := topics[l.Topic]
		if _, known := t.Partitions[l.Partition]; !known || l.First >= l.Next {
			return fault.New(fault.Corrupt, "reading the lost offsets of %s: [%d,%d) of topic %q, partition %d, is no range of it", name, l.First, l.Next, l.Topic, l.Partition)
		}
		p.Lost = append(p.Lost, Lost{
			Partition: ident.Partition{Pipeline: name, Topic: topic, TopicID: t.ID, Number: l.Partition}, Range: ident.Range{First: l.First, Next: l.Next}, Why: l.Why,
		})
	}
	return nil
}

// LostReport is a range of offsets that a partition lost.
type LostReport struct {
	ident.Range
	Why Loss `json:"why"`
}

// tellLost says which offsets of a partition are counted as lost, and why, as far as
// the state remembers it.
func (a *auditor) tellLost(p *Pipeline, out *PartitionReport) {
	part := out.part
	counted, told := p.Totals[part].Skipped[event.SkipLost], int64(0)
	pos := p.Positions[part]
	for _, l := range p.Lost {
		if l.Partition != part {
			continue
		}
		counts := "are counted as lost"
		if l.Why.counted() {
			told += l.Len()
		} else {
			counts = "are others in Kafka now"
		}
		out.Lost = append(out.Lost, LostReport{l.Range, l.Why})
		if l.First < pos.Start || l.Next > pos.Next {
			a.r.find(Violated, part.String(), "offsets %s are remembered as lost, but the table accounts for [%d,%d)", l.Range, pos.Start, pos.Next)
		}
		a.r.note("%s: offsets %d to %d, %d of them, %s: %s", part, l.First, l.Next-1, l.Len(), counts, l.Why.words())
	}
	slices.SortFunc(out.Lost, func(a, b LostReport) int { return cmp.Compare(a.First, b.First) })
	before := LostReport{}
	for _, l := range out.Lost {
		if !l.Why.counted() {
			continue
		}
		if l.First < before.Next {
			a.r.find(Violated, part.String(), "offsets %s and %s are remembered as lost: some of them twice", before.Range, l.Range)
		}
		before = l
	}
	switch {
	case told > counted:
		a.r.find(Violated, part.String(), "%d offsets are remembered as lost, but %d are counted", told, counted)
	case told < counted:
		which := "which ones is not remembered: an earlier release counted them, or there were too many ranges"
		a.r.note("%s: %d offsets are counted as lost: Kafka did not have them any more (on_data_loss: continue), or an operator gave them up; %s", part, counted-told, which)
	}
}

// tellLives says of which topics the table holds more than one life: what one that is
// over held beyond its position was not read, and nothing can tell how much that was.
func (a *auditor) tellLives(name string, p *Pipeline) {
	ids := map[string]map[ident.UUID]bool{}
	for part := range p.Positions {
		if ids[part.Topic] == nil {
			ids[part.Topic] = map[ident.UUID]bool{}
		}
		ids[part.Topic][part.TopicID] = true
	}
	for _, topic := range slices.Sorted(maps.Keys(ids)) {
		if len(ids[topic]) < 2 {
			continue
		}
		var lives []string
		for _, part := range p.Positions.Vector().Partitions() {
			if part.Topic == topic {
				lives = append(lives, fmt.Sprintf("id %s partition %d up to offset %d", part.TopicID, part.Number, p.Positions[part].Next))
			}
		}
		a.r.note("topic %s of pipeline %s was created again (on_data_loss: continue): the table has %s; what an earlier one held beyond is lost, and how much that was nobody knows",
			topic, name, strings.Join(fault.FirstOf(lives, mostNamed), ", "))
	}
}
