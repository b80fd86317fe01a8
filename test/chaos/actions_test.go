//go:build synctests

package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/file"
)

// actions are what the driver does, by weight.
func actions() []action {
	return []action{
		{"produce", 6, "", (*world).produce},
		{"read", 6, "", func(w *world) error { return w.look(w.rng) }},
		{"watch the group", 1, "", func(w *world) error { return w.watchGroup() }},
		{"bring back", 4, "", (*world).bringBack},
		{"kill ingest", 1, "killIngest", func(w *world) error { return w.killOne(discovery.Ingest) }},
		{"kill committer", 1, "killCommitter", func(w *world) error { return w.killOne(discovery.Committer) }},
		{"kill readstate", 0.5, "killReadstate", func(w *world) error { return w.killOne(discovery.Readstate) }},
		{"kill buffer", 0.8, "killBuffer", func(w *world) error { return w.killOne(discovery.Buffer) }},
		{"lose the journal", 0.5, "journal", (*world).loseJournal},
		{"keep an old journal", 0.5, "journal", (*world).keepJournal},
		{"start a twin", 1, "twins", (*world).twin},
		{"move a role", 0.7, "lease", (*world).move},
		{"rebalance", 0.7, "rebalance", (*world).rebalance},
		{"freeze", 0.7, "freeze", (*world).freeze},
		{"cut", 0.7, "cut", (*world).cut},
		{"reset", 0.7, "cut", (*world).reset},
		{"heal", 2, "", (*world).heal},
		{"slow", 0.5, "slow", (*world).slow},
		{"a late request arrives", 2, "ambiguous", func(w *world) error { w.sea.deliver(w.rng.IntN(8), w.rng.IntN(4) == 0); return nil }},
		{"foreign append", 0.7, "foreign", func(w *world) error { return w.foreign("append", foreignAppend) }},
		{"foreign compaction", 0.5, "foreign", func(w *world) error { return w.foreign("compaction", foreignCompaction) }},
		{"foreign column", 0.2, "foreign", func(w *world) error {
			return w.foreign("column", foreignColumn(fmt.Sprintf("theirs_%d", w.rng.IntN(3))))
		}},
		{"foreign expiry", 0.7, "expiry", func(w *world) error { return w.foreign("expiry", foreignExpiry) }},
		{"new settings", 0.4, "config", (*world).configure},
		{"jump", 0.3, "jump", (*world).jump},
	}
}

// drive plays the seed: some actions, the end of all faults, and the proof.
func (w *world) drive() error {
	for _, role := range roles {
		if err := w.start(w.slots[string(role)+"-a"]); err != nil {
			return err
		}
	}
	list := actions()
	var weights []float64
	var total float64
	for _, a := range list {
		x := a.weight
		if a.fault != "" {
			x *= w.plan.weights[a.fault]
		}
		total += x
		weights = append(weights, x)
	}
	for range w.plan.steps {
		time.Sleep(time.Duration(w.rng.ExpFloat64() * float64(w.plan.pace))) //nolint:forbidigo // virtual time
		x, i := w.rng.Float64()*total, 0
		for x >= weights[i] {
			x -= weights[i]
			i++
		}
		w.mu.Lock()
		w.reached[list[i].name]++
		w.mu.Unlock()
		if err := errors.Join(list[i].run(w), w.violation()); err != nil {
			return fmt.Errorf("at %q: %w", list[i].name, err)
		}
	}
	return w.prove()
}

