package lake

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	pqschema "github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/levels"
)

// Measured on flat, nested and wide rows: zstd 1 with a dictionary that is given
// up where it does not pay is the cheapest per byte; row groups beyond 32 MiB buy
// nothing and cost memory; batches beyond 16 Ki rows cost time. A page that fits
// into one block of zstd, 128 KiB, is compressed without a copy of it and stays in
// the processor's cache from the first value to the last byte: a fifth less time
// than pages of 1 MiB, for 2 to 3 % more bytes. Iceberg's Java writer ends its pages
// at 20,000 values, which is about as much. The library looks at the size of a page
// every 1,024 values, so pages of strings grow beyond what is asked for, those of up
// to 128 bytes a value not beyond a block; looks that are closer together judge
// dictionaries too early, which costs up to a sixth.
const (
	rowGroupBytes = 32 << 20
	pageBytes     = 64 << 10
	sliceRows     = 16 << 10
	zstdLevel     = 1
)

// layout is what all files of one schema share.
type layout struct {
	schema  *arrow.Schema
	parquet *pqschema.Schema
	props   *parquet.WriterProperties
}

// newLayout derives the writer properties of a schema whose fields carry Iceberg
// field ids at every depth. The dictionary's cost check must be asked for leaf by
// leaf; without it the library keeps dictionaries that only cost.
func newLayout(sch *arrow.Schema) (*layout, error) {
	marked := markTypes(sch)
	options := []parquet.WriterProperty{
		parquet.WithCompression(compress.Codecs.Zstd), parquet.WithCompressionLevel(zstdLevel),
		parquet.WithDataPageSize(pageBytes), parquet.WithStats(true),
		parquet.WithStoreDecimalAsInteger(true), parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithCreatedBy("icestream"),
	}
	leaves, err := pqarrow.ToParquet(marked, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, fault.New(fault.Internal, "laying out Parquet columns: %w", err)
	}
	for i := range leaves.NumColumns() {
		leaf := leaves.Column(i)
		options = append(options, parquet.WithDictionaryCostFallbackFor(leaf.Path(), true))
		// Below a list the library (v18.8.0) takes lists that are empty for values that
		// are null and, where it then counts no value, leaves values out of the bounds.
		if leaf.MaxRepetitionLevel() > 0 {
			options = append(options, parquet.WithStatsFor(leaf.Path(), false))
		}
	}
	// What hardly changes from row to row costs the compressor nothing and a dictionary
	// a look-up for each value; who reads these columns reads few of them.
	for _, name := range []string{"topic", "partition", "timestamp", "schema_id"} {
		options = append(options, parquet.WithDictionaryFor(schema.KafkaColumn+"."+name, false))
	}
	l := &layout{schema: sch, props: parquet.NewWriterProperties(options...)}
	l.parquet, err = pqarrow.ToParquet(marked, l.props, pqarrow.DefaultWriterProps())
	return l, err
}

// counter counts what has reached the file.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// parquetFile is one open file.
type parquetFile struct {
	layout *layout
	out    *counter
	w      *file.Writer
	group  file.BufferedRowGroupWriter // nil before the first batch and after a cut
	walker levels.Walker
	words  map[int]*words  // of the row group, by leaf
	ctx    context.Context //nolint:containedctx // the library's scratch memory travels in it
	rows   int64
}

func (l *layout) open(w io.Writer) (*parquetFile, error) {
	f := &parquetFile{layout: l, out: &counter{w: w}, ctx: pqarrow.NewArrowWriteContext(context.Background(), nil)}
	var err error
	f.w, err = file.NewParquetWriterWithError(f.out, l.parquet.Root(), file.WithWriterProps(l.props))
	return f, err
}

