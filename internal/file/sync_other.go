//go:build !linux

package file

// Sync flushes the file through every cache the system lets us name.
func (f osFile) Sync() error { return f.File.Sync() }