// produce sends one transaction, or part of one that is aborted.
func (w *world) produce() error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	if err := w.client.BeginTransaction(); err != nil {
		return err
	}
	commit := w.rng.IntN(6) > 0
	type sent struct {
		e entry
		r *kgo.Record
	}
	var list []sent
	var records []*kgo.Record
	for range 1 + w.rng.IntN(12) {
		e := entry{kind: good, id: w.book.id()}
		r := &kgo.Record{Topic: topic, Partition: w.rng.Int32N(partitions), Value: fmt.Appendf(nil, `{"id":%d,"v":%q}`, e.id, text(e.id))}
		switch w.rng.IntN(8) {
		case 0:
			e.kind, r.Value = bad, []byte("no JSON")
		case 1:
			e.kind, r.Key, r.Value = tombstone, []byte("key"), nil
		}
		if !commit {
			e.kind = aborted
		}
		list, records = append(list, sent{e, r}), append(records, r)
	}
	if err := w.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("oracle: producing: %w", err)
	}
	for _, s := range list {
		w.book.record(s.r.Partition, s.r.Offset, s.e)
	}
	if err := w.client.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
		return fmt.Errorf("oracle: ending a transaction: %w", err)
	}
	for _, s := range list {
		w.book.marked(s.r.Partition, s.r.Offset+2)
	}
	return nil
}

func (w *world) watchGroup() error {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	_, err := w.book.group(ctx)
	if err != nil {
		return fmt.Errorf("oracle: asking for the group: %w", err)
	}
	return nil
}

// one returns a slot that runs, or nil.
func (w *world) one(role discovery.Role) *slot {
	list := w.running(role, true)
	if len(list) == 0 {
		return nil
	}
	return list[w.rng.IntN(len(list))]
}

// bringBack starts the owner of each role that does not run.
func (w *world) bringBack() error {
	return w.startOwners(func(s *slot) bool { return !w.up(s) })
}

// supervise starts an owner that an error of the disk ended, as whatever watches over processes does. One that ended
// for any other reason stays down.
func (w *world) supervise() error {
	return w.startOwners(func(s *slot) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return s.node == nil && s.diskDown
	})
}

