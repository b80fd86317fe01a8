package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/file"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/readview"
	"github.com/icestream/icestream/services/buffer/internal/table"
)

// Recovered is what a journal remembered.
type Recovered struct {
	Tables map[string]table.Recovered
	Damage error // not nil: the journal could not be trusted and was set aside
	Torn   int   // bytes of a torn tail that were cut off
}

// states folds records into the live state of every table.
type states map[string]*readview.View

// apply takes in one record. Its error says that the record does not belong where
// it stands, which only another program than this one writes.
func (s states) apply(r Record) error {
	v := s[r.Table]
	if r.Image == nil && r.Event.Epoch == nil && (v == nil || !v.Ready()) {
		return fmt.Errorf("%w: a record of table %q stands before any state of it", errDamaged, r.Table)
	}
	if v == nil {
		v = readview.New()
		s[r.Table] = v
	}
	if r.Image != nil {
		v.Load(*r.Image)
		v.RaiseLSN(r.NextLSN)
		return nil
	}
	v.Apply(r.Event)
	return nil
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x", number) + segmentSuffix }

// segments lists the segment numbers in dir, ascending.
func segments(fs file.FS, dir string) ([]uint64, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("listing journal directory %s: %w", dir, err)
	}
	var out []uint64
	for _, name := range names {
		hex, ok := strings.CutSuffix(name, segmentSuffix)
		if !ok || len(hex) != 16 {
			continue
		}
		n, err := strconv.ParseUint(hex, 16, 64)
		if err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}

func readAll(fs file.FS, name string) (_ []byte, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if size == 0 {
		return b, nil
	}
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b, err
}

// found is the outcome of reading a whole directory without changing it.
type found struct {
	states   states
	id       ident.UUID
	numbers  []uint64 // of all segment files
	last     uint64   // highest number of a segment file
	next     uint64   // next group number
	headless bool     // the last segment was being created
	valid    int      // whole bytes of the last segment that has a header
	rest     int      // bytes after them
	torn     bool     // they are not what was written ahead
}

// load reads every segment. Its errors wrap errDamaged, are Unsupported, or come
// from the file system.
func load(fs file.FS, dir string) (found, error) {
	f := found{states: states{}, next: 1}
	numbers, err := segments(fs, dir)
	if err != nil {
		return f, err
	}
	f.numbers = numbers
	for i, number := range numbers {
		f.last = number
		name := filepath.Join(dir, segmentName(number))
		b, err := readAll(fs, name)
		if err != nil {
			return f, fmt.Errorf("reading %s: %w", name, err)
		}
		last := i == len(numbers)-1
		s, err := scan(b, func(_ uint64, _ int, r Record) error { return f.states.apply(r) })
		if errors.Is(err, errNoHeader) {
			if last {
				f.headless = true
				return f, headlessAlone(i, number)
			}
			err = fmt.Errorf("%w: segment %016x: %w", errDamaged, number, err)
		}
		if err != nil {
			return f, err
		}
		if err := f.follows(i, number, s); err != nil {
			return f, err
		}
		if f.torn {
			return f, fmt.Errorf("%w: segment %016x ends with a broken group, but is not the last", errDamaged, numbers[i-1])
		}
		f.id, f.next, f.valid, f.rest, f.torn = s.header.id, s.next, s.valid, len(b)-s.valid, s.torn
	}
	return f, f.headGone()
}

// headGone: the state at the head of a segment was durable before older segments
// were deleted. Alone and without it, a segment has rotted. (Segment 1 has none.)
func (f *found) headGone() error {
	if len(f.numbers) == 1 && f.last != 1 && f.rest > 0 && f.valid == headerLen {
		return fmt.Errorf("%w: segment %016x has lost the state at its head", errDamaged, f.last)
	}
	return nil
}

// headlessAlone: a segment without a header is one that was being created. The
// very first has number 1; any other one that stands alone has lost what it replaced.
func headlessAlone(index int, number uint64) error {
	if index == 0 && number != 1 {
		return fmt.Errorf("%w: segment %016x has no whole header and nothing older is there", errDamaged, number)
	}
	return nil
}

func (f *found) follows(i int, number uint64, s segment) error {
	switch {
	case s.header.number != number:
		return fmt.Errorf("%w: file %s holds segment %016x", errDamaged, segmentName(number), s.header.number)
	case i == 0:
		return nil
	case number != f.numbers[i-1]+1:
		return fmt.Errorf("%w: segment %016x is missing", errDamaged, f.numbers[i-1]+1)
	case s.header.id != f.id:
		return fmt.Errorf("%w: segment %016x belongs to another journal", errDamaged, number)
	case s.header.firstGroup != f.next:
		return fmt.Errorf("%w: segment %016x begins with group %d, expected %d", errDamaged, number, s.header.firstGroup, f.next)
	}
	return nil
}

// prepare makes a directory that was read ready for a new segment: the torn tail
// is cut off and a segment that was being created is removed, durably.
func prepare(fs file.FS, dir string, f *found) error {
	if f.headless {
		if err := fs.Remove(filepath.Join(dir, segmentName(f.last))); err != nil {
			return fmt.Errorf("removing the unfinished segment %016x: %w", f.last, err)
		}
		f.numbers = f.numbers[:len(f.numbers)-1]
		f.last-- // its number is used again: numbers have no gaps
		if err := fs.SyncDir(dir); err != nil {
			return fmt.Errorf("syncing journal directory %s: %w", dir, err)
		}
	}
	if !f.torn || len(f.numbers) == 0 {
		return nil
	}
	name := filepath.Join(dir, segmentName(f.numbers[len(f.numbers)-1]))
	h, err := fs.Open(name)
	if err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	err = h.Truncate(int64(f.valid))
	if err == nil {
		err = h.Sync()
	}
	if err = errors.Join(err, h.Close()); err != nil {
		return fmt.Errorf("cutting the torn tail off %s: %w", name, err)
	}
	return nil
}

// setAside renames all segments of a damaged journal, so that they can be looked
// at and never be read again by a buffer; oldest first and one after the other,
// since a crash may leave the rest: newer ones begin with a whole state, or are
// damaged themselves.
func setAside(fs file.FS, dir string, numbers []uint64) error {
	for _, n := range numbers {
		name := filepath.Join(dir, segmentName(n))
		if err := fs.Rename(name, name+".damaged"); err != nil {
			return fmt.Errorf("setting the damaged %s aside: %w", name, err)
		}
		if err := fs.SyncDir(dir); err != nil {
			return fmt.Errorf("syncing journal directory %s: %w", dir, err)
		}
	}
	return nil
}

// recoverDir reads the journal in dir and leaves it ready for a new segment.
func recoverDir(fs file.FS, dir string, log *slog.Logger) (found, Recovered, error) {
	f, err := load(fs, dir)
	rec := Recovered{Tables: map[string]table.Recovered{}}
	switch {
	case errors.Is(err, errDamaged):
		log.Error("the journal is damaged: every table starts a new log epoch", "dir", dir, "error", err)
		last := f.last
		if n := len(f.numbers); n > 0 {
			last = f.numbers[n-1]
		}
		if err := setAside(fs, dir, f.numbers); err != nil {
			return f, rec, err
		}
		rec.Damage = fault.New(fault.Corrupt, "%w", err)
		return found{states: states{}, next: 1, last: last}, rec, nil
	case err != nil:
		return f, rec, err
	}
	if f.torn {
		rec.Torn = f.rest
	}
	if err := prepare(fs, dir, &f); err != nil {
		return f, rec, err
	}
	for name, v := range f.states {
		if v.Ready() {
			rec.Tables[name] = table.Recovered{Image: v.Image(), NextLSN: v.NextLSN()}
		}
	}
	return f, rec, nil
}
