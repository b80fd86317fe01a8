package registry

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

// cache keeps the most recently used entries. Its user holds the lock.
type cache[K comparable, V any] struct {
	limit int
	order *list.List // front is the most recently used
	byKey map[K]*list.Element
}

type cached[K comparable, V any] struct {
	key   K
	value V
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, order: list.New(), byKey: map[K]*list.Element{}}
}

func (c *cache[K, V]) get(key K) (V, bool) {
	e, found := c.byKey[key]
	if !found {
		var none V
		return none, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached[K, V]).value, true
}

func (c *cache[K, V]) put(key K, value V) {
	if e, found := c.byKey[key]; found {
		e.Value.(*cached[K, V]).value = value
		c.order.MoveToFront(e)
		return
	}
	c.byKey[key] = c.order.PushFront(&cached[K, V]{key, value})
	if c.order.Len() > c.limit {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.byKey, oldest.Value.(*cached[K, V]).key)
	}
}

// store keeps answers between runs. It is a convenience: whatever goes wrong with
// it means only that an answer is not there.
type store interface {
	get(key string) ([]byte, bool)
	put(key string, body []byte)
}

// folder is a store of one file per answer.
type folder struct{ dir string }

func newFolder(dir, identity string) *folder { return &folder{filepath.Join(dir, identity)} }

func (f *folder) path(key string) string { return filepath.Join(f.dir, key+".json") }

func (f *folder) get(key string) ([]byte, bool) {
	b, err := os.ReadFile(f.path(key))
	return b, err == nil
}

// put replaces the file in one step, so that a crash leaves the old or the new
// answer and never half of one.
func (f *folder) put(key string, body []byte) {
	if os.MkdirAll(f.dir, 0o755) != nil {
		return
	}
	tmp, err := os.CreateTemp(f.dir, key+".*.tmp")
	if err != nil {
		return
	}
	_, err = tmp.Write(body)
	if closing := tmp.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(tmp.Name(), f.path(key))
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}
