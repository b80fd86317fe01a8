package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/backoff"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/commit"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// Files makes writers of data files.
type Files interface {
	// NewWriter makes a writer for rows of a table schema. The files carry the
	// commit id and the writer epoch in their names.
	NewWriter(ctx context.Context, s *schema.Schema, id ident.UUID, epoch ident.WriterEpoch) (Writer, error)
	// Shape is the newest schema of the table.
	Shape() *schema.Schema
}

// Writer writes rows to data files; lake.Writer is one.
type Writer interface {
	Write(rec arrow.RecordBatch) error
	// Flush encodes what Write has gathered.
	Flush() error
	Bytes() int64
	Open() int
	Close(ctx context.Context) ([]lake.File, error)
	Abort(ctx context.Context)
}

// sealing asks the filler to close what it has.
type sealing struct {
	ctx   context.Context //nolint:containedctx // of the caller: nothing is waited for beyond it
	upTo  ident.Vector    // nil: no more than is written
	reply chan sealed
}

type sealed struct {
	batch *commit.Batch
	err   error
}

// filler is the goroutine that writes. Nobody else touches its fields.
type filler struct {
	p     *Puller
	owner Owner
	pause *backoff.Backoff

	gen    uint64
	batch  *commit.Batch // nil when nothing was taken since the last seal
	writer Writer        // nil when the batch has no rows yet
	shape  *schema.Schema
	poison int64     // bytes of quarantined records
	next   *entry    // waits for a seal, because its rows need newer columns
	alone  time.Time // until then entries are encoded one by one
}

func newFiller(p *Puller, owner Owner) *filler {
	return &filler{p: p, owner: owner, pause: backoff.Default().Start()}
}

func (f *filler) run(ctx context.Context) {
	defer func() {
		if f.next != nil {
			f.done()
		}
		f.abandon(context.WithoutCancel(ctx))
	}()
	for ctx.Err() == nil {
		if f.next == nil {
			if e, ok := f.p.pop(); ok {
				f.next = &e
			}
		}
		more := f.p.more
		if f.next != nil {
			switch err := f.fill(ctx, *f.next); {
			case errors.Is(err, errNewShape):
				f.p.note(func() { f.p.load.NewSchema = true })
				f.owner.Wake()
			case err != nil:
				f.refused(ctx, err)
				continue
			default:
				f.done()
				f.owner.Wake()
				more = closed // there may be more: only look for a seal
			}
		}
		select {
		case <-ctx.Done():
		case s := <-f.p.seals:
			f.seal(ctx, s)
		case <-more:
		}
	}
}

// closed is always ready to be received from.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// done gives an entry's place in the budget back.
func (f *filler) done() {
	f.p.give(f.next.append.Bytes())
	f.next = nil
}

// pop takes the oldest entry out of the queue.
func (p *Puller) pop() (entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return entry{}, false
	}
	e := p.queue[0]
	p.queue[0] = entry{}
	p.queue = p.queue[1:]
	return e, true
}

func (p *Puller) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// current returns the generation that counts, and what belongs to it.
func (p *Puller) current() (gen uint64, epoch ident.LogEpoch, writer ident.WriterEpoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gen, p.tracker.epoch, p.expect.WriterEpoch
}

// fill takes an entry into the open batch. errNewShape and unmade leave the batch
// as it was; any other error breaks it.
func (f *filler) fill(ctx context.Context, e entry) error {
	gen, epoch, writer := f.p.current()
	if gen != f.gen {
		f.abandon(ctx)
		f.gen = gen
	}
	if e.gen != gen {
		return nil
	}
	if f.batch == nil {
		f.batch = &commit.Batch{ID: commit.NewID(), Epoch: epoch, Parts: map[ident.Partition]*commit.Advance{}, Opened: time.Now()}
	}
	m, err := f.make(e)
	if err != nil {
		return err
	}
	defer m.release()
	if err := f.write(ctx, e, &m, writer); err != nil {
		return err
	}
	f.quarantine(e, &m)
	rows, bad := m.counts()
	if err := f.account(e, rows, bad); err != nil {
		return err
	}
	f.p.readable(e.append, f.owner)
	return nil
}

