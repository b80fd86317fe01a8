package proto

import (
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// FuzzAppend feeds arbitrary bytes between two good records: whatever they are,
// both good rows come out unharmed (G8), and a row that is accepted agrees with
// the oracle.
func FuzzAppend(f *testing.F) {
	md := messageOf(f, everyKind, "R")
	plan := planOf(f, md)
	batch := plan.NewBatch()
	var names []string
	for _, n := range plan.Target().Mapped() {
		names = append(names, n.Name)
	}
	good := encode(f, md, `a: 1 n: "good" q { s: "x" m { key: "k" value: 2 } } rq { r: 1 } ma { key: "a" value: "b" } ub { x: "y" }`)
	f.Add(good)
	f.Add([]byte{0x0a, 0x05, 0x0a, 0x01, 0x61, 0x08, 0x05})
	f.Add([]byte{0x62, 0x0b, 0xc2, 0x10, 0xd4, 0x8e, 0xb0, 0xdc, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x01})
	m := dynamicpb.NewMessage(md)
	require.NoError(f, protobuf.Unmarshal(good, m))
	want := oracleRow(m)
	f.Fuzz(func(t *testing.T, in []byte) {
		batch.Reset()
		require.NoError(t, batch.Append(good))
		accepted := batch.Append(in) == nil
		require.NoError(t, batch.Append(good))
		columns := batch.Finish()
		last := batch.Rows() - 1
		require.True(t, same(arrowRow(names, columns, 0), want))
		require.True(t, same(arrowRow(names, columns, last), want))
		if row, valid, panicked := oracle(md, in); accepted && !panicked {
			require.True(t, valid)
			require.True(t, same(arrowRow(names, columns, 1), row))
		}
	})
}
