// Package batch turns the records of one topic partition into log entries: it accounts for every offset, keeps rows in
// columns, and cuts entries that carry their counts and digest. It is pure: no Kafka client, no clock, no goroutine.
//
// The caller feeds records in offset order and says what became of each (row, quarantined, skipped). Offsets between
// two records hold no record (compacted away or aborted) and are accounted for by themselves. Offsets behind the last
// record stay open until the next one comes.
package batch

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// Record is one Kafka record. Byte slices are borrowed: nothing in this package keeps them beyond the call.
type Record struct {
	Offset      int64
	Time        int64 // milliseconds since the epoch
	LeaderEpoch int32 // -1 unknown
	Control     bool  // a transaction marker, no record of anybody
	Key         []byte
	Value       []byte // nil is a tombstone
	Headers     []Header
	// KeyPayload is the key without its frame, for Keyed rows; nil is a null key.
	KeyPayload []byte
}

// Header is one record header.
type Header struct {
	Key   string
	Value []byte
}

// Size is the size of the record that record.max bounds: key, value and headers in bytes.
func (r *Record) Size() int64 {
	n := int64(len(r.Key) + len(r.Value))
	for i := range r.Headers {
		n += int64(len(r.Headers[i].Key) + len(r.Headers[i].Value))
	}
	return n
}

// outcome is what the digest says became of a record. The numbers are journaled inside digests: never renumber.
type outcome uint8

const (
	outcomeRow        outcome = 1
	outcomeNullRow    outcome = 2
	outcomeQuarantine outcome = 3
	outcomeSkip       outcome = 16 // plus the skip reason
)

func skipOutcome(r event.SkipReason) outcome { return outcomeSkip + outcome(r) }

// streamAbove is the record size from which the digest is fed in pieces instead of from one copied buffer.
const streamAbove = 16 << 10

// digest adds up hashes of records. The sum does not depend on the order, so an entry that is built again in other
// pieces has the same digest.
type digest struct {
	hi, lo  uint64
	scratch []byte
	hasher  *xxh3.Hasher
}

func (d *digest) reset() { d.hi, d.lo = 0, 0 }

func (d *digest) add(r *Record, o outcome) {
	var h xxh3.Uint128
	if r.Size() <= streamAbove {
		d.scratch = appendAll(d.scratch[:0], r, o)
		h = xxh3.Hash128(d.scratch)
	} else {
		h = d.stream(r, o)
	}
	var carry uint64
	d.lo, carry = bits.Add64(d.lo, h.Lo, 0)
	d.hi, _ = bits.Add64(d.hi, h.Hi, carry)
}

// stream hashes the bytes of appendAll without copying key, value and headers.
func (d *digest) stream(r *Record, o outcome) xxh3.Uint128 {
	if d.hasher == nil {
		d.hasher = xxh3.New()
	}
	d.hasher.Reset()
	write := func(b []byte) { _, _ = d.hasher.Write(b) } // never fails
	d.scratch = slices.Grow(d.scratch[:0], fixedLen)[:fixedLen]
	putFixed(d.scratch, r, o)
	write(d.scratch)
	field := func(b []byte) {
		d.scratch = appendLen(d.scratch[:0], b)
		write(d.scratch)
		write(b)
	}
	field(r.Key)
	field(r.Value)
	d.scratch = binary.LittleEndian.AppendUint32(d.scratch[:0], uint32(len(r.Headers)))
	write(d.scratch)
	for i := range r.Headers {
		field([]byte(r.Headers[i].Key))
		field(r.Headers[i].Value)
	}
	return d.hasher.Sum128()
}

func (d *digest) sum() ident.Digest {
	var out ident.Digest
	binary.BigEndian.PutUint64(out[:8], d.hi)
	binary.BigEndian.PutUint64(out[8:], d.lo)
	return out
}

func appendAll(b []byte, r *Record, o outcome) []byte {
	n, key, value := len(b), len(r.Key), len(r.Value)
	b = slices.Grow(b, fixedLen+4+key+4+value+4)[:n+fixedLen+4+key+4+value+4] // one check of the room for all of it
	putFixed(b[n:], r, o)
	n += fixedLen
	binary.LittleEndian.PutUint32(b[n:], lenOf(r.Key))
	n += 4 + copy(b[n+4:], r.Key)
	binary.LittleEndian.PutUint32(b[n:], lenOf(r.Value))
	n += 4 + copy(b[n+4:], r.Value)
	binary.LittleEndian.PutUint32(b[n:], uint32(len(r.Headers)))
	for i := range r.Headers {
		k := r.Headers[i].Key
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(k))), k...)
		v := r.Headers[i].Value
		b = append(appendLen(b, v), v...)
	}
	return b
}

// fixedLen is the length of what putFixed writes.
const fixedLen = 8 + 1 + 8

func putFixed(b []byte, r *Record, o outcome) {
	_ = b[fixedLen-1]
	binary.LittleEndian.PutUint64(b, uint64(r.Offset))
	b[8] = byte(o)
	binary.LittleEndian.PutUint64(b[9:], uint64(r.Time))
}

// appendLen writes the length of a nullable field.
func appendLen(b, field []byte) []byte { return binary.LittleEndian.AppendUint32(b, lenOf(field)) }

// lenOf is the length of a nullable field; null is no length at all, so that it differs from empty.
func lenOf(field []byte) uint32 {
	if field == nil {
		return ^uint32(0)
	}
	return uint32(len(field))
}