// refused deals with an entry that could not be taken in, and reports whether the
// batch goes on: what cannot be made rows is left out with its partition.
func (f *filler) refused(ctx context.Context, err error) bool {
	e := *f.next
	f.done()
	_, whole := errors.AsType[unmade](err)
	if whole || f.oneByOne() { // otherwise it may be the fault of an entry before
		f.p.blame(e, err, f.owner, f.batch == nil || len(f.batch.Parts) == 0)
	}
	if !whole {
		f.failed(ctx, err)
	}
	return whole
}

// made is an entry as records. Both may be nil.
type made struct {
	target    *schema.Schema
	rows, bad arrow.RecordBatch
}

func (m *made) release() {
	for _, r := range []arrow.RecordBatch{m.rows, m.bad} {
		if r != nil {
			r.Release()
		}
	}
	m.rows, m.bad = nil, nil
}

// counts are the numbers of rows and of quarantined records.
func (m *made) counts() (rows, bad int64) {
	if m.rows != nil {
		rows = m.rows.NumRows()
	}
	if m.bad != nil {
		bad = m.bad.NumRows()
	}
	return rows, bad
}

// make makes records of an entry; the open batch is not touched. It is the place
// where an entry whose rows do not add up is found before it can land (G1).
func (f *filler) make(e entry) (m made, err error) {
	defer func() {
		if err == nil {
			return
		}
		m.release()
		if r := fault.ReasonOf(err); r == fault.Corrupt || r == fault.UnknownSchema {
			err = unmade{err}
		}
	}()
	if e.append.Rows > 0 {
		if m.target = f.p.schemaOf(e.append.Fingerprint); m.target == nil {
			return m, fault.New(fault.UnknownSchema, "writing %v %v: schema %s was never announced", e.append.Partition, e.append.Range, e.append.Fingerprint)
		}
		if f.writer != nil && f.shape != m.target && !schema.Holds(f.shape, m.target) {
			return m, errNewShape
		}
		if m.rows, err = arrowx.Materialise(m.target, e.append, e.within); err != nil {
			return m, err
		}
	}
	if e.append.Quarantined > 0 {
		if m.bad, err = arrowx.MaterialiseQuarantine(e.append, e.within, f.batch.ID); err != nil {
			return m, err
		}
	}
	rows, bad := m.counts()
	var a commit.Advance
	a.Add(e.within, rows, bad, e.append.Skips)
	if got := a.Count.Len(); got != e.within.Len() {
		return m, fault.New(fault.Corrupt, "taking in %v %v: %d of %d offsets are accounted for: its batches do not hold what its header says",
			e.append.Partition, e.append.Range, got, e.within.Len())
	}
	return m, nil
}

// write writes the rows of an entry.
func (f *filler) write(ctx context.Context, e entry, m *made, epoch ident.WriterEpoch) (err error) {
	if m.rows == nil {
		return nil
	}
	if f.p.suspect(e.append) {
		if err := f.try(ctx, m, epoch); err != nil {
			return err
		}
	}
	if f.writer == nil {
		if f.writer, f.shape, err = f.open(ctx, m.target, f.batch.ID, epoch); err != nil {
			return err
		}
	}
	return put(f.writer, f.shape, m, f.oneByOne())
}

func (f *filler) open(ctx context.Context, target *schema.Schema, id ident.UUID, epoch ident.WriterEpoch) (Writer, *schema.Schema, error) {
	shape := shapeFor(f.p.o.Files.Shape(), target)
	w, err := f.p.o.Files.NewWriter(ctx, shape, id, epoch)
	if err != nil {
		return nil, nil, fmt.Errorf("opening data files: %w", err)
	}
	return w, shape, nil
}

