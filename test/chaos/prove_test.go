//go:build synctests

package chaos

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/services/committer"
)

// patience is how long the suite may take, once nothing fails any more, until everything has landed.
const patience = 30 * time.Minute

// prove ends the faults and checks the outcome.
func (w *world) prove() error {
	if err := w.calm(); err != nil {
		return err
	}
	if err := w.settle(); err != nil {
		return err
	}
	if err := errors.Join(w.finalReads(), w.files(), w.audit(), w.violation()); err != nil {
		return err
	}
	return w.othersOnly()
}

// soon is how long an idle table may be unreadable after others have changed it: the head is looked at every 5 s.
const soon = 20 * time.Second

// othersOnly lets other engines compact a table that is idle and expire all they can: the newest read must go on (G9).
func (w *world) othersOnly() error {
	if w.book.state().commit == "" || w.plan.weights["foreign"] == 0 || w.plan.weights["expiry"] == 0 {
		return nil
	}
	err := errors.Join(w.foreign("append", foreignAppend), w.foreign("expiry", foreignExpiry))
	if err != nil {
		return err
	}
	time.Sleep(soon) //nolint:forbidigo // virtual time
	for _, s := range w.running(discovery.Readstate, true) {
		ctx, cancel := context.WithTimeout(w.ctx, readTime)
		_, err := w.lookUnion(ctx, s)
		cancel()
		if err != nil {
			return fmt.Errorf("G9: %s cannot be read %v after others have expired all other snapshots: %w", tablePath, soon, err)
		}
	}
	return nil
}

// calm stops all faults. One buffer and one committer stay, whoever owns the roles; nobody is restarted who runs (G11), except for a committer that another has fenced.
func (w *world) calm() error {
	w.mu.Lock()
	w.chaos = false
	w.note("the faults end")
	w.mu.Unlock()
	if err := w.heal(); err != nil {
		return err
	}
	w.sea.drain(w.rng.IntN(2) == 0)
	for _, role := range roles {
		other := map[string]string{"a": "b", "b": "a"}[w.owned(role)]
		if role == discovery.Buffer || role == discovery.Committer {
			w.kill(w.slots[string(role)+"-"+other], false, "since it owns nothing")
		}
	}
	if s := w.slots[string(discovery.Committer)+"-"+w.owned(discovery.Committer)]; w.up(s) && s.shadowed {
		w.kill(s, false, "since another may have fenced it")
	}
	return w.bringBack()
}

// settle waits until the table holds the topic, the group follows, and the quarantine is applied (G1, G2, G11).
func (w *world) settle() error {
	began := time.Now()
	for {
		why := w.unsettled()
		if err := w.violation(); err != nil {
			return err
		}
		if why == nil {
			return nil
		}
		if time.Since(began) > patience {
			_ = pprof.Lookup("goroutine").WriteTo(w.logs, 1) // printed with the logs
			return fmt.Errorf("G11: not everything has landed %v after the last fault: %w", patience, why)
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		if err := w.supervise(); err != nil {
			return err
		}
		if time.Since(began) > time.Minute {
			if err := w.bury(w.ctx); err != nil {
				return err
			}
		}
	}
}

func (w *world) unsettled() error {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	ends, err := w.admin.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("oracle: asking for the ends of the topic: %w", err)
	}
	groups, err := w.book.group(ctx)
	if err != nil {
		return fmt.Errorf("oracle: asking for the group: %w", err)
	}
	h := w.book.state()
	for p := range h.positions {
		end, _ := ends.Lookup(topic, int32(p))
		last := w.book.lastRecord(int32(p)) // offsets at the end that carry no record stay open
		if h.positions[p] < last {
			return fmt.Errorf("the table is at %v, partition %d has records up to %d (end %d)", h.positions, p, last, end.Offset)
		}
		if groups[p] != h.positions[p] {
			return fmt.Errorf("the group is at %v, the table at %v", groups, h.positions)
		}
	}
	return nil
}

// longestRebalance is how long a broker lets a group wait for members to join, and some more.
const longestRebalance = 2 * time.Minute

// bury does what a broker does and kfake does not. It takes members out of the group whose process was killed: kfake
// forgets the session of a member whose connection broke while it waited to join, and keeps it for ever. And it ends a
// rebalance that goes on for longer than any may: kfake counts one who joins too few after a member that waited for its
// assignment has left, and starts the time anew whenever somebody joins, so the others can wait for ever.
func (w *world) bury(ctx context.Context) error {
	d, err := w.admin.DescribeGroups(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("oracle: asking for the members of the group: %w", err)
	}
	if d[group].State != "PreparingRebalance" {
		w.joining = time.Time{}
	} else if w.joining.IsZero() {
		w.joining = time.Now()
	}
	hangs := !w.joining.IsZero() && time.Since(w.joining) > longestRebalance
	alive := map[string]bool{}
	for _, s := range w.running(discovery.Ingest, true) {
		alive[fmt.Sprintf("%s.%d", s.name, s.gen)] = true
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range d[group].Members {
		if hangs || !alive[m.ClientID] {
			gone := kmsg.NewLeaveGroupRequestMember()
			gone.MemberID = m.MemberID
			req.Members = append(req.Members, gone)
		}
	}
	if len(req.Members) == 0 {
		return nil
	}
	if hangs {
		w.joining = time.Time{}
	}
	w.say("%d members are taken out of the group; its rebalance hangs: %v", len(req.Members), hangs)
	_, err = req.RequestWith(ctx, w.client)
	return err
}

// lastRecord is the offset behind the last record of a partition that a consumer is given.
func (b *book) lastRecord(part int32) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var last int64
	for s, e := range b.made {
		if s.part == part && e.kind != aborted {
			last = max(last, s.offset+1)
		}
	}
	return last
}

