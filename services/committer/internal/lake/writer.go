package lake

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
)

// WriterOptions say whose files a Writer makes and how large they get. Zero
// values get the defaults.
type WriterOptions struct {
	Attempt  ident.UUID        // names the files and the intent record
	Epoch    ident.WriterEpoch // as well
	FileSize int64             // encoded bytes at which a file is ended: 128 MiB
	Budget   int64             // encoded bytes held in open row groups: 256 MiB
	MaxOpen  int               // open files, one per table partition: 64

	marks ident.UUID // for the intent record
}

func (o WriterOptions) withDefaults() WriterOptions {
	if o.FileSize <= 0 {
		o.FileSize = 128 << 20
	}
	if o.Budget <= 0 {
		o.Budget = 256 << 20
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 64
	}
	return o
}

// splitBytes and splitRows are what is gathered before rows are split by
// partition or sorted: large batches keep the pieces large.
const (
	splitBytes = 16 << 20
	splitRows  = 64 << 10
)

// joinBytes and joinRows are what is gathered of small batches before they are
// encoded together: the encoder's cost per batch, column for column, is that of
// some hundred rows, and a trickle of records comes in batches of a few.
const (
	joinBytes = 1 << 20
	joinRows  = 2 << 10
)

// File is a finished data file that no snapshot names yet.
type File struct {
	Path  string
	Rows  int64
	Bytes int64

	data iceberg.DataFile
	args *table.DataFileArgs // what data was made of, for tables whose rows have ids: these are known at the commit
}

// Writer writes rows of one schema into data files of a table as they come. It
// belongs to one goroutine. Before the first file exists an intent record names
// all that may exist, so that a crash leaves nothing unknown behind.
type Writer struct {
	t       *Table
	ctx     context.Context //nolint:containedctx // bounds the life of the files that are open
	opts    WriterOptions
	fs      iceio.WriteFileIO
	spec    iceberg.PartitionSpec
	schema  *iceberg.Schema
	layout  *layout
	split   *splitter
	sort    *sorter
	intent  Intent
	pending []arrow.RecordBatch // to be split, sorted or joined
	waiting int64               // bytes of pending
	rows    int64               // of pending

	open   map[string]*openFile
	clock  int64 // counts uses, for the least recently used file
	files  []File
	closed int64 // encoded bytes of files
	handed bool  // files were given out by Close
	failed error
}

type openFile struct {
	path   string
	values map[int]any
	out    iceio.FileWriter
	pq     *parquetFile
	used   int64
}

// NewWriter makes a writer for rows of the given table schema, with the table's
// partition spec and sort order as they are now. ctx must live as long as the
// writer: when it ends, writes fail.
func (t *Table) NewWriter(ctx context.Context, sch *schema.Schema, o WriterOptions) (*Writer, error) {
	meta := t.handle().Metadata()
	converted, err := toIceberg(sch, meta.CurrentSchema().ID)
	if err != nil {
		return nil, err
	}
	w, err := t.newWriter(ctx, sch, converted, meta.PartitionSpec(), o)
	if err != nil {
		return nil, err
	}
	w.sort = newSorter(meta.SortOrder(), converted, sch)
	return w, nil
}

