package proto

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// Whatever stands behind a varint, and however little.
func TestVarintsAreReadAsTheirLibraryReadsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	check := func(b []byte) {
		want, n := protowire.ConsumeVarint(b)
		if n < 0 {
			n = -1
		}
		got, after := varint(append([]byte{0x55}, b...), 1)
		if n < 0 {
			require.Negative(t, after, "%x", b)
			return
		}
		require.Equal(t, n+1, after, "%x", b)
		require.Equal(t, want, got, "%x", b)
	}
	for bit := range 64 {
		for _, v := range []uint64{1 << bit, 1<<bit - 1, ^uint64(0) >> bit} {
			b := protowire.AppendVarint(nil, v)
			for len(b) < 24 {
				check(b)
				b = append(b, byte(r.Uint32()))
			}
		}
	}
	for range 100_000 {
		b := make([]byte, r.IntN(24))
		for i := range b {
			if b[i] = byte(r.Uint32()); r.IntN(3) > 0 { // long ones are not rare
				b[i] |= 0x80
			}
		}
		check(b)
	}
}
