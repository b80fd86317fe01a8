package proto

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// schemaMaker makes random Protobuf files of every syntax: proto2 with groups,
// required fields, defaults, closed enums and extensions, proto3 with optional
// fields, editions with features of single fields. Types refer to each other and
// to themselves; some fields have the well-known types.
type schemaMaker struct {
	r       *rand.Rand
	files   *protoregistry.Files // what may be imported
	file    *descriptorpb.FileDescriptorProto
	enums   []string
	open    []string // enums that a field with implicit presence may have
	zero    []string // enums that begin with zero, as values of maps must
	types   []string
	imports map[string]string // full name of a type to the file that has it
}

// importable are the types of other files that a field may have, with those that
// become JSON text last.
var importable = []string{
	"google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.Int32Value", "google.protobuf.UInt64Value",
	"google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue",
	"google.protobuf.Any", "google.protobuf.Empty", "google.protobuf.FieldMask",
	"google.type.Date", "google.type.TimeOfDay", "google.type.Decimal", "google.type.Money", "confluent.type.Decimal",
	"google.protobuf.Struct", "google.protobuf.Value",
}

func newSchemaMaker(t testing.TB) *schemaMaker {
	m := &schemaMaker{files: &protoregistry.Files{}, imports: map[string]string{}}
	register(m.files, compileFile(t, one+`import "google/protobuf/empty.proto"; import "google/protobuf/wrappers.proto"; import "google/type/money.proto";`))
	for _, name := range importable {
		d, err := m.files.FindDescriptorByName(protoreflect.FullName(name))
		require.NoError(t, err)
		m.imports[name] = d.ParentFile().Path()
	}
	return m
}

// next makes a file and gives its first message.
func (m *schemaMaker) next(t testing.TB, r *rand.Rand) protoreflect.MessageDescriptor {
	m.r, m.enums, m.open, m.zero, m.types = r, nil, nil, nil, nil
	m.file = &descriptorpb.FileDescriptorProto{Name: new("random.proto"), Package: new("random")}
	switch r.IntN(4) {
	case 0:
		m.file.Syntax = new("proto2")
	case 1:
		m.file.Syntax, m.file.Edition = new("editions"), descriptorpb.Edition_EDITION_2023.Enum()
		if r.IntN(2) == 0 {
			m.file.Edition = descriptorpb.Edition_EDITION_2024.Enum()
		}
	default:
		m.file.Syntax = new("proto3")
	}
	for i := range 2 {
		m.enum(fmt.Sprintf("E%d", i))
	}
	messages := 1 + r.IntN(4)
	for i := range messages {
		m.types = append(m.types, fmt.Sprintf(".random.M%d", i))
	}
	for i := range messages {
		most := 8
		if i == 0 {
			most = 14
		}
		m.file.MessageType = append(m.file.MessageType, m.message(fmt.Sprintf("M%d", i), ".random.", i, r.IntN(most), 2))
	}
	m.extend()
	file, err := protodesc.NewFile(m.file, m.files)
	require.NoError(t, err, "%v", m.file)
	return file.Messages().Get(0)
}

func (m *schemaMaker) proto2() bool   { return m.file.GetSyntax() == "proto2" }
func (m *schemaMaker) proto3() bool   { return m.file.GetSyntax() == "proto3" }
func (m *schemaMaker) editions() bool { return m.file.GetSyntax() == "editions" }

// one in n
func (m *schemaMaker) chance(n int) bool { return m.r.IntN(n) == 0 }

func (m *schemaMaker) enum(name string) {
	e := &descriptorpb.EnumDescriptorProto{Name: &name, Options: &descriptorpb.EnumOptions{AllowAlias: new(true)}}
	numbers := []int32{0, 1, 2, 2, 5, 1000, -1}
	closed := m.proto2()
	if m.editions() && m.chance(2) {
		closed = true
		e.Options.Features = &descriptorpb.FeatureSet{EnumType: descriptorpb.FeatureSet_CLOSED.Enum()}
	}
	if closed && m.chance(2) {
		numbers = numbers[1:] // closed enums may begin with any number
	}
	for i, n := range numbers {
		e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: new(fmt.Sprintf("%s_V%d", name, i)), Number: new(n)})
	}
	m.file.EnumType = append(m.file.EnumType, e)
	m.enums = append(m.enums, ".random."+name)
	if !closed {
		m.open = append(m.open, ".random."+name)
	}
	if numbers[0] == 0 {
		m.zero = append(m.zero, ".random."+name)
	}
}