func (t *Table) newWriter(ctx context.Context, sch *schema.Schema, converted *iceberg.Schema, spec iceberg.PartitionSpec, o WriterOptions) (*Writer, error) {
	ctx = t.lake.storage(ctx)
	fs, err := t.files(ctx)
	if err != nil {
		return nil, err
	}
	l, err := newLayout(sch.Arrow())
	if err != nil {
		return nil, err
	}
	w := &Writer{
		t: t, ctx: ctx, opts: o.withDefaults(), fs: fs, spec: spec, schema: converted, layout: l, open: map[string]*openFile{},
		intent: Intent{Attempt: o.Attempt, Epoch: o.Epoch, Quarantine: 1, Marks: o.marks}, // set aside beforehand: a second record costs a round trip
	}
	if !spec.IsUnpartitioned() {
		if w.split, err = newSplitter(spec, converted, sch); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Bytes is the encoded size of everything written so far, finished or not, plus
// what waits to be split.
func (w *Writer) Bytes() int64 {
	n := w.closed + w.waiting
	for _, f := range w.open {
		n += f.pq.size()
	}
	return n
}

// Open is the number of files that are open.
func (w *Writer) Open() int { return len(w.open) }

// Buffered is the memory held: open row groups and rows that wait to be split.
func (w *Writer) Buffered() int64 {
	n := w.waiting
	for _, f := range w.open {
		n += f.pq.buffered()
	}
	return n
}

// Write appends a batch, whose columns are those of the schema in order. The
// writer keeps its own reference. After an error the writer must be aborted.
func (w *Writer) Write(rec arrow.RecordBatch) error {
	if w.failed != nil {
		return w.failed
	}
	if err := w.ctx.Err(); err != nil {
		return w.fail(fmt.Errorf("writing files of table %s: %w", w.t.name, err))
	}
	if rec.NumRows() == 0 {
		return nil
	}
	rec, err := w.layout.conform(rec)
	if err != nil {
		return w.fail(err)
	}
	plain := w.split == nil && w.sort == nil
	if plain && len(w.pending) == 0 && rec.NumRows() >= joinRows {
		defer rec.Release()
		return w.fail(w.append("", nil, rec))
	}
	w.pending = append(w.pending, rec)
	w.waiting += batchBytes(rec)
	w.rows += rec.NumRows()
	switch {
	case plain && (w.waiting >= min(joinBytes, w.opts.FileSize) || w.rows >= joinRows):
		return w.fail(w.flush())
	case w.waiting >= splitBytes, w.rows >= splitRows:
		return w.fail(w.flush())
	default:
		return nil
	}
}

func (w *Writer) fail(err error) error {
	if err != nil && w.failed == nil {
		w.t.distrust()
		w.failed = classify(err, "writing data files of table %s", w.t.name)
	}
	return w.failed
}

// Flush encodes what has been gathered: an error then belongs to the batches since
// the last one.
func (w *Writer) Flush() error {
	if w.failed != nil {
		return w.failed
	}
	return w.fail(w.flush())
}

// flush splits and sorts what has been gathered. Batches that break Arrow's own
// rules are an error, never a panic.
func (w *Writer) flush() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.New(fault.Corrupt, "gathering rows: %v", r)
		}
	}()
	if len(w.pending) == 0 {
		return nil
	}
	all, err := arrowx.Concat(w.layout.schema, w.pending)
	w.drop()
	if err != nil {
		return err
	}
	defer all.Release()
	if w.split == nil && w.sort == nil {
		return w.append("", nil, all)
	}
	groups := []*group{{}}
	if w.split != nil {
		if groups, err = w.split.split(all); err != nil {
			return err
		}
	} else {
		for row := range all.NumRows() {
			groups[0].rows = append(groups[0].rows, row)
		}
	}
	for _, g := range groups {
		if err := w.appendGroup(all, g); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) drop() {
	for _, r := range w.pending {
		r.Release()
	}
	w.pending, w.waiting, w.rows = nil, 0, 0
}

func (w *Writer) appendGroup(all arrow.RecordBatch, g *group) error {
	if w.sort != nil {
		if err := w.sort.order(all, g.rows); err != nil {
			return err
		}
	}
	part, err := take(w.ctx, all, g.rows)
	if err != nil {
		return err
	}
	defer part.Release()
	return w.append(g.key, g.values, part)
}

// append writes a batch to the open file of its partition.
func (w *Writer) append(key string, values map[int]any, rec arrow.RecordBatch) error {
	f := w.open[key]
	if f == nil {
		if len(w.open) >= w.opts.MaxOpen {
			if err := w.finishOldest(); err != nil {
				return err
			}
		}
		var err error
		if f, err = w.create(values); err != nil {
			return err
		}
		w.open[key] = f
	}
	w.clock++
	f.used = w.clock
	if err := f.pq.write(rec); err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	if f.pq.size() >= w.opts.FileSize {
		return w.finish(key)
	}
	return w.keepBudget()
}

// keepBudget ends the largest row groups while the open ones hold too much
// (case W11).
func (w *Writer) keepBudget() error {
	for w.Buffered()-w.waiting > w.opts.Budget {
		var largest *openFile
		for _, f := range w.open {
			if largest == nil || f.pq.buffered() > largest.pq.buffered() {
				largest = f
			}
		}
		if err := largest.pq.cut(); err != nil {
			return fmt.Errorf("writing %s: %w", largest.path, err)
		}
	}
	return nil
}

func (w *Writer) create(values map[int]any) (*openFile, error) {
	n := w.intent.next()
	if err := w.t.reserve(w.ctx, &w.intent); err != nil {
		return nil, err
	}
	path, err := w.t.dataLocation(fileName(w.opts, "", n))
	if err != nil {
		return nil, err
	}
	out, err := w.fs.Create(path)
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", path, err)
	}
	pq, err := w.layout.open(out)
	if err != nil {
		w.lost(path)
		abort(out)
		return nil, fmt.Errorf("creating %s: %w", path, err)
	}
	return &openFile{path: path, values: values, out: out, pq: pq}, nil
}