// write appends a batch, whose columns must have the types of the layout. A
// batch that breaks Arrow's own rules is an error, never a panic.
func (f *parquetFile) write(rec arrow.RecordBatch) error {
	for from := int64(0); from < rec.NumRows(); from += sliceRows {
		part := rec.NewSlice(from, min(from+sliceRows, rec.NumRows()))
		err := f.writeSlice(part)
		part.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *parquetFile) writeSlice(rec arrow.RecordBatch) (err error) {
	if f.group == nil {
		if f.group, err = f.w.AppendBufferedRowGroupChecked(); err != nil {
			return err
		}
		f.words = map[int]*words{}
	}
	leaf := 0
	for i, column := range rec.Columns() {
		if err := f.writeColumn(column, f.layout.schema.Field(i), &leaf); err != nil {
			return err
		}
	}
	f.rows += rec.NumRows()
	if f.buffered() >= rowGroupBytes {
		return f.cut()
	}
	return nil
}

// writeColumn appends a column, whose first leaf is given and counted on. Pages stay in
// memory until the row group ends, so what fails here is the column's fault.
func (f *parquetFile) writeColumn(column arrow.Array, field arrow.Field, leaf *int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			err = fault.New(fault.Corrupt, "column %q: %w", field.Name, err)
		}
	}()
	return f.walker.Column(column, field.Nullable, func(l levels.Leaf) error {
		at := *leaf
		*leaf++
		to, err := f.group.Column(at)
		if err != nil {
			return err
		}
		values, isText := l.Values.(text)
		if to, ok := to.(*file.ByteArrayColumnChunkWriter); ok && isText {
			if f.words[at] == nil {
				f.words[at] = &words{place: map[string]int32{}}
			}
			return f.words[at].write(f.ctx, to, l, values)
		}
		return writeLeaf(f.ctx, to, l)
	})
}

// writeLeaf appends the values of a leaf. The library takes its slow path, with a
// bitmap and often a copy, for all that lies in a struct that may be null; where none
// is, and Parquet stores what Arrow holds, the fast one is asked for.
func writeLeaf(ctx context.Context, to file.ColumnChunkWriter, l levels.Leaf) (err error) {
	if t, ok := l.Values.DataType().(*arrow.Decimal128Type); ok && t.Precision > integerDigits {
		return writeLongDecimals(ctx, to, l, t.Precision)
	}
	texts, ok := to.(*file.ByteArrayColumnChunkWriter)
	switch {
	case ok && l.Values.Len() == 0:
		_, err = texts.WriteBatch(nil, l.Def, l.Rep) // the library's way wants an offset
		return err
	case !l.Dense || l.Values.Len() == 0:
		return pqarrow.WriteArrowToColumn(ctx, to, l.Values, l.Def, l.Rep, l.Nullable)
	}
	switch a := l.Values.(type) {
	case *array.Int64:
		return writeValues(to, a.Int64Values(), l)
	case *array.Timestamp:
		if a.DataType().(*arrow.TimestampType).Unit >= arrow.Microsecond {
			return writeValues(to, arrow.Int64Traits.CastFromBytes(arrow.TimestampTraits.CastToBytes(a.TimestampValues())), l)
		}
	case *array.Int32:
		return writeValues(to, a.Int32Values(), l)
	case *array.Float64:
		return writeValues(to, a.Float64Values(), l)
	case *array.Float32:
		return writeValues(to, a.Float32Values(), l)
	case *array.Boolean:
		_, err = to.(*file.BooleanColumnChunkWriter).WriteBitmapBatch(a.Data().Buffers()[1].Bytes(), int64(a.Data().Offset()), a.Len(), l.Def, l.Rep)
		return err
	case text:
		if texts.SupportsArrowOffsets() {
			_, err = texts.WriteBatchArrow(bytesOf(a), a.ValueOffsets(), l.Def, l.Rep)
			return err
		}
	}
	return pqarrow.WriteArrowToColumn(ctx, to, l.Values, l.Def, l.Rep, l.Nullable)
}

// writeValues appends numbers that are in the file as they are in memory.
func writeValues[T any](to file.ColumnChunkWriter, values []T, l levels.Leaf) error {
	_, err := to.(interface {
		WriteBatch([]T, []int16, []int16) (int64, error)
	}).WriteBatch(values, l.Def, l.Rep)
	return err
}

// bytesOf is the memory of strings; there need be none where all are empty. Behind it, in the same message, is that of
// others: an offset that leads there must not find it.
func bytesOf(a arrow.Array) []byte {
	if b := a.Data().Buffers()[2]; b != nil {
		return slices.Clip(b.Bytes())
	}
	return nil
}

// caught makes an error of a panic in the library.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fault.New(fault.Internal, "writing Parquet: %v", r)
	}
}

// cut ends the row group, which frees its memory.
func (f *parquetFile) cut() (err error) {
	if f.group == nil {
		return nil
	}
	defer caught(&err)
	group := f.group
	f.group = nil
	return group.Close()
}

// buffered is the encoded size of the open row group, which is held in memory.
func (f *parquetFile) buffered() int64 {
	if f.group == nil {
		return 0
	}
	return f.group.TotalBytesWritten()
}

