// Package journal keeps what a restart of the buffer must not forget: one
// append-only log per process, for all tables, without rows. The format, the
// torn-tail rule and the crash states are in docs/journal-format.md.
//
// Append queues records; one goroutine (Run) writes everything that waits as one
// group, makes it durable with one fdatasync and then answers all callers in
// order. Its batching is the disk's own latency.
package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
)

// Options configure a journal. FS, Dir and Log are required.
type Options struct {
	FS           file.FS
	Dir          string
	Log          *slog.Logger
	SegmentBytes int64 // a new segment is begun above this; 0: 64 MiB
	Ahead        int64 // so many bytes of zeros are written behind a group now and then; 0: 64 KiB
	// Retry waits before a write is tried again on a full disk; nil: one second.
	Retry func(ctx context.Context) error
	// Synced is told of every group: how long its fdatasync took and how many
	// bytes it had. May be nil.
	Synced func(took time.Duration, bytes int)
	// Changed is called when Health changes; may be nil.
	Changed func()
}

const (
	defaultSegment = 64 << 20
	groupTarget    = 4 << 20  // a group ends when it reached this
	piece          = 1 << 20  // larger single writes are slow on some file systems
	defaultAhead   = 64 << 10 // some hundred groups
)

// Journal is an open journal. Append and Health are safe for concurrent use.
type Journal struct {
	opt  Options
	lock io.Closer

	mu     sync.Mutex
	queue  []item
	wake   chan struct{}
	failed error // sticky: nothing is accepted any more
	full   error // the disk is full now

	// The rest belongs to Run.
	states  states
	id      ident.UUID
	segs    []uint64 // segment files that exist
	file    file.File
	number  uint64 // of file
	size    int64  // of its groups
	ahead   int64  // up to here zeros were written behind them, or could not be
	limit   int64
	group   uint64 // next group number
	scratch []byte
}

type item struct {
	table string
	recs  []event.Event
	done  func(error)
}

// Open locks dir, reads what is there and cuts off a torn tail. A damaged
// journal is set aside and reported in Recovered, not as an error; errors are a
// directory in use, a newer format, or a failing disk.
func Open(opt Options) (*Journal, Recovered, error) {
	if opt.SegmentBytes <= 0 {
		opt.SegmentBytes = defaultSegment
	}
	if opt.Ahead <= 0 {
		opt.Ahead = defaultAhead
	}
	if opt.Retry == nil {
		opt.Retry = second
	}
	if err := opt.FS.MkdirAll(opt.Dir); err != nil {
		return nil, Recovered{}, fmt.Errorf("making journal directory %s: %w", opt.Dir, err)
	}
	lock, err := opt.FS.Lock(filepath.Join(opt.Dir, "lock"))
	if err != nil {
		return nil, Recovered{}, fmt.Errorf("opening the journal in %s: %w", opt.Dir, err)
	}
	f, rec, err := recoverDir(opt.FS, opt.Dir, opt.Log)
	if err != nil {
		return nil, rec, errors.Join(fmt.Errorf("opening the journal in %s: %w", opt.Dir, err), lock.Close())
	}
	j := &Journal{
		opt: opt, lock: lock, wake: make(chan struct{}, 1), states: f.states, id: f.id,
		segs: f.numbers, number: f.last, group: f.next,
	}
	if rec.Damage != nil {
		j.segs = nil
	}
	if j.id.IsZero() {
		_, _ = rand.Read(j.id[:])
	}
	return j, rec, nil
}

func second(ctx context.Context) error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Append queues the records of one table (rows are not written) and returns at
// once. done is called when they, and everything queued before, are durable, or
// with the error that ended the journal; calls come one at a time and in order.
// No records: done still keeps its place in line.
func (j *Journal) Append(table string, recs []event.Event, done func(error)) {
	j.mu.Lock()
	if err := j.failed; err != nil {
		j.mu.Unlock()
		go done(err) // never in the caller's stack: it may hold a lock that done needs
		return
	}
	j.queue = append(j.queue, item{table, recs, done})
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// Health is nil, DISK_FULL while writing waits for room, or the error that ended
// the journal.
func (j *Journal) Health() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	return j.full
}

