package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// errDamaged is wrapped by every error that says the journal cannot be trusted.
var errDamaged = errors.New("journal is damaged")

// errNoHeader says that a segment ends before its header is whole.
var errNoHeader = errors.New("segment has no whole header")

// Record is one decoded record: either an event or the image of a table.
type Record struct {
	Table   string
	Event   event.Event  // without rows; empty when Image is set
	Image   *event.Image // Hot holds entries without rows
	NextLSN ident.LSN    // of an image
}

func parseHeader(b []byte) (segmentHeader, error) {
	var h segmentHeader
	if len(b) < headerLen || string(b[:8]) != magic {
		return h, errNoHeader
	}
	if checksum(b[:48]) != binary.LittleEndian.Uint32(b[48:]) {
		return h, errNoHeader
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return h, fault.New(fault.Unsupported, "the journal has format version %d, this build knows %d: start a version of Icestream that knows it", v, version)
	}
	h.number = binary.LittleEndian.Uint64(b[16:])
	copy(h.id[:], b[24:40])
	h.firstGroup = binary.LittleEndian.Uint64(b[40:])
	return h, nil
}

// groupAt returns the payload of the group at off if it is whole and numbered want.
func groupAt(b []byte, off int, want uint64) (payload []byte, ok bool) {
	if len(b)-off < groupLen {
		return nil, false
	}
	n := binary.LittleEndian.Uint32(b[off:])
	if n == 0 || n > maxGroup || int(n) > len(b)-off-groupLen || binary.LittleEndian.Uint64(b[off+4:]) != want {
		return nil, false
	}
	payload = b[off+groupLen : off+groupLen+int(n)]
	return payload, checksum(b[off:off+12], payload) == binary.LittleEndian.Uint32(b[off+12:])
}

// ahead bounds how far beyond the expected number a group is looked for.
const lookAhead = 1 << 20

// hasLaterGroup reports whether a whole group with a number above want begins
// anywhere in b: then the group that should have been want had been synced.
func hasLaterGroup(b []byte, want uint64) bool {
	for off := 0; off+groupLen <= len(b); off++ {
		n := binary.LittleEndian.Uint64(b[off+4:])
		if n <= want || n > want+lookAhead {
			continue
		}
		if _, ok := groupAt(b, off, n); ok {
			return true
		}
	}
	return false
}

// segment is what a scan of one segment found.
type segment struct {
	header segmentHeader
	next   uint64 // number of the group that would follow
	valid  int    // bytes up to and including the last whole group
	torn   bool   // something follows that is neither a whole group nor what was written ahead
}

// scan reads the groups of a segment and gives every record to each, together
// with the place of its group. It never panics, whatever the bytes.
func scan(b []byte, each func(group uint64, off int, r Record) error) (segment, error) {
	h, err := parseHeader(b)
	if err != nil {
		return segment{}, err
	}
	s := segment{header: h, next: h.firstGroup, valid: headerLen}
	for {
		payload, ok := groupAt(b, s.valid, s.next)
		if !ok {
			break
		}
		if err := records(payload, func(r Record) error { return each(s.next, s.valid, r) }); err != nil {
			return s, fmt.Errorf("segment %016x, group %d at byte %d: %w", h.number, s.next, s.valid, err)
		}
		s.valid += groupLen + len(payload)
		s.next++
	}
	s.torn = !zeros(b[s.valid:])
	if s.torn && hasLaterGroup(b[s.valid:], s.next) {
		return s, fmt.Errorf("%w: segment %016x: group %d at byte %d is broken, but later groups are whole", errDamaged, h.number, s.next, s.valid)
	}
	return s, nil
}

// zeros reports whether b holds nothing else.
func zeros(b []byte) bool {
	return len(bytes.TrimLeft(b, "\x00")) == 0
}

