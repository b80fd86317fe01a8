package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/icestream/icestream/internal/protofile"
)

// mainFile is the name a schema has while it is compiled; a reference of that name would be another file.
const mainFile = "icestream-registry-main.proto"

// source is a .proto file: text, or a descriptor for schemas that were registered so.
type source struct {
	text       string
	descriptor *descriptorpb.FileDescriptorProto
}

// sourceOf tells the two forms apart. What is neither is for the compiler to refuse.
func sourceOf(text string) source {
	if file, err := protofile.Descriptor(text); err == nil && file != nil {
		return source{descriptor: file}
	}
	return source{text: text}
}

// compile checks a PROTOBUF schema with its references and returns its descriptor without positions and comments.
// Imports that no reference names must be of the well-known files.
func (st *state) compile(text string, refs []reference) (*descriptorpb.FileDescriptorProto, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the schema is empty")
	}
	files := map[string]source{}
	if err := st.collect(refs, files); err != nil {
		return nil, err
	}
	main := sourceOf(text)
	if main.descriptor != nil {
		main.descriptor = proto.CloneOf(main.descriptor)
		main.descriptor.Name = new(mainFile)
	}
	files[mainFile] = main
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(
		protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) { return resolve(files, path) }),
	)}
	compiled, err := compiler.Compile(context.Background(), mainFile)
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), mainFile, "schema"))
	}
	return protodesc.ToFileDescriptorProto(compiled[0]), nil
}

func resolve(files map[string]source, path string) (protocompile.SearchResult, error) {
	file, ok := files[path]
	if !ok {
		text, known := builtin()[path]
		if !known {
			return protocompile.SearchResult{}, fmt.Errorf("%q is neither a reference of the schema nor well known", path)
		}
		file = source{text: text}
	}
	if file.descriptor != nil {
		return protocompile.SearchResult{Proto: proto.CloneOf(file.descriptor)}, nil
	}
	return protocompile.SearchResult{Source: io.NopCloser(strings.NewReader(file.text))}, nil
}

// collect adds the references' files by import name, and those that they import in turn.
func (st *state) collect(refs []reference, files map[string]source) error {
	for _, ref := range refs {
		if _, done := files[ref.Name]; done {
			continue
		}
		target := st.find(ref.Subject, ref.Version)
		if target == nil {
			return fmt.Errorf("reference %q: subject %q has no version %d", ref.Name, ref.Subject, ref.Version)
		}
		if target.Type != typeProtobuf {
			return fmt.Errorf("reference %q: subject %q holds a schema of type %s", ref.Name, ref.Subject, target.Type)
		}
		file := sourceOf(target.Text)
		if file.descriptor != nil {
			file.descriptor.Name = new(ref.Name)
		}
		files[ref.Name] = file
		if err := st.collect(target.References, files); err != nil {
			return err
		}
	}
	return nil
}

// find returns the schema of a version, deleted or not: a schema that was accepted must stay readable.
func (st *state) find(subject string, number int) *schema {
	for _, v := range st.Subjects[subject] {
		if v.Number == number {
			return st.Schemas[v.SchemaID]
		}
	}
	return nil
}

// sameDescriptor tells whether two PROTOBUF schemas of different form mean the same file.
func (st *state) sameDescriptor(a, b *schema) bool {
	if (sourceOf(a.Text).descriptor == nil) == (sourceOf(b.Text).descriptor == nil) {
		return a.GUID == b.GUID
	}
	left, err := st.compile(a.Text, a.References)
	if err != nil {
		return false
	}
	right, err := st.compile(b.Text, b.References)
	if err != nil {
		return false
	}
	for _, file := range []*descriptorpb.FileDescriptorProto{left, right} {
		file.SourceCodeInfo = nil
		dropJSONNames(file.MessageType)
	}
	return proto.Equal(left, right)
}

// dropJSONNames clears the names that a compiler derives and a client may leave out.
func dropJSONNames(messages []*descriptorpb.DescriptorProto) {
	for _, m := range messages {
		for _, f := range m.Field {
			f.JsonName = nil
		}
		dropJSONNames(m.NestedType)
	}
}

// serialized is the schema as base64 FileDescriptorProto.
func (st *state) serialized(sc *schema) (string, error) {
	file, err := st.compile(sc.Text, sc.References)
	if err != nil {
		return "", err
	}
	file.SourceCodeInfo = nil
	file.Name = new("default")
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(file)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(raw), nil
}

// builtin holds the files that registries of this kind know besides google/protobuf/*.
func builtin() map[string]string {
	const head = "syntax = \"proto3\";\npackage google.type;\n"
	files := map[string]string{
		"google/type/date.proto":      head + "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
		"google/type/timeofday.proto": head + "message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
		"google/type/money.proto":     head + "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }",
		"google/type/latlng.proto":    head + "message LatLng { double latitude = 1; double longitude = 2; }",
	}
	maps.Copy(files, map[string]string{
		"confluent/type/decimal.proto": "syntax = \"proto3\";\npackage confluent.type;\n" +
			"message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
		"confluent/meta.proto": "syntax = \"proto3\";\npackage confluent;\nimport \"google/protobuf/descriptor.proto\";\n" +
			"message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }\n" +
			"extend google.protobuf.FileOptions { Meta file_meta = 1088; }\n" +
			"extend google.protobuf.MessageOptions { Meta message_meta = 1088; }\n" +
			"extend google.protobuf.FieldOptions { Meta field_meta = 1088; }\n" +
			"extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }\n" +
			"extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }\n",
	})
	return files
}
