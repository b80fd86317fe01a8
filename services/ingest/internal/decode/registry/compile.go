package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/icestream/icestream/internal/protofile"
)

// source is a file that a schema imports.
type source struct {
	text    string // Protobuf source, or a FileDescriptorProto in base64
	subject string
}

// Compile compiles one Protobuf file that stands alone but for the built-in
// imports, and the files given by import path. It is what a pipeline with a fixed
// schema uses. The error is a *BadSchemaError.
func Compile(ctx context.Context, name, text string, imports map[string]string) (protoreflect.FileDescriptor, error) {
	files := make(map[string]source, len(imports))
	for path, text := range imports {
		files[path] = source{text: text}
	}
	return compile(ctx, "file "+name, name, text, files)
}

// compile turns source into descriptors. They are built a second time by Google's
// own library, because the compiler's do not answer whether a string of an
// editions file must be UTF-8.
func compile(ctx context.Context, what, name, text string, files map[string]source) (protoreflect.FileDescriptor, error) {
	return (&resolver{root: name, text: text, files: files}).compile(ctx, what)
}

func (r *resolver) compile(ctx context.Context, what string) (protoreflect.FileDescriptor, error) {
	name := r.root
	c := protocompile.Compiler{Resolver: protocompile.WithStandardImports(r), MaxParallelism: 1}
	linked, err := c.Compile(ctx, name)
	if err != nil {
		return nil, r.explain(what, err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := collect(set, linked[0], map[string]bool{}); err != nil {
		return nil, &BadSchemaError{What: what, File: name, Detail: err.Error()}
	}
	built, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, &BadSchemaError{What: what, File: name, Detail: err.Error()}
	}
	file, err := built.FindFileByPath(name)
	if err != nil {
		return nil, &BadSchemaError{What: what, File: name, Detail: err.Error()}
	}
	return file, nil
}

// collect adds a file after everything it imports. Options are taken as bytes, so
// that custom ones survive whatever this program knows of them.
func collect(set *descriptorpb.FileDescriptorSet, file protoreflect.FileDescriptor, done map[string]bool) error {
	if done[file.Path()] {
		return nil
	}
	done[file.Path()] = true
	for i := range file.Imports().Len() {
		if err := collect(set, file.Imports().Get(i).FileDescriptor, done); err != nil {
			return err
		}
	}
	raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	if err != nil {
		return fmt.Errorf("encoding descriptor of %s: %w", file.Path(), err)
	}
	fdp := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{Resolver: &protoregistry.Types{}}).Unmarshal(raw, fdp); err != nil {
		return fmt.Errorf("decoding descriptor of %s: %w", file.Path(), err)
	}
	set.File = append(set.File, fdp)
	return nil
}

// resolver finds the root, the referenced files, and the built-in ones.
type resolver struct {
	root, text string
	files      map[string]source
	folder     string // of an override: where to look for its imports; "" else
}

// FindFileByPath is protocompile's call.
func (r *resolver) FindFileByPath(path string) (protocompile.SearchResult, error) {
	if path == r.root {
		return parsed(path, r.text)
	}
	if f, found := r.files[path]; found {
		return parsed(path, f.text)
	}
	if text, found := builtin(path); found {
		return protocompile.SearchResult{Source: strings.NewReader(text)}, nil
	}
	if strings.HasPrefix(path, "google/type/") {
		if fd, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
			return protocompile.SearchResult{Desc: fd}, nil
		}
	}
	if text, found := importedFile(r.folder, path); found {
		return parsed(path, text)
	}
	return protocompile.SearchResult{}, protoregistry.NotFound
}

// parsed takes source text, or a serialized descriptor in base64.
func parsed(path, text string) (protocompile.SearchResult, error) {
	file, err := protofile.Descriptor(text)
	if err != nil {
		return protocompile.SearchResult{}, err
	}
	if file != nil {
		file.Name = new(path)
		return protocompile.SearchResult{Proto: file}, nil
	}
	return protocompile.SearchResult{Source: strings.NewReader(readable(text))}, nil
}

// explain names the file, its subject and the line.
func (r *resolver) explain(what string, err error) error {
	bad := &BadSchemaError{What: what, File: r.root, Detail: err.Error()}
	if at, found := errors.AsType[reporter.ErrorWithPos](err); found {
		pos := at.GetPosition()
		bad.File, bad.Line, bad.Detail = pos.Filename, pos.Line, at.Unwrap().Error()
	}
	bad.Subject = r.files[bad.File].subject
	return bad
}
