package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

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
