package registry

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

const in2024 = `// edition = "2023";
/* a comment
   edition = "2024"; */
edition = "2024";
package p;
import option "nowhere.proto"; // option: only needed for code that is generated
option features.enforce_naming_style = STYLE_LEGACY;
option features.default_symbol_visibility = EXPORT_ALL;
option java_package = "export message X; option features.enforce_naming_style = STYLE2024;";
export message M {
  string export = 1; int32 local = 2 [features.field_presence = IMPLICIT]; local message = 3;
  // local enum E
  local enum E { Z = 0; }
  repeated E many = 4; M group = 5 [features.message_encoding = DELIMITED];
}
local message local { string s = 1; }
`

// Editions 2023 and 2024 mean the same on the wire; what is new in 2024 is about
// names and generated code.
func TestEditionsAreRead(t *testing.T) {
	files := map[string]string{"nowhere.proto": `syntax = "proto2";`}
	file, err := Compile(t.Context(), "m.proto", in2024, files)
	require.NoError(t, err)
	m := file.Messages().ByName("M")
	require.True(t, m.Fields().ByName("export").HasPresence())
	require.False(t, m.Fields().ByName("local").HasPresence())
	require.Equal(t, protoreflect.FullName("p.local"), m.Fields().ByName("message").Message().FullName())
	require.False(t, m.Enums().ByName("E").IsClosed())
	require.True(t, m.Fields().ByName("many").IsPacked())
	require.Equal(t, protoreflect.GroupKind, m.Fields().ByName("group").Kind())

	_, err = Compile(t.Context(), "m.proto", "edition = \"2024\";\nexport message M {\n  Missing m = 1;\n}", nil)
	var bad *BadSchemaError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, 3, bad.Line, "lines stay where they are")
	_, err = Compile(t.Context(), "m.proto", `edition = "2027"; message M {}`, nil)
	require.ErrorIs(t, err, ErrBadSchema)
	require.ErrorContains(t, err, "2027")
}

func TestSerializedDescriptorsOfEdition2024AreRead(t *testing.T) {
	fdp := &descriptorpb.FileDescriptorProto{
		Name: new("m.proto"), Package: new("p"), Syntax: new("editions"), Edition: descriptorpb.Edition_EDITION_2024.Enum(),
		Dependency: []string{"google/protobuf/timestamp.proto"}, OptionDependency: []string{"nowhere.proto"},
		Options: &descriptorpb.FileOptions{Features: &descriptorpb.FeatureSet{
			EnforceNamingStyle:      descriptorpb.FeatureSet_STYLE_LEGACY.Enum(),
			DefaultSymbolVisibility: descriptorpb.FeatureSet_VisibilityFeature_EXPORT_ALL.Enum(),
			FieldPresence:           descriptorpb.FeatureSet_IMPLICIT.Enum(),
		}},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: new("M"), Visibility: descriptorpb.SymbolVisibility_VISIBILITY_LOCAL.Enum(),
			Field: []*descriptorpb.FieldDescriptorProto{
				{Name: new("s"), Number: new(int32(1)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum()},
				{Name: new("t"), Number: new(int32(2)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: new(".google.protobuf.Timestamp")},
			},
		}},
	}
	raw, err := proto.Marshal(fdp)
	require.NoError(t, err)
	file, err := Compile(t.Context(), "m.proto", base64.StdEncoding.EncodeToString(raw), nil)
	require.NoError(t, err)
	require.False(t, file.Messages().Get(0).Fields().ByName("s").HasPresence())
	require.EqualValues(t, "google.protobuf.Timestamp", file.Messages().Get(0).Fields().ByName("t").Message().FullName())
}
