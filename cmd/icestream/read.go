package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	readstatev1 "github.com/icestream/icestream/gen/go/icestream/readstate/v1"
	typesv1 "github.com/icestream/icestream/gen/go/icestream/types/v1"
	"github.com/icestream/icestream/internal/fault"
	"github.com/icestream/icestream/internal/wire"
)

func readCommand() *cobra.Command {
	var (
		t       target
		format  string
		columns []string
		limit   int64
		at      string
		part    string
	)
	cmd := &cobra.Command{
		Use:   "read TABLE",
		Short: "Read hot and committed rows as one consistent table",
		Example: `  icestream read --dir ./icestream-dev shop.orders --limit 5
  icestream read -c icestream.yaml shop.orders --columns order_id,_lsn -o json
  icestream read -c icestream.yaml shop.orders --at snapshot:8744736658442914487 -o arrow > rows.arrow`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &readstatev1.ScanRequest{Table: args[0], Columns: columns, Limit: limit}
			var err error
			if req.At, err = parseAt(at); err != nil {
				return err
			}
			if req.Part, err = parsePart(part); err != nil {
				return err
			}
			return t.scan(cmd, req, format)
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table, json, csv, arrow")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to read (default all)")
	cmd.Flags().Int64Var(&limit, "limit", 0, "rows at most (default all)")
	cmd.Flags().StringVar(&at, "at", "latest", "position: latest, token:…, lsn:N, snapshot:ID, time:RFC3339")
	cmd.Flags().StringVar(&part, "part", "all", "all, hot or cold")
	return cmd
}

// parseAt reads the --at flag.
func parseAt(s string) (*readstatev1.At, error) {
	kind, value, _ := strings.Cut(s, ":")
	switch kind {
	case "", "latest":
		return nil, nil //nolint:nilnil // no position means latest, as on the wire
	case "token":
		return &readstatev1.At{Position: &readstatev1.At_Token{Token: value}}, nil
	case "lsn", "snapshot":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fault.New(fault.InvalidArgument, "--at %q: %q is no number", s, value)
		}
		if kind == "lsn" {
			return &readstatev1.At{Position: &readstatev1.At_Lsn{Lsn: n}}, nil
		}
		return &readstatev1.At{Position: &readstatev1.At_SnapshotId{SnapshotId: n}}, nil
	case "time":
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return nil, fault.New(fault.InvalidArgument, "--at %q: want time:2026-01-31T12:00:00Z", s)
		}
		return &readstatev1.At{Position: &readstatev1.At_Time{Time: timestamppb.New(at)}}, nil
	default:
		return nil, fault.New(fault.InvalidArgument, "--at %q: want latest, token:…, lsn:N, snapshot:ID or time:RFC3339", s)
	}
}

func parsePart(s string) (readstatev1.ScanPart, error) {
	switch s {
	case "all":
		return readstatev1.ScanPart_SCAN_PART_UNSPECIFIED, nil
	case "hot":
		return readstatev1.ScanPart_SCAN_PART_HOT, nil
	case "cold":
		return readstatev1.ScanPart_SCAN_PART_COLD, nil
	default:
		return 0, fault.New(fault.InvalidArgument, "--part %q: want all, hot or cold", s)
	}
}

