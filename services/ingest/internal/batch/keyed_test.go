package batch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// keyedText notes the keys of its rows.
type keyedText struct {
	textRows

	next []byte
	keys []string
}

func (r *keyedText) NextKey(key []byte) { r.next = key }

func (r *keyedText) note() {
	if r.next == nil {
		r.keys = append(r.keys, "null")
	} else {
		r.keys = append(r.keys, string(r.next))
	}
}

func (r *keyedText) Append(p []byte) error {
	err := r.textRows.Append(p)
	if err == nil {
		r.note()
	}
	return err
}

func (r *keyedText) AppendNull() error {
	r.note()
	return r.textRows.AppendNull()
}

func TestKeysComeAlongWhenTombstonesMove(t *testing.T) { // G5
	b := newBuilder(0)
	require.NoError(t, b.Bind(target(true), &keyedText{}, func(Rows) {}))
	buffer := []byte("first")
	for i, key := range [][]byte{buffer, nil, {}} {
		r := rec(int64(i), "")
		r.Value, r.KeyPayload = nil, key
		require.NoError(t, b.NullRow(r))
	}
	copy(buffer, "XXXXX") // keys are borrowed for the call only
	moved := &keyedText{}
	ok, err := b.Rebind(target(true), moved, func(Rows) {})
	require.NoError(t, err)
	require.True(t, ok)
	r := rec(3, "a")
	r.KeyPayload = []byte("last")
	require.NoError(t, b.Row(r, []byte("a"), -1))
	require.Error(t, b.Row(rec(4, "!"), []byte("!"), -1))
	require.Equal(t, []string{"first", "null", "", "last"}, moved.keys)
}
