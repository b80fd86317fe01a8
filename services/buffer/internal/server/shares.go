package server

import (
	"fmt"
	"math"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// The committer may hold a partition: an entry of it cannot be made rows, or its
// records wait for the quarantine table. Nothing of such a partition is released,
// so without a bound of its own it would fill the budget, and everybody would
// stand still. Percent of the budget:
const (
	behindPart = 25 // for all partitions together that commits pass by
	onePart    = 75 // for one partition, and for one table, while there are others
)

// shares is what the partitions of a log hold. A partition is passed by when a
// commit took rows that came after its own and left it where it was: a committer
// takes rows in the order in which they came.
type shares struct {
	bytes  map[ident.Partition]int64
	behind map[ident.Partition]bool
	sum    int64        // bytes of those behind
	at     ident.Vector // committed positions at the last commit
	next   ident.LSN    // above every row of the last commit
	used   bool         // something was appended
}

// weigh brings the shares up to the commit of the view; mu is held.
func (l *tableLog) weigh() {
	was, c := l.shares, l.m.View().Commit()
	now := shares{
		bytes: map[ident.Partition]int64{}, behind: map[ident.Partition]bool{},
		at: c.Positions.Vector(), next: max(was.next, c.LSN.Next), used: was.used,
	}
	l.m.View().EachHot(func(p ident.Partition, list []*event.Append) {
		var n int64
		for _, e := range list {
			n += e.Bytes()
		}
		now.bytes[p] = n
		at, known := was.at[p]
		if known && now.at[p] == at && (was.behind[p] || now.next > was.next && list[0].LSN < now.next) {
			now.behind[p] = true
			now.sum += n
		}
	})
	l.shares = now
	l.h.behind.Add(now.sum - was.sum)
}

// unweigh forgets the shares of a log that begins anew; mu is held.
func (l *tableLog) unweigh() {
	l.h.behind.Add(-l.shares.sum)
	l.shares = shares{used: l.shares.used}
}

// weighed notes an accepted entry; mu is held.
func (l *tableLog) weighed(e *event.Append) {
	s, n := &l.shares, e.Bytes()
	if !s.used {
		s.used = true
		l.h.used.Add(1)
	}
	if s.bytes == nil {
		s.bytes = map[ident.Partition]int64{}
	}
	s.bytes[e.Partition] += n
	if s.behind[e.Partition] {
		s.sum += n
		l.h.behind.Add(n)
	}
}

// putOff says why an entry has to wait for the sake of others, "" when it has not
// to. Rows that the journal remembers are never put off; mu is held.
func (l *tableLog) putOff(e *event.Append) string {
	limit := l.h.opt.HotBytes
	behind, held := l.h.behind.Load(), l.shares.bytes[e.Partition]
	var why string
	switch {
	case l.shares.behind[e.Partition] && behind*100 >= limit*behindPart:
		why = fmt.Sprintf("commits of table %s pass this partition by, and such partitions hold %d of %d hot bytes: "+
			"the status of the table at its committer says why it is held", l.name, behind, limit)
	case held*100 >= limit*onePart && l.neighbours(e.Partition):
		why = fmt.Sprintf("this partition holds %d of %d hot bytes: the rest is kept for others until a commit takes its rows", held, limit)
	}
	if why == "" || !l.m.Fresh(e) {
		return ""
	}
	return why
}

// most is what the log may hold: all, while no other table ever had records.
func (l *tableLog) most() int64 {
	if l.h.used.Load() > 1 {
		return l.h.opt.HotBytes * onePart / 100
	}
	return math.MaxInt64
}

// room is what the log may still take; senders get no credit beyond it.
func (l *tableLog) room() int64 { return max(0, l.most()-l.counted.Load()) }

// full returns what is closed at the next change, while an entry has to wait in line
// because the log may take nothing more; nil when it has not to. Were it refused, ingest
// would have to read its partition again.
func (l *tableLog) full(e *event.Append) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room() > 0 || l.m.State() != table.Serving || !l.m.Fresh(e) || l.putOff(e) != "" {
		return nil
	}
	return l.changed
}

// neighbours reports whether other partitions of the table ever had records.
func (l *tableLog) neighbours(p ident.Partition) bool {
	for other, next := range l.m.Appended() {
		if other != p && next > 0 {
			return true
		}
	}
	return false
}

// verdict asks the machine, unless the entry has to wait; mu is held.
func (l *tableLog) verdict(e *event.Append) table.Verdict {
	if why := l.putOff(e); why != "" {
		return l.m.Refuse(e.Partition, table.Waiting, why)
	}
	v := l.m.Append(e)
	if v.Outcome == table.Accepted {
		l.weighed(e)
	}
	return v
}