// try writes an entry that broke files before to some that are thrown away.
func (f *filler) try(ctx context.Context, m *made, epoch ident.WriterEpoch) error {
	w, shape, err := f.open(ctx, m.target, commit.NewID(), epoch)
	if err != nil {
		return err
	}
	defer w.Abort(ctx)
	if err = put(w, shape, m, true); fault.ReasonOf(err) == fault.Corrupt {
		return unmade{err}
	}
	return err
}

// put writes rows to files of a shape. A writer joins small batches; now makes it
// encode these at once, so that an error is theirs.
func put(w Writer, shape *schema.Schema, m *made, now bool) error {
	rec := m.rows
	if shape != m.target {
		conformed, err := arrowx.Conform(rec, m.target, shape)
		if err != nil {
			return err
		}
		defer conformed.Release()
		rec = conformed
	}
	if err := w.Write(rec); err != nil || !now {
		return err
	}
	return w.Flush()
}

// oneByOne reports whether rows broke files a while ago.
func (f *filler) oneByOne() bool { return time.Now().Before(f.alone) }

func (p *Puller) schemaOf(fingerprint string) *schema.Schema {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.schemas[fingerprint]
}

// quarantine keeps the poison of an entry until the cut.
func (f *filler) quarantine(e entry, m *made) {
	if m.bad == nil || m.bad.NumRows() == 0 {
		return
	}
	m.bad.Retain()
	f.batch.Quarantine = append(f.batch.Quarantine, commit.Poison{Pipeline: e.append.Partition.Pipeline, Records: m.bad})
	f.poison += int64(len(e.append.Quarantine))
}

// account moves the batch's range of the partition on.
func (f *filler) account(e entry, rows, bad int64) error {
	part := e.append.Partition
	a := f.batch.Parts[part]
	if a == nil {
		a = &commit.Advance{Range: ident.Range{First: e.within.First, Next: e.within.First}, LeaderEpoch: -1}
		f.batch.Parts[part] = a
	}
	if a.Range.Next != e.within.First {
		return fault.New(fault.Internal, "taking in %v %v: the batch ends at %d", part, e.within, a.Range.Next)
	}
	a.Add(e.within, rows, bad, e.append.Skips)
	a.LeaderEpoch = e.append.LeaderEpoch
	if e.append.MaxTime > 0 {
		if newest := time.UnixMilli(e.append.MaxTime).UTC(); newest.After(a.NewestTime) {
			a.NewestTime = newest
		}
	}
	if _, next := e.append.LSNRange(); takesLSNs(e.append) && next > f.batch.NextLSN {
		f.batch.NextLSN = next
	}
	f.batch.Hot += e.append.Bytes()
	encoded, open := f.poison, 0
	if f.writer != nil {
		encoded += f.writer.Bytes()
		open = f.writer.Open()
	}
	f.p.note(func() {
		f.p.open = open
		if f.p.gen == f.gen {
			f.p.load.Encoded, f.p.load.Ready = encoded, f.batch.Hot
		}
	})
	return nil
}

// takesLSNs reports whether an entry owns a range of LSNs: one that only says
// that offsets were lost has none.
func takesLSNs(e *event.Append) bool {
	for _, s := range e.Skips {
		if s.Reason != event.SkipLost {
			return true
		}
	}
	return e.Rows+e.Quarantined > 0
}

// seal closes the files of the batch and hands it over.
func (f *filler) seal(ctx context.Context, s sealing) {
	if s.upTo != nil {
		f.drain(ctx, s)
	}
	gen, _, _ := f.p.current()
	if gen != f.gen {
		f.abandon(ctx)
		f.gen = gen
	}
	b := f.batch
	if b == nil || len(b.Parts) == 0 {
		f.abandon(ctx)
		s.reply <- sealed{}
		return
	}
	if f.writer != nil {
		files, err := f.writer.Close(ctx)
		if err != nil {
			err = fmt.Errorf("closing data files: %w", err)
			f.failed(ctx, err)
			s.reply <- sealed{err: err}
			return
		}
		b.Files = files
	}
	if !f.p.handOver(b, f.gen, f.next) {
		f.abandon(ctx)
		s.reply <- sealed{}
		return
	}
	b.More = f.next != nil
	f.clear()
	f.pause.Reset()
	s.reply <- sealed{batch: b}
}

