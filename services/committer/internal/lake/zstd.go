package lake

import (
	"runtime"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

// zstdWindow bounds what an encoder keeps of a page that is larger than a block.
const zstdWindow = 1 << 20

// zstdCodec compresses pages with encoders that are kept. The library's own come
// from a pool that every collection empties, and a new one is 9 MiB.
type zstdCodec struct {
	library
	idle chan *zstd.Encoder
}

// library is what the library's codec can do, decompressing included.
type library interface {
	compress.Codec
	compress.StreamingCodec
	compress.ErrorCodec
}

// The library's table of codecs has no lock, and whoever opens a Parquet file reads it:
// it may be changed before main begins, and never after.
var _ = keepEncoders()

// keepEncoders puts zstdCodec in the place of the library's codec and says whether it could.
func keepEncoders() bool {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	theirs, ok := codec.(library)
	if err != nil || !ok {
		return false // another release of the library: its own codec does the same, at more cost
	}
	compress.RegisterCodec(compress.Codecs.Zstd, &zstdCodec{library: theirs, idle: make(chan *zstd.Encoder, runtime.GOMAXPROCS(0))})
	// All decoding of a process shares one decoder, which takes as many pages at once as the first to use it finds
	// processors: that is asked while all are there.
	theirs.Decode(nil, nil)
	return true
}

// EncodeLevel compresses a page. What the library asks of its encoders is kept, but
// for the checksum, which no page of another writer has: 4 bytes, and a pass over it.
func (c *zstdCodec) EncodeLevel(dst, src []byte, level int) []byte {
	if level != zstdLevel {
		return c.library.EncodeLevel(dst, src, level)
	}
	var e *zstd.Encoder
	select {
	case e = <-c.idle:
	default:
		e, _ = zstd.NewWriter(nil, // fails for options out of range alone
			zstd.WithWindowSize(zstdWindow), // before the level, which else makes blocks of 64 KiB: most pages were two
			zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(zstdLevel)), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false), zstd.WithAllLitEntropyCompression(true))
	}
	out := e.EncodeAll(src, dst[:0])
	select {
	case c.idle <- e:
	default:
	}
	return out
}