// message makes type number i of the file, or a group of it, with some fields.
func (m *schemaMaker) message(name, scope string, i, fields, groups int) *descriptorpb.DescriptorProto {
	d := &descriptorpb.DescriptorProto{Name: &name}
	var oneofs int
	if fields >= 4 && m.chance(2) {
		oneofs = 1 + m.r.IntN(2)
	}
	used := map[int32]bool{}
	for k := range fields {
		f := &descriptorpb.FieldDescriptorProto{Name: new(fmt.Sprintf("f%d", k)), Number: new(m.number(used))}
		switch {
		case k < 2*oneofs: // each oneof has two members, side by side
			f.OneofIndex = new(int32(k / 2))
			m.single(d, f, scope+name, i, groups, true)
		case m.chance(6):
			m.mapped(d, f, scope+name, i)
		case m.chance(3):
			m.repeated(d, f, scope+name, i, groups)
		default:
			m.single(d, f, scope+name, i, groups, false)
		}
		d.Field = append(d.Field, f)
	}
	for k := range oneofs {
		d.OneofDecl = append(d.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new(fmt.Sprintf("o%d", k))})
	}
	for _, f := range d.Field { // the oneofs of optional fields stand after all others
		if f.GetProto3Optional() {
			f.OneofIndex = new(int32(len(d.OneofDecl)))
			d.OneofDecl = append(d.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new("_" + f.GetName())})
		}
	}
	return d
}

// number is a field number that is not used yet, mostly small.
func (m *schemaMaker) number(used map[int32]bool) int32 {
	for {
		n := 1 + m.r.Int32N(20)
		switch m.r.IntN(20) {
		case 0:
			n = 1 + m.r.Int32N(2000)
		case 1:
			n = []int32{15, 16, 1023, 1024, 2047, 2048, 5000, 18999, 20000, 536870911}[m.r.IntN(10)]
		}
		if n >= 3000 && n < 3010 || used[n] { // kept for extensions
			continue
		}
		used[n] = true
		return n
	}
}

var scalarKinds = []descriptorpb.FieldDescriptorProto_Type{
	descriptorpb.FieldDescriptorProto_TYPE_DOUBLE, descriptorpb.FieldDescriptorProto_TYPE_FLOAT, descriptorpb.FieldDescriptorProto_TYPE_INT64,
	descriptorpb.FieldDescriptorProto_TYPE_UINT64, descriptorpb.FieldDescriptorProto_TYPE_INT32, descriptorpb.FieldDescriptorProto_TYPE_FIXED64,
	descriptorpb.FieldDescriptorProto_TYPE_FIXED32, descriptorpb.FieldDescriptorProto_TYPE_BOOL, descriptorpb.FieldDescriptorProto_TYPE_STRING,
	descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_BYTES, descriptorpb.FieldDescriptorProto_TYPE_UINT32,
	descriptorpb.FieldDescriptorProto_TYPE_SFIXED32, descriptorpb.FieldDescriptorProto_TYPE_SFIXED64, descriptorpb.FieldDescriptorProto_TYPE_SINT32,
	descriptorpb.FieldDescriptorProto_TYPE_SINT64,
}

// kind chooses what one value of the field is. Types of the file are mostly later
// ones than the one that is being made, so that few refer back.
func (m *schemaMaker) kind(f *descriptorpb.FieldDescriptorProto, i int, enums []string) {
	roll := m.r.IntN(20)
	switch {
	case roll < 3 && i+1 < len(m.types):
		m.refer(f, m.types[i+1+m.r.IntN(len(m.types)-i-1)])
	case roll == 3 && m.chance(8):
		m.refer(f, m.types[m.r.IntN(len(m.types))])
	case roll < 6:
		m.importing(f)
	case roll < 8 && len(enums) > 0:
		f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_ENUM.Enum(), new(enums[m.r.IntN(len(enums))])
	default:
		f.Type = scalarKinds[m.r.IntN(len(scalarKinds))].Enum()
	}
}

func (m *schemaMaker) refer(f *descriptorpb.FieldDescriptorProto, name string) {
	f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), &name
}

func (m *schemaMaker) importing(f *descriptorpb.FieldDescriptorProto) {
	n := len(importable)
	if !m.chance(5) {
		n -= 2 // JSON is slow: rarely
	}
	name := importable[m.r.IntN(n)]
	m.refer(f, "."+name)
	if !slices.Contains(m.file.Dependency, m.imports[name]) {
		m.file.Dependency = append(m.file.Dependency, m.imports[name])
	}
}

