package lake

import (
	"context"
	"fmt"

	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

// content is what a snapshot holds by its manifests.
type content struct {
	tally
	added   brought // by this very snapshot
	deletes int     // live delete files
}

// tally counts rows.
type tally struct {
	live  int64
	named int64 // of these, rows that name a Kafka record, as far as statistics tell
	blind int   // files whose statistics do not tell
}

func (t *tally) add(o tally) {
	t.live += o.live
	t.named += o.named
	t.blind += o.blind
}

// brought is what one snapshot added.
type brought struct {
	tally
	files []bounds
}

// bounds is a data file with the bounds of its metadata columns, nil where
// statistics do not say.
type bounds struct {
	path                string
	offsets, partitions *[2]int64 // least and greatest
	lsn                 *int64    // greatest
}

// manifestContent is what a manifest adds to a snapshot that names it.
type manifestContent struct {
	tally
	added   map[int64]*brought // by the snapshot that added them
	deletes int
}

// contentOf counts what a snapshot holds. Manifests that were read before are in
// the cache.
func contentOf(ctx context.Context, files iceio.IO, s *table.Snapshot, columns offsetColumns, cache map[string]manifestContent) (content, error) {
	var out content
	if err := ctx.Err(); err != nil {
		return out, err
	}
	manifests, err := s.Manifests(files)
	if err != nil {
		return out, fmt.Errorf("reading its manifest list: %w", err)
	}
	for _, m := range manifests {
		c, ok := cache[m.FilePath()]
		if !ok {
			if c, err = manifestContentOf(files, m, columns); err != nil {
				return out, err
			}
			cache[m.FilePath()] = c
		}
		out.add(c.tally)
		out.deletes += c.deletes
		if b := c.added[s.SnapshotID]; b != nil {
			out.added.add(b.tally)
			out.added.files = append(out.added.files, b.files...)
		}
	}
	return out, nil
}

func manifestContentOf(files iceio.IO, m iceberg.ManifestFile, columns offsetColumns) (manifestContent, error) {
	c := manifestContent{added: map[int64]*brought{}}
	err := walkManifest(files, m, func(e entry) {
		if e.deletes {
			c.deletes++
			return
		}
		n := columns.count(e.file)
		c.add(n)
		b := c.added[e.added]
		if b == nil {
			b = &brought{}
			c.added[e.added] = b
		}
		b.add(n)
		b.files = append(b.files, columns.bounds(e.file))
	})
	return c, err
}

// count counts the rows of a file. A file that has statistics, but none of the
// offset, was written without that column.
func (c offsetColumns) count(f iceberg.DataFile) tally {
	out := tally{live: f.Count()}
	values, ok := f.ValueCounts()[c.offset]
	nulls, known := f.NullValueCounts()[c.offset]
	switch {
	case f.Count() == 0:
	case c.offset == 0, len(f.ValueCounts()) == 0, ok && !known:
		out.blind = 1
	case ok:
		out.named = values - nulls
	}
	return out
}

// bounds reads the bounds of a file's metadata columns.
func (c offsetColumns) bounds(f iceberg.DataFile) bounds {
	low, high := f.LowerBoundValues(), f.UpperBoundValues()
	out := bounds{path: f.FilePath()}
	if lo, ok := bound(iceberg.PrimitiveTypes.Int64, low[c.offset]); ok {
		if hi, ok := bound(iceberg.PrimitiveTypes.Int64, high[c.offset]); ok {
			out.offsets = &[2]int64{lo, hi}
		}
	}
	if lo, ok := bound(iceberg.PrimitiveTypes.Int32, low[c.partition]); ok {
		if hi, ok := bound(iceberg.PrimitiveTypes.Int32, high[c.partition]); ok {
			out.partitions = &[2]int64{lo, hi}
		}
	}
	if hi, ok := bound(iceberg.PrimitiveTypes.Int64, high[c.lsn]); ok {
		out.lsn = &hi
	}
	return out
}

// bound decodes a bound; false where there is none.
func bound(typ iceberg.Type, raw []byte) (int64, bool) {
	if len(raw) == 0 {
		return 0, false
	}
	switch v, err := iceberg.LiteralFromBytes(typ, raw); l := v.(type) {
	case iceberg.Int64Literal:
		return int64(l), err == nil
	case iceberg.Int32Literal:
		return int64(l), err == nil
	default:
		return 0, false
	}
}