func (w *Writer) finishOldest() error {
	key, used := "", int64(-1)
	for k, f := range w.open {
		if used < 0 || f.used < used {
			key, used = k, f.used
		}
	}
	return w.finish(key)
}

// lost notes a file that failed, and may have come to be all the same: Abort removes
// it with the others.
func (w *Writer) lost(path string) { w.files = append(w.files, File{Path: path}) }

// finish closes a file and takes its statistics.
func (w *Writer) finish(key string) (err error) {
	f := w.open[key]
	delete(w.open, key)
	defer func() {
		if err != nil {
			w.lost(f.path)
		}
	}()
	meta, err := f.pq.close()
	if err != nil {
		abort(f.out)
		return fmt.Errorf("closing %s: %w", f.path, err)
	}
	size := f.pq.out.n
	if err := f.out.Close(); err != nil {
		return fmt.Errorf("closing %s: %w", f.path, err)
	}
	args := &table.DataFileArgs{
		Schema: w.schema, Spec: w.spec, Format: iceberg.ParquetFile, Metadata: meta, FilePath: f.path, FileSize: size,
		Content: iceberg.EntryContentData, PartitionValues: f.values, FormatVersion: w.t.handle().Metadata().Version(),
		Properties: w.t.handle().Properties(),
	}
	data, err := table.DataFileFromMetadata(*args)
	if err != nil {
		return fmt.Errorf("describing %s: %w", f.path, err)
	}
	if args.FormatVersion < 3 {
		args = nil
	}
	w.files = append(w.files, File{Path: f.path, Rows: f.pq.rows, Bytes: size, data: data, args: args})
	w.closed += size
	return nil
}

// Close finishes all files. They are durable when it returns nil.
func (w *Writer) Close(ctx context.Context) ([]File, error) {
	if w.failed != nil {
		return nil, w.failed
	}
	if err := w.fail(w.flush()); err != nil {
		return nil, err
	}
	for key := range w.open {
		if err := ctx.Err(); err != nil {
			return nil, w.fail(err)
		}
		if err := w.fail(w.finish(key)); err != nil {
			return nil, err
		}
	}
	w.handed = true
	w.failed = fault.New(fault.Internal, "writing data files of table %s: the writer is closed", w.t.name)
	return w.files, nil
}

// Abort gives everything up and removes what was written. Nothing refers to it
// yet: the files were never given to a commit. After a Close that handed the
// files out it does nothing.
func (w *Writer) Abort(ctx context.Context) {
	if w.handed {
		return
	}
	w.drop()
	for _, f := range w.open {
		abort(f.out)
		w.files = append(w.files, File{Path: f.path})
	}
	w.open = map[string]*openFile{}
	removed := w.t.DeleteFiles(ctx, w.files)
	w.files, w.closed = nil, 0
	if removed && w.intent.Files > 0 { // else the next take-over removes what is left
		w.t.RemoveIntent(ctx, w.intent.Attempt)
	}
	w.failed = errors.Join(w.failed, fault.New(fault.Internal, "writing data files of table %s: the writer was aborted", w.t.name))
}

// abort gives up an open file. Object stores have no such thing: there the
// object appears and is removed with the attempt's other files.
func abort(out iceio.FileWriter) {
	if a, ok := out.(interface{ Abort() }); ok {
		a.Abort()
		return
	}
	_ = out.Close()
}

// dataLocation is where a data file of that name goes.
func (t *Table) dataLocation(name string) (string, error) {
	p, err := t.handle().LocationProvider()
	if err != nil {
		return "", fault.New(fault.Unsupported, "placing a data file of table %s: %w", t.name, err)
	}
	return p.NewDataLocation(name), nil
}

func (t *Table) metadataLocation(name string) (string, error) {
	p, err := t.handle().LocationProvider()
	if err != nil {
		return "", fault.New(fault.Unsupported, "placing a metadata file of table %s: %w", t.name, err)
	}
	return strings.TrimSuffix(p.NewMetadataLocation(name), "/"), nil
}

// batchBytes is the size of a batch's buffers.
func batchBytes(rec arrow.RecordBatch) int64 {
	var n int64
	for _, c := range rec.Columns() {
		n += dataBytes(c.Data())
	}
	return n
}

func dataBytes(d arrow.ArrayData) int64 {
	var n int64
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, k := range d.Children() {
		n += dataBytes(k)
	}
	return n
}