func (w *world) startOwners(missing func(*slot) bool) error {
	if err := w.reap(); err != nil {
		return err
	}
	for _, role := range roles {
		if s := w.slots[string(role)+"-"+w.owned(role)]; missing(s) {
			if err := w.start(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) owned(role discovery.Role) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner[role]
}

func (w *world) up(s *slot) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.node != nil
}

func (w *world) killOne(role discovery.Role) error {
	s := w.one(role)
	if s == nil {
		return nil
	}
	w.kill(s, w.rng.IntN(2) == 0, "by chance")
	if w.rng.IntN(2) == 0 {
		return w.start(s)
	}
	return nil
}

// loseJournal is the loss of a disk, or the return of an old one.
func (w *world) loseJournal() error {
	s := w.one(discovery.Buffer)
	if s == nil {
		return nil
	}
	w.kill(s, false, "and its disk goes")
	now := w.book.state()
	w.mu.Lock()
	s.fs = file.NewMem()
	if s.old != nil && w.rng.IntN(2) == 0 && s.old.outdated(now) {
		s.fs = s.old.fs.Crash(true, nil)
		w.note("%s has an old journal", s.name)
	}
	w.mu.Unlock()
	return w.start(s)
}

func (w *world) keepJournal() error {
	if s := w.one(discovery.Buffer); s != nil {
		now, ends := w.book.state(), w.book.produced()
		w.mu.Lock()
		s.old = &oldDisk{s.fs.Crash(true, nil), now.log, ends}
		w.note("copy of the journal of %s, at %v", s.name, ends)
		w.mu.Unlock()
	}
	return nil
}

// outdated reports whether the table shows that the copy is an old one: it has another log epoch, or holds records that
// were produced after the copy was made. An older copy of the same disk that the table has not passed yet is what no
// buffer can tell from its own journal; docs/journal-format.md says so.
func (o *oldDisk) outdated(now head) bool {
	if now.log > o.log {
		return true
	}
	for p, next := range now.positions {
		if next > o.ends[p] {
			return true
		}
	}
	return false
}

// twin starts a second instance of a service: two of them believe that they should act.
func (w *world) twin() error {
	list := w.running("", false)
	if len(list) == 0 {
		return nil
	}
	if err := w.reap(); err != nil {
		return err
	}
	return w.start(list[w.rng.IntN(len(list))])
}

// move gives a role to the other side, whoever runs there.
func (w *world) move() error {
	role := roles[w.rng.IntN(len(roles))]
	w.mu.Lock()
	w.owner[role] = map[string]string{"a": "b", "b": "a"}[w.owner[role]]
	w.note("%s belongs to %s", role, w.owner[role])
	w.mu.Unlock()
	if w.rng.IntN(3) > 0 {
		return w.bringBack()
	}
	return nil
}

// rebalance lets a member of the group come or go.
func (w *world) rebalance() error {
	s := w.slots[string(discovery.Ingest)+"-"+sides[w.rng.IntN(len(sides))]]
	if w.up(s) {
		w.kill(s, false, "and its partitions move")
		return nil
	}
	if err := w.reap(); err != nil {
		return err
	}
	return w.start(s)
}

func (w *world) change(what string, s *slot, f func(*nodeState)) {
	if s == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.node == nil {
		return
	}
	w.note("%s %s", what, s.node.name)
	w.fabric.set(s.node.name, f)
}

func (w *world) freeze() error {
	w.change("freeze", w.one(""), func(st *nodeState) { st.frozen = true })
	return nil
}

func (w *world) cut() error {
	w.change("cut off", w.one(""), func(st *nodeState) { st.cut = true })
	return nil
}

// reset breaks the connections of one service, or of the broker.
func (w *world) reset() error {
	name := "kafka"
	if s := w.one(""); s != nil && w.rng.IntN(4) > 0 {
		w.mu.Lock()
		if s.node != nil {
			name = s.node.name
		}
		w.mu.Unlock()
	}
	w.say("reset the connections of %s", name)
	w.fabric.reset(name)
	return nil
}

func (w *world) heal() error {
	w.fabric.slow(w.plan.lag)
	for _, s := range w.running("", true) {
		w.change("heal", s, func(st *nodeState) { st.frozen, st.cut = false, false })
	}
	return nil
}

func (w *world) slow() error {
	d := time.Duration(w.rng.Int64N(int64(time.Second)))
	w.say("the network takes up to %v", d)
	w.fabric.slow(d)
	return nil
}

// configure changes the settings of the pipeline and restarts an ingest with them; the others follow when they restart.
func (w *world) configure() error {
	w.rev++
	w.say("settings %d", w.rev)
	s := w.one(discovery.Ingest)
	if s == nil {
		return nil
	}
	w.kill(s, false, "to be started with other settings")
	return w.start(s)
}

// jump stops the world for a while, as the suspension of a machine does: for everybody the clock jumps.
func (w *world) jump() error {
	d := time.Duration(1+w.rng.IntN(20)) * time.Minute
	w.say("the clock jumps by %v", d)
	nodes := w.running("", true)
	for _, s := range nodes {
		w.change("freeze", s, func(st *nodeState) { st.frozen = true })
	}
	time.Sleep(d) //nolint:forbidigo // virtual time
	for _, s := range nodes {
		w.change("heal", s, func(st *nodeState) { st.frozen = false })
	}
	return nil
}

var errDisk = errors.New("input/output error")

// ofDisk reports whether an error of the disk that was made up is behind err.
func ofDisk(err error) bool { return errors.Is(err, errDisk) || errors.Is(err, syscall.ENOSPC) }

// disk fails operations of a journal, and kills its owner between them.
func (w *world) disk(n *node, fs *file.Mem) func(file.Op, string) error {
	return func(op file.Op, _ string) error {
		w.mu.Lock()
		if n.slot.node == n && n.slot.fs != fs { // the disk of one that was killed already
			w.mu.Unlock()
			return errDisk
		}
		fails := w.chaos && w.plan.disk > 0 && w.hooks.Float64() < w.plan.disk
		full := fails && op == file.OpWrite && w.hooks.IntN(2) == 0
		if fails {
			w.note("disk of %s: %s fails, full %v", n.name, op, full)
		}
		w.mu.Unlock()
		switch {
		case full:
			return syscall.ENOSPC
		case fails:
			return errDisk
		}
		return w.step(n, "journal "+string(op))
	}
}
