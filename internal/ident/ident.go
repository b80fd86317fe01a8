// Package ident holds the words every part of Icestream shares: identities,
// offset ranges, offset vectors, LSNs and epochs. It depends on nothing but the
// standard library and has no behaviour beyond arithmetic on those words.
//
// All types are plain values. Vector is a map and therefore not safe for
// concurrent mutation; everything else may be copied freely.
package ident

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// UUID is a 16 byte identity: a table, a Kafka topic id, a commit id. The zero
// value means "none" (brokers before 2.8 have no topic ids).
type UUID [16]byte

// ErrUUID is returned by ParseUUID for text that is not a UUID.
var ErrUUID = errors.New("not a UUID: want 32 hexadecimal digits, with or without dashes")

// ParseUUID reads the usual dashed form or 32 plain hexadecimal digits.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	plain := strings.ReplaceAll(s, "-", "")
	if len(plain) != 32 {
		return u, fmt.Errorf("%w: %q", ErrUUID, s)
	}
	if _, err := hex.Decode(u[:], []byte(plain)); err != nil {
		return u, fmt.Errorf("%w: %q", ErrUUID, s)
	}
	return u, nil
}

// IsZero reports whether u means "none".
func (u UUID) IsZero() bool { return u == UUID{} }

// String returns the dashed lower-case form.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// OrEmpty is String, but empty for the zero id: brokers before 2.8 give topics none.
func (u UUID) OrEmpty() string {
	if u.IsZero() {
		return ""
	}
	return u.String()
}

// MarshalText writes the dashed form.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *UUID) UnmarshalText(b []byte) error {
	v, err := ParseUUID(string(b))
	*u = v
	return err
}

// LSN names one row within a table log: 63 bits, never negative.
type LSN int64

// LogEpoch numbers the lives of a table log; it only grows, and only by a fence
// commit in the table.
type LogEpoch int64

// WriterEpoch numbers the committers of a table; it only grows, by
// compare-and-set on the table.
type WriterEpoch int64

// Digest is the sum modulo 2^128 over the records of an entry of
// hash(offset, outcome, raw record). It does not depend on the order of records.
type Digest [16]byte

// Add returns d + e modulo 2^128 (big endian).
func (d Digest) Add(e Digest) Digest {
	var out Digest
	carry := uint16(0)
	for i := len(d) - 1; i >= 0; i-- {
		s := uint16(d[i]) + uint16(e[i]) + carry
		out[i], carry = byte(s), s>>8
	}
	return out
}

// Partition is a topic partition of a pipeline: the unit whose offsets decide
// everything. It is comparable and is used as a map key.
type Partition struct {
	Pipeline string
	Topic    string
	TopicID  UUID // zero where the broker has no topic ids
	Number   int32
}

// String returns "pipeline/topic[number]".
func (p Partition) String() string { return p.Pipeline + "/" + TopicPartition(p.Topic, p.Number) }

// TopicPartition spells a partition for people: "topic[number]".
func TopicPartition(topic string, number int32) string { return fmt.Sprintf("%s[%d]", topic, number) }

// Compare orders partitions by pipeline, topic, topic id, number.
func (p Partition) Compare(q Partition) int {
	return cmp.Or(
		strings.Compare(p.Pipeline, q.Pipeline),
		strings.Compare(p.Topic, q.Topic),
		slices.Compare(p.TopicID[:], q.TopicID[:]),
		cmp.Compare(p.Number, q.Number),
	)
}

// Range is the half-open offset range [First, Next).
type Range struct {
	First int64 `json:"first"`
	Next  int64 `json:"next"`
}

// Len is the number of offsets in r; zero or negative means empty.
func (r Range) Len() int64 { return r.Next - r.First }

// Empty reports whether r holds no offset.
func (r Range) Empty() bool { return r.Next <= r.First }

// Contains reports whether offset lies in r.
func (r Range) Contains(offset int64) bool { return r.First <= offset && offset < r.Next }

// Overlaps reports whether r and s share an offset.
func (r Range) Overlaps(s Range) bool { return r.First < s.Next && s.First < r.Next }

// String returns "[first,next)".
func (r Range) String() string { return fmt.Sprintf("[%d,%d)", r.First, r.Next) }

// Position is where a partition stands: the next offset, with the leader epoch
// of the last record below it (-1 where unknown) and the offset at which the
// pipeline started.
type Position struct {
	Start       int64
	Next        int64
	LeaderEpoch int32
}

// Vector is an offset vector: the next offset per topic partition. A partition
// that is absent is unknown to the log, which is not the same as position 0.
type Vector map[Partition]int64

// Clone returns an independent copy; nil stays nil.
func (v Vector) Clone() Vector { return maps.Clone(v) }

// Covers reports whether v is at or above w in every partition that w names.
func (v Vector) Covers(w Vector) bool {
	for p, next := range w {
		have, ok := v[p]
		if !ok || have < next {
			return false
		}
	}
	return true
}

// Raise sets v[p] to next when that is higher or p is new, and reports whether
// it changed anything.
func (v Vector) Raise(p Partition, next int64) bool {
	if have, ok := v[p]; ok && have >= next {
		return false
	}
	v[p] = next
	return true
}

// Equal reports whether v and w name the same partitions at the same offsets.
func (v Vector) Equal(w Vector) bool { return maps.Equal(v, w) }

// Partitions returns the partitions of v in Compare order.
func (v Vector) Partitions() []Partition {
	return slices.SortedFunc(maps.Keys(v), Partition.Compare)
}

// Positions is the committed state of a table: one Position per partition.
type Positions map[Partition]Position

// Vector returns the next offsets of ps.
func (ps Positions) Vector() Vector {
	v := make(Vector, len(ps))
	for p, pos := range ps {
		v[p] = pos.Next
	}
	return v
}

// Clone returns an independent copy; nil stays nil.
func (ps Positions) Clone() Positions { return maps.Clone(ps) }

// LSNState is the LSN bookkeeping of a table at a snapshot: where the log epoch
// began, the next LSN, and the reservation below which LSNs may be given.
type LSNState struct{ Start, Next, Reserved LSN }

// Reservation is added to Next for the reservation of every commit of ours.
const Reservation LSN = 1 << 40
