package pipeline

import (
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/batch"
	"github.com/icestream/icestream/services/ingest/internal/decode/frame"
	"github.com/icestream/icestream/services/ingest/internal/decode/jsonrec"
)

func plainSource(t *testing.T, c Codec) Source {
	t.Helper()
	s, err := c.Source(t.Context(), &frame.Frame{})
	require.NoError(t, err)
	return s
}

// rowsOf are the rows that a source makes in a table of its own.
func rowsOf(t *testing.T, s Source) (batch.Rows, *schema.Schema) {
	t.Helper()
	target := schema.Reconcile(&schema.Schema{}, s.Candidate(), nil)
	require.NoError(t, target.Schema.Validate())
	make, err := Compile(s, target.Schema)
	require.NoError(t, err)
	return make(), target.Schema
}

func TestKeyStructIsNullWhereTheKeyIs(t *testing.T) { // issue 4 point 10
	key, err := NewJSON("shop int, name string", jsonrec.Options{})
	require.NoError(t, err)
	rows, target := rowsOf(t, WithKey(plainSource(t, Text{}), plainSource(t, key)))
	require.Equal(t, "_key", target.Columns[1].Name)
	keyed, ok := rows.(batch.Keyed)
	require.True(t, ok)
	add := func(key, value string) error {
		keyed.NextKey([]byte(key))
		if key == "null" {
			keyed.NextKey(nil)
		}
		if value == "" {
			return rows.AppendNull()
		}
		return rows.Append([]byte(value))
	}
	for range 2 { // after a reset, too
		rows.Reset()
		require.NoError(t, add("null", "a"))
		require.NoError(t, add(`{"shop":1}`, "b"))
		require.Error(t, add(`{"shop":7}`, "\xff"), "the value is bad")
		require.Error(t, add("null", "\xff"))
		err := add(`{"shop":"x"}`, "c")
		var rf *RecordError
		require.ErrorAs(t, err, &rf)
		require.Equal(t, "key_wrong_type", rf.Reason)
		require.Contains(t, rf.Text, "in the key: decoding JSON field shop")
		require.NoError(t, add("null", "d"))
		rows.Undo()
		require.NoError(t, add(`{}`, ""))
		require.NoError(t, add("null", "e"))
		require.Equal(t, 4, rows.Rows())
		out := rows.Finish()
		require.Equal(t, `["a" "b" (null) "e"]`, out[0].(*array.String).String())
		s := out[1].(*array.Struct)
		require.Equal(t, 2, s.NullN())
		require.NoError(t, s.ValidateFull())
		require.Equal(t, []bool{true, false, false, true}, []bool{s.IsNull(0), s.IsNull(1), s.IsNull(2), s.IsNull(3)})
		require.EqualValues(t, 1, s.Field(0).(*array.Int32).Value(1))
		require.True(t, arrow.TypeEqual(target.Columns[1].ArrowField().Type, s.DataType(), arrow.CheckMetadata()))
	}
}

func TestFaultOfAKeyNamesTheKeysSettings(t *testing.T) { // F8
	_, err := frame.Parse([]byte("plain"), nil, false)
	require.Equal(t, "key_frame_missing: in the key: the key starts with byte 0x70, not with the magic byte 0x00; "+
		"for keys that are not framed set key to raw or string, or a key_schema", keyFault(err).Error())
	away := errors.New("the registry is away")
	require.Equal(t, away, keyFault(away))
}

func TestKeyAloneIsTheSourceOfTombstones(t *testing.T) {
	rows, target := rowsOf(t, WithKey(nil, plainSource(t, Raw{})))
	require.Len(t, target.Columns, 1)
	rows.(batch.Keyed).NextKey([]byte{1})
	require.NoError(t, rows.AppendNull())
	require.Equal(t, []byte{1}, rows.Finish()[0].(*array.Binary).Value(0))
	require.Equal(t, "key raw", WithKey(nil, plainSource(t, Raw{})).Name())
	require.Equal(t, "string, key raw", WithKey(plainSource(t, Text{}), plainSource(t, Raw{})).Name())
}

// A field that an operator left out is decoded and dropped beside a key as well (issue 4 point 7).
func TestKeyBesideFieldsThatAreLeftOut(t *testing.T) {
	value, err := NewJSON("id long, bad string", jsonrec.Options{})
	require.NoError(t, err)
	src := WithKey(plainSource(t, value), plainSource(t, Text{}))
	table := &schema.Schema{Columns: []*schema.Node{{Name: "bad", FieldID: 1, Type: schema.Of(schema.Long)}}}
	refused := schema.Evolve(table, src.Candidate(), nil, schema.Options{}).Refusals
	require.Len(t, refused, 1)
	target := schema.Evolve(table, src.Candidate(), nil, schema.Options{Decisions: []schema.Decision{{
		Action: schema.Ignore, Field: refused[0].Field, Column: refused[0].Path, TableType: refused[0].TableType, SourceType: refused[0].CandidateType,
	}}})
	require.Empty(t, target.Refusals)
	require.NotEmpty(t, target.Schema.Ignored)
	make, err := Compile(src, target.Schema)
	require.NoError(t, err)
	rows := make()
	rows.(batch.Keyed).NextKey([]byte("k"))
	require.NoError(t, rows.Append([]byte(`{"id":1,"bad":"x"}`)))
	out := rows.Finish()
	require.Len(t, out, len(target.Schema.Mapped()))
	for i, n := range target.Schema.Mapped() {
		switch n.Name {
		case "_key":
			require.Equal(t, "k", out[i].ValueStr(0))
		case "id":
			require.Equal(t, "1", out[i].ValueStr(0))
		default:
			require.True(t, out[i].IsNull(0))
		}
	}
}
