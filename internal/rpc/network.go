package rpc

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"google.golang.org/grpc"

	"github.com/icestream/icestream/internal/config"
)

// Network is how a service is reached and reaches others. The zero value is the network of the machine.
type Network struct {
	// Listen opens an address; nil means TCP, or a socket of the machine where the address is one (config.Socket).
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Dial connects to an address; nil means TCP, after a look-up of the name, or a socket of the machine.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Call sees every unary call of the clients just before it is sent; nil means nobody does.
	Call grpc.UnaryClientInterceptor
	// HTTP carries requests to the catalog; nil means the transport that their settings ask for.
	HTTP http.RoundTripper
}

func (n Network) listen(ctx context.Context, address string) (net.Listener, error) {
	if n.Listen != nil {
		return n.Listen(ctx, address)
	}
	if path, ok := config.Socket(address); ok {
		return listenSocket(ctx, path)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

// Reach connects to address (host:port, or a socket of the machine) and hangs up: its error says why nothing answers
// there, which the words of a gRPC client do not.
func Reach(ctx context.Context, address string) error {
	network := "tcp"
	if path, ok := config.Socket(address); ok {
		network, address = "unix", path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// client returns what the network changes about a client of address.
func (n Network) client(address string) (target string, options []grpc.DialOption) {
	if n.Call != nil {
		options = append(options, grpc.WithChainUnaryInterceptor(n.Call))
	}
	if n.Dial == nil {
		if path, ok := config.Socket(address); ok { // the target is only a name, which calls carry as their authority
			return "passthrough:///localhost", append(options, dialSocket(path))
		}
		return address, options
	}
	return fmt.Sprintf("passthrough:///%s", address), append(options, grpc.WithContextDialer(n.Dial))
}
