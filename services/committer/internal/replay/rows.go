package replay

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/committer/internal/lake"
)

// writer takes rows in the shape that it was made for.
type writer interface {
	Write(rec arrow.RecordBatch) error
}

// rows are the data files of one portion.
type rows struct {
	o     Options
	part  ident.Partition
	id    ident.UUID
	epoch ident.WriterEpoch

	files Files // nil before the first row
	shape *schema.Schema
}

// take writes the rows of batches and returns their offsets, each of which must
// be in open and is taken out of it. In a dry run batches carry no rows, and all
// that are open are taken to be.
func (w *rows) take(ctx context.Context, batches []Batch, open map[int64]lake.Quarantined, dry bool) ([]int64, error) {
	var out []int64
	if dry {
		var n int64
		for _, b := range batches {
			n += b.Count
		}
		if n == int64(len(open)) {
			for o := range open {
				out = append(out, o)
			}
			clear(open)
		}
		return out, nil
	}
	for _, b := range batches {
		rec, offsets, err := w.materialise(b, open)
		if err != nil {
			return nil, err
		}
		err = w.write(ctx, b.Schema, rec)
		rec.Release()
		if err != nil {
			return nil, err
		}
		out = append(out, offsets...)
	}
	return out, nil
}

// materialise makes rows of the table of a batch, each with the LSN that it had.
func (w *rows) materialise(b Batch, open map[int64]lake.Quarantined) (arrow.RecordBatch, []int64, error) {
	in, err := arrowx.Decode(arrowx.RowSchema(b.Schema), b.Rows)
	if err != nil {
		return nil, nil, fmt.Errorf("decoding quarantined records of %s: %w", w.part, err)
	}
	offsets := append([]int64{}, arrowx.Offsets(in)...)
	in.Release()
	if int64(len(offsets)) != b.Count {
		return nil, nil, fault.New(fault.Corrupt, "decoding quarantined records of %s: a batch of %d rows says that it has %d", w.part, len(offsets), b.Count)
	}
	lsns := make(map[int64]ident.LSN, len(offsets))
	for _, o := range offsets {
		q, ok := open[o]
		if !ok {
			return nil, nil, stray(w.part, o)
		}
		delete(open, o)
		if q.LSN != nil {
			lsns[o] = *q.LSN
		}
	}
	rec, err := arrowx.MaterialiseReplay(b.Schema, w.part, b.Rows, lsns)
	return rec, offsets, err
}

// write writes rows of a target in the newest shape of the table.
func (w *rows) write(ctx context.Context, target *schema.Schema, rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		return nil
	}
	if w.files == nil {
		w.shape = w.o.Lake.Shape()
		var err error
		if w.files, err = w.o.Lake.NewFiles(ctx, w.shape, w.id, w.epoch); err != nil {
			return fmt.Errorf("opening data files for a replay: %w", err)
		}
	}
	if !schema.Holds(w.shape, target) {
		return fault.New(fault.Conflict, "replaying records of %s: the table changed under the replay and cannot hold its columns any more: begin it again", w.part)
	}
	out, err := arrowx.Conform(rec, target, w.shape)
	if err != nil {
		return err
	}
	defer out.Release()
	return w.files.Write(out)
}

func (w *rows) close(ctx context.Context) ([]lake.File, error) {
	return w.files.Close(ctx)
}

// abort removes files that were never handed over; those that were are the
// committer's.
func (w *rows) abort(ctx context.Context) {
	if w.files != nil {
		w.files.Abort(context.WithoutCancel(ctx))
	}
}
