package batch

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/services/ingest/internal/decode/cell"
)

// Rows is a decoder's batch: it appends one row per payload to columns of its own. A failed Append leaves no trace.
type Rows interface {
	Append(payload []byte) error
	AppendNull() error
	Undo() // takes the last row back; once after each append
	Rows() int
	Size() int  // bytes of all rows in an Arrow message; walks all columns
	Grown() int // about how many bytes the last row may take beyond a multiple of its payload
	Finish() []arrow.Array
	Reset()
}

// Keyed are Rows that hold the record's key as well.
type Keyed interface {
	Rows
	// NextKey gives the key of the row that is appended next; nil is null.
	NextKey(key []byte)
}

// Target is what row batches look like: the schema of arrowx.RowSchema and the fingerprint that names it in the log.
type Target struct {
	Schema      *arrow.Schema
	Fingerprint string
	Mapped      int // number of leading columns that Rows fills
}

// Entry is a finished log entry, ready to be sent. Its slices share the memory of the columns: they stay valid until
// Release, which must be called exactly once.
type Entry struct {
	event.Append            // RowBatch and Quarantine are nil: the bytes are in the slices
	RowSlices      [][]byte // Arrow IPC message of the rows
	QuarantineData [][]byte // Arrow IPC message of the quarantined records
	Reasons        map[string]int64

	size    int64
	release func()
}

// Size is the number of bytes the entry stands for in every byte budget, as event.Append.Bytes counts them.
func (e *Entry) Size() int64 { return e.size }

// Release ends the use of the entry. With reuse, which is right only after the log has answered, its columns serve the
// next entries. Without an answer a connection may still be about to write them, so they are left to the collector.
func (e *Entry) Release(reuse bool) {
	if reuse && e.release != nil {
		e.release()
	}
	e.release = nil
}

// Options of a Builder.
type Options struct {
	Partition ident.Partition
	Revision  uint64 // pipeline revision
	MaxBytes  int64  // an entry is full from this size on
	MaxRows   int    // an entry is full from this number of records on
	// MaxMessage is the size that no entry with rows may exceed, 0 for none.
	MaxMessage int64
}

// Builder builds the entries of one topic partition, one after the other. It is not safe for concurrent use; the
// entries it cuts may be released from any goroutine.
type Builder struct {
	o      Options
	first  int64
	next   int64
	target *Target
	rows   Rows
	keyed  Keyed    // rows, if they hold keys
	keys   [][]byte // of the rows, as long as all are tombstones
	done   func(Rows)
	meta   *meta
	metas  metaPool
	bad    *quarantine
	skips  []event.Skip
	digest digest
	epoch  int32
	count  int64 // records
	nulls  int   // rows that are tombstones
	minT   int64
	maxT   int64

	bound      int64 // the rows take no more bytes
	columns    int64 // of the rows, at every depth
	raw        int64 // bytes of records since the last measurement
	measured   int64
	measuredAt int64
}

// measureRecords is the number of records after which an entry is measured again.
const measureRecords = 32

// What a row takes at the most: for each byte of its record, because a few bytes can stand for a name or become text, and
// for each column, with what the head of a message says about it.
const (
	perByte   = 1 << 10
	perColumn = 256
)

// TooLargeError is a record whose row no message can carry.
type TooLargeError struct{ Size, Max int64 }

// Error is the fault in words.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the row has %d bytes, a message may have %d", e.Size, e.Max)
}

// ErrOrder is returned for a record below the next expected offset.
var ErrOrder = errors.New("record is below the next expected offset")

// New returns a Builder whose first entry begins at offset first.
func New(o Options, first int64) *Builder {
	b := &Builder{o: o, bad: newQuarantine()}
	b.start(first)
	return b
}

func (b *Builder) start(first int64) {
	b.first, b.next = first, first
	b.target, b.rows, b.keyed, b.keys, b.done, b.meta = nil, nil, nil, nil, nil, nil
	b.skips = nil // kept by the entry
	b.digest.reset()
	b.epoch, b.count, b.minT, b.maxT = -1, 0, 0, 0
	b.nulls = 0
	b.raw, b.measured, b.measuredAt = 0, 0, 0
	b.bound, b.columns = 0, 0
}

// First is the first offset of the open entry.
func (b *Builder) First() int64 { return b.first }

// Next is the offset behind the last record taken: what is open is [First, Next).
func (b *Builder) Next() int64 { return b.next }

// Empty reports whether the open entry has no offset yet.
func (b *Builder) Empty() bool { return b.next == b.first }

// Full reports whether the open entry has reached its bytes or records. Measuring walks all columns, so it is done
// only every few records or after a share of the bytes has come in.
func (b *Builder) Full() bool {
	if b.count >= int64(b.o.MaxRows) {
		return true
	}
	if b.count-b.measuredAt >= measureRecords || b.raw >= b.o.MaxBytes/8 {
		b.measured, b.measuredAt, b.raw = b.Size(), b.count, 0
	}
	return b.measured >= b.o.MaxBytes+b.columns*perColumn
}

// Records is the number of records of the open entry, rows or not.
func (b *Builder) Records() int64 { return b.count }

