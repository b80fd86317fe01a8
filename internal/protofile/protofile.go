// Package protofile reads the two forms in which a schema registry holds a .proto file: source text, and a serialized
// descriptor as base64.
package protofile

import (
	"encoding/base64"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Descriptor is the descriptor that a schema's text holds as base64, with every field named in JSON; nil where the
// text is source, which has blanks or a semicolon and so is never base64. The error is that of base64 which holds no
// descriptor.
func Descriptor(text string) (*descriptorpb.FileDescriptorProto, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) == 0 {
		return nil, nil //nolint:nilnil,nilerr // no base64 means source
	}
	file := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(raw, file); err != nil {
		return nil, fmt.Errorf("decoding serialized descriptor: %w", err)
	}
	nameInJSON(file.GetMessageType())
	return file, nil
}

// nameInJSON gives fields the JSON names that a compiler derives, where a descriptor leaves them out, as the serializers
// of some languages do: the compiler takes missing names for empty ones, and two of those for a conflict.
func nameInJSON(messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		for _, f := range m.GetField() {
			if f.JsonName == nil {
				f.JsonName = new(jsonName(f.GetName()))
			}
		}
		nameInJSON(m.GetNestedType())
	}
}

// jsonName is the lowerCamelCase name of a field, as Protobuf derives it.
func jsonName(field string) string {
	var b strings.Builder
	upper := false
	for _, c := range []byte(field) {
		if upper && 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if upper = c == '_'; !upper {
			b.WriteByte(c)
		}
	}
	return b.String()
}
