package icefile

import "github.com/apache/arrow-go/v18/parquet/compress"

// ManifestsAtOnce are read from the store, which is far away. The library takes one for each processor, and a process
// that was quiet has one.
const ManifestsAtOnce = 8

// The library decodes all pages of a process with one decoder, and that takes as many at once as the first to use it
// finds processors. It is used once here, while all are there.
var _ = decoder()

// decoder has the decoder made and says whether there is one.
func decoder() bool {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err == nil {
		codec.Decode(nil, nil)
	}
	return err == nil
}
