//go:build bench

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/rpc"
	"github.com/icestream/icestream/internal/wire"
)

// The hop: batches of the size that ingest sends, as it sends them, over loopback,
// with an acknowledgement for each and a few under way. Next to it the same bytes
// over a plain TCP connection.
const (
	hopBatch    = 1 << 20
	hopPieces   = 40 // Arrow buffers of a batch
	hopInFlight = 4
	hopBytes    = 1500 << 20
	hopRounds   = 4
)

// hop is the best of the rounds for each way.
type hop struct{ grpc, tcp, oneBlock flow }

// flow is bytes per second, and CPU seconds per gigabyte of both ends together.
type flow struct{ rate, cpu float64 }

func (f flow) better(g flow) flow {
	if g.rate > f.rate {
		return g
	}
	return f
}

func benchHop(t *testing.T) hop {
	t.Helper()
	var best hop
	for range hopRounds {
		best.tcp = best.tcp.better(tcpHop(t, func(n uint64) []byte { return make([]byte, n) }))
		block := make([]byte, hopBatch)
		best.oneBlock = best.oneBlock.better(tcpHop(t, func(n uint64) []byte { return block[:n] }))
		best.grpc = best.grpc.better(grpcHop(t))
	}
	return best
}

// pieces is a batch in as many buffers as an Arrow batch has.
func pieces() [][]byte {
	r := rand.New(rand.NewPCG(1, 1))
	out := make([][]byte, hopPieces)
	for i := range out {
		out[i] = make([]byte, hopBatch/hopPieces)
		for j := range out[i] {
			out[i][j] = byte(r.Uint32())
		}
	}
	return out
}

// flowSince is what went through since begun, when the process had used cpu.
func flowSince(t *testing.T, begun time.Time, cpu time.Duration) flow {
	t.Helper()
	const sent = float64(hopBytes / hopBatch * hopBatch)
	return flow{rate: sent / time.Since(begun).Seconds(), cpu: (cpuTime(t) - cpu).Seconds() / sent * 1e9}
}

// credit lets hopInFlight batches be under way.
func credit() chan struct{} {
	c := make(chan struct{}, hopInFlight)
	for range hopInFlight {
		c <- struct{}{}
	}
	return c
}

// sink answers every entry.
type sink struct {
	bufferv1.UnimplementedTableLogServiceServer
}

func (sink) Append(s bufferv1.TableLogService_AppendServer) error {
	answer := &bufferv1.AppendResponse{Message: &bufferv1.AppendResponse_Result{
		Result: &bufferv1.AppendResult{Outcome: bufferv1.AppendOutcome_APPEND_OUTCOME_ACCEPTED, AppendedNext: 4096},
	}}
	for {
		var f wire.AppendFrame
		if err := s.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := s.SendMsg(answer); err != nil {
			return err
		}
	}
}

func grpcHop(t *testing.T) flow {
	t.Helper()
	o := rpc.Options{Service: "bench", Codec: wire.Codec{}, ToStatus: wire.ToStatus, FromStatus: wire.FromStatus}
	ctx, cancel := context.WithCancel(t.Context())
	server, err := rpc.Listen(ctx, "127.0.0.1:0", o)
	require.NoError(t, err)
	bufferv1.RegisterTableLogServiceServer(server.Registrar(), sink{})
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-served) }()
	conn, err := rpc.Dial(server.Address(), o)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	stream, err := bufferv1.NewTableLogServiceClient(conn).Append(ctx)
	require.NoError(t, err)

	entry := &event.Append{Header: event.Header{
		Partition: ident.Partition{Topic: "bench"}, Range: ident.Range{First: 0, Next: 4096}, Fingerprint: "bench", Rows: 4096,
	}}
	frame := &wire.AppendFrame{Entry: entry, RowSlices: pieces()}
	free, acks := credit(), make(chan error, 1)
	begun, cpu := time.Now(), cpuTime(t)
	go func() {
		for range hopBytes / hopBatch {
			var answer bufferv1.AppendResponse
			if err := stream.RecvMsg(&answer); err != nil {
				acks <- err
				return
			}
			free <- struct{}{}
		}
		acks <- nil
	}()
	for range hopBytes / hopBatch {
		select {
		case <-free:
		case err := <-acks:
			require.NoError(t, err)
		}
		require.NoError(t, stream.SendMsg(frame))
	}
	require.NoError(t, <-acks)
	out := flowSince(t, begun, cpu)
	require.NoError(t, stream.CloseSend())
	return out
}

// tcpHop receives each message into what memory gives for its size.
func tcpHop(t *testing.T, memory func(size uint64) []byte) flow {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	served := make(chan error, 1)
	go func() { served <- serveTCP(l, memory) }()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)

	batch := pieces()
	head := binary.BigEndian.AppendUint64(nil, uint64(len(batch)*len(batch[0])))
	free, acks := credit(), make(chan error, 1)
	begun, cpu := time.Now(), cpuTime(t)
	go func() {
		var ack [8]byte
		for range hopBytes / hopBatch {
			if _, err := io.ReadFull(conn, ack[:]); err != nil {
				acks <- err
				return
			}
			free <- struct{}{}
		}
		acks <- nil
	}()
	for range hopBytes / hopBatch {
		select {
		case <-free:
		case err := <-acks:
			require.NoError(t, err)
		}
		message := append(net.Buffers{head}, batch...)
		_, err := message.WriteTo(conn)
		require.NoError(t, err)
	}
	require.NoError(t, <-acks)
	out := flowSince(t, begun, cpu)
	require.NoError(t, conn.Close())
	require.NoError(t, <-served)
	return out
}

// serveTCP reads length and bytes, and answers each message with eight bytes.
func serveTCP(l net.Listener, memory func(size uint64) []byte) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var head [8]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := io.ReadFull(conn, memory(binary.BigEndian.Uint64(head[:]))); err != nil {
			return err
		}
		if _, err := conn.Write(head[:]); err != nil {
			return err
		}
	}
}
