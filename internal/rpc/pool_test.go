package rpc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPoolKeepsOneConnectionPerAddress(t *testing.T) {
	p := NewPool(Options{})
	a, err := p.Conn("127.0.0.1:1")
	require.NoError(t, err)
	again, err := p.Conn("127.0.0.1:1")
	require.NoError(t, err)
	require.Same(t, a, again)
	b, err := p.Conn("127.0.0.1:2")
	require.NoError(t, err)
	require.NotSame(t, a, b)
	require.NoError(t, p.Close())
	c, err := p.Conn("127.0.0.1:1")
	require.NoError(t, err)
	require.NotSame(t, a, c)
	require.NoError(t, p.Close())
}