// records decodes the payload of a group.
func records(payload []byte, each func(Record) error) error {
	d := decoder{b: payload}
	for len(d.b) > 0 {
		typ := d.byte()
		body := decoder{b: d.bytes()}
		r := body.record(typ)
		if d.failed || body.failed || len(body.b) != 0 {
			return fmt.Errorf("%w: a record of type %d does not decode", errDamaged, typ)
		}
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

// decoder reads primitives; after the first failure everything is zero.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) record(typ byte) Record {
	r := Record{Table: d.text()}
	switch typ {
	case typeAppend:
		r.Event.Append = d.entry()
	case typeCommit:
		c := d.commit()
		r.Event.Commit = &c
	case typeSchema:
		s := d.schema()
		r.Event.Schema = &s
	case typeEpoch:
		r.Event.Epoch = &event.Epoch{Commit: d.commit()}
	case typeImage:
		r.Image, r.NextLSN = d.image()
	default:
		d.failed = true
	}
	return r
}

func (d *decoder) image() (*event.Image, ident.LSN) {
	img := &event.Image{Commit: d.commit()}
	next := ident.LSN(d.varint())
	for n := d.count(); n > 0 && !d.failed; n-- {
		img.Schemas = append(img.Schemas, d.schema())
	}
	for n := d.count(); n > 0 && !d.failed; n-- {
		e := event.EndedEpoch{Epoch: ident.LogEpoch(d.varint()), Base: ident.Vector{}}
		for k := d.count(); k > 0 && !d.failed; k-- {
			p := d.partition()
			e.Base[p] = d.varint()
		}
		img.Ended = append(img.Ended, e)
	}
	for n := d.count(); n > 0 && !d.failed; n-- {
		img.Hot = append(img.Hot, d.entry())
	}
	return img, next
}

func (d *decoder) entry() *event.Append {
	a := &event.Append{}
	a.Partition = d.partition()
	a.Range.First = d.varint()
	a.Range.Next = a.Range.First + int64(d.uvarint())
	a.LeaderEpoch = int32(d.varint())
	if b := d.take(8); b != nil {
		a.Revision = binary.LittleEndian.Uint64(b)
	}
	a.Fingerprint = d.text()
	a.Rows, a.Quarantined = int64(d.uvarint()), int64(d.uvarint())
	for n := d.count(); n > 0 && !d.failed; n-- {
		first := a.Range.First + int64(d.uvarint())
		s := event.Skip{Range: ident.Range{First: first, Next: first + int64(d.uvarint())}}
		s.Reason = event.SkipReason(d.byte())
		a.Skips = append(a.Skips, s)
	}
	copy(a.Digest[:], d.take(16))
	a.MinTime, a.MaxTime, a.LSN = d.varint(), d.varint(), ident.LSN(d.varint())
	return a
}

func (d *decoder) commit() event.Commit {
	c := event.Commit{Table: d.uuid(), SnapshotID: d.varint(), SequenceNumber: d.varint(), CommitTime: timeOf(d.varint())}
	c.MetadataLocation = d.text()
	c.LogEpoch, c.WriterEpoch = ident.LogEpoch(d.varint()), ident.WriterEpoch(d.varint())
	c.LSN = ident.LSNState{Start: ident.LSN(d.varint()), Next: ident.LSN(d.varint()), Reserved: ident.LSN(d.varint())}
	c.Positions = ident.Positions{}
	for n := d.count(); n > 0 && !d.failed; n-- {
		p := d.partition()
		c.Positions[p] = ident.Position{Start: d.varint(), Next: d.varint(), LeaderEpoch: int32(d.varint())}
	}
	return c
}

func (d *decoder) schema() event.Schema {
	return event.Schema{Fingerprint: d.text(), TableSchemaID: int32(d.varint()), Columns: slices.Clone(d.bytes())}
}

func (d *decoder) partition() ident.Partition {
	return ident.Partition{Pipeline: d.text(), Topic: d.text(), TopicID: d.uuid(), Number: int32(d.varint())}
}

func (d *decoder) take(n uint64) []byte {
	if d.failed || n > uint64(len(d.b)) {
		d.failed = true
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uuid() (u ident.UUID) {
	copy(u[:], d.take(16))
	return u
}

func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) text() string { return string(d.bytes()) }

// count reads a number of things that follow, each at least one byte long.
func (d *decoder) count() uint64 {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.failed = true
		return 0
	}
	return n
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	d.skip(n)
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	d.skip(n)
	return v
}

func (d *decoder) skip(n int) {
	if n <= 0 {
		d.failed = true
		return
	}
	d.take(uint64(n))
}
