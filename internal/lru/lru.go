// Package lru keeps the values that were used most recently.
package lru

import "container/list"

// Cache holds up to a limit of values; beyond it the one that was not used for longest
// is dropped. Its user holds the lock.
type Cache[K comparable, V any] struct {
	limit int
	order *list.List // front is the most recently used
	byKey map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// New makes an empty cache.
func New[K comparable, V any](limit int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, order: list.New(), byKey: map[K]*list.Element{}}
}

// Get is a use of the value.
func (c *Cache[K, V]) Get(key K) (V, bool) {
	e, found := c.byKey[key]
	if !found {
		var none V
		return none, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// Put adds or replaces a value, which is a use of it.
func (c *Cache[K, V]) Put(key K, value V) {
	if e, found := c.byKey[key]; found {
		e.Value.(*entry[K, V]).value = value
		c.order.MoveToFront(e)
		return
	}
	c.byKey[key] = c.order.PushFront(&entry[K, V]{key, value})
	if c.order.Len() > c.limit {
		c.remove(c.order.Back())
	}
}

// Delete drops a value, if it is there.
func (c *Cache[K, V]) Delete(key K) {
	if e, found := c.byKey[key]; found {
		c.remove(e)
	}
}

func (c *Cache[K, V]) remove(e *list.Element) {
	c.order.Remove(e)
	delete(c.byKey, e.Value.(*entry[K, V]).key)
}

// Len is the number of values.
func (c *Cache[K, V]) Len() int { return c.order.Len() }
