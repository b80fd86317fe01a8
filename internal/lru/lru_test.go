package lru

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatWasNotUsedForLongestIsDropped(t *testing.T) {
	c := New[int, string](2)
	c.Put(1, "a")
	c.Put(2, "b")
	_, found := c.Get(1)
	require.True(t, found)
	c.Put(3, "c")
	_, found = c.Get(2)
	require.False(t, found)
	c.Put(1, "d") // replaced, and used
	c.Put(4, "e")
	v, found := c.Get(1)
	require.True(t, found)
	require.Equal(t, "d", v)
	_, found = c.Get(3)
	require.False(t, found)
	require.Equal(t, 2, c.Len())
}

func TestDeletedValuesMakeRoom(t *testing.T) {
	c := New[int, int](2)
	c.Put(1, 1)
	c.Put(2, 2)
	c.Delete(2)
	c.Delete(7)
	c.Put(3, 3)
	_, found := c.Get(1)
	require.True(t, found)
	_, found = c.Get(2)
	require.False(t, found)
}
