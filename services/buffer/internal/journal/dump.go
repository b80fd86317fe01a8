package journal

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/file"
)

// Dump prints every record of the journal in dir, one line each, and changes
// nothing; it may run beside a buffer. It returns an error for a journal that
// cannot be trusted, after printing what can be read.
func Dump(fs file.FS, dir string, w io.Writer) error {
	numbers, err := segments(fs, dir)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return fmt.Errorf("dumping %s: there is no journal here", dir)
	}
	var errs []error
	for i, n := range numbers {
		if err := dumpSegment(fs, dir, n, i == len(numbers)-1, w); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func dumpSegment(fs file.FS, dir string, n uint64, last bool, w io.Writer) error {
	b, err := readAll(fs, filepath.Join(dir, segmentName(n)))
	if err != nil {
		return fmt.Errorf("reading segment %016x: %w", n, err)
	}
	h, err := parseHeader(b)
	if err != nil {
		_, _ = fmt.Fprintf(w, "segment %016x: %d bytes: %v\n", n, len(b), err)
		return err
	}
	_, err = fmt.Fprintf(w, "segment %016x: version %d, journal %s, %d bytes, first group %d\n", h.number, version, h.id, len(b), h.firstGroup)
	if err != nil {
		return err
	}
	s, err := scan(b, func(group uint64, off int, r Record) error {
		_, err := fmt.Fprintf(w, "  group %d at %d: %s %s\n", group, off, r.Table, r)
		return err
	})
	if err != nil {
		return err
	}
	switch rest := len(b) - s.valid; {
	case s.torn:
		_, err = fmt.Fprintf(w, "  torn tail: %d bytes after byte %d\n", rest, s.valid)
		if !last {
			err = errors.Join(err, fmt.Errorf("%w: segment %016x is torn and not the last", errDamaged, n))
		}
	case rest > 0:
		_, err = fmt.Fprintf(w, "  written ahead: %d bytes after byte %d\n", rest, s.valid)
	}
	return err
}

// String describes the record in one line.
func (r Record) String() string {
	ev := r.Event
	switch {
	case r.Image != nil:
		return fmt.Sprintf("image: %s, next LSN %d, %d schemas, %d ended epochs, %d outstanding entries",
			describe(&r.Image.Commit), r.NextLSN, len(r.Image.Schemas), len(r.Image.Ended), len(r.Image.Hot))
	case ev.Append != nil:
		a := ev.Append
		return fmt.Sprintf("append: %s %s LSN %d, %d rows, %d quarantined, %d skipped runs, revision %x, schema %s, digest %x",
			a.Partition, a.Range, a.LSN, a.Rows, a.Quarantined, len(a.Skips), a.Revision, a.Fingerprint, a.Digest)
	case ev.Commit != nil:
		return "commit: " + describe(ev.Commit)
	case ev.Schema != nil:
		return fmt.Sprintf("schema: %s, table schema %d, %d bytes", ev.Schema.Fingerprint, ev.Schema.TableSchemaID, len(ev.Schema.Columns))
	case ev.Epoch != nil:
		return "epoch: " + describe(&ev.Epoch.Commit)
	default:
		return "empty"
	}
}

func describe(c *event.Commit) string {
	var out strings.Builder
	fmt.Fprintf(&out, "table uuid %s snapshot %d sequence %d log epoch %d writer epoch %d LSN %d/%d/%d",
		c.Table, c.SnapshotID, c.SequenceNumber, c.LogEpoch, c.WriterEpoch, c.LSN.Start, c.LSN.Next, c.LSN.Reserved)
	for _, p := range c.Positions.Vector().Partitions() {
		fmt.Fprintf(&out, " %s=%d", p, c.Positions[p].Next)
	}
	return out.String()
}
