package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/internal/variant"
)

// A variant is printed as the value that it holds, in a struct of a list too, and bytes that are none as they are.
func TestVariantsArePrintedAsTheirValue(t *testing.T) {
	v := func() *schema.Node { return &schema.Node{Name: "v", Type: schema.Of(schema.Variant)} }
	s := (&schema.Schema{Columns: []*schema.Node{v(), {Name: "l", Type: schema.Of(schema.List), Kids: []*schema.Node{
		{Name: "element", Type: schema.Of(schema.Struct), Kids: []*schema.Node{v(), {Name: "n", Type: schema.Of(schema.Long)}}},
	}}}}).Arrow()
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	put := func(b array.Builder, text string) {
		var e variant.Encoder
		metadata, value, err := e.JSON([]byte(text))
		require.NoError(t, err)
		b.(*array.StructBuilder).Append(true)
		b.(*array.StructBuilder).FieldBuilder(0).(*array.BinaryBuilder).Append(metadata)
		b.(*array.StructBuilder).FieldBuilder(1).(*array.BinaryBuilder).Append(value)
	}
	put(b.Field(0), `{"a": [1, null]}`)
	list := b.Field(1).(*array.ListBuilder)
	list.Append(true)
	inner := list.ValueBuilder().(*array.StructBuilder)
	inner.Append(true)
	put(inner.FieldBuilder(0), `"x"`)
	inner.FieldBuilder(1).(*array.Int64Builder).Append(7)
	b.Field(0).AppendNull()
	list.Append(true)
	broken := b.Field(0).(*array.StructBuilder)
	broken.Append(true)
	broken.FieldBuilder(0).(*array.BinaryBuilder).Append([]byte{1})
	broken.FieldBuilder(1).(*array.BinaryBuilder).Append([]byte{2})
	list.Append(true)
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(s))
	require.NoError(t, w.Write(b.NewRecordBatch()))
	require.NoError(t, w.Close())
	lines := strings.Split(printed(t, "json", 0, out.Bytes()), "\n")
	require.Len(t, lines, 4)
	require.JSONEq(t, `{"v":{"a":[1,null]},"l":[{"n":7,"v":"x"}]}`, lines[0])
	require.JSONEq(t, `{"v":null,"l":[]}`, lines[1])
	require.JSONEq(t, `{"v":{"metadata":"AQ==","value":"Ag=="},"l":[]}`, lines[2])
	require.Empty(t, lines[3])
	require.Equal(t, "v,l\n\"{\"\"a\"\":[1,null]}\",\"[{\"\"n\"\":7,\"\"v\"\":\"\"x\"\"}]\"\n,[]\n\"{\"\"metadata\"\":\"\"AQ==\"\",\"\"value\"\":\"\"Ag==\"\"}\",[]\n",
		printed(t, "csv", 0, out.Bytes()))
}
