package journal

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// The layout is described in docs/journal-format.md; numbers there and here are
// one and the same and never change within a version.
const (
	magic         = "ISTRMJNL"
	version       = 1
	headerLen     = 64
	groupLen      = 16
	maxGroup      = 1 << 30
	segmentSuffix = ".journal"
)

// Record types.
const (
	typeAppend byte = 1
	typeCommit byte = 2
	typeSchema byte = 3
	typeEpoch  byte = 4
	typeImage  byte = 5
)

func checksum(parts ...[]byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	var c uint32
	for _, p := range parts {
		c = crc32.Update(c, table, p)
	}
	return c
}

// segmentHeader describes a segment.
type segmentHeader struct {
	number     uint64
	id         ident.UUID
	firstGroup uint64
}

func (h segmentHeader) encode() []byte {
	b := make([]byte, 0, headerLen)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, h.number)
	b = append(b, h.id[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.firstGroup)
	b = binary.LittleEndian.AppendUint32(b, checksum(b))
	return append(b, make([]byte, headerLen-len(b))...)
}

// appendGroup frames payload as group number.
func appendGroup(b []byte, number uint64, payload []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint32(b, checksum(b[at:at+12], payload))
	return append(b, payload...)
}

// appendRecord writes one record.
func appendRecord(b []byte, typ byte, body []byte) []byte {
	b = append(b, typ)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

// appendEvent writes an event as the record of its type.
func appendEvent(b []byte, table string, ev event.Event) []byte {
	body := putText(nil, table)
	switch {
	case ev.Append != nil:
		return appendRecord(b, typeAppend, putEntry(body, ev.Append))
	case ev.Commit != nil:
		return appendRecord(b, typeCommit, putCommit(body, ev.Commit))
	case ev.Schema != nil:
		return appendRecord(b, typeSchema, putSchema(body, ev.Schema))
	default:
		return appendRecord(b, typeEpoch, putCommit(body, &ev.Epoch.Commit))
	}
}

// appendImage writes the whole state of a table.
func appendImage(b []byte, table string, img event.Image, next ident.LSN) []byte {
	body := putText(nil, table)
	body = putCommit(body, &img.Commit)
	body = binary.AppendVarint(body, int64(next))
	body = binary.AppendUvarint(body, uint64(len(img.Schemas)))
	for i := range img.Schemas {
		body = putSchema(body, &img.Schemas[i])
	}
	body = binary.AppendUvarint(body, uint64(len(img.Ended)))
	for _, e := range img.Ended {
		body = binary.AppendVarint(body, int64(e.Epoch))
		body = binary.AppendUvarint(body, uint64(len(e.Base)))
		for _, p := range e.Base.Partitions() {
			body = putPartition(body, p)
			body = binary.AppendVarint(body, e.Base[p])
		}
	}
	body = binary.AppendUvarint(body, uint64(len(img.Hot)))
	for _, a := range img.Hot {
		body = putEntry(body, a)
	}
	return appendRecord(b, typeImage, body)
}

func putText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func putPartition(b []byte, p ident.Partition) []byte {
	b = putText(b, p.Pipeline)
	b = putText(b, p.Topic)
	b = append(b, p.TopicID[:]...)
	return binary.AppendVarint(b, int64(p.Number))
}

func putEntry(b []byte, a *event.Append) []byte {
	b = putPartition(b, a.Partition)
	b = binary.AppendVarint(b, a.Range.First)
	b = binary.AppendUvarint(b, uint64(a.Range.Len()))
	b = binary.AppendVarint(b, int64(a.LeaderEpoch))
	b = binary.LittleEndian.AppendUint64(b, a.Revision)
	b = putText(b, a.Fingerprint)
	b = binary.AppendUvarint(b, uint64(a.Rows))
	b = binary.AppendUvarint(b, uint64(a.Quarantined))
	b = binary.AppendUvarint(b, uint64(len(a.Skips)))
	for _, s := range a.Skips {
		b = binary.AppendUvarint(b, uint64(s.First-a.Range.First))
		b = binary.AppendUvarint(b, uint64(s.Len()))
		b = append(b, byte(s.Reason))
	}
	b = append(b, a.Digest[:]...)
	b = binary.AppendVarint(b, a.MinTime)
	b = binary.AppendVarint(b, a.MaxTime)
	return binary.AppendVarint(b, int64(a.LSN))
}

// noTime stands for the zero time.
const noTime = math.MinInt64

func putCommit(b []byte, c *event.Commit) []byte {
	b = append(b, c.Table[:]...)
	at := int64(noTime)
	if !c.CommitTime.IsZero() {
		at = c.CommitTime.UnixMicro()
	}
	for _, n := range []int64{c.SnapshotID, c.SequenceNumber, at} {
		b = binary.AppendVarint(b, n)
	}
	b = putText(b, c.MetadataLocation)
	for _, n := range []int64{int64(c.LogEpoch), int64(c.WriterEpoch), int64(c.LSN.Start), int64(c.LSN.Next), int64(c.LSN.Reserved)} {
		b = binary.AppendVarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(c.Positions)))
	for _, p := range c.Positions.Vector().Partitions() {
		pos := c.Positions[p]
		b = putPartition(b, p)
		b = binary.AppendVarint(b, pos.Start)
		b = binary.AppendVarint(b, pos.Next)
		b = binary.AppendVarint(b, int64(pos.LeaderEpoch))
	}
	return b
}

func putSchema(b []byte, s *event.Schema) []byte {
	b = putText(b, s.Fingerprint)
	b = binary.AppendVarint(b, int64(s.TableSchemaID))
	b = binary.AppendUvarint(b, uint64(len(s.Columns)))
	return append(b, s.Columns...)
}

func timeOf(micro int64) time.Time {
	if micro == noTime {
		return time.Time{}
	}
	return time.UnixMicro(micro).UTC()
}
