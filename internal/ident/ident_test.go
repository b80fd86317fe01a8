package ident_test

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/icestream/icestream/internal/ident"
)

func TestUUIDsAreReadWithAndWithoutDashes(t *testing.T) {
	const text = "0188cafe-0000-7000-8000-00000000abcd"
	u, err := ident.ParseUUID(text)
	require.NoError(t, err)
	require.Equal(t, text, u.String())
	v, err := ident.ParseUUID("0188CAFE0000700080000000" + "0000ABCD")
	require.NoError(t, err)
	require.Equal(t, u, v)
	for _, bad := range []string{"", "0188cafe", text + "0", "g188cafe-0000-7000-8000-00000000abcd"} {
		_, err := ident.ParseUUID(bad)
		require.ErrorIs(t, err, ident.ErrUUID)
	}
}

func TestDigestsAddModulo2To128InAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	mod := new(big.Int).Lsh(big.NewInt(1), 128)
	for range 200 {
		var a, b, c ident.Digest
		for i := range a {
			a[i], b[i], c[i] = byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())
		}
		sum := new(big.Int).Add(new(big.Int).SetBytes(a[:]), new(big.Int).SetBytes(b[:]))
		sum.Mod(sum, mod)
		ab := a.Add(b)
		require.Equal(t, sum, new(big.Int).SetBytes(ab[:]))
		require.Equal(t, a.Add(b).Add(c), c.Add(a).Add(b))
	}
}

func TestAVectorCoversOnlyWhatItNames(t *testing.T) {
	p, q := ident.Partition{Topic: "a"}, ident.Partition{Topic: "a", Number: 1}
	v := ident.Vector{p: 5}
	require.True(t, v.Covers(ident.Vector{p: 5}))
	require.True(t, v.Covers(nil))
	require.False(t, v.Covers(ident.Vector{p: 6}))
	require.False(t, v.Covers(ident.Vector{q: 0}), "unknown is not position 0")
	require.True(t, v.Raise(q, 0))
	require.False(t, v.Raise(p, 4))
	require.Equal(t, []ident.Partition{p, q}, v.Partitions())
}

func TestRangesAreHalfOpen(t *testing.T) {
	r := ident.Range{First: 3, Next: 5}
	require.False(t, r.Contains(2))
	require.True(t, r.Contains(3))
	require.False(t, r.Contains(5))
	require.False(t, r.Overlaps(ident.Range{First: 5, Next: 9}))
	require.True(t, r.Overlaps(ident.Range{First: 4, Next: 5}))
	require.True(t, ident.Range{First: 4, Next: 4}.Empty())
}
