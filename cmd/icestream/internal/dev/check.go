package dev

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/devpeers/orders"
	"github.com/icestream/icestream/internal/wire"
)

// checker compares what readers get with the generator's ledger.
type checker struct {
	api    readstatev1.ReadStateServiceClient
	ledger *orders.Ledger
	table  string
}

func newChecker(conn grpc.ClientConnInterface, ledger *orders.Ledger, table string) *checker {
	return &checker{api: readstatev1.NewReadStateServiceClient(conn), ledger: ledger, table: table}
}

// union reads hot and cold rows at one position and checks that they are exactly
// the ledger's rows below that position: none missing, doubled or altered (G1, G4).
func (c *checker) union(ctx context.Context) (orders.Report, error) {
	stream, err := c.api.Scan(ctx, &readstatev1.ScanRequest{Table: c.table})
	if err != nil {
		return orders.Report{}, wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return orders.Report{}, wire.FromStatus(err)
	}
	vector := map[int32]int64{}
	for _, o := range first.GetBegin().GetVector().GetOffsets() {
		vector[o.GetPartition().GetNumber()] = o.GetNext()
	}
	// The broker may show a record to readers before the producer has its
	// acknowledgement; then the ledger does not know it yet.
	if err := c.ledger.WaitFor(ctx, vector); err != nil {
		return orders.Report{}, err
	}
	check := c.ledger.NewCheck(orders.OutcomeRow, vector)
	err = arrowx.EachBatch(&arrowx.Chunks{Next: func() ([]byte, error) {
		m, err := stream.Recv()
		return m.GetChunk().GetData(), wire.FromStatus(err)
	}}, check.AddRows)
	if err != nil {
		return orders.Report{}, fmt.Errorf("reading the union of %s: %w", c.table, err)
	}
	return check.Finish(), nil
}

// quarantine reads the quarantine table from its files and compares it.
func (c *checker) quarantine(ctx context.Context, cat *catalog.Server, name []string) (orders.Report, error) {
	check := c.ledger.NewCheck(orders.OutcomeQuarantine, nil)
	if c.ledger.Count(orders.OutcomeQuarantine) > 0 {
		if err := cat.Scan(ctx, name, check.AddQuarantined); err != nil {
			return orders.Report{}, err
		}
	}
	return check.Finish(), nil
}

// files reads the table from its files, with the Iceberg library alone.
func (c *checker) files(ctx context.Context, cat *catalog.Server, name []string) (orders.Report, error) {
	check := c.ledger.NewCheck(orders.OutcomeRow, nil)
	if err := cat.Scan(ctx, name, check.AddRows); err != nil {
		return orders.Report{}, err
	}
	return check.Finish(), nil
}