// Run writes until ctx ends; it then writes what is still queued, unless the
// disk is full, and closes the journal. It returns the error that ended the
// journal, nil when ctx did.
func (j *Journal) Run(ctx context.Context) error {
	err := j.run(ctx)
	stop := err
	if stop == nil {
		stop = fault.New(fault.Unavailable, "the buffer is shutting down")
	}
	j.mu.Lock()
	j.failed = stop
	rest := j.queue
	j.queue = nil
	j.mu.Unlock()
	j.changed()
	for _, it := range rest {
		it.done(stop)
	}
	if j.file != nil {
		err = errors.Join(err, j.file.Close())
	}
	return errors.Join(err, j.lock.Close())
}

func (j *Journal) run(ctx context.Context) error {
	if err := j.roomy(ctx, j.begin); err != nil {
		return ended(ctx, err)
	}
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
			return ended(ctx, j.drain(ctx))
		}
		if err := j.drain(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// ended tells the end of ctx from a failure.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// drain writes groups until nothing waits.
func (j *Journal) drain(ctx context.Context) error {
	for {
		j.mu.Lock()
		batch := j.queue
		j.queue = nil
		j.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		for len(batch) > 0 {
			n, err := j.writeGroup(ctx, batch)
			if err != nil {
				j.mu.Lock()
				j.queue = append(batch, j.queue...)
				j.mu.Unlock()
				return err
			}
			for _, it := range batch[:n] {
				it.done(nil)
			}
			batch = batch[n:]
		}
	}
}

// writeGroup makes the first items of batch durable and says how many.
func (j *Journal) writeGroup(ctx context.Context, batch []item) (int, error) {
	payload, n := j.scratch[:0], 0
	for n < len(batch) && (n == 0 || len(payload) < groupTarget) {
		for _, ev := range batch[n].recs {
			payload = appendEvent(payload, batch[n].table, ev)
		}
		n++
	}
	j.scratch = payload
	if len(payload) == 0 {
		return n, nil
	}
	if len(payload) > maxGroup {
		return 0, fault.New(fault.Internal, "writing the journal: one group of %d bytes", len(payload))
	}
	framed := appendGroup(make([]byte, 0, groupLen+len(payload)), j.group, payload)
	if err := j.roomy(ctx, func() error { return j.write(framed) }); err != nil {
		return 0, err
	}
	if err := j.sync(len(framed)); err != nil {
		return 0, err
	}
	j.size += int64(len(framed))
	j.group++
	for _, it := range batch[:n] {
		for _, ev := range it.recs {
			if err := j.states.apply(Record{Table: it.table, Event: ev}); err != nil {
				return 0, fault.New(fault.Internal, "keeping the journal's state: %w", err)
			}
		}
	}
	if j.size < j.limit {
		return n, nil
	}
	// The group is durable whatever becomes of the new segment: a full disk only
	// means that this segment goes on growing until there is room for the next.
	err := j.begin()
	if file.NoSpace(err) {
		j.limit = j.size + j.opt.SegmentBytes/8
		return n, nil
	}
	return n, err
}

// write puts b behind the groups of the segment; a repetition writes the same place. A group that ends beyond what was written
// ahead writes ahead anew: to make a group durable that lies in what the file has already is one write, else the file
// system writes its own records too, and waits for them. Zeros end a segment, so what of this a crash leaves means nothing.
func (j *Journal) write(b []byte) error {
	if err := writeAt(j.file, b, j.size, j.number); err != nil {
		return err
	}
	end := j.size + int64(len(b))
	if end <= j.ahead {
		return nil
	}
	err := writeAt(j.file, make([]byte, j.opt.Ahead), end, j.number)
	if err != nil && !file.NoSpace(err) {
		return err
	}
	j.ahead = end + j.opt.Ahead // on a full disk too: groups find room as long as there is some
	return nil
}

func writeAt(f file.File, b []byte, at int64, number uint64) error {
	for off := 0; off < len(b); off += piece {
		end := min(off+piece, len(b))
		if _, err := f.WriteAt(b[off:end], at+int64(off)); err != nil {
			return fmt.Errorf("writing segment %016x at byte %d: %w", number, at+int64(off), err)
		}
	}
	return nil
}

func (j *Journal) sync(bytes int) error {
	start := time.Now()
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("syncing segment %016x: %w: what is on disk is unknown, the buffer must restart", j.number, err)
	}
	if j.opt.Synced != nil {
		j.opt.Synced(time.Since(start), bytes)
	}
	return nil
}

