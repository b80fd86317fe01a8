package reference

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The page of all RPCs, messages and fields is made from the comments in proto/.
func TestAPIReferenceIsCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	dir := filepath.Join(root, "proto")
	names, err := filepath.Glob(filepath.Join(dir, "icestream", "*", "v1", "*.proto"))
	require.NoError(t, err)
	for i := range names {
		names[i], err = filepath.Rel(dir, names[i])
		require.NoError(t, err)
		names[i] = filepath.ToSlash(names[i])
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(t.Context(), names...)
	require.NoError(t, err)
	var page bytes.Buffer
	page.WriteString("# API\n\nMade from `proto/` by `make generate`. Errors carry an `icestream.errors.v1.ErrorDetail`.\n")
	for _, f := range files {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n", f.Package(), comment(packageLocation(f)))
		for i := range f.Services().Len() {
			writeService(&page, f.Services().Get(i))
		}
		for i := range f.Messages().Len() {
			writeMessage(&page, f.Messages().Get(i))
		}
		for i := range f.Enums().Len() {
			writeEnum(&page, f.Enums().Get(i))
		}
	}
	path := filepath.Join(root, "docs", "reference", "api.md")
	if *update {
		require.NoError(t, os.WriteFile(path, page.Bytes(), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, page.String(), string(got), "run: make generate")
}

// packageLocation finds the comment above the package statement (field 2 of
// FileDescriptorProto).
func packageLocation(f protoreflect.FileDescriptor) protoreflect.SourceLocation {
	return f.SourceLocations().ByPath(protoreflect.SourcePath{2})
}

func comment(l protoreflect.SourceLocation) string {
	return strings.Join(strings.Fields(l.LeadingComments), " ")
}

func about(d protoreflect.Descriptor) string {
	return comment(d.ParentFile().SourceLocations().ByDescriptor(d))
}

func writeService(page *bytes.Buffer, s protoreflect.ServiceDescriptor) {
	fmt.Fprintf(page, "\n### %s\n\n%s\n\n| call | request → response | |\n| --- | --- | --- |\n", s.Name(), about(s))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		fmt.Fprintf(page, "| %s | %s%s → %s%s | %s |\n", m.Name(), stream(m.IsStreamingClient()), m.Input().Name(),
			stream(m.IsStreamingServer()), m.Output().Name(), about(m))
	}
}

func stream(yes bool) string {
	if yes {
		return "stream "
	}
	return ""
}

func writeMessage(page *bytes.Buffer, m protoreflect.MessageDescriptor) {
	if m.IsMapEntry() {
		return
	}
	fmt.Fprintf(page, "\n#### %s\n\n%s\n", m.Name(), about(m))
	if m.Fields().Len() > 0 {
		page.WriteString("\n| no. | field | type | |\n| --- | --- | --- | --- |\n")
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		fmt.Fprintf(page, "| %d | %s | %s | %s |\n", f.Number(), f.Name(), fieldType(f), about(f))
	}
}

func fieldType(f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	switch {
	case f.IsMap():
		return "map of " + fieldType(f.MapKey()) + " to " + fieldType(f.MapValue())
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	if f.IsList() {
		name = "repeated " + name
	}
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		name += " (oneof " + string(o.Name()) + ")"
	}
	return name
}

func writeEnum(page *bytes.Buffer, e protoreflect.EnumDescriptor) {
	fmt.Fprintf(page, "\n#### %s\n\n%s\n\n| no. | value | |\n| --- | --- | --- |\n", e.Name(), about(e))
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		fmt.Fprintf(page, "| %d | %s | %s |\n", v.Number(), v.Name(), about(v))
	}
}
