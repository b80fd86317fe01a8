// Package sock lets a goroutine keep its processor while it moves bytes over a connection.
//
// For the runtime a call of the kernel is one that may block. While one runs, a thread of the runtime's own looks every
// 20 µs whether it has taken so long that the processor should go to another thread, and a write of half a MiB takes longer:
// of a service that hands on batches, that thread and the hand-overs were a tenth of the CPU. Sockets of Go never block in
// the kernel, which copies and returns, so nothing is gained by either.
package sock

import "net"

// ReadyReader reads with memory that is asked for when there is something to read. Keep's connections are ones where the
// system and the build have it.
type ReadyReader interface {
	// ReadReady waits until something is there and reads it into what get returns. Where that comes to nothing, an end or an
	// error, what get returned is handed to give, and asked for anew. It returns io.EOF at the end.
	ReadReady(get func() []byte, give func()) (int, error)
}

// Keep returns conn with reads and writes that keep the processor; deadlines, Close and errors are those of conn. What has no
// descriptor comes back as it is.
func Keep(conn net.Conn) net.Conn { return keep(conn) }
