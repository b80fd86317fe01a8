package readview

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
)

// Token names the rows of one read: those of the snapshot, and those that were
// hot then, from Base up to Vector. One token, one answer (G3). It carries all
// that is needed to find the rows again, so it outlives every process.
type Token struct {
	Table      ident.UUID
	Epoch      ident.LogEpoch
	SchemaID   int32
	SnapshotID int64
	Base       ident.Vector // committed vector of the snapshot
	Vector     ident.Vector // rows below are included
	LSN        ident.LSN    // for people: rows may lie below it
}

const (
	tokenPrefix  = "ist1."
	tokenVersion = 1
	tokenMax     = 1 << 20 // characters; 10,000 partitions take about 60 KiB
	hasBase      = 1
	hasVector    = 2
)

var tokenEncoding = base64.RawURLEncoding

// String returns the printable form: letters, digits, '-', '_' and one dot, with
// a checksum. Vectors are stored as differences to the snapshot's.
func (t Token) String() string {
	b := []byte{tokenVersion}
	b = append(b, t.Table[:]...)
	b = binary.AppendUvarint(b, uint64(t.Epoch))
	b = binary.AppendVarint(b, int64(t.SchemaID))
	b = binary.AppendVarint(b, t.SnapshotID)
	b = binary.AppendUvarint(b, uint64(t.LSN))
	parts := t.partitions()
	b = binary.AppendUvarint(b, uint64(len(parts)))
	var last ident.Partition
	for i, p := range parts {
		b = t.appendPartition(b, p, last, i == 0)
		last = p
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return tokenPrefix + tokenEncoding.EncodeToString(b)
}

// partitions returns the partitions of both vectors in order, each once.
func (t Token) partitions() []ident.Partition {
	parts := t.Vector.Partitions()
	for p := range t.Base {
		if _, ok := t.Vector[p]; !ok {
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, ident.Partition.Compare)
	return parts
}

// appendPartition writes one partition; names equal to the last one's are left out.
func (t Token) appendPartition(b []byte, p, last ident.Partition, first bool) []byte {
	same := !first && p.Pipeline == last.Pipeline && p.Topic == last.Topic && p.TopicID == last.TopicID
	if same {
		b = append(b, 1)
	} else {
		b = append(b, 0)
		b = appendText(b, p.Pipeline)
		b = appendText(b, p.Topic)
		b = append(b, p.TopicID[:]...)
	}
	b = binary.AppendUvarint(b, uint64(uint32(p.Number)))
	base, okBase := t.Base[p]
	next, okNext := t.Vector[p]
	var flags byte
	if okBase {
		flags |= hasBase
	}
	if okNext {
		flags |= hasVector
	}
	b = append(b, flags)
	if okBase {
		b = binary.AppendVarint(b, base)
	}
	if okNext {
		b = binary.AppendVarint(b, next-base)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// ParseToken reads what String wrote. Its error is InvalidArgument.
func ParseToken(s string) (Token, error) {
	bad := func(why string) (Token, error) {
		return Token{}, fault.New(fault.InvalidArgument, "not a read token: %s", why)
	}
	body, ok := strings.CutPrefix(s, tokenPrefix)
	if !ok || len(s) > tokenMax {
		return bad("it must begin with " + tokenPrefix + " and be shorter than 1 MiB")
	}
	raw, err := tokenEncoding.Strict().DecodeString(body)
	if err != nil || len(raw) < 4 {
		return bad("it is not base64, or cut short")
	}
	data, sum := raw[:len(raw)-4], binary.BigEndian.Uint32(raw[len(raw)-4:])
	if crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) != sum {
		return bad("its checksum is wrong; was it cut or altered?")
	}
	r := tokenReader{b: data}
	t := r.token()
	if r.failed || len(r.b) != 0 {
		return bad("its content is malformed")
	}
	return t, nil
}

// tokenReader reads the fields of a token; after the first failure everything
// it returns is zero.
type tokenReader struct {
	b      []byte
	failed bool
}

func (r *tokenReader) token() Token {
	if r.byte() != tokenVersion {
		r.failed = true
	}
	t := Token{Table: r.uuid(), Epoch: ident.LogEpoch(r.uvarint()), SchemaID: int32(r.varint()), SnapshotID: r.varint(), LSN: ident.LSN(r.uvarint())}
	n := r.uvarint()
	t.Base, t.Vector = ident.Vector{}, ident.Vector{}
	var p ident.Partition
	for i := uint64(0); i < n && !r.failed; i++ {
		switch r.byte() {
		case 0:
			p = ident.Partition{Pipeline: r.text(), Topic: r.text(), TopicID: r.uuid()}
		case 1:
			r.failed = r.failed || i == 0
		default:
			r.failed = true
		}
		p.Number = int32(uint32(r.uvarint()))
		flags := r.byte()
		var base int64
		if flags&hasBase != 0 {
			base = r.varint()
			t.Base[p] = base
		}
		if flags&hasVector != 0 {
			t.Vector[p] = base + r.varint()
		}
	}
	return t
}

func (r *tokenReader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.failed = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *tokenReader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *tokenReader) uuid() (u ident.UUID) {
	copy(u[:], r.take(16))
	return u
}

func (r *tokenReader) text() string { return string(r.take(r.uvarint())) }

func (r *tokenReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.failed = true
	}
	r.take(uint64(max(n, 0)))
	return v
}

func (r *tokenReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.failed = true
	}
	r.take(uint64(max(n, 0)))
	return v
}
