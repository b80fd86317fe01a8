package main

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/spf13/cobra"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	"github.com/icestream/icestream/internal/arrowx"
	"github.com/icestream/icestream/internal/config"
	"github.com/icestream/icestream/internal/devpeers/catalog"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/ident"
	"github.com/icestream/icestream/internal/near"
	"github.com/icestream/icestream/internal/rpc"
)

// listening reports whether something answers at an address.
func listening(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return rpc.Reach(ctx, address) == nil
}

// lake loads the configuration for a verb that needs only the catalog. For the
// folder of a `dev` run that has ended it opens the catalog in the folder.
func (t *target) lake(cmd *cobra.Command) (c *config.Config, closePeers func(), err error) {
	if c, err = t.file(cmd); err != nil {
		return nil, nil, err
	}
	nothing := func() {}
	if t.dir == "" {
		return c, nothing, nil
	}
	u, err := url.Parse(c.Catalog.URI)
	if err == nil && listening(cmd.Context(), u.Host) {
		return c, nothing, nil
	}
	server, err := t.openCatalog(cmd)
	if err != nil {
		return nil, nil, err
	}
	c.Catalog.URI = server.URL()
	return c, func() { _ = server.Close() }, nil
}

// openCatalog serves the catalog of a dev folder from this process.
func (t *target) openCatalog(cmd *cobra.Command) (*catalog.Server, error) {
	dir, err := filepath.Abs(t.dir)
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, "--dir %s: %w", t.dir, err)
	}
	return catalog.Start(cmd.Context(), catalog.Config{Dir: dir})
}

// errEnough ends a scan at its limit.
var errEnough = errors.New("enough rows")

// scanOffline prints the committed rows of a dev folder from the catalog in it;
// nothing needs to run.
func (t *target) scanOffline(cmd *cobra.Command, req *readstatev1.ScanRequest, format string) error {
	if req.GetAt() != nil || req.GetPart() == readstatev1.ScanPart_SCAN_PART_HOT {
		return fault.New(fault.Unavailable, "only the newest committed rows of %s can be read here: nothing is running in %s that serves others",
			req.GetTable(), t.dir)
	}
	server, err := t.openCatalog(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	var w rowWriter
	rows := int64(0)
	err = server.Scan(cmd.Context(), strings.Split(req.GetTable(), "."), func(rec arrow.RecordBatch) error {
		out, err := arrowx.Project(rec, req.GetColumns())
		if err != nil {
			return err
		}
		defer out.Release()
		if left := req.GetLimit() - rows; req.GetLimit() > 0 && out.NumRows() > left {
			out = out.NewSlice(0, left)
		}
		if w == nil {
			if w, err = newRowWriter(format, cmd.OutOrStdout(), out.Schema()); err != nil {
				return err
			}
		}
		if err := w.write(out); err != nil {
			return err
		}
		if rows += out.NumRows(); req.GetLimit() > 0 && rows >= req.GetLimit() {
			return errEnough
		}
		return nil
	})
	if fault.ReasonOf(err) == fault.UnknownTable {
		return noTable(cmd.Context(), server, req.GetTable(), err)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if w != nil {
		err = w.close()
	}
	cmd.PrintErrf("%d rows\n", rows)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// noTable adds to the error that the catalog of a dev folder holds no such table
// which one was meant perhaps, or when it will be there.
func noTable(ctx context.Context, server *catalog.Server, name string, err error) error {
	known := server.Tables(ctx)
	if main, ok := ident.MainTable(name); ok && slices.Contains(known, main) {
		return fault.New(fault.UnknownTable, "%w: no bad record of %s is committed yet", err, main)
	}
	return fault.New(fault.UnknownTable, "%w%s", err, near.Hint(name, known))
}