func (m *schemaMaker) single(d *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto, scope string, i, groups int, member bool) {
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()
	implicit := m.editions() && !member && m.chance(2)
	enums := m.enums
	if implicit {
		enums = m.open
	}
	m.kind(f, i, enums)
	message := f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	switch {
	case m.proto3():
		if !member && m.chance(4) {
			f.Proto3Optional = new(true)
		}
	case m.proto2():
		if groups > 0 && m.chance(10) {
			m.group(d, f, scope, i, groups)
		} else if !member && m.chance(12) {
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REQUIRED.Enum()
		} else if f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_INT32 && m.chance(2) {
			f.DefaultValue = new("7")
		} else if f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_STRING && m.chance(2) {
			f.DefaultValue = new("default")
		}
	case message && m.chance(3):
		m.feature(f).MessageEncoding = descriptorpb.FeatureSet_DELIMITED.Enum()
	case implicit && !message:
		m.feature(f).FieldPresence = descriptorpb.FeatureSet_IMPLICIT.Enum()
	case !member && m.chance(12):
		m.feature(f).FieldPresence = descriptorpb.FeatureSet_LEGACY_REQUIRED.Enum()
	}
	m.utf8(f)
}

func (m *schemaMaker) repeated(d *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto, scope string, i, groups int) {
	m.kind(f, i, m.enums)
	packable := true
	switch f.GetType() {
	case descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_BYTES, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE:
		packable = false
	default:
	}
	switch {
	case m.editions() && packable && m.chance(2):
		m.feature(f).RepeatedFieldEncoding = descriptorpb.FeatureSet_EXPANDED.Enum()
	case m.editions() && f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE && m.chance(3):
		m.feature(f).MessageEncoding = descriptorpb.FeatureSet_DELIMITED.Enum()
	case !m.editions() && packable && m.chance(2):
		f.Options = &descriptorpb.FieldOptions{Packed: new(m.proto2())}
	case m.proto2() && groups > 0 && m.chance(8):
		m.group(d, f, scope, i, groups)
	}
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	m.utf8(f)
}

// group makes the field a group, whose type stands beside it and has its name.
func (m *schemaMaker) group(d *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto, scope string, i, groups int) {
	name := "G" + f.GetName()
	f.Name = new("g" + f.GetName())
	f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_GROUP.Enum(), new(scope+"."+name)
	d.NestedType = append(d.NestedType, m.message(name, scope+".", i, m.r.IntN(4), groups-1))
}

func (m *schemaMaker) mapped(d *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto, scope string, i int) {
	keys := scalarKinds[2:]
	k := &descriptorpb.FieldDescriptorProto{
		Name: new("key"), Number: new(int32(1)),
		Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: keys[m.r.IntN(len(keys))].Enum(),
	}
	for k.GetType() == descriptorpb.FieldDescriptorProto_TYPE_BYTES {
		k.Type = keys[m.r.IntN(len(keys))].Enum()
	}
	v := &descriptorpb.FieldDescriptorProto{Name: new("value"), Number: new(int32(2)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	m.kind(v, i, m.zero)
	name := "F" + f.GetName()[1:] + "Entry"
	d.NestedType = append(d.NestedType, &descriptorpb.DescriptorProto{
		Name: &name, Field: []*descriptorpb.FieldDescriptorProto{k, v}, Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
	})
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	m.refer(f, scope+"."+name)
}

func (m *schemaMaker) feature(f *descriptorpb.FieldDescriptorProto) *descriptorpb.FeatureSet {
	if f.Options == nil {
		f.Options = &descriptorpb.FieldOptions{}
	}
	if f.Options.Features == nil {
		f.Options.Features = &descriptorpb.FeatureSet{}
	}
	return f.Options.Features
}

func (m *schemaMaker) utf8(f *descriptorpb.FieldDescriptorProto) {
	if m.editions() && f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_STRING && m.chance(3) {
		m.feature(f).Utf8Validation = descriptorpb.FeatureSet_NONE.Enum()
	}
}

// extend gives the first message an extension, where the syntax has them. To the
// mapping it is an unknown field.
func (m *schemaMaker) extend() {
	if m.proto3() || !m.chance(2) {
		return
	}
	m.file.MessageType[0].ExtensionRange = append(m.file.MessageType[0].ExtensionRange,
		&descriptorpb.DescriptorProto_ExtensionRange{Start: new(int32(3000)), End: new(int32(3010))})
	m.file.Extension = append(m.file.Extension, &descriptorpb.FieldDescriptorProto{
		Name: new("extra"), Number: new(int32(3000)), Extendee: new(".random.M0"),
		Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
	})
}

// describeFile is the file for the text of a failed case.
func describeFile(md protoreflect.MessageDescriptor) string {
	return prototext.Format(protodesc.ToFileDescriptorProto(md.ParentFile()))
}
