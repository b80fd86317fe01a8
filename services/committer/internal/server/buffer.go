package server

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	bufferv1 "github.com/icestream/icestream/gen/go/icestream/buffer/v1"
	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/discovery"
	"github.com/icestream/icestream/internal/event"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/wire"
	"github.com/icestream/icestream/services/committer/internal/commit"
)

// Dialer returns the connection to an address; it keeps connections.
type Dialer interface {
	Conn(address string) (*grpc.ClientConn, error)
}

// bufferClient is the table log of one table. A stream goes to whoever owns the
// table when it begins: what was resolved once may be the address of a buffer that
// never comes back. All calls go where the last stream went. If each looked the
// owner up by itself, then while the role moves a buffer would be opened that
// nobody follows, and the one that is followed would wait for ever (G11). Each
// stream that begins has the table opened again, so this holds in every order:
//
//   - The stream moved before the call: the call reaches the new buffer.
//   - The call went before the stream moved: the new stream opens the table anew
//     where it leads, and the wish of the old buffer is forgotten with it.
//   - The role moved and the stream did not, since the old buffer lives on: the
//     stream is ended, see NewStream.
type bufferClient struct {
	table   string
	resolve discovery.Resolver
	dial    Dialer
	log     *slog.Logger

	mu sync.Mutex
	at string // where the last stream went; "" before the first
}

var (
	_ commit.Buffer            = (*bufferClient)(nil)
	_ grpc.ClientConnInterface = (*bufferClient)(nil)
)

// address returns where calls go: to the buffer of the last stream, or to the owner
// while there was none.
func (b *bufferClient) address(ctx context.Context) (string, error) {
	b.mu.Lock()
	at := b.at
	b.mu.Unlock()
	if at != "" {
		return at, nil
	}
	return b.resolve.Owner(ctx, b.table, discovery.Buffer)
}

func (b *bufferClient) conn(ctx context.Context) (*grpc.ClientConn, error) {
	address, err := b.address(ctx)
	if err != nil {
		return nil, err
	}
	return b.dial.Conn(address)
}

// Invoke implements grpc.ClientConnInterface.
func (b *bufferClient) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := b.conn(ctx)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. The stream must end with ctx; it
// also ends when the table has had another owner for some seconds.
func (b *bufferClient) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	address, err := b.resolve.Owner(ctx, b.table, discovery.Buffer)
	if err != nil {
		return nil, err
	}
	conn, err := b.dial.Conn(address)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.at = address
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer cancel()
		if now := discovery.Moved(ctx, b.resolve, b.table, discovery.Buffer, address); now != "" {
			b.log.Info("another buffer owns the table: following it", "table", b.table, "buffer", now, "before", address)
		}
	}()
	return stream, nil
}

func (b *bufferClient) client(ctx context.Context) (bufferv1.TableLogServiceClient, error) {
	conn, err := b.conn(ctx)
	if err != nil {
		return nil, err
	}
	return bufferv1.NewTableLogServiceClient(conn), nil
}

// Visible implements commit.Buffer.
func (b *bufferClient) Visible(ctx context.Context) (ident.Vector, error) {
	conn, err := b.conn(ctx)
	if err != nil {
		return nil, err
	}
	d, err := readstatev1.NewReadStateServiceClient(conn).DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: b.table})
	if err = wire.FromStatus(err); fault.ReasonOf(err) == fault.WrongDoor {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := ident.Vector{}
	for _, s := range d.GetPartitions() {
		p, err := wire.PartitionFromProto(s.GetPartition())
		if err != nil {
			return nil, err
		}
		v[p] = s.GetVisible()
	}
	return v, nil
}

// remembers returns the id of the table whose log the buffer holds, the zero id
// when it knows none of that name.
func (b *bufferClient) remembers(ctx context.Context) (ident.UUID, error) {
	conn, err := b.conn(ctx)
	if err != nil {
		return ident.UUID{}, err
	}
	d, err := readstatev1.NewReadStateServiceClient(conn).DescribeTable(ctx, &readstatev1.DescribeTableRequest{Table: b.table})
	switch err = wire.FromStatus(err); {
	case fault.ReasonOf(err) == fault.UnknownTable:
		return ident.UUID{}, nil
	case err != nil:
		return ident.UUID{}, err
	case len(d.GetSummary().GetTableUuid()) == 0:
		return ident.UUID{}, nil
	}
	return wire.UUIDFromProto(d.GetSummary().GetTableUuid())
}

// OpenTable implements commit.Buffer.
func (b *bufferClient) OpenTable(ctx context.Context, c event.Commit, schemas []event.Schema, ended []event.EndedEpoch) (*commit.Wanted, error) {
	client, err := b.client(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := client.OpenTable(ctx, &bufferv1.OpenTableRequest{
		Table: b.table, Commit: wire.CommitToProto(&c), Schemas: wire.SchemasToProto(schemas), Ended: wire.EndedEpochsToProto(ended),
	})
	if err != nil {
		return nil, wire.FromStatus(err)
	}
	w := resp.GetEpochWanted()
	if w == nil {
		return nil, nil //nolint:nilnil // nothing is wanted
	}
	return &commit.Wanted{Nonce: w.GetNonce(), Reason: w.GetReason(), AppendsWaiting: w.GetAppendsWaiting()}, nil
}

// PublishSchema implements commit.Buffer.
func (b *bufferClient) PublishSchema(ctx context.Context, table ident.UUID, epoch ident.WriterEpoch, s event.Schema) error {
	client, err := b.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.PublishSchema(ctx, &bufferv1.PublishSchemaRequest{
		Table: b.table, TableUuid: wire.UUIDToProto(table), WriterEpoch: int64(epoch), Schema: wire.SchemaToProto(&s),
	})
	return wire.FromStatus(err)
}

// GrantEpoch implements commit.Buffer.
func (b *bufferClient) GrantEpoch(ctx context.Context, nonce uint64, c event.Commit) error {
	client, err := b.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.GrantEpoch(ctx, &bufferv1.GrantEpochRequest{Table: b.table, Nonce: nonce, Commit: wire.CommitToProto(&c)})
	return wire.FromStatus(err)
}

// ReportCommit implements commit.Buffer.
func (b *bufferClient) ReportCommit(ctx context.Context, c event.Commit) error {
	client, err := b.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.ReportCommit(ctx, &bufferv1.ReportCommitRequest{Table: b.table, Commit: wire.CommitToProto(&c)})
	return wire.FromStatus(err)
}
