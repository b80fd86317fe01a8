// Package wire turns the words of Icestream into protobuf messages and back,
// and carries batches over gRPC without copying them more than once.
//
// Both ends of every connection install Codec. It encodes ordinary messages as
// protobuf always does, and has a fast path for the two messages that carry
// record batches: what it writes is byte for byte what the generated code would
// write, so a client in another language needs nothing special.
package wire

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
)

// AppendFrame is a bufferv1.AppendRequest whose batches are not copied. Exactly
// one of Msg and Entry is set.
//
// A sender may give the batches as slices instead of Entry.RowBatch and
// Entry.Quarantine; they must stay untouched until the peer has acknowledged
// the entry, because SendMsg returns before the bytes are on the wire.
// A receiver owns what it got: each message has its own memory.
type AppendFrame struct {
	Msg              *bufferv1.AppendRequest
	Entry            *event.Append
	RowSlices        [][]byte
	QuarantineSlices [][]byte
}

// FollowFrame is a bufferv1.FollowResponse whose batches are not copied. Exactly
// one of Msg and Entry is set; Seq is the event number, 0 within an image.
type FollowFrame struct {
	Seq   event.Seq
	Msg   *bufferv1.FollowResponse
	Entry *event.Append
}

// Codec is the gRPC codec of every Icestream connection.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name returns "proto": the content type stays that of ordinary gRPC.
func (Codec) Name() string { return "proto" }

// Field numbers of the messages with a fast path (proto/icestream).
const (
	appendRequestEntry = 2 // AppendRequest.entry
	followSeq          = 1 // FollowResponse.seq
	followAppend       = 3 // FollowResponse.append
	entryHeader        = 1 // AppendEntry.header
	entryLSN           = 2 // AppendEntry.lsn
	entryRows          = 3 // AppendEntry.rows
	entryQuarantine    = 4 // AppendEntry.quarantine
)

// errNotProto is a bug in the caller: the codec was handed something else.
var errNotProto = errors.New("not a protobuf message")

// Marshal encodes v.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *AppendFrame:
		if m.Entry == nil {
			return marshalProto(m.Msg)
		}
		rows, quarantine := m.RowSlices, m.QuarantineSlices
		if rows == nil {
			rows = one(m.Entry.RowBatch)
		}
		if quarantine == nil {
			quarantine = one(m.Entry.Quarantine)
		}
		return marshalEntry(nil, appendRequestEntry, m.Entry, rows, quarantine)
	case *FollowFrame:
		if m.Entry == nil {
			return marshalProto(m.Msg)
		}
		var prefix []byte
		if m.Seq != 0 {
			prefix = protowire.AppendTag(prefix, followSeq, protowire.VarintType)
			prefix = protowire.AppendVarint(prefix, uint64(m.Seq))
		}
		return marshalEntry(prefix, followAppend, m.Entry, one(m.Entry.RowBatch), one(m.Entry.Quarantine))
	case proto.Message:
		return marshalProto(m)
	default:
		return nil, fmt.Errorf("encoding %T: %w", v, errNotProto)
	}
}

func one(b []byte) [][]byte {
	if len(b) == 0 {
		return nil
	}
	return [][]byte{b}
}

func marshalProto(m proto.Message) (mem.BufferSlice, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func total(slices [][]byte) int {
	n := 0
	for _, s := range slices {
		n += len(s)
	}
	return n
}

// marshalEntry writes prefix, then field num holding an AppendEntry whose batches
// stay where they are.
func marshalEntry(prefix []byte, num protowire.Number, e *event.Append, rows, quarantine [][]byte) (mem.BufferSlice, error) {
	header, err := proto.Marshal(HeaderToProto(&e.Header))
	if err != nil {
		return nil, fmt.Errorf("encoding an append header: %w", err)
	}
	var head []byte
	head = protowire.AppendTag(head, entryHeader, protowire.BytesType)
	head = protowire.AppendBytes(head, header)
	if e.LSN != 0 {
		head = protowire.AppendTag(head, entryLSN, protowire.VarintType)
		head = protowire.AppendVarint(head, uint64(e.LSN))
	}
	nRows, nQuarantine := total(rows), total(quarantine)
	size := len(head) + fieldSize(entryRows, nRows) + fieldSize(entryQuarantine, nQuarantine)

	first := append(make([]byte, 0, len(prefix)+len(head)+48), prefix...)
	first = protowire.AppendTag(first, num, protowire.BytesType)
	first = protowire.AppendVarint(first, uint64(size))
	first = append(first, head...)
	out := make(mem.BufferSlice, 0, 2+len(rows)+len(quarantine))
	if nRows > 0 {
		first = protowire.AppendTag(first, entryRows, protowire.BytesType)
		first = protowire.AppendVarint(first, uint64(nRows))
	}
	out = append(out, mem.SliceBuffer(first))
	out = appendSlices(out, rows)
	if nQuarantine > 0 {
		tag := protowire.AppendTag(nil, entryQuarantine, protowire.BytesType)
		out = append(out, mem.SliceBuffer(protowire.AppendVarint(tag, uint64(nQuarantine))))
		out = appendSlices(out, quarantine)
	}
	return out, nil
}

func fieldSize(num protowire.Number, n int) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(num) + protowire.SizeBytes(n)
}

