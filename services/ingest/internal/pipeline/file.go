package pipeline

import (
	"context"
	"fmt"
	"math"

	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/proto"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// FileSource makes the source of a Protobuf file that no registry has yet. imports are the files that it may import, by
// import path. The message is the configured one, or the file's first. The error is a *RecordError: such records would
// all go to quarantine.
func (c *Protobuf) FileSource(ctx context.Context, name, text string, imports map[string]string) (Source, error) {
	file, err := registry.Compile(ctx, name, text, imports)
	if err != nil {
		return nil, registryFault(err)
	}
	md, err := c.message(&registry.Schema{File: file}, &frame.Frame{})
	if err != nil {
		return nil, registryFault(err)
	}
	candidate, err := proto.Candidate(md, c.Options)
	if err != nil {
		return nil, &RecordError{Reason: ReasonSchemaInvalid, Text: fmt.Sprintf("mapping message %s of %s: %v", md.FullName(), name, err)}
	}
	return &fileSource{protoSource{md: md, name: fmt.Sprintf("file %s, message %s", name, md.FullName()), candidate: candidate, options: c.Options}}, nil
}

// fileSource is newer than all that is registered.
type fileSource struct{ protoSource }

func (*fileSource) Order() int64 { return math.MaxInt64 }

// Reason is the quarantine reason and text of a record's error; ok is false when it is no fault of the record.
func Reason(err error) (reason, text string, ok bool) { return reasonOf(err) }

// Order is the age of a source schema among others, 0 where it is not known.
func Order(src Source) int64 { return orderOf(src) }
