package cold

import "github.com/apache/arrow-go/v18/parquet/compress"

// The library decodes all pages of a process with one decoder, and that takes as many at once as the first to use it
// finds processors. It is used once here, while all are there: a process that is quiet has one.
var _ = decoder()

// decoder has the decoder made and says whether there is one.
func decoder() bool {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err == nil {
		codec.Decode(nil, nil)
	}
	return err == nil
}
