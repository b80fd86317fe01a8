package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/discovery"
)

// moving names another owner each time it is asked.
type moving []string

func (m *moving) Owner(context.Context, string, discovery.Role) (string, error) {
	address := (*m)[0]
	*m = (*m)[1:]
	return address, nil
}

func (*moving) Instances(context.Context, discovery.Role) ([]string, error) { return nil, nil }

// dialled notes who is called; nobody answers.
type dialled []string

func (d *dialled) Conn(address string) (*grpc.ClientConn, error) {
	*d = append(*d, address)
	return grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// G11: a table moves to another buffer, and the next stream goes there.
func TestEachStreamGoesToWhoeverOwnsTheTableThen(t *testing.T) {
	var called dialled
	log := bufferv1.NewTableLogServiceClient(whoever{&bufferClient{table: "shop.orders", resolve: &moving{"a:1", "b:1"}, dial: &called}})
	for range 2 {
		stream, err := log.Follow(t.Context(), &bufferv1.FollowRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		require.Error(t, err)
	}
	require.Equal(t, dialled{"a:1", "b:1"}, called)
}