func appendSlices(out mem.BufferSlice, slices [][]byte) mem.BufferSlice {
	for _, s := range slices {
		if len(s) > 0 {
			out = append(out, mem.SliceBuffer(s))
		}
	}
	return out
}

// Unmarshal decodes data into v.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *AppendFrame:
		*m = AppendFrame{}
		buf := gather(data)
		entry, _, err := splitEntry(buf, appendRequestEntry)
		if err != nil {
			return err
		}
		if entry == nil {
			m.Msg = &bufferv1.AppendRequest{}
			return unmarshalProto(buf, m.Msg)
		}
		m.Entry, err = parseEntry(entry)
		return err
	case *FollowFrame:
		*m = FollowFrame{}
		buf := gather(data)
		entry, seq, err := splitEntry(buf, followAppend)
		if err != nil {
			return err
		}
		if entry == nil {
			m.Msg = &bufferv1.FollowResponse{}
			if err := unmarshalProto(buf, m.Msg); err != nil {
				return err
			}
			m.Seq = event.Seq(m.Msg.GetSeq())
			return nil
		}
		m.Seq = event.Seq(seq)
		m.Entry, err = parseEntry(entry)
		return err
	case proto.Message:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return unmarshalProto(buf.ReadOnlyData(), m)
	default:
		return fmt.Errorf("decoding into %T: %w", v, errNotProto)
	}
}

// gather copies a received message into memory of its own. bytes.Join does not
// clear the memory first, which for messages of a MiB is a quarter of the work.
func gather(data mem.BufferSlice) []byte {
	pieces := make([][]byte, len(data))
	for i, b := range data {
		pieces[i] = b.ReadOnlyData()
	}
	return bytes.Join(pieces, nil)
}

func unmarshalProto(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decoding a message: %w", err)
	}
	return nil
}

// splitEntry looks for field num, an AppendEntry, at the top level of buf. It
// returns nil when another member of the oneof is set. seq is field 1 where it
// is a varint.
func splitEntry(buf []byte, num protowire.Number) (entry []byte, seq uint64, err error) {
	for len(buf) > 0 {
		n, typ, k := protowire.ConsumeTag(buf)
		if k < 0 {
			return nil, 0, fmt.Errorf("decoding a message: %w", protowire.ParseError(k))
		}
		rest := buf[k:]
		switch {
		case n == num && typ == protowire.BytesType:
			entry, k = protowire.ConsumeBytes(rest)
		case n == followSeq && typ == protowire.VarintType:
			seq, k = protowire.ConsumeVarint(rest)
		default:
			k = protowire.ConsumeFieldValue(n, typ, rest)
		}
		if k < 0 {
			return nil, 0, fmt.Errorf("decoding a message: %w", protowire.ParseError(k))
		}
		buf = rest[k:]
	}
	return entry, seq, nil
}

func parseEntry(b []byte) (*event.Append, error) {
	e := &event.Append{}
	var header typesv1.AppendHeader
	for len(b) > 0 {
		num, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			return nil, fmt.Errorf("decoding an append entry: %w", protowire.ParseError(k))
		}
		b = b[k:]
		switch {
		case num == entryLSN && typ == protowire.VarintType:
			var lsn uint64
			lsn, k = protowire.ConsumeVarint(b)
			e.LSN = ident.LSN(lsn)
		case num >= entryHeader && num <= entryQuarantine && typ == protowire.BytesType:
			var body []byte
			if body, k = protowire.ConsumeBytes(b); k < 0 {
				break
			}
			switch num {
			case entryHeader:
				if err := unmarshalProto(body, &header); err != nil {
					return nil, err
				}
			case entryRows:
				e.RowBatch = body
			default: // entryQuarantine
				e.Quarantine = body
			}
		default:
			k = protowire.ConsumeFieldValue(num, typ, b)
		}
		if k < 0 {
			return nil, fmt.Errorf("decoding an append entry: %w", protowire.ParseError(k))
		}
		b = b[k:]
	}
	h, err := HeaderFromProto(&header)
	e.Header = h
	return e, err
}