// roomy calls f until it does not fail for want of disk space.
func (j *Journal) roomy(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !file.NoSpace(err) {
			j.setFull(nil)
			return err
		}
		j.setFull(fault.New(fault.DiskFull, "%w: make room under %s; appends wait, nothing is lost", err, j.opt.Dir))
		if err := j.opt.Retry(ctx); err != nil {
			return err
		}
	}
}

func (j *Journal) setFull(err error) {
	j.mu.Lock()
	news := (j.full == nil) != (err == nil)
	j.full = err
	j.mu.Unlock()
	if !news {
		return
	}
	if err != nil {
		j.opt.Log.Error("the journal's disk is full", "error", err)
	} else {
		j.opt.Log.Info("the journal's disk has room again")
	}
	j.changed()
}

func (j *Journal) changed() {
	if j.opt.Changed != nil {
		j.opt.Changed()
	}
}

// begin starts a new segment with the state of all tables and then removes the
// older ones. If it fails for want of space, the segment in use stays in use; any
// other failure ends the journal.
func (j *Journal) begin() error {
	number := j.number + 1
	name := filepath.Join(j.opt.Dir, segmentName(number))
	f, err := j.opt.FS.Create(name)
	if err != nil {
		return fmt.Errorf("creating segment %s: %w", name, err)
	}
	size, group, err := j.fill(f, number)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = j.opt.FS.SyncDir(j.opt.Dir)
	}
	if err != nil {
		return j.abandon(f, name, fmt.Errorf("beginning segment %016x: %w", number, err))
	}
	old, segs := j.file, j.segs
	j.file, j.number, j.size, j.ahead, j.group, j.segs = f, number, size, size, group, []uint64{number}
	j.limit = max(j.opt.SegmentBytes, 2*size)
	if old != nil {
		err = old.Close()
	}
	for _, n := range segs { // each for good before the next: a gap in the numbers would mean damage
		if err == nil {
			err = j.remove(filepath.Join(j.opt.Dir, segmentName(n)))
		}
	}
	if err != nil {
		return fmt.Errorf("removing old segments: %w", file.Final(err))
	}
	return nil
}

func (j *Journal) remove(name string) error {
	if err := j.opt.FS.Remove(name); err != nil {
		return err
	}
	return j.opt.FS.SyncDir(j.opt.Dir)
}

// abandon takes a segment that was not finished away for good. Groups written to
// the segment in use meanwhile would make a journal of the two that contradicts
// itself; so if it cannot be taken away, the journal ends.
func (j *Journal) abandon(f file.File, name string, why error) error {
	if err := errors.Join(f.Close(), j.remove(name)); err != nil {
		return file.Final(fmt.Errorf("%w; removing it again: %w", why, err))
	}
	return why
}

// fill writes the header and one group with the state of every table: one, so
// that a torn segment never holds whole groups behind a broken one.
func (j *Journal) fill(f file.File, number uint64) (size int64, group uint64, err error) {
	b := segmentHeader{number: number, id: j.id, firstGroup: j.group}.encode()
	group = j.group
	var payload []byte
	for _, name := range slices.Sorted(maps.Keys(j.states)) {
		if v := j.states[name]; v.Ready() {
			payload = appendImage(payload, name, v.Image(), v.NextLSN())
		}
	}
	if len(payload) > maxGroup {
		return 0, 0, fault.New(fault.Internal, "the state of all tables takes %d bytes, more than a group may have", len(payload))
	}
	if len(payload) > 0 {
		b = appendGroup(b, group, payload)
		group++
	}
	return int64(len(b)), group, writeAt(f, b, 0, number)
}
