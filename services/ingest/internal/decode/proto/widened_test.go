package proto

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/schema"
)

func TestLongsOfEveryKindFillDecimalColumns(t *testing.T) { // S6
	before := messageOf(t, one+`message M { uint64 d = 1; uint64 t = 2; repeated uint64 all = 3; uint64 l = 4; uint64 w = 5; }`, "M")
	after := messageOf(t, one+`import "google/protobuf/wrappers.proto"; message M { google.protobuf.Duration d = 1; google.type.TimeOfDay t = 2;
		repeated google.protobuf.Duration all = 3; sint64 l = 4; google.protobuf.Int64Value w = 5; }`, "M")
	candidate, err := Candidate(before, Options{})
	require.NoError(t, err)
	first := schema.Reconcile(&schema.Schema{}, candidate, nil)
	candidate, err = Candidate(after, Options{})
	require.NoError(t, err)
	second := schema.Reconcile(first.Schema, candidate, first.Numbers)
	require.Empty(t, second.Refusals)
	tb := newTableFor(t, after, second.Schema, Options{})
	text := `d: {seconds: -1} t: {hours: 1} all: {nanos: 5} all: {} l: -3 w: {value: -4}`
	require.NoError(t, tb.text(text))
	require.NoError(t, tb.text(text))
	tb.batch.Undo()
	require.NoError(t, tb.text(text))
	var out []string
	for _, a := range tb.batch.Finish() {
		out = append(out, a.ValueStr(1))
	}
	require.Equal(t, []string{"-1000000000", "3600000000", `["5","0"]`, "-3", "-4"}, out)
}
