// Package rpc makes gRPC servers and clients the way every hop of Icestream needs them: message limits that follow
// record.max, flow-control windows that were measured, keep-alive that notices a half-dead peer within seconds, a
// deadline on every unary call, panics that end a call instead of the process, typed errors, metrics, health and
// reflection.
//
// The codec and the mapping of errors are handed in, so that this package knows no messages.
package rpc

import (
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"

	"github.com/icestream/icestream/internal/obs"
)

// Flow control. The windows are static: estimation starts too small for a stream of Arrow batches. Two batches of a MiB
// fit, so that the sender never waits for the receiver's updates; with 256 KiB it did and was a third slower on loopback,
// and from 4 MiB on unread bytes leave the cache.
const (
	streamWindow     = 2 << 20
	connectionWindow = 4 << 20

	// What is read and written at once. Whoever writes wakes the other side, which then wakes a goroutine of its own for
	// each frame that it finds: with 128 KiB that was a fifth more of the CPU of a service that takes a batch now and then.
	ioBuffer = 512 << 10
)

// Keep-alive. Both ends agree: the server allows pings at half of the client's interval.
const (
	pingEvery   = 10 * time.Second // the least that a gRPC client does
	pingTimeout = 5 * time.Second
)

// DefaultMaxMessage is the message limit where Options does not say: four records of 32 MiB and 1 MiB.
const DefaultMaxMessage = 4*32<<20 + 1<<20

// DefaultTimeout is the deadline that a client gives to a unary call which has none.
const DefaultTimeout = 30 * time.Second

// Options are shared by servers and clients. The zero value is usable: protobuf messages, no mapping, no metrics.
type Options struct {
	// Service names the server, or the owner of the client, in metrics and logs.
	Service string
	// Codec replaces gRPC's codec for protobuf messages. Nil keeps it.
	Codec encoding.CodecV2
	// ToStatus turns what a handler returns into a status error; FromStatus turns a status error back.
	ToStatus, FromStatus func(error) error
	// MaxMessage bounds a message in bytes, both ways (config.Limits.MaxMessage). Zero means DefaultMaxMessage.
	MaxMessage int
	// Credentials of the transport. Nil means plain text.
	Credentials credentials.TransportCredentials
	// Timeout is the deadline of a client's unary call whose context has none. Zero means DefaultTimeout.
	Timeout time.Duration
	// Network replaces that of the machine.
	Network Network
	// Metrics may be nil.
	Metrics *obs.Metrics
	// Log may be nil.
	Log *slog.Logger
}

func (o Options) normal() Options {
	same := func(err error) error { return err }
	if o.ToStatus == nil {
		o.ToStatus = same
	}
	if o.FromStatus == nil {
		o.FromStatus = same
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = DefaultMaxMessage
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Defs returns the metrics of this package.
func Defs() []obs.Def {
	return []obs.Def{serverCalls(), serverSeconds(), serverOpen(), clientCalls(), clientSeconds()}
}

func serverCalls() obs.Def {
	return obs.Def{Name: "icestream_rpc_server_calls_total", Help: "Calls that a server has answered, by gRPC code; a stream counts when it ends.", Kind: obs.KindCounter, Labels: []string{"service", "method", "code"}}
}

func serverSeconds() obs.Def {
	return obs.Def{Name: "icestream_rpc_server_seconds", Help: "Time a server took to answer a unary call.", Kind: obs.KindHistogram, Labels: []string{"service", "method"}}
}

func serverOpen() obs.Def {
	return obs.Def{Name: "icestream_rpc_server_open", Help: "Calls and streams in progress at a server.", Kind: obs.KindGauge, Labels: []string{"service", "method"}}
}

func clientCalls() obs.Def {
	return obs.Def{Name: "icestream_rpc_client_calls_total", Help: "Unary calls that a client has made and streams that it failed to open, by gRPC code.", Kind: obs.KindCounter, Labels: []string{"service", "method", "code"}}
}

func clientSeconds() obs.Def {
	return obs.Def{Name: "icestream_rpc_client_seconds", Help: "Time until a unary call was answered, as its client saw it.", Kind: obs.KindHistogram, Labels: []string{"service", "method"}}
}