// scan streams a Scan from readstate, or, for a dev folder with nothing
// running, from the catalog in the folder.
func (t *target) scan(cmd *cobra.Command, req *readstatev1.ScanRequest, format string) error {
	if t.dir != "" && t.addr == "" {
		c, err := t.load(cmd)
		if err != nil {
			return err
		}
		if !listening(cmd.Context(), c.Discovery.Readstate) {
			return t.scanOffline(cmd, req, format)
		}
	}
	conn, err := t.dial(cmd, readstateOf)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return printScan(cmd.Context(), conn, req, format, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// printScan prints the rows, and on errs one line with the position.
func printScan(ctx context.Context, conn grpc.ClientConnInterface, req *readstatev1.ScanRequest, format string, out, errs io.Writer) error {
	stream, err := readstatev1.NewReadStateServiceClient(conn).Scan(ctx, req)
	if err != nil {
		return wire.FromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return wire.FromStatus(err)
	}
	begin := first.GetBegin()
	rows, err := printStream(&chunkReader{next: func() ([]byte, error) {
		m, err := stream.Recv()
		if err != nil {
			return nil, wire.FromStatus(err)
		}
		return m.GetChunk().GetData(), nil
	}}, format, out)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(errs, "%d rows · snapshot %d · token %s\n", rows, begin.GetCold().GetSnapshotId(), begin.GetToken())
	return err
}

// chunkReader turns a stream of chunks into an io.Reader.
type chunkReader struct {
	next func() ([]byte, error)
	rest []byte
}

// Read implements io.Reader.
func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		b, err := c.next()
		if err != nil {
			return 0, err
		}
		c.rest = b
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// printStream prints an Arrow IPC stream and returns the number of rows.
func printStream(r io.Reader, format string, out io.Writer) (int64, error) {
	rd, err := ipc.NewReader(r)
	if err != nil {
		return 0, fmt.Errorf("reading the rows: %w", err)
	}
	defer rd.Release()
	w, err := newRowWriter(format, out, rd.Schema())
	if err != nil {
		return 0, err
	}
	rows := int64(0)
	for rd.Next() {
		rec := rd.RecordBatch()
		rows += rec.NumRows()
		if err := w.write(rec); err != nil {
			return rows, err
		}
	}
	if err := rd.Err(); err != nil && !errors.Is(err, io.EOF) {
		return rows, fmt.Errorf("reading the rows: %w", err)
	}
	return rows, w.close()
}

func tailCommand() *cobra.Command {
	var (
		t         target
		format    string
		columns   []string
		fromStart bool
		limit     int64
	)
	cmd := &cobra.Command{
		Use:   "tail TABLE",
		Short: "Print rows as they become visible, without end",
		Example: `  icestream tail --dir ./icestream-dev shop.orders --columns order_id,_lsn
  icestream tail -c icestream.yaml shop.orders --from-start -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			conn, err := t.dial(cmd, readstateOf)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			req := &readstatev1.TailRequest{Table: args[0], Columns: columns, FromStart: fromStart}
			return printTail(cmd.Context(), conn, req, format, limit, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	t.flags(cmd)
	outputFlag(cmd, &format, "table, json, csv, arrow")
	cmd.Flags().StringSliceVar(&columns, "columns", nil, "columns to read (default all)")
	cmd.Flags().BoolVar(&fromStart, "from-start", false, "begin with the first row of the table")
	cmd.Flags().Int64Var(&limit, "limit", 0, "end after that many rows (default never)")
	return cmd
}

// printTail follows a table; a stream that breaks is resumed by offset vector,
// so that no row is printed twice or missed (G4).
func printTail(ctx context.Context, conn grpc.ClientConnInterface, req *readstatev1.TailRequest, format string, limit int64, out, errs io.Writer) error {
	client := readstatev1.NewReadStateServiceClient(conn)
	total := int64(0)
	for {
		stream, err := client.Tail(ctx, req)
		if err != nil {
			return wire.FromStatus(err)
		}
		for {
			m, err := stream.Recv()
			if err != nil {
				err = wire.FromStatus(err)
				if f := fault.ReasonOf(err); f != fault.Unavailable && f != fault.NotReady {
					return err
				}
				_, _ = fmt.Fprintln(errs, "reconnecting:", fault.Describe(err))
				break
			}
			req.From, req.FromStart = m.GetPosition(), false
			if rows := m.GetRows(); rows != nil {
				if _, err := printStream(bytes.NewReader(rows.GetData()), format, out); err != nil {
					return err
				}
				if total += rows.GetRows(); limit > 0 && total >= limit {
					return nil
				}
			} else if c := m.GetCommit(); c != nil {
				_, _ = fmt.Fprintf(errs, "-- committed: snapshot %d\n", c.GetSnapshotId())
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// partitionName prints a topic partition for people.
func partitionName(p *typesv1.Partition) string {
	return fmt.Sprintf("%s[%d]", p.GetTopic(), p.GetNumber())
}