// Size is the number of bytes of the open entry.
func (b *Builder) Size() int64 {
	n := b.bad.size + int64(len(b.skips))*24
	if b.rows != nil {
		n += int64(b.rows.Size()) + b.meta.size()
	}
	return n
}

// Bound returns the target the open entry's rows are bound to, nil before the first row.
func (b *Builder) Bound() *Target { return b.target }

// Bind gives the open entry the columns for its rows; done gets them back after the entry was released. It must not
// be called when Bound is not nil.
func (b *Builder) Bind(t *Target, rows Rows, done func(Rows)) error {
	m, err := b.metas.get(t)
	if err != nil {
		return err
	}
	b.meta = m
	b.target, b.rows, b.done = t, rows, done
	b.keyed, _ = rows.(Keyed)
	b.columns = columns(t.Schema.Fields())
	return nil
}

func columns(fields []arrow.Field) int64 {
	n := int64(len(fields))
	for _, f := range fields {
		if nested, ok := f.Type.(arrow.NestedType); ok {
			n += columns(nested.Fields())
		}
	}
	return n
}

// fits takes the row that was just decoded back if the entry is too large with it. The error is cell.ErrBatchFull where
// the row may fit into an entry of its own. Columns are measured only when a bound of their size leaves a doubt.
func (b *Builder) fits(r *Record) error {
	if b.o.MaxMessage == 0 {
		return nil
	}
	grown := int64(b.rows.Grown())
	b.raw += grown / 4 // nearer to what is there
	b.bound += perByte*(r.Size()+int64(len(r.Headers))) + perColumn*b.columns + grown
	if b.bound+b.bad.size <= b.o.MaxMessage {
		return nil
	}
	size := b.Size() + r.Size() + int64(len(r.Headers))*16 + 64 // the internal columns of r come later
	if size <= b.o.MaxMessage {
		b.bound = size - b.bad.size
		return nil
	}
	b.rows.Undo()
	if b.count > 0 {
		return cell.ErrBatchFull
	}
	return &TooLargeError{Size: size, Max: b.o.MaxMessage}
}

// Rebind moves the open entry to other columns when all its rows are tombstones, which every schema can hold: it
// reports false, and does nothing, when there are other rows. The internal columns, and how keys are decoded, must be
// the same.
func (b *Builder) Rebind(t *Target, rows Rows, done func(Rows)) (bool, error) {
	if b.rows == nil || b.nulls != b.rows.Rows() {
		return false, nil
	}
	keyed, _ := rows.(Keyed)
	for i := range b.nulls {
		if keyed != nil {
			keyed.NextKey(b.keys[i])
		}
		if err := rows.AppendNull(); err != nil {
			return false, err
		}
	}
	size := int64(rows.Size())
	if b.o.MaxMessage > 0 && size+b.meta.size()+b.bad.size > b.o.MaxMessage {
		rows.Reset()
		return false, nil
	}
	b.rows.Reset()
	b.done(b.rows)
	b.target, b.rows, b.keyed, b.done = t, rows, keyed, done
	b.columns = columns(t.Schema.Fields())
	b.bound = b.Size()
	return true, nil
}

// Row decodes payload into a row. An error is the decoder's: the record is not taken yet, and the caller says next
// what becomes of it. SchemaID is the registry's id, below zero when there is none.
func (b *Builder) Row(r *Record, payload []byte, schemaID int32) error {
	if r.Offset < b.next {
		return b.orderError(r)
	}
	if b.keyed != nil {
		b.keyed.NextKey(r.KeyPayload)
	}
	if err := b.rows.Append(payload); err != nil {
		return err
	}
	if err := b.fits(r); err != nil {
		return err
	}
	b.keys = nil
	b.meta.add(r, schemaID)
	b.take(r, outcomeRow)
	return nil
}

// NullRow takes a tombstone as a row whose mapped columns are all null.
func (b *Builder) NullRow(r *Record) error {
	if r.Offset < b.next {
		return b.orderError(r)
	}
	if b.keyed != nil {
		b.keyed.NextKey(r.KeyPayload)
	}
	if err := b.rows.AppendNull(); err != nil {
		return err
	}
	if err := b.fits(r); err != nil {
		return err
	}
	if b.keyed != nil && b.nulls == b.rows.Rows()-1 {
		b.keys = append(b.keys, bytes.Clone(r.KeyPayload))
	}
	b.nulls++
	b.meta.add(r, -1)
	b.take(r, outcomeNullRow)
	return nil
}

// Quarantine takes a record for the quarantine table: reason is a short code, text says what is wrong.
func (b *Builder) Quarantine(r *Record, reason, text string, schemaID int32) error {
	if r.Offset < b.next {
		return b.orderError(r)
	}
	b.bad.add(r, reason, text, schemaID)
	b.take(r, outcomeQuarantine)
	return nil
}

