package protofile

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestADescriptorInBase64IsReadWithItsFieldsNamed(t *testing.T) {
	field := func(name string, json *string) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, JsonName: json}
	}
	file := &descriptorpb.FileDescriptorProto{MessageType: []*descriptorpb.DescriptorProto{{
		Field:      []*descriptorpb.FieldDescriptorProto{field("a_bc__d", nil), field("x_1y", nil), field("kept", new("Own"))},
		NestedType: []*descriptorpb.DescriptorProto{{Field: []*descriptorpb.FieldDescriptorProto{field("in_side", nil)}}},
	}}}
	raw, err := proto.Marshal(file)
	require.NoError(t, err)
	got, err := Descriptor("\n" + base64.StdEncoding.EncodeToString(raw) + "\n")
	require.NoError(t, err)
	m := got.GetMessageType()[0]
	require.Equal(t, "aBcD", m.GetField()[0].GetJsonName())
	require.Equal(t, "x1y", m.GetField()[1].GetJsonName())
	require.Equal(t, "Own", m.GetField()[2].GetJsonName())
	require.Equal(t, "inSide", m.GetNestedType()[0].GetField()[0].GetJsonName())
}

func TestSourceIsNoDescriptor(t *testing.T) {
	for _, text := range []string{"", " \n", `syntax = "proto3";`, "message A {}"} {
		got, err := Descriptor(text)
		require.NoError(t, err)
		require.Nil(t, got, text)
	}
	_, err := Descriptor("AAAA")
	require.Error(t, err)
}