// drain takes in what is queued when all that a seal waits for has come. It ends at an entry
// that needs newer columns than the open files have: that one begins the next batch.
func (f *filler) drain(ctx context.Context, s sealing) {
	w := f.p.waitFor(s.upTo)
	left := -1 // entries to take in, when nothing more is waited for
	for left != 0 {
		if left < 0 && (s.ctx.Err() != nil || f.p.over(w)) {
			left = f.waiting()
			continue
		}
		if f.next == nil {
			e, ok := f.p.pop()
			switch {
			case ok:
				f.next = &e
			case left > 0 || ctx.Err() != nil: // what was queued is void
				return
			default:
				f.await(ctx, s.ctx, w.until)
				continue
			}
		}
		err := f.fill(ctx, *f.next)
		if errors.Is(err, errNewShape) {
			return
		}
		switch {
		case err == nil:
			f.done()
		case !f.refused(ctx, err):
			return
		}
		if left > 0 {
			left--
		}
	}
}

// waiting is the number of entries that have come and are not taken in.
func (f *filler) waiting() int {
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	n := len(f.p.queue)
	if f.next != nil {
		n++
	}
	return n
}

// await waits until something comes, or for a time.
func (f *filler) await(ctx, sealing context.Context, until time.Time) {
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	select {
	case <-f.p.more:
	case <-ctx.Done():
	case <-sealing.Done():
	case <-late.C:
	}
}

// handOver takes a sealed batch out of the accounts; false when it became void
// meanwhile. What waits already is as old as now.
func (p *Puller) handOver(b *commit.Batch, gen uint64, next *entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gen != gen {
		return false
	}
	for part, a := range b.Parts {
		pr, ok := p.progress[part]
		a.CaughtUp = ok && pr.StableEnd <= a.Range.Next
	}
	hot := b.Hot
	p.hot -= hot
	b.Free = func() { p.o.Hot.Add(-hot) }
	waiting := p.queue
	if next != nil {
		waiting = append([]entry{*next}, waiting...)
	}
	p.load = loadOf(waiting)
	clear(p.moved)
	for _, e := range waiting {
		p.moved[e.append.Partition] = true
	}
	return true
}

// abandon gives the open batch up and removes its files, which nobody was ever
// told of.
func (f *filler) abandon(ctx context.Context) {
	if f.writer != nil {
		f.writer.Abort(ctx)
	}
	if f.batch != nil {
		f.batch.Release()
	}
	f.clear()
}

func (f *filler) clear() {
	f.batch, f.writer, f.shape, f.poison = nil, nil, nil, 0
	f.p.note(func() { f.p.open = 0 })
}

// failed gives up what is held after an error and follows anew after a pause:
// the rows are still hot in the buffer (G11).
func (f *filler) failed(ctx context.Context, err error) {
	f.p.log.Warn("writing failed: rows are read again from the log", "error", err)
	f.owner.Failed(err)
	f.abandon(ctx)
	if fault.ReasonOf(err) == fault.Corrupt {
		f.alone = time.Now().Add(aloneTime)
	}
	if f.pause.Wait(ctx, 0) != nil {
		return
	}
	f.p.mu.Lock()
	at := f.p.expect
	f.p.mu.Unlock()
	f.p.Rebase(at, true)
}

// Seal implements commit.Source.
func (p *Puller) Seal(ctx context.Context, upTo ident.Vector) (*commit.Batch, error) {
	s := sealing{ctx: ctx, upTo: upTo, reply: make(chan sealed, 1)}
	select {
	case p.seals <- s:
	case <-ctx.Done():
		return nil, fmt.Errorf("closing data files: %w", context.Cause(ctx))
	}
	r := <-s.reply
	return r.batch, r.err
}
