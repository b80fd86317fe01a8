package proto

import (
	"bytes"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/protobuf/encoding/protojson"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/icestream/icestream/services/ingest/internal/column"
)

// jsonText turns sub-messages that have no fixed columns (recursion, Struct and
// its kin) into canonical Protobuf JSON. It is the one place where a message is
// parsed as a whole, so it is the cold path.
type jsonText struct {
	md       protoreflect.MessageDescriptor
	resolver *dynamicpb.Types
}

func newJSONText(md protoreflect.MessageDescriptor) *jsonText {
	files := &protoregistry.Files{}
	register(files, md.ParentFile())
	return &jsonText{md: md, resolver: dynamicpb.NewTypes(files)}
}

// register makes the file and all it imports known, so that an Any in it can be
// written with its content. A file that is there already is left alone.
func register(files *protoregistry.Files, file protoreflect.FileDescriptor) {
	if _, err := files.FindFileByPath(file.Path()); err == nil || file.IsPlaceholder() {
		return
	}
	if err := files.RegisterFile(file); err != nil {
		return // a clash of names: the types of that file stay unknown to Any
	}
	for i := range file.Imports().Len() {
		register(files, file.Imports().Get(i).FileDescriptor)
	}
}

// append writes the JSON of the encoded message. White space is taken out,
// because protojson varies it from build to build. dynamicpb panics on some
// malformed records; that too is a fault of the record.
func (j *jsonText) append(dst, s []byte, depth int) (out []byte, failed fail) {
	defer func() {
		if recover() != nil {
			out, failed = nil, failJSON
		}
	}()
	m := dynamicpb.NewMessage(j.md)
	// depth was already lowered for this message, which Unmarshal does again.
	err := protobuf.UnmarshalOptions{RecursionLimit: depth + 1, Resolver: j.resolver}.Unmarshal(s, m)
	if err != nil {
		return nil, failJSON
	}
	text, err := protojson.MarshalOptions{Resolver: j.resolver}.Marshal(m)
	if err != nil {
		return nil, failJSON
	}
	buf := bytes.NewBuffer(dst)
	if err := json.Compact(buf, text); err != nil {
		return nil, failJSON
	}
	return buf.Bytes(), ok
}

// isTime reports whether the column holds Arrow times of day.
func isTime(c *column.Column) bool { return c.Type().ID() == arrow.TIME64 }
