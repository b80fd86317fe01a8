package proto

import (
	"bytes"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
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
	note     bool // Options.NoteUnknown
}

func newJSONText(md protoreflect.MessageDescriptor, note bool) *jsonText {
	files := &protoregistry.Files{}
	register(files, md.ParentFile())
	return &jsonText{md: md, resolver: dynamicpb.NewTypes(files), note: note}
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

// unknown reports whether an encoded message, which is well-formed, has fields that
// its JSON text does not show, at any depth.
func (j *jsonText) unknown(md protoreflect.MessageDescriptor, s []byte) bool {
	var inner protoreflect.MessageDescriptor // of an Any
	var packed []byte
	for len(s) > 0 {
		num, typ, n := protowire.ConsumeTag(s)
		if n < 0 {
			return true
		}
		s = s[n:]
		size := protowire.ConsumeFieldValue(num, typ, s)
		fd := j.field(md, num)
		if size < 0 || fd == nil || typ != wireType(fd) && (typ != protowire.BytesType || !fd.IsList() || !isNumber(fd)) {
			return true
		}
		value := s[:size]
		s = s[size:]
		switch typ {
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(value)
		case protowire.StartGroupType:
			value, _ = protowire.ConsumeGroup(num, value)
		default: // a number, in which nothing is
		}
		switch {
		case fd.Message() != nil:
			if j.unknown(fd.Message(), value) {
				return true
			}
		case md.FullName() == "google.protobuf.Any" && num == 1:
			inner = nil
			if t, err := j.resolver.FindMessageByURL(string(value)); err == nil {
				inner = t.Descriptor()
			}
		case md.FullName() == "google.protobuf.Any":
			packed = value
		}
	}
	return inner != nil && j.unknown(inner, packed)
}

// field is the field of a number, extensions that JSON text shows among them.
func (j *jsonText) field(md protoreflect.MessageDescriptor, num protowire.Number) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByNumber(num); fd != nil {
		return fd
	}
	if x, err := j.resolver.FindExtensionByNumber(md.FullName(), num); err == nil {
		return x.TypeDescriptor()
	}
	return nil
}

// isNumber reports whether values of the field can be packed.
func isNumber(fd protoreflect.FieldDescriptor) bool {
	t := wireType(fd)
	return t != protowire.BytesType && t != protowire.StartGroupType
}

// isTime reports whether the column holds Arrow times of day.
func isTime(c *column.Column) bool { return c.Type().ID() == arrow.TIME64 }