// size is the encoded size so far.
func (f *parquetFile) size() int64 { return f.out.n + f.buffered() }

// close writes the footer. The underlying writer stays open.
func (f *parquetFile) close() (meta *metadata.FileMetaData, err error) {
	defer caught(&err)
	if err := f.cut(); err != nil {
		return nil, err
	}
	if err := f.w.Close(); err != nil {
		return nil, err
	}
	return f.w.FileMetadata()
}

// conform gives a batch the schema of the layout. Types must be the same;
// names and metadata of nested fields may differ.
func (l *layout) conform(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if rec.Schema() == l.schema {
		rec.Retain()
		return rec, nil
	}
	if int(rec.NumCols()) != l.schema.NumFields() {
		return nil, fault.New(fault.Internal, "writing a batch: it has %d columns, the table %d", rec.NumCols(), l.schema.NumFields())
	}
	for i := range int(rec.NumCols()) {
		want := l.schema.Field(i)
		if !arrow.TypeEqual(rec.Column(i).DataType(), want.Type) {
			return nil, fault.New(fault.Internal, "writing a batch: column %q has type %s, the table %s", want.Name, rec.Column(i).DataType(), want.Type)
		}
	}
	return retyped(rec, l.schema), nil
}

// retyped is a batch under another spelling of its schema.
func retyped(rec arrow.RecordBatch, sch *arrow.Schema) arrow.RecordBatch {
	columns := make([]arrow.Array, rec.NumCols())
	for i := range columns {
		columns[i] = retype(rec.Column(i), sch.Field(i).Type)
		defer columns[i].Release()
	}
	return array.NewRecordBatch(sch, columns, rec.NumRows())
}

// markTypes gives uuids and variants Arrow's extension types at every depth. Without
// them a file holds 16 bytes of anything, or a struct, and readers that want a uuid or
// a variant refuse it.
func markTypes(sch *arrow.Schema) *arrow.Schema {
	fields, changed := markFields(sch.Fields())
	if !changed {
		return sch
	}
	return arrow.NewSchema(fields, nil)
}

func markFields(fields []arrow.Field) (out []arrow.Field, changed bool) {
	out = slices.Clone(fields)
	for i, f := range out {
		t, other := markType(f)
		out[i].Type, changed = t, changed || other
	}
	return out, changed
}

func markType(f arrow.Field) (arrow.DataType, bool) {
	switch t := f.Type.(type) {
	case *arrow.FixedSizeBinaryType:
		if schema.IsUUID(f) {
			return extensions.NewUUIDType(), true
		}
	case *arrow.StructType:
		if schema.IsVariant(f) {
			if v, err := extensions.NewVariantType(t); err == nil {
				return v, true
			}
		}
		if kids, changed := markFields(t.Fields()); changed {
			return arrow.StructOf(kids...), true
		}
	case *arrow.ListType:
		if kids, changed := markFields(t.Fields()); changed {
			return arrow.ListOfField(kids[0]), true
		}
	case *arrow.MapType:
		if kids, changed := markFields([]arrow.Field{t.KeyField(), t.ItemField()}); changed {
			return arrow.MapOfFields(kids[0], kids[1]), true
		}
	}
	return f.Type, false
}

// retype is the same array under another spelling of the same type: the library
// compares types with their field metadata, and ours carry the field ids.
func retype(a arrow.Array, t arrow.DataType) arrow.Array {
	data := retypeData(a.Data(), t)
	defer data.Release()
	return array.MakeFromData(data)
}

func retypeData(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	if _, uuid := t.(*extensions.UUIDType); uuid {
		return array.NewData(t, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset())
	}
	if v, is := t.(*extensions.VariantType); is {
		return array.NewData(v, d.Len(), d.Buffers(), d.Children(), d.NullN(), d.Offset())
	}
	nested, ok := t.(arrow.NestedType)
	if !ok {
		d.Retain()
		return d
	}
	fields := nested.Fields()
	kids := make([]arrow.ArrayData, len(d.Children()))
	for i, k := range d.Children() {
		kids[i] = retypeData(k, fields[i].Type)
		defer kids[i].Release()
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

// fileName is the name of the n-th file of an attempt: it carries epoch and
// attempt, so no two writers ever make the same one, and no value of a row.
func fileName(o WriterOptions, kind string, n int) string {
	return fmt.Sprintf("%06d-%s-%s%05d.parquet", o.Epoch, o.Attempt, kind, n)
}
