package proto

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/schema"
)

// Candidate derives the columns that a message type wants, without field ids: in
// the order of declaration, named by the naming rule, each with its field number.
// Everything is optional but the keys of maps. It fails when the type expands to
// more columns than a table can sensibly have.
func Candidate(md protoreflect.MessageDescriptor, opts Options) (*schema.Schema, error) {
	w := &walker{opts: opts, root: md.FullName()}
	columns, err := w.message(md, nil, true)
	if err != nil {
		return nil, err
	}
	schema.TextInLists(columns)
	return &schema.Schema{Columns: columns}, nil
}

type walker struct {
	opts  Options
	root  protoreflect.FullName
	nodes int
}

func (w *walker) message(md protoreflect.MessageDescriptor, above stack, top bool) ([]*schema.Node, error) {
	if md.Fields().Len() == 0 {
		return []*schema.Node{presence()}, nil
	}
	above = above.push(md.FullName())
	var out []*schema.Node
	for i := range md.Fields().Len() {
		n, err := w.field(md.Fields().Get(i), above)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	if w.opts.OneofCase {
		out = append(out, oneofNodes(md)...)
	}
	schema.ResolveNames(out, top)
	return out, nil
}

func presence() *schema.Node {
	return &schema.Node{
		Name: schema.PresenceName, Number: schema.PresenceNumber, Type: schema.Of(schema.Boolean),
		Doc: "true where the empty message is present",
	}
}

func oneofNodes(md protoreflect.MessageDescriptor) []*schema.Node {
	var out []*schema.Node
	for i := range md.Oneofs().Len() {
		oneof := md.Oneofs().Get(i)
		if oneof.IsSynthetic() {
			continue
		}
		out = append(out, &schema.Node{
			Name: string(oneof.Name()), Number: oneofNumber(oneof), Type: schema.Of(schema.String),
			Doc: "name of the member that is set",
		})
	}
	return out
}

func oneofNumber(oneof protoreflect.OneofDescriptor) int32 {
	lowest := oneof.Fields().Get(0).Number()
	for i := range oneof.Fields().Len() {
		lowest = min(lowest, oneof.Fields().Get(i).Number())
	}
	return schema.OneofNumber(int32(lowest))
}

func (w *walker) field(fd protoreflect.FieldDescriptor, above stack) (*schema.Node, error) {
	n := &schema.Node{Name: string(fd.Name()), Number: int32(fd.Number())}
	switch {
	case fd.IsMap():
		key, err := w.value(fd.MapKey(), above, schema.KeyName)
		if err != nil {
			return nil, err
		}
		key.Required = true
		value, err := w.value(fd.MapValue(), above.push(insideMap), schema.ValueName)
		if err != nil {
			return nil, err
		}
		n.Type, n.Kids = schema.Of(schema.Map), []*schema.Node{key, value}
		return n, nil
	case fd.IsList():
		element, err := w.value(fd, above, schema.ElementName)
		if err != nil {
			return nil, err
		}
		n.Type, n.Kids = schema.Of(schema.List), []*schema.Node{element}
		return n, nil
	}
	v, err := w.value(fd, above, n.Name)
	if err != nil {
		return nil, err
	}
	n.Type, n.Kids = v.Type, v.Kids
	return n, nil
}

// value is the node of one value of the field.
func (w *walker) value(fd protoreflect.FieldDescriptor, above stack, name string) (*schema.Node, error) {
	if w.nodes++; w.nodes > maxNodes {
		return nil, fmt.Errorf("mapping message %s: it expands to more than %d columns; its types refer to each other in too many ways", w.root, maxNodes)
	}
	s, t := classify(fd, above, w.opts)
	n := &schema.Node{Name: name, Type: t}
	switch s {
	case shapeMessage:
		kids, err := w.message(fd.Message(), above, false)
		if err != nil {
			return nil, err
		}
		n.Kids = kids
	case shapeEmpty:
		n.Kids = []*schema.Node{presence()}
	default:
	}
	return n, nil
}
