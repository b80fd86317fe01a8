// Package s3file makes the S3 clients of the Iceberg library such that a failure is
// never taken for a file that is not there.
//
// The blob library below takes any failure whose text has "301" in it for one of a
// missing bucket, be that in the name of a file, in the address of the store or in
// a request id: a store that is down would pass for one that has lost the file.
//
// And a client by itself waits for an answer for ever: the library binds it to no
// deadline of its caller. So requests are bounded here.
package s3file

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	iceio "github.com/apache/iceberg-go/io"
	s3io "github.com/apache/iceberg-go/io/gocloud/s3"
	"github.com/apache/iceberg-go/utils"
	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go/middleware"

	"github.com/icestream/icestream/internal/fault"
)

// schemes are those of a location in S3.
var schemes = []string{"s3", "s3a", "s3n"}

// unguarded is a scheme for which the library makes the same clients. It is how the
// library's own maker of clients is still reached; Check keeps others away from it.
const unguarded = "oss://"

// A part of an upload is 5-8 MiB, so the whole of a request is bounded too.
const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 5 * time.Minute
	idlePerHost    = 32
)

// Limits bound what a client waits for. Zero values get the defaults.
type Limits struct {
	Answer   time.Duration // 30 s until the store begins to answer a request
	Attempts int           // 4, with pauses of seconds between them
}

type limitsKey struct{}

// Within gives ctx the limits of the clients that are made with it.
func Within(ctx context.Context, l Limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

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

// Check refuses a location whose files would be reached by clients that are not guarded.
func Check(location string) error {
	if scheme, _, _ := strings.Cut(location, ":"); strings.EqualFold(scheme, "oss") {
		return fault.New(fault.Unsupported, "locations oss:// are not supported: %s: write s3://, and the address of the store as s3.endpoint", location)
	}
	return nil
}

// Config reads the settings of clients from the properties of a catalog, bounded.
func Config(ctx context.Context, props map[string]string) (*aws.Config, error) {
	cfg, err := s3io.ParseAWSConfig(ctx, props)
	if err != nil {
		return nil, err
	}
	limits, _ := ctx.Value(limitsKey{}).(Limits)
	client, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		client = awshttp.NewBuildableClient()
	}
	client = client.WithTimeout(requestTimeout).WithTransportOptions(func(t *http.Transport) {
		t.ResponseHeaderTimeout = cmp.Or(limits.Answer, 30*time.Second)
		t.MaxIdleConnsPerHost = idlePerHost
	})
	if props[iceio.S3ConnectTimeout] == "" {
		client = client.WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout })
	}
	cfg.HTTPClient = client
	cfg.RetryMaxAttempts = cmp.Or(limits.Attempts, 4)
	return cfg, nil
}

// open makes the file system of a bucket as the library does, from the settings in
// ctx (utils.WithAwsConfig of a Config) or else from props, with a client that is
// guarded.
func open(ctx context.Context, at *url.URL, props map[string]string) (iceio.IO, error) {
	given := utils.GetAwsConfig(ctx)
	if given == nil {
		var err error
		if given, err = Config(ctx, props); err != nil {
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
