// Package s3file makes the S3 clients of the Iceberg library such that a failure is
// never taken for a file that is not there.
//
// The blob library below takes any failure whose text has "301" in it for one of a
// missing bucket, be that in the name of a file, in the address of the store or in
// a request id: a store that is down would pass for one that has lost the file.
package s3file

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"

	iceio "github.com/apache/iceberg-go/io"
	s3io "github.com/apache/iceberg-go/io/gocloud/s3"
	"github.com/apache/iceberg-go/utils"
	"github.com/aws/smithy-go/middleware"
)

// schemes are those of a location in S3.
var schemes = []string{"s3", "s3a", "s3n"}

// unguarded is a scheme for which the library makes the same clients. Nothing of
// ours is there: it is how the library's own maker of clients is still reached.
const unguarded = "oss://"

var registering sync.Once

// Register guards the S3 clients of the whole process, whoever makes them: the
// library for a catalog, for the settings that a REST catalog vends with a table,
// or for us. It may be called any number of times, by anybody.
func Register() {
	registering.Do(func() {
		for _, scheme := range schemes {
			iceio.Unregister(scheme)
			iceio.Register(scheme, open)
		}
	})
}

// open makes the file system of a bucket as the library does, from the settings in
// ctx (utils.WithAwsConfig) or else from props, with a client that is guarded.
func open(ctx context.Context, at *url.URL, props map[string]string) (iceio.IO, error) {
	given := utils.GetAwsConfig(ctx)
	if given == nil {
		var err error
		if given, err = s3io.ParseAWSConfig(ctx, props); err != nil {
			return nil, err
		}
	}
	cfg := *given
	cfg.APIOptions = append(slices.Clip(cfg.APIOptions), unmistakable)
	return iceio.LoadFS(utils.WithAwsConfig(ctx, &cfg), props, unguarded+at.Host)
}

// unmistakable words the errors of a client so that the blob library sees in them
// what the store said.
func unmistakable(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("icestream/unmistakable",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			out, meta, err := next.HandleInitialize(ctx, in)
			if err != nil {
				err = failure{err}
			}
			return out, meta, err
		}), middleware.Before)
}

type failure struct{ err error }

func (f failure) Error() string { return strings.ReplaceAll(f.err.Error(), "301", "30%31") }
func (f failure) Unwrap() error { return f.err }