// Skip accounts for a record that is left out for a reason.
func (b *Builder) Skip(r *Record, reason event.SkipReason) error {
	if r.Offset < b.next {
		return b.orderError(r)
	}
	b.gap(r.Offset)
	b.skip(ident.Range{First: r.Offset, Next: r.Offset + 1}, reason)
	if r.Control { // a marker is nobody's record: it has neither time nor digest
		b.count++
		b.epoch = max(b.epoch, r.LeaderEpoch)
		b.next = r.Offset + 1
		return nil
	}
	b.take(r, skipOutcome(reason))
	return nil
}

// Lost accounts for offsets that Kafka no longer holds. They make an entry of their own: the open entry must be empty.
func (b *Builder) Lost(next int64) {
	b.skip(ident.Range{First: b.next, Next: next}, event.SkipLost)
	b.next = next
}

// CloseTo accounts for offsets without a record up to next, for an entry whose end is known from before.
func (b *Builder) CloseTo(next int64) {
	if next > b.next {
		b.gap(next)
		b.epoch = -1 // nobody knows in which epoch the offset before next was given
	}
}

func (b *Builder) orderError(r *Record) error {
	return fmt.Errorf("taking offset %d of %s where %d is next: %w", r.Offset, b.o.Partition, b.next, ErrOrder)
}

func (b *Builder) gap(to int64) {
	if to > b.next {
		b.skip(ident.Range{First: b.next, Next: to}, event.SkipAbsent)
		b.next = to
	}
}

func (b *Builder) skip(r ident.Range, reason event.SkipReason) {
	if n := len(b.skips); n > 0 && b.skips[n-1].Reason == reason && b.skips[n-1].Next == r.First {
		b.skips[n-1].Next = r.Next
		return
	}
	b.skips = append(b.skips, event.Skip{Range: r, Reason: reason})
}

func (b *Builder) take(r *Record, o outcome) {
	b.gap(r.Offset)
	b.raw += r.Size()
	b.digest.add(r, o)
	if b.minT == 0 || r.Time < b.minT {
		b.minT = r.Time
	}
	b.maxT = max(b.maxT, r.Time)
	b.epoch = max(b.epoch, r.LeaderEpoch)
	b.count++
	b.next = r.Offset + 1
}

// Cut finishes the open entry and begins the next one where it ends. The open entry must not be empty.
func (b *Builder) Cut() (*Entry, error) {
	e := &Entry{Append: event.Append{Header: event.Header{
		Partition: b.o.Partition, Range: ident.Range{First: b.first, Next: b.next}, LeaderEpoch: b.epoch,
		Revision: b.o.Revision, Skips: b.skips, Digest: b.digest.sum(), MinTime: b.minT, MaxTime: b.maxT,
	}}}
	e.size = 256 + int64(len(b.skips))*24
	rows, m, done := b.rows, b.meta, b.done
	e.release = func() { // also with no rows: the columns were bound
		if rows != nil {
			rows.Reset()
			done(rows)
			b.metas.put(m)
		}
	}
	if err := b.cutRows(e); err != nil {
		e.Release(true)
		return nil, err
	}
	if err := b.cutQuarantine(e); err != nil {
		e.Release(true)
		return nil, err
	}
	b.start(b.next)
	return e, nil
}

func (b *Builder) cutRows(e *Entry) error {
	if b.rows == nil || b.rows.Rows() == 0 {
		return nil
	}
	n := b.rows.Rows()
	cols := b.rows.Finish()
	cols = append(slices.Clip(cols), b.meta.finish()...)
	rec := array.NewRecordBatch(b.target.Schema, cols, int64(n))
	slices, size, err := arrowx.Encode(rec)
	if err != nil {
		return fmt.Errorf("encoding %d rows of %s from offset %d: %w", n, b.o.Partition, b.first, err)
	}
	e.Rows, e.Fingerprint, e.RowSlices = int64(n), b.target.Fingerprint, slices
	e.size += int64(size)
	return nil
}

func (b *Builder) cutQuarantine(e *Entry) error {
	if b.bad.n == 0 {
		return nil
	}
	e.Quarantined, e.Reasons = b.bad.n, b.bad.reasons
	rec := b.bad.finish()
	slices, size, err := arrowx.Encode(rec)
	if err != nil {
		return fmt.Errorf("encoding %d quarantined records of %s from offset %d: %w", e.Quarantined, b.o.Partition, b.first, err)
	}
	e.QuarantineData = slices
	e.size += int64(size)
	return nil
}

// Drop forgets the open entry and begins again at first.
func (b *Builder) Drop(first int64) {
	if b.rows != nil {
		b.rows.Reset()
		b.done(b.rows)
		b.metas.put(b.meta)
	}
	b.bad.drop()
	b.start(first)
}

// metaPool keeps the internal columns of released entries, by the shape of the batch: with _kafka or without.
type metaPool struct {
	mu   sync.Mutex
	free map[bool][]*meta
}

func (p *metaPool) get(t *Target) (*meta, error) {
	fields := t.Schema.Fields()[t.Mapped:]
	kafka := len(fields) > 1
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.free[kafka]; len(list) > 0 {
		p.free[kafka] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	return newMeta(fields)
}

func (p *metaPool) put(m *meta) {
	m.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == nil {
		p.free = map[bool][]*meta{}
	}
	p.free[m.kafka] = append(p.free[m.kafka], m)
}