// finalReads asks every door for everything, and for what tokens said (G3, G4, G5).
func (w *world) finalReads() error {
	if w.book.state().commit == "" {
		return nil
	}
	for _, s := range append(w.running(discovery.Readstate, true), w.running(discovery.Buffer, true)...) {
		if err := w.finalRead(s); err != nil {
			return err
		}
	}
	for _, s := range w.running(discovery.Readstate, true) {
		for _, t := range w.book.tokens {
			ctx, cancel := context.WithTimeout(w.ctx, readTime)
			err := w.lookAgain(ctx, s, t)
			cancel()
			if wrong, ok := errors.AsType[*wrongRead](err); ok || err != nil && !refusal(err) {
				return errors.Join(fmt.Errorf("at the end: %w", err), wrong)
			}
			if err != nil {
				w.book.refused[fault.ReasonOf(err).String()]++
			}
		}
	}
	return nil
}

// finalRead reads at one door until it has caught up.
func (w *world) finalRead(s *slot) error {
	var at [partitions]int64
	var err error
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		ctx, cancel := context.WithTimeout(w.ctx, readTime)
		if s.role == discovery.Buffer {
			at, err = w.lookHot(ctx, s)
		} else {
			var t *token
			if t, err = w.lookUnion(ctx, s); err == nil {
				at = t.vector
			}
		}
		cancel()
		if _, ok := errors.AsType[*wrongRead](err); ok {
			return err
		}
		if err == nil && reached(at, w.book.state().positions) {
			return nil
		}
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
	}
	return fmt.Errorf("G11: %s does not catch up: it reads %v, the table holds %v: %w", s.name, at, w.book.state().positions, err)
}

// files compares the files of both tables with what was produced (G1).
func (w *world) files() error {
	h := w.book.state()
	if h.commit == "" {
		return nil
	}
	var rows []row
	if err := w.lake.Scan(w.ctx, []string{namespace, tableName}, collect(&rows)); err != nil {
		return fmt.Errorf("G6: reading the files of the table: %w", err)
	}
	if err := w.book.exactly("G1: files of the table", rows, [partitions]int64{}, h.positions); err != nil {
		return err
	}
	if err := w.book.named("G5: files of the table", rows, h.log, h.positions); err != nil {
		return err
	}
	for began := time.Now(); ; time.Sleep(2 * time.Second) { //nolint:forbidigo // virtual time
		var list []spot
		err := w.lake.Scan(w.ctx, []string{namespace, tableName + "__quarantine"}, spots(&list))
		if err != nil && fault.ReasonOf(err) != fault.UnknownTable {
			return fmt.Errorf("G6: reading the files of the quarantine: %w", err)
		}
		if err = w.book.quarantined(list); err == nil || time.Since(began) > patience {
			return err
		}
	}
}

// audit proves G1 from the table alone, plain and deep.
func (w *world) audit() error {
	if w.book.state().commit == "" {
		return nil
	}
	c, _, err := config.Parse("chaos", []byte(w.pipelineText(w.rev)), nil, []config.Override{
		{Path: "catalog.type", Value: "sql"},
		{Path: "catalog.name", Value: "icestream"},
		{Path: "catalog.uri", Value: "sqlite://" + w.lake.DatabasePath()},
		{Path: "catalog.warehouse", Value: w.lake.Warehouse()},
		{Path: "kafka.bootstrap.servers", Value: broker},
	})
	if err != nil {
		return err
	}
	for _, deep := range []bool{false, true} {
		report, err := committer.Audit(w.ctx, c, tablePath, committer.AuditOptions{Deep: deep, Log: w.log})
		if err != nil {
			return fmt.Errorf("G1: audit, deep %v: %w", deep, err)
		}
		if report.Verdict != committer.Proven {
			return fmt.Errorf("G1: audit, deep %v: %s\n%s", deep, report.Verdict, report)
		}
	}
	return nil
}

// reached reports whether a reader that stands at a has all of b. It may be further: offsets without a row are committed
// when there is a reason to.
func reached(a, b [partitions]int64) bool {
	for p := range a {
		if a[p] < b[p] {
			return false
		}
	}
	return true
}
